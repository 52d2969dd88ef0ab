//! `audit verify`: an export, held against the log's key.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use ledger_audit::{Look, Place, Trusted, Verified};
use ledger_protocol::tlog::Note;
use ledger_protocol::tlog::limits::NOTE_BYTES_MAX;
use serde_json::{Value, json};

use super::progress::Progress;
use super::whom::Whom;
use crate::exit::{Failure, Meaning};
use crate::key_file::read;
use crate::limits::EXPORT_READ_BYTES;
use crate::output::{Output, printable};
use crate::usage;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The export
    file: PathBuf,
    #[command(flatten)]
    whom: Whom,
    /// A checkpoint of the same log, seen earlier, that this one must extend
    #[arg(long, value_name = "CHECKPOINT_FILE")]
    against: Option<PathBuf>,
    /// Only hashes, order and checkpoints: whether these are the events that the log's key signed, and
    /// not whether they keep the rules
    #[arg(long)]
    hashes_only: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let trusted = trusted(&options)?;
    let shown = options.file.display();
    let file = File::open(&options.file).or_usage(format!("{shown} cannot be read"))?;
    let began = Instant::now();
    let look = if options.hashes_only {
        Look::Hashes
    } else {
        Look::Everything
    };
    let verified = tokio::task::spawn_blocking(move || {
        let mut progress = Progress::of("verified");
        let file = BufReader::with_capacity(EXPORT_READ_BYTES, file);
        ledger_audit::verify(file, &trusted, look, &mut |done, all| {
            progress.tell(done, all);
        })
    });
    let verified = verified
        .await?
        .or_usage(format!("{shown} cannot be read"))?;
    let seconds = began.elapsed().as_secs_f64();
    tell(&verified, seconds, &options, output)
}

fn trusted(options: &Options) -> Result<Trusted, Failure> {
    let (log, (witnesses, quorum)) = (options.whom.log()?, options.whom.witnesses()?);
    let trusted = Trusted::new(log, witnesses, quorum);
    let mut trusted = trusted.or_usage("--key and --witness say nothing about a log")?;
    if let Some(path) = &options.against {
        let shown = path.display();
        let text = read(path, NOTE_BYTES_MAX as u64)?;
        let note = Note::parse(text.as_bytes());
        let note =
            note.map_err(|bad| Failure::usage(format!("{shown} is no checkpoint: it {bad}")))?;
        let taken = trusted.against(&note);
        taken.map_err(|why| Failure::failed(format!("{shown}: {why}")))?;
    }
    Ok(trusted)
}

fn tell(
    verified: &Verified,
    seconds: f64,
    options: &Options,
    output: &mut Output,
) -> Result<(), Failure> {
    let Verified { events, .. } = *verified;
    #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
    let rate = (events as f64 / seconds.max(f64::EPSILON)).round();
    if options.json {
        output.json(&report(verified, seconds, rate, options.hashes_only))?;
    } else {
        for problem in &verified.problems {
            output.line(&printable(&problem.to_string()))?;
        }
    }
    if !verified.is_clean() {
        let (total, shown) = (verified.problems_total, verified.problems.len());
        let first = verified.first_bad_position();
        let first = first.map_or(String::new(), |first| {
            format!(", the first at position {first}")
        });
        return Err(Failure::failed(format!(
            "the export is not what the log's key vouches for ({total} problems, {shown} shown{first})"
        )));
    }
    if options.json {
        return Ok(());
    }
    let (commands, live) = (verified.commands, verified.live);
    let (checkpoints, witnesses) = (verified.checkpoints, verified.cosigned.len());
    let origin = printable(&verified.origin);
    output.line(&if options.hashes_only {
        format!(
            "the export is the log of {origin}, whole; whether it keeps the rules was not looked \
             at (events: {events}, checkpoints: {checkpoints}, witnesses: {witnesses})"
        )
    } else {
        format!(
            "the export is the log of {origin}, whole, and keeps every rule (events: {events}, \
             commands: {commands}, not ended: {live}, checkpoints: {checkpoints}, witnesses: \
             {witnesses})"
        )
    })?;
    if let Some(head) = &verified.head {
        let root = STANDARD.encode(head.root);
        output.line(&format!("its root at size {} is {root}", head.size))?;
    }
    if let Some(size) = verified.extends {
        output.line(&format!("it extends the checkpoint of size {size}"))?;
    }
    if verified.trust_bundles == 0 && !options.hashes_only {
        output.line("no trust bundle is in it: signatures of commands were not looked at")?;
    }
    output.line(&format!("verified in {seconds:.2} s, {rate} events/s"))
}

fn report(verified: &Verified, seconds: f64, rate: f64, hashes_only: bool) -> Value {
    let problems = verified.problems.iter().map(|problem| {
        let (first, last, byte) = match problem.place {
            Place::Position(position) => (Some(position), Some(position), None),
            Place::Positions { first, last } => (Some(first), Some(last), None),
            Place::Byte { offset, .. } => (None, None, Some(offset)),
        };
        json!({ "first": first, "last": last, "byte": byte, "problem": problem.to_string() })
    });
    let problems: Vec<_> = problems.collect();
    let cosigned = verified.cosigned.iter();
    let cosigned: Vec<_> = cosigned
        .map(|one| json!({ "by": one.by, "atSeconds": one.at_seconds }))
        .collect();
    json!({
        "origin": verified.origin,
        "events": verified.events,
        "size": verified.head.map(|head| head.size),
        "root": verified.head.map(|head| STANDARD.encode(head.root)),
        "checkpoints": verified.checkpoints,
        "cosigned": cosigned,
        "extends": verified.extends,
        "trustBundles": verified.trust_bundles,
        "rulesChecked": !hashes_only,
        "signaturesChecked": verified.trust_bundles > 0 && !hashes_only,
        "commands": (!hashes_only).then_some(verified.commands),
        "live": (!hashes_only).then_some(verified.live),
        "bytes": verified.bytes,
        "seconds": seconds,
        "cpuSeconds": usage::cpu_seconds(),
        "peakMemoryBytes": usage::peak_memory_bytes(),
        "eventsPerSecond": rate,
        "firstBadPosition": verified.first_bad_position(),
        "problemsTotal": verified.problems_total,
        "problems": problems,
    })
}
