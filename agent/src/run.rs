//! An agent with a state directory: what a node runs.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ledger_protocol::daemon::{Identity, SupportedKinds, reconnect_delay};
use ledger_protocol::id::JournalId;
use ledger_protocol::kind::{Registry, Role};
use rustls::RootCertStore;
use time::OffsetDateTime;
use tokio::task;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::boot::{Boot, simulate_reboot};
use crate::clock::{Clock, random};
use crate::connect::Connector;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::executor::Executor;
use crate::gateway_address::GatewayAddress;
use crate::host::{Host, Reboot};
use crate::journal::Opened;
use crate::kinds::Executors;
use crate::renewal::Renewal;
use crate::script::{EFFECTS_FILE, ScriptedExecutor, Stage};
use crate::session::{Agent, Ended, Setup};
use crate::simulate::Faults;
use crate::state_dir::StateDir;
use crate::tls;

#[cfg(test)]
mod tests;

/// How an agent is run.
#[derive(Clone)]
pub struct AgentOptions {
    /// Where it keeps its key, its certificate and its journal; one agent for each.
    pub state_dir: PathBuf,
    /// The gateway: `https://host:port` or `wss://host:port`.
    pub gateway: String,
    /// The gateway's certificate authority, PEM. Needed to join; after that the state directory
    /// holds what the gateway gave, and a file named here takes its place.
    pub ca_file: Option<PathBuf>,
    /// Certificates, PEM, that the site's machines are trusted by (`site.httpProxy`, `bmc.power`), beside
    /// those that this machine trusts.
    pub site_ca_files: Vec<PathBuf>,
    /// Lets a node join that has not joined; not used after that.
    pub join_token: Option<String>,
    /// What the agent is now; by default what its node was registered as.
    pub role: Option<Role>,
    /// What a boot is to it.
    pub boot: Boot,
    /// What its commands run on.
    pub machine: Machine,
    /// Version of the agent.
    pub agent_version: String,
    /// What is to go wrong; nothing, unless the node is a simulated one ([`crate::simulate`]).
    pub faults: Faults,
}

/// What the commands of an agent run on.
#[derive(Debug, Clone)]
pub enum Machine {
    /// This machine.
    This,
    /// A machine made of other folders and programs. Its state directory and the authorities of its
    /// site are set by the agent, and its reboot where [`Boot::Simulated`] says so.
    Host(Box<Host>),
    /// None: a script.
    Scripted(ScriptedExecutor),
}

impl AgentOptions {
    /// An agent of this machine that has joined already.
    pub fn new(state_dir: impl Into<PathBuf>, gateway: impl Into<String>) -> Self {
        Self {
            state_dir: state_dir.into(),
            gateway: gateway.into(),
            ca_file: None,
            site_ca_files: Vec::new(),
            join_token: None,
            role: None,
            boot: Boot::Machine,
            machine: Machine::This,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            faults: Faults::default(),
        }
    }
}

impl fmt::Debug for AgentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the join token, which is a secret.
        f.debug_struct("AgentOptions")
            .field("state_dir", &self.state_dir)
            .field("gateway", &self.gateway)
            .field("ca_file", &self.ca_file)
            .field("site_ca_files", &self.site_ca_files)
            .field("role", &self.role)
            .field("boot", &self.boot)
            .field("machine", &self.machine)
            .field("agent_version", &self.agent_version)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

/// Runs an agent until it is stopped, through every simulated reboot.
///
/// Ends early with an error where trying again would not help: a state directory that another
/// agent uses, a join that was refused, files that cannot be read.
pub async fn run(options: AgentOptions, shutdown: CancellationToken) -> Result<(), Error> {
    loop {
        match live(&options, &shutdown).await? {
            Ended::Stopped => return Ok(()),
            Ended::Rebooted => info!(state_dir = %options.state_dir.display(), "rebooted"),
        }
    }
}

