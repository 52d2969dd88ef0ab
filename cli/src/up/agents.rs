//! The agents of `up`: in this process, each with a state directory and boots of its own, so that
//! `node.reboot` never touches the machine.

use std::path::{Path, PathBuf};

use ledger_agent::{AgentOptions, Boot};

use crate::lifecycle::Phase;

/// Keeps one agent going until the phase stops.
pub(crate) fn start(
    phase: &Phase,
    state_dir: PathBuf,
    gateway: &str,
    ca_file: &Path,
    join_token: String,
) {
    let mut options = AgentOptions::new(state_dir, gateway);
    options.boot = Boot::Simulated;
    options.ca_file = Some(ca_file.to_owned());
    options.join_token = Some(join_token);
    phase.worker("an agent", move |token| {
        ledger_agent::run(options.clone(), token)
    });
}
