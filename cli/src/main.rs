//! The binary `command-ledger`: command line, telemetry, lifecycle, wiring. What the parts do is in
//! their own crates.

mod approvers;
mod archive;
mod args;
mod client;
mod commands;
mod duration;
mod exit;
mod gateway_at;
mod key_file;
mod lifecycle;
mod limits;
mod log;
mod nats;
mod output;
mod postgres;
mod secret;
mod secrets_key;
mod service;
mod signing;
mod telemetry;
mod up;
mod usage;
mod values;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::exit::{Code, Failure};
use crate::output::Output;

fn main() -> ExitCode {
    // Everything with TLS in it panics without a provider, so this comes first. It fails only where
    // one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are asked for and go to stdout; clap's own code for misuse is 2.
            // Nobody reading them is fine.
            let _ = error.print();
            return match error.exit_code() {
                0 => ExitCode::SUCCESS,
                _ => Code::Usage.into(),
            };
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(arguments.run(&mut Output::stdout()));
            // What still runs is dropped, and its child processes with it; what blocks a thread (a
            // lookup of a name) must not hold the end.
            runtime.shutdown_timeout(limits::DROP_TASKS_WITHIN);
            result
        }
        Err(error) => Err(Failure::from(error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.code != Code::NobodyReads {
                let _ = writeln!(std::io::stderr(), "error: {failure}");
            }
            failure.code.into()
        }
    }
}