/// Runs one life of an agent: until it is stopped, or rebooted by a simulated reboot, which has
/// put a new boot id into the state directory by then.
pub async fn live(options: &AgentOptions, shutdown: &CancellationToken) -> Result<Ended, Error> {
    let gateway: GatewayAddress = options.gateway.parse()?;
    let clock = Clock::system();
    let path = options.state_dir.clone();
    let dir = Arc::new(blocking(move || StateDir::open(&path)).await?);
    let boot_id = options.boot.id(&dir)?;
    let Some(credentials) = credentials(options, &gateway, &dir, &clock, shutdown).await? else {
        return Ok(Ended::Stopped);
    };
    let rebooted = CancellationToken::new();
    let site_ca = site_ca(options).await?;
    let executor = executor(options, &dir, &clock, &boot_id, &rebooted, site_ca);
    let executor = Arc::new(executor);
    let kinds = SupportedKinds::new(&Registry::builtin(), |kind| executor.runs(kind));
    let identity = Identity {
        agent_version: options.agent_version.clone(),
        boot_id,
        node_id: credentials.node_id,
        role: options.role.unwrap_or(credentials.role),
        kinds: Arc::new(kinds),
        pins: credentials.pins.clone(),
    };
    let new_journal = JournalId::new(clock.wall(), random());
    let kept_in = dir.clone();
    let journal = blocking(move || Opened::file(&kept_in, new_journal)).await?;
    let connector = Connector::new(gateway.clone(), &credentials, &clock)?;
    let renewal = Renewal {
        clock: clock.clone(),
        connector: connector.clone(),
        credentials,
        dir: dir.clone(),
        gateway,
    };
    let setup = Setup {
        identity,
        journal,
        executor,
        connector,
        clock,
        state_dir: Some(dir),
        rebooted,
        cut_every: options.faults.cut_every,
    };
    let agent = blocking(move || Agent::new(setup)).await?;
    // A renewal waits for the network and the disk, never the session for it.
    tokio::select! {
        biased;
        ended = agent.run(shutdown) => Ok(ended),
        never = renewal.run() => match never? {},
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = task::spawn_blocking(work).await;
    done.unwrap_or(Err(Error::BrokeOff {
        work: "opening the state directory",
    }))
}

/// What the node shows to its gateway: kept from an earlier life, or got by joining. `None` when
/// the agent was stopped before it could join.
async fn credentials(
    options: &AgentOptions,
    gateway: &GatewayAddress,
    dir: &StateDir,
    clock: &Clock,
    shutdown: &CancellationToken,
) -> Result<Option<Credentials>, Error> {
    let given_ca = match &options.ca_file {
        Some(path) => Some(
            tokio::fs::read_to_string(path)
                .await
                .map_err(Error::file("read", path))?,
        ),
        None => None,
    };
    if let Some(mut kept) = Credentials::load(dir)? {
        if let Some(given) = given_ca {
            kept.ca_certificate = given;
        }
        return Ok(Some(kept));
    }
    let (Some(token), Some(ca)) = (&options.join_token, given_ca) else {
        return Err(Error::NotJoined);
    };
    let key = if let Some(key) = Credentials::load_key(dir)? {
        key
    } else {
        let key = Credentials::generate_key()?;
        Credentials::keep_key(dir, &key)?;
        key
    };
    let mut failures = 0;
    loop {
        let join = Credentials::join(gateway, &ca, token.trim(), key.clone(), clock);
        let Some(joined) = shutdown.run_until_cancelled(join).await else {
            return Ok(None);
        };
        let error = match joined {
            Ok(joined) => {
                joined.keep(dir)?;
                info!(node = %joined.node_id, role = %joined.role, "joined");
                return Ok(Some(joined));
            }
            Err(error) => error,
        };
        let may_pass = match &error {
            Error::Join { source, .. } => !crate::connect::is_certificate_refusal(source),
            Error::JoinRefused { status, .. } => *status >= 500,
            _ => false,
        };
        if !may_pass {
            return Err(error);
        }
        failures += 1;
        let wait: Duration = reconnect_delay(failures, random());
        let wait_ms = wait.as_millis();
        warn!(
            error = &error as &dyn std::error::Error,
            wait_ms, "could not join; the same token is tried again"
        );
        let slept = shutdown.run_until_cancelled(tokio::time::sleep(wait)).await;
        if slept.is_none() {
            return Ok(None);
        }
    }
}

/// The authorities of the site's machines.
async fn site_ca(options: &AgentOptions) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for path in &options.site_ca_files {
        let pem = tokio::fs::read_to_string(path).await;
        let pem = pem.map_err(Error::file("read", path))?;
        tls::trust(&mut roots, &pem, "a certificate authority of the site")?;
    }
    Ok(Arc::new(roots))
}

fn executor(
    options: &AgentOptions,
    dir: &StateDir,
    clock: &Clock,
    boot_id: &str,
    rebooted: &CancellationToken,
    site_ca: Arc<RootCertStore>,
) -> Executor {
    let simulated = match options.boot {
        Boot::Machine => None,
        Boot::Simulated => Some(simulate_reboot(dir.path(), rebooted)),
    };
    let state_dir = dir.path().to_path_buf();
    let host = match &options.machine {
        Machine::Scripted(script) => {
            let stage = simulated.map(|reboot| Stage {
                boot_id: boot_id.to_owned(),
                effects: dir.path().join(EFFECTS_FILE),
                reboot,
            });
            let script = ScriptedExecutor::clone(script);
            return Executor::Scripted(ScriptedExecutor { stage, ..script });
        }
        Machine::This => {
            let clock = clock.clone();
            let wall = Arc::new(move || {
                let nanos = i128::from(clock.best().as_micros()) * 1_000;
                OffsetDateTime::from_unix_timestamp_nanos(nanos)
                    .unwrap_or(OffsetDateTime::UNIX_EPOCH)
            });
            Host {
                site_ca,
                ..Host::this_machine(state_dir, simulated.unwrap_or(Reboot::Systemctl), wall)
            }
        }
        Machine::Host(host) => Host {
            state_dir,
            site_ca,
            reboot: simulated.unwrap_or_else(|| host.reboot.clone()),
            ..Host::clone(host)
        },
    };
    Executor::Host(Box::new(Executors::new(host)))
}
