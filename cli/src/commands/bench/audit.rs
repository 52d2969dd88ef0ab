//! `bench audit`: how fast a log is exported and verified here, in how much memory; JSON out.
//!
//! A town is played ([`town`]), its events are written in bulk, the real checkpointer makes and signs
//! the tree, and then the real commands, each a process of its own, do what an auditor does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use ledger::{Clock, HeldRoot, Ledger, Signer};
use ledger_audit::{Checkpointing, HeldLogKey, LogKey as _};
use ledger_projections::log_tree;
use ledger_protocol::kind::Registry;
use ledger_servers::Postgres;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::process::Command;

use crate::exit::{Failure, Meaning};
use crate::key_file;
use crate::lifecycle::Phase;
use crate::limits::{STOP_LEDGER_WITHIN, STOP_WORKERS_WITHIN};
use crate::output::Output;
use crate::postgres;
use crate::secret::Secret;

use super::append::per_second;
use super::ground::{DATABASE, own_postgres};

mod copy;
mod town;

use town::{EVENT_MICROS, Keys, Town};

const ORIGIN: &str = "bench.example/log";
/// Rows that are sent to Postgres at once.
const ROWS_AT_ONCE: usize = 4_096;
/// Positions of one partition of the log.
const PARTITION_POSITIONS: u64 = 10_000_000;
const CONNECTIONS: u32 = 4;
/// Between two looks at how far the checkpointer has come, and how long it may stand still.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const STANDS_STILL_WITHIN: Duration = Duration::from_mins(1);

/// Measure the audit: make a log of signed commands, export it, verify it, and print JSON
///
/// Starts a Postgres of its own in a temporary folder, which also gets the export: about 2 KiB for
/// each event. Export and verification are processes of their own, so that their memory is theirs.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Events of the log; it ends with the first round of commands that reaches as many
    #[arg(long, value_name = "EVENTS", default_value_t = 200_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    events: u64,
    /// Nodes of the town
    #[arg(long, value_name = "NODES", default_value_t = 200,
          value_parser = clap::value_parser!(u16).range(1..=2_000))]
    nodes: u16,
}

/// Makes, measures and prints.
pub(super) async fn run(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let folder = Folder::create()?;
    let own = own_postgres().await?;
    let measured = measure(options, &own, &folder.0).await;
    own.destroy()
        .await
        .or_unavailable("Postgres could not be stopped")?;
    output.json(&measured?)
}

/// A folder that goes with this process.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Self, Failure> {
        let name = format!("command-ledger-bench-audit-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).or_usage(format!("{} cannot be made", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn measure(options: &Options, own: &Postgres, folder: &Path) -> Result<Value, Failure> {
    let url = Secret::new(own.url(DATABASE, ledger_servers::ADMIN));
    let admin = PgPool::connect(url.reveal().trim())
        .await
        .or_unavailable("could not connect to Postgres")?;
    ledger_migrations::MIGRATOR
        .run(&admin)
        .await
        .or_unavailable("could not migrate")?;
    let (town, written) = write(options, &admin).await?;
    admin.close().await;
    let (key, signed) = checkpoint(&url, folder, town.events()).await?;

    let file = folder.join("log.export");
    let export = [
        "export".into(),
        "--out".into(),
        file.clone().into_os_string(),
        "--postgres".into(),
        url.reveal().trim().into(),
    ];
    let exported = audit(&export).await?;
    let verify = |more: &[&str]| {
        let mut words: Vec<OsString> = vec!["verify".into(), file.clone().into_os_string()];
        words.extend(["--key".into(), key.clone().into()]);
        words.extend(more.iter().map(Into::into));
        words
    };
    let hashes = audit(&verify(&["--hashes-only"])).await?;
    let verified = audit(&verify(&[])).await?;
    let (events, commands) = (town.events(), town.commands());
    let bytes = exported["bytes"].as_u64().unwrap_or(0);
    Ok(json!({
        "events": events,
        "commands": commands,
        "batches": town.batches(),
        "nodes": options.nodes,
        "bytesPerEvent": bytes / events.max(1),
        "madePerSecond": per_second(events, written),
        "checkpointedPerSecond": per_second(events, signed),
        "export": {
            "bytes": bytes,
            "seconds": exported["seconds"],
            "megabytesPerSecond": rate(bytes, &exported["seconds"], 1e6),
            "eventsPerSecond": rate(events, &exported["seconds"], 1.0),
            "peakMemoryBytes": exported["peakMemoryBytes"],
        },
        "hashesAndOrder": verification(events, &hashes),
        "verification": verification(events, &verified),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "optimised": !cfg!(debug_assertions),
    }))
}

