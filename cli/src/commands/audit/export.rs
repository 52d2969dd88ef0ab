//! `audit export`: the log as one file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use ledger_audit::Exported;
use serde_json::json;
use tokio::fs::{File, OpenOptions};
use tokio::io::BufWriter;

use super::progress::Progress;
use super::told;
use crate::archive::ArchiveOption;
use crate::exit::{Failure, Meaning};
use crate::lifecycle::Signals;
use crate::limits::CONNECTIONS_OF_ONE_CALL;
use crate::output::Output;
use crate::postgres::{self, PostgresOption};
use crate::usage;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The file; one that is there is replaced once the new one is whole
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    archive: ArchiveOption,
    #[command(flatten)]
    postgres: PostgresOption,
}

/// A file under another name until it is whole. What is dropped before is removed.
struct Unfinished {
    path: PathBuf,
    is_whole: bool,
}

impl Unfinished {
    /// Makes the file, beside the one that it will be.
    async fn create(out: &Path) -> Result<(Self, File), Failure> {
        let name = out
            .file_name()
            .ok_or_else(|| Failure::usage(format!("--out {} names no file", out.display())))?;
        let mut name = name.to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = out.with_file_name(name);
        let options = OpenOptions::new().write(true).create_new(true).clone();
        let file = options.open(&path).await;
        let file = file.or_usage(format!("{} cannot be made", path.display()))?;
        let is_whole = false;
        Ok((Self { path, is_whole }, file))
    }

    /// Gives the file its name, for good.
    async fn finish(mut self, file: &File, out: &Path) -> io::Result<()> {
        file.sync_all().await?;
        tokio::fs::rename(&self.path, out).await?;
        self.is_whole = true;
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new("."))).await?;
        folder.sync_all().await
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_whole {
            // Nothing more can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub(super) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let pool = postgres::connect(&options.postgres.postgres, CONNECTIONS_OF_ONE_CALL).await?;
    let out = &options.out;
    let began = Instant::now();
    let mut signals = Signals::listen()?;
    let (unfinished, file) = Unfinished::create(out).await?;
    let mut writer = BufWriter::new(file);
    let mut progress = Progress::of("exported");
    let export = ledger_audit::export(
        &pool,
        options.archive.archive.as_ref(),
        &mut writer,
        |done, all| {
            progress.tell(done, all);
        },
    );
    let exported = tokio::select! {
        exported = export => exported.map_err(told)?,
        signal = signals.asked() => {
            return Err(Failure::failed(format!("stopped by {signal}; nothing was exported")));
        }
    };
    let finished = unfinished.finish(writer.get_ref(), out).await;
    finished.with_context(|| format!("{} could not be kept", out.display()))?;
    tell(&exported, &options, began.elapsed(), output)
}

fn tell(
    exported: &Exported,
    options: &Options,
    took: Duration,
    output: &mut Output,
) -> Result<(), Failure> {
    let Exported {
        origin,
        events,
        checkpoints,
        trust_bundles,
        bytes,
    } = exported;
    if options.json {
        return output.json(&json!({
            "file": options.out.display().to_string(),
            "origin": origin,
            "events": events,
            "checkpoints": checkpoints,
            "trustBundles": trust_bundles,
            "bytes": bytes,
            "seconds": took.as_secs_f64(),
            "cpuSeconds": usage::cpu_seconds(),
            "peakMemoryBytes": usage::peak_memory_bytes(),
        }));
    }
    output.line(&format!(
        "exported the log (events: {events}, checkpoints: {checkpoints}, trust bundles: \
         {trust_bundles}, bytes: {bytes}) to {}",
        options.out.display()
    ))
}
