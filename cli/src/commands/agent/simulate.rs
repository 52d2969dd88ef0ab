//! `agent --simulate`: a fleet of nodes that are played, for trials, tests and benchmarks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use ledger_agent::{
    AgentOptions, Boot, Credentials, Faults, Machine, ScriptedExecutor, StateDir, simulate,
};
use ledger_protocol::id::{NodeId, TenantId};
use serde_json::json;

use crate::client::{ApiOptions, Client};
use crate::exit::{Failure, Meaning as _};
use crate::lifecycle::{Phase, Signals};
use crate::limits::{SIMULATE_JOINS_AT_A_TIME, SIMULATE_NODES_MAX, STOP_EDGE_WITHIN};
use crate::output::Output;
use crate::secret::Secret;
use crate::service::raise_open_files;

/// What `--simulate` plays.
#[derive(Debug, Args)]
#[command(next_help_heading = "Simulated nodes")]
#[group(id = "simulated")]
pub(crate) struct Options {
    /// Instead of this machine, play so many nodes, each with a real agent in a folder of its own
    /// below --state; nothing is done to this machine
    #[arg(long, value_name = "NODES", conflicts_with_all = ["join_token", "role", "site_ca"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SIMULATE_NODES_MAX)))]
    pub(crate) simulate: Option<u32>,
    // No `requires` where there is a variable: what is set for other commands must not make this
    // machine's own agent ask for simulated nodes.
    /// Base URL of the API, to register nodes that have not joined yet
    #[arg(long, env = "COMMAND_LEDGER_API", value_name = "URL")]
    api: Option<String>,
    /// API token
    #[arg(
        long,
        env = "COMMAND_LEDGER_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    token: Option<Secret>,
    /// The tenant that gets the nodes
    #[arg(long, env = "COMMAND_LEDGER_TENANT", value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// How long each command takes, one length or a range to draw from
    #[arg(long, value_name = "TIME[..TIME]", default_value = "10ms..500ms",
          value_parser = range)]
    run_time: (Duration, Duration),
    /// How many of a hundred commands fail, with the reason `scripted`
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    failing: u8,
    /// Mean time between two crashes of a node's agent [default: never]
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "simulate")]
    crash_every: Option<Duration>,
    /// Mean time between two breaks of a node's connection [default: never]
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "simulate")]
    cut_every: Option<Duration>,
    /// Mean time between two losses of a node's journal [default: never]
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "simulate")]
    lose_journal_every: Option<Duration>,
    /// When every agent runs, print one line of JSON instead of a sentence
    #[arg(long, requires = "simulate")]
    json: bool,
}

/// One node to be played.
struct Place {
    node: NodeId,
    state_dir: PathBuf,
    join_token: Option<String>,
}

/// Plays `nodes` nodes until a signal.
pub(crate) async fn run(
    nodes: u32,
    options: &Options,
    state: &Path,
    gateway: &str,
    gateway_ca: Option<&Path>,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    raise_open_files();
    let places = tokio::select! {
        places = places(nodes, options, state, gateway_ca) => places?,
        signal = signals.asked() => {
            return Err(Failure::failed(format!("{signal} before every node was registered")));
        }
    };
    let (shortest, longest) = options.run_time;
    let mut script = ScriptedExecutor::succeeding(shortest, json!({ "simulated": true }));
    script.longest = longest;
    script.failing_percent = options.failing;
    let faults = Faults {
        crash_every: options.crash_every,
        cut_every: options.cut_every,
        lose_journal_every: options.lose_journal_every,
    };
    let phase = Phase::new("the simulated nodes");
    for place in &places {
        let mut agent = AgentOptions::new(&place.state_dir, gateway);
        agent.boot = Boot::Simulated;
        agent.ca_file = gateway_ca.map(Path::to_path_buf);
        agent.join_token.clone_from(&place.join_token);
        agent.machine = Machine::Scripted(script.clone());
        agent.faults = faults;
        phase.worker("a simulated node", move |token| {
            simulate(agent.clone(), token)
        });
    }
    tell(&places, state, options.json, output)?;
    let signal = signals.asked().await;
    tracing::info!("{signal}: stopping");
    tokio::select! {
        () = phase.stop(STOP_EDGE_WITHIN) => Ok(()),
        signal = signals.insisted() => {
            Err(Failure::failed(format!("{signal} again: the simulated nodes were cut off")))
        }
    }
}

