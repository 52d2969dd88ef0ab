//! `agent`: the daemon of this machine.

use std::path::{Path, PathBuf};

use clap::Args;
use ledger_agent::AgentOptions;
use ledger_protocol::kind::Role;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::node::role;

use crate::exit::{Code, Failure};
use crate::gateway_at;
use crate::lifecycle::Signals;
use crate::limits::STOP_EDGE_WITHIN;
use crate::output::Output;
use crate::secret::Secret;

mod simulate;

/// Run the daemon of this machine: join once, then check, journal, run and report commands.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// URL of the gateway, such as <https://gateway.example:7443>
    #[arg(long, value_name = "URL", value_parser = gateway_at::url)]
    gateway: String,
    /// Folder for its key, certificate and journal; it must outlive reboots
    #[arg(long, value_name = "FOLDER")]
    state: PathBuf,
    /// Token to join with, from `node join-token`; needed once
    #[arg(
        long,
        env = "COMMAND_LEDGER_JOIN_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    join_token: Option<Secret>,
    /// The gateway authority's certificate (its node-ca.pem); needed to join
    #[arg(long, value_name = "FILE")]
    gateway_ca: Option<PathBuf>,
    /// What this daemon is now: node, site or ramdisk [default: as its node was registered]
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Option<Role>,
    /// Certificates (PEM) by which site.httpProxy and bmc.power trust machines of the site, beside
    /// those that this machine trusts; may be given several times
    #[arg(long, value_name = "FILE")]
    site_ca: Vec<PathBuf>,
    #[command(flatten)]
    simulated: simulate::Options,
}

/// Runs until a signal.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    if let Some(path) = &options.gateway_ca {
        gateway_at::certificates("--gateway-ca", path)?;
    }
    for path in &options.site_ca {
        gateway_at::certificates("--site-ca", path)?;
    }
    if let Some(nodes) = options.simulated.simulate {
        let ca = options.gateway_ca.as_deref();
        let Options {
            state,
            gateway,
            simulated,
            ..
        } = &options;
        return simulate::run(nodes, simulated, state, gateway, ca, output).await;
    }
    let mut signals = Signals::listen()?;
    let state = options.state.clone();
    let told = |error| told(error, &state);
    let mut agent = AgentOptions::new(options.state, options.gateway);
    agent.ca_file = options.gateway_ca;
    agent.join_token = options.join_token.map(|token| token.reveal().to_owned());
    agent.role = options.role;
    agent.site_ca_files = options.site_ca;

    let shutdown = CancellationToken::new();
    let mut running = std::pin::pin!(ledger_agent::run(agent, shutdown.clone()));
    tokio::select! {
        ended = &mut running => return ended.map_err(told),
        signal = signals.asked() => tracing::info!("{signal}: stopping"),
    }
    shutdown.cancel();
    let seconds = STOP_EDGE_WITHIN.as_secs();
    tokio::select! {
        ended = timeout(STOP_EDGE_WITHIN, running) => match ended {
            Ok(ended) => ended.map_err(told),
            Err(_) => Err(Failure::failed(format!("the agent did not stop within {seconds} s"))),
        },
        signal = signals.insisted() => {
            Err(Failure::failed(format!("{signal} again: the agent was cut off")))
        }
    }
}

/// What the end of a daemon means to a script.
fn told(error: ledger_agent::Error, state: &Path) -> Failure {
    use ledger_agent::Error;
    let usage = |error, advice: &str| Failure::new(Code::Usage, error).advised(advice);
    match &error {
        Error::NotJoined => usage(
            error,
            "--join-token (or COMMAND_LEDGER_JOIN_TOKEN) and --gateway-ca are needed for the first \
             start",
        ),
        // What may pass is tried again inside; what comes out of there will not: here, the two do
        // not agree on a certificate.
        Error::Join { .. } => usage(
            error,
            "--gateway-ca does not vouch for this gateway: give the node-ca.pem of its authority, \
             and with --gateway a name that its certificate has",
        ),
        Error::File { path, .. } if path == state => {
            let advice = format!("--state {} cannot be used", state.display());
            usage(error, &advice)
        }
        Error::GatewayAddress { .. } | Error::StateDirTaken { .. } => {
            Failure::new(Code::Usage, error)
        }
        Error::JoinRefused { .. } => Failure::new(Code::Refused, error),
        _ => Failure::new(Code::Failed, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_a_daemon_that_cannot_start_says_why_by_its_code() {
        let state = Path::new("state");
        assert_eq!(
            told(ledger_agent::Error::NotJoined, state).code,
            Code::Usage
        );
        let refused = ledger_agent::Error::JoinRefused {
            gateway: "g".to_owned(),
            status: 401,
            message: "the token was used".to_owned(),
        };
        assert_eq!(told(refused, state).code, Code::Refused);
    }
}