fn verification(events: u64, report: &Value) -> Value {
    json!({
        "seconds": report["seconds"],
        "eventsPerSecond": rate(events, &report["seconds"], 1.0),
        "cpuSeconds": report["cpuSeconds"],
        "eventsPerCpuSecond": rate(events, &report["cpuSeconds"], 1.0),
        "peakMemoryBytes": report["peakMemoryBytes"],
    })
}

/// So many a second, in units of so many.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2⁵²")]
fn rate(count: u64, seconds: &Value, unit: f64) -> Option<f64> {
    let seconds = seconds.as_f64().filter(|seconds| *seconds > 0.0)?;
    Some((count as f64 / unit / seconds).round())
}

/// Plays the town until its log is long enough, and publishes what its signatures are held against.
async fn write(options: &Options, admin: &PgPool) -> Result<(Town, Duration), Failure> {
    let keys = Keys {
        root: key_file::new_key()?,
        worker: key_file::new_key()?,
        approver: key_file::new_key()?,
    };
    let root = Arc::new(HeldRoot::new(keys.root.clone()));
    let signer = Signer::new(root, Vec::new(), Clock::system());
    let began = Instant::now();
    let expected = i64::try_from(options.events).unwrap_or(i64::MAX / EVENT_MICROS);
    let first = Clock::system().now().plus_micros(-expected * EVENT_MICROS);
    let mut town = Town::new(keys, options.nodes, first)?;
    signer.publish(admin, town.policy(), 0).await?;
    let mut written = 0;
    let mut writer = copy::Writer::default();
    let mut extended = 0;
    loop {
        let is_over = town.events() >= options.events;
        let rows = town.take();
        if town.events() >= extended {
            // There are always two partitions ahead of the last event that is there.
            writer.flush(admin).await?;
            sqlx::query("SELECT extend_log()").execute(admin).await?;
            extended = town.events() + PARTITION_POSITIONS;
        }
        for row in rows {
            written += 1;
            writer.add(written, &row)?;
        }
        if is_over || writer.rows() >= ROWS_AT_ONCE {
            writer.flush(admin).await?;
        }
        if is_over {
            return Ok((town, began.elapsed()));
        }
        town.round()?;
    }
}

/// Lets the checkpointer make and sign the tree. Answers with the key that others verify with.
async fn checkpoint(
    url: &Secret,
    folder: &Path,
    events: u64,
) -> Result<(String, Duration), Failure> {
    let pool = postgres::connect(url, CONNECTIONS).await?;
    let ledger_phase = Phase::new("the ledger");
    let options = ledger::Options::new(Registry::builtin(), Clock::system());
    let ledger = Ledger::start(
        pool.clone(),
        options,
        ledger_phase.tasks(),
        ledger_phase.token(),
    )?;
    let key = HeldLogKey::new(ORIGIN.parse()?, key_file::new_key()?);
    let verifier = key.verifier_key().to_string();
    let checkpointing = Checkpointing {
        key: Arc::new(key),
        memory: folder.join("log.signed"),
        witnesses: Vec::new(),
        archive: None,
    };
    let began = Instant::now();
    let phase = Phase::new("the checkpointer");
    let working = ledger_audit::checkpoint(ledger, checkpointing, "bench".into(), phase.token());
    phase.tasks().spawn(working);
    let signed = until_signed(&pool, events).await;
    let took = began.elapsed();
    phase.stop(STOP_WORKERS_WITHIN).await;
    ledger_phase.stop(STOP_LEDGER_WITHIN).await;
    pool.close().await;
    signed.map(|()| (verifier, took))
}

async fn until_signed(pool: &PgPool, events: u64) -> Result<(), Failure> {
    let (mut size, mut grew) = (0, Instant::now());
    loop {
        let mut conn = pool.acquire().await?;
        let newest = log_tree::newest(&mut conn).await?;
        drop(conn);
        let now = newest.map_or(0, |newest| newest.size);
        if now >= events {
            return Ok(());
        }
        if now > size {
            (size, grew) = (now, Instant::now());
        }
        if grew.elapsed() > STANDS_STILL_WITHIN {
            return Err(Failure::failed(format!(
                "the log was signed up to position {size} of {events} only"
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Runs `audit` with these words as a process of its own, and reads its report.
async fn audit(words: &[OsString]) -> Result<Value, Failure> {
    let program = std::env::current_exe().context("this program's own file is not known")?;
    let ran = Command::new(program)
        .arg("audit")
        .args(words)
        .arg("--json")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    let verb = words.first().cloned().unwrap_or_default();
    if !ran.status.success() {
        let report = String::from_utf8_lossy(&ran.stdout);
        let verb = verb.display();
        return Err(Failure::failed(format!("audit {verb} failed: {report}")));
    }
    Ok(serde_json::from_slice(&ran.stdout)?)
}
