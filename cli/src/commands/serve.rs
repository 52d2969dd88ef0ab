//! `serve`: the API and the publisher in one process.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use ledger::Clock;
use ledger_protocol::batch::create::Policy;

use crate::approvers;
use crate::exit::{Failure, LISTEN_ELSEWHERE};
use crate::gateway_at;
use crate::lifecycle::{Signals, endings};
use crate::limits::CONNECTIONS_DEFAULT;
use crate::log::LogOptions;
use crate::nats;
use crate::postgres::PostgresOption;
use crate::secret::Secret;
use crate::secrets_key::SecretsKey;
use crate::service::{Core, Service, listen, raise_open_files};
use crate::signing::{self, Allowance, Signing};

/// Serve the HTTP API and publish the log to NATS.
///
/// Any number of these may run on one database: each serves, one of them publishes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on, without TLS: put a proxy that has it in front
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// URL of NATS 2.10 or newer to publish to; without it this process does not publish
    #[arg(
        long,
        env = "COMMAND_LEDGER_NATS",
        value_name = "URL",
        hide_env_values = true
    )]
    nats: Option<Secret>,
    /// Copies that a NATS cluster keeps of the stream
    #[arg(long, value_name = "COPIES", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=5))]
    nats_replicas: u8,
    /// What subscribers see as the source of events, a URI that tells this ledger from others
    #[arg(long, value_name = "URI", default_value = "/command-ledger")]
    source: String,
    /// URL of the gateway, shown beside a join token
    #[arg(long, value_name = "URL", value_parser = gateway_at::url)]
    gateway: Option<String>,
    /// The node authority's certificate (node-ca.pem of the gateway), shown beside a join token
    #[arg(long, value_name = "FILE")]
    gateway_ca: Option<PathBuf>,
    /// Who may approve batches and how many must, as JSON; without it batches are recorded for audit
    /// only
    #[arg(long, value_name = "FILE")]
    approvers: Option<PathBuf>,
    /// Private key of a root that signs for this service, Ed25519 in PEM (`batch keygen` makes one);
    /// may be repeated: the first certifies the keys that sign commands, the others are believed too
    /// and sign what nodes are to trust, so that roots can be exchanged. Without it nothing is signed
    #[arg(long, value_name = "FILE")]
    command_root: Vec<PathBuf>,
    /// Publish what nodes are to trust under this version at least, also when it is unchanged: after
    /// a restore of the database, nodes pass over what is not newer than what they have seen. A
    /// warning says which version to give; once is enough
    #[arg(
        long,
        value_name = "VERSION",
        default_value_t = 0,
        hide_default_value = true,
        requires = "command_root"
    )]
    trust_version_min: u64,
    #[command(flatten)]
    allowance: Allowance,
    #[command(flatten)]
    secrets_key: SecretsKey,
    #[command(flatten)]
    log: LogOptions,
    /// Connections to Postgres
    #[arg(long, value_name = "CONNECTIONS", default_value_t = CONNECTIONS_DEFAULT,
          value_parser = clap::value_parser!(u32).range(2..=500))]
    connections: u32,
    #[command(flatten)]
    postgres: PostgresOption,
}

/// Serves until a signal.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    nats::check(options.nats.as_ref())?;
    let signals = Signals::listen()?;
    raise_open_files();
    let ca_certificate = match &options.gateway_ca {
        Some(path) => Some(gateway_at::certificates("--gateway-ca", path)?),
        None => None,
    };
    let approval = match &options.approvers {
        Some(path) => approvers::read_policy(path)?,
        None => Policy::default(),
    };
    let master_keys = options.secrets_key.read()?;
    let checkpointing = options.log.read()?;
    let signing = Signing {
        approval: options.allowance.in_policy(approval),
        approvers_named: options.approvers.is_some(),
        trust_version_min: options.trust_version_min,
        signer: signing::signer(&options.command_root, &Clock::system())?,
        master_keys: master_keys.clone(),
    };
    if options.approvers.is_none() {
        tracing::warn!("no --approvers: batches hold nothing and are recorded for audit only");
    }
    let signs = signing.signer.is_some();
    let (postgres, connections) = (&options.postgres.postgres, options.connections);
    let core = Core::start(postgres, connections, signing).await?;
    if !signs {
        signing::check_unsigned(core.ledger.pool()).await?;
        tracing::warn!("no --command-root: commands are not signed");
    }
    let listener = listen(options.listen).await;
    let listener = listener.map_err(|failure| failure.advised(LISTEN_ELSEWHERE))?;

    let log_listener = match options.log.log_listen {
        Some(address) => Some(listen(address).await?),
        None => None,
    };

    let service = Service::new(core);
    let (endings, ended) = endings();
    let surroundings = ledger_api::Options {
        gateway: options.gateway,
        ca_certificate,
    };
    if let Some(listener) = log_listener {
        service.start_log(listener, options.log.log_archive.clone(), endings.clone());
    }
    service.start_api(listener, surroundings, endings);
    if let Some(checkpointing) = checkpointing {
        service.start_checkpointer(checkpointing);
    } else {
        tracing::warn!("no --log-key: this process does not sign the log");
    }
    if let Some(archive) = options.log.log_archive {
        service.start_archiver(archive);
    }
    if let Some(keys) = &master_keys {
        service.start_keeper(keys);
    } else {
        tracing::warn!("no --secrets-key: this process keeps no secrets");
    }
    if let Some(nats) = &options.nats {
        let holder = service.core.holder.clone();
        let mut to = ledger_nats::NatsOptions::new(nats.reveal(), holder, options.source);
        to.replicas = options.nats_replicas.into();
        service.start_publisher(to);
    } else {
        tracing::warn!("no --nats: this process does not publish events");
    }
    service.run(signals, ended).await
}