fn tell(places: &[Place], state: &Path, as_json: bool, output: &mut Output) -> Result<(), Failure> {
    if as_json {
        let nodes: Vec<_> = places
            .iter()
            .map(|place| json!({ "nodeId": place.node, "stateDir": place.state_dir }))
            .collect();
        return output.json_line(&json!({ "nodes": nodes, "pid": std::process::id() }));
    }
    let (count, shown) = (places.len(), state.display());
    output.line(&format!(
        "{count} simulated nodes run; what they keep is in {shown}. Ctrl-C stops them."
    ))
}

/// A state directory, and the node of it if that has joined.
type Found = (u32, PathBuf, Option<NodeId>);

/// Every node, those that have not joined yet with a token to do it. Nothing is registered before
/// all that a join takes is there: what is refused must leave no node behind.
async fn places(
    count: u32,
    options: &Options,
    state: &Path,
    gateway_ca: Option<&Path>,
) -> Result<Vec<Place>, Failure> {
    let every: Vec<_> = (1..=count)
        .map(|number| find(number, state))
        .collect::<Result<_, _>>()?;
    let client = match (&options.api, &options.token) {
        (Some(api), Some(token)) => Some(Client::new(&ApiOptions::new(api, token))?),
        _ => None,
    };
    let api = client.as_ref().zip(options.tenant);
    if let Some((_, folder, _)) = every.iter().find(|(_, _, node)| node.is_none())
        && (api.is_none() || gateway_ca.is_none())
    {
        return Err(not_joined(folder));
    }
    stream::iter(every)
        .map(|found| place(found, api))
        .buffered(SIMULATE_JOINS_AT_A_TIME)
        .try_collect()
        .await
}

fn find(number: u32, state: &Path) -> Result<Found, Failure> {
    let folder = state.join(format!("{number:05}"));
    let dir = StateDir::open(&folder).or_usage("--state cannot be used")?;
    let known = Credentials::load(&dir)?;
    Ok((number, folder, known.map(|known| known.node_id)))
}

fn not_joined(folder: &Path) -> Failure {
    let folder = folder.display();
    Failure::usage(format!(
        "{folder} has not joined yet; give --api, --token and --tenant to register its node, and \
         --gateway-ca to let it join"
    ))
}

async fn place(found: Found, api: Option<(&Client, TenantId)>) -> Result<Place, Failure> {
    let (client, tenant, number, state_dir) = match (found, api) {
        ((_, state_dir, Some(node)), _) => {
            let join_token = None;
            return Ok(Place {
                node,
                state_dir,
                join_token,
            });
        }
        ((number, state_dir, None), Some((client, tenant))) => (client, tenant, number, state_dir),
        ((_, state_dir, None), None) => return Err(not_joined(&state_dir)),
    };
    let input = json!({
        "tenantId": tenant,
        "name": format!("simulated-{number:05}"),
        "labels": { "simulated": "true" },
    });
    let made = client.call("nodes", "register", &input).await?;
    let node: NodeId = made["id"]
        .as_str()
        .context("the API's answer has no `id`")?
        .parse()?;
    let input = json!({ "tenantId": tenant, "nodeId": node });
    let made = client.call("nodes", "createJoinToken", &input).await?;
    let token = made["token"].as_str();
    let token = token.context("the API's answer has no `token`")?;
    Ok(Place {
        node,
        state_dir,
        join_token: Some(token.to_owned()),
    })
}

/// Reads a length of time, or two with `..` between them.
fn range(text: &str) -> Result<(Duration, Duration), String> {
    let (shortest, longest) = text.split_once("..").unwrap_or((text, text));
    let (shortest, longest) = (
        crate::duration::parse(shortest)?,
        crate::duration::parse(longest)?,
    );
    if shortest > longest {
        return Err(format!("`{text}` begins above its end"));
    }
    Ok((shortest, longest))
}

/// Reads a length of time that is more than nothing.
fn some_time(text: &str) -> Result<Duration, String> {
    let time = crate::duration::parse(text)?;
    if time < Duration::from_millis(100) {
        return Err(format!("`{text}` is too short; the least is 100ms"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_a_range_of_times_is_one_or_two_that_do_not_fall() {
        let ms = Duration::from_millis;
        assert_eq!(range("10ms..2s"), Ok((ms(10), ms(2_000))));
        assert_eq!(range("30ms"), Ok((ms(30), ms(30))));
        for text in ["", "..", "1s..", "2s..1s", "1s..2s..3s", "-1s"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn h2_faults_have_a_shortest_mean_time() {
        assert!(some_time("0s").is_err());
        assert!(some_time("99ms").is_err());
        assert_eq!(some_time("100ms"), Ok(Duration::from_millis(100)));
    }
}
