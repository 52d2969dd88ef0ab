//! `witness`: cosigns the checkpoints of logs that others run (SPEC U4).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use ledger::Clock;
use ledger_audit::{Witness, witness_router};
use ledger_protocol::tlog::{Cosigner, KeyName, VerifierKey};

use crate::exit::{Failure, LISTEN_ELSEWHERE, Meaning as _};
use crate::key_file;
use crate::lifecycle::{Phase, Signals, endings};
use crate::limits::STOP_EDGE_WITHIN;
use crate::log::named_key;
use crate::output::Output;
use crate::service::{listen, raise_open_files, until_told};

/// Cosign the checkpoints of logs that others run, each only if it extends what was cosigned before.
///
/// It needs no database. When it starts, it prints the key that others verify its cosignatures with
/// (as `audit witness-key` does); `serve --log-witness KEY=URL` asks it.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to take `POST /add-checkpoint` on (C2SP tlog-witness), without TLS: put a proxy that
    /// has it in front
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7072")]
    listen: SocketAddr,
    /// Private key that cosigns, Ed25519 in PEM (`batch keygen` makes one); it must sign nothing else
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Name of this witness in what it cosigns, such as witness.example.org/1; it never changes
    #[arg(long, value_name = "NAME")]
    name: KeyName,
    /// Verifier key of a log, or a file with it; its name is the log's origin. May be given more than
    /// once
    #[arg(long, value_name = "KEY", required = true)]
    log: Vec<String>,
    /// Folder that keeps what was cosigned last of each log, made unless it is there. Never put back an
    /// older copy of it, and never begin with an empty one under the same key
    #[arg(long, value_name = "FOLDER")]
    state: PathBuf,
}

/// Cosigns until a signal.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    raise_open_files();
    let logs = options.log.iter().map(|text| named_key("--log", text));
    let logs: Vec<VerifierKey> = logs.collect::<Result<_, _>>()?;
    let cosigner = Cosigner::new(options.name, key_file::private_key(&options.key)?);
    let witness = Witness::open(cosigner, logs, &options.state, Clock::system());
    let witness = witness.or_usage("this witness cannot begin")?;
    let listener = listen(options.listen).await;
    let listener = listener.map_err(|failure| failure.advised(LISTEN_ELSEWHERE))?;
    let key = witness.verifier_key().to_string();
    output.line(&key)?;
    tracing::info!(key, "checkpoints are cosigned with this key");

    let edge = Phase::new("the edge");
    let (endings, mut ended) = endings();
    let serving = ledger_api::serve(
        "the witness",
        listener,
        witness_router(witness),
        edge.token(),
    );
    let serving = async {
        serving.await;
        Ok::<_, anyhow::Error>(())
    };
    edge.essential("the witness", endings, serving);
    let result = until_told(&mut signals, &mut ended).await;
    tokio::select! {
        () = edge.stop(STOP_EDGE_WITHIN) => {}
        signal = signals.insisted() => {
            tracing::warn!("{signal} again: what is left is cut off");
        }
    }
    result
}
