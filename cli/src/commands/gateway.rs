//! `gateway`: holds the nodes' sessions.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ledger_gateway::CertificateAuthority;

use crate::exit::{Failure, LISTEN_ELSEWHERE, Meaning};
use crate::gateway_at;
use crate::lifecycle::{Signals, endings};
use crate::limits::{CERTIFICATE_SECONDS_MIN, CONNECTIONS_DEFAULT};
use crate::nats;
use crate::postgres::PostgresOption;
use crate::secret::Secret;
use crate::service::{Core, Service, host_name, listen, raise_open_files};
use crate::signing::Signing;

/// Hold one session per node, deliver its commands in order, and let new nodes join.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on, with TLS
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    listen: SocketAddr,
    /// Folder of the certificate authority for nodes; made there if there is none
    #[arg(long, value_name = "FOLDER")]
    authority: PathBuf,
    /// Name or address that nodes reach this gateway by, for its certificate; may be repeated
    #[arg(long, value_name = "NAME", value_parser = gateway_at::name)]
    server_name: Vec<String>,
    /// Name of this gateway in the ledger, unique among the gateways [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long the certificates of nodes are valid. Daemons renew theirs at half of it: a node that
    /// was away until its certificate had ended must join again, with a new join token and an empty
    /// state folder
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = certificates_for)]
    certificates_for: Duration,
    /// Connections to Postgres
    #[arg(long, value_name = "CONNECTIONS", default_value_t = CONNECTIONS_DEFAULT,
          value_parser = clap::value_parser!(u32).range(4..=500))]
    connections: u32,
    /// URL of NATS, to hear of new commands at once; without it the ledger is looked at each second
    #[arg(
        long,
        env = "COMMAND_LEDGER_NATS",
        value_name = "URL",
        hide_env_values = true
    )]
    nats: Option<Secret>,
    #[command(flatten)]
    postgres: PostgresOption,
}

/// Serves nodes until a signal.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    nats::check(options.nats.as_ref())?;
    let signals = Signals::listen()?;
    raise_open_files();
    let core = Core::start(
        &options.postgres.postgres,
        options.connections,
        Signing::default(),
    )
    .await?;
    let listener = listen(options.listen).await;
    let listener = listener.map_err(|failure| failure.advised(LISTEN_ELSEWHERE))?;
    let name = options.name.unwrap_or_else(host_name);
    let mut settings = ledger_gateway::Options::default();
    // The longest time that can be written fits.
    let seconds = u32::try_from(options.certificates_for.as_secs()).unwrap_or(u32::MAX);
    settings.certificate_seconds = seconds;
    settings.server_names.push(host_name());
    settings.server_names.extend(options.server_name);

    let authority = CertificateAuthority::load_or_generate(&options.authority, core.ledger.now())
        .or_usage("--authority cannot be used")?;

    let service = Service::new(core);
    let (endings, ended) = endings();
    service.start_gateway(listener, authority, &name, settings, endings);
    if let Some(nats) = options.nats {
        service.start_wakes(nats);
    }
    service.run(signals, ended).await
}

/// Reads how long a node's certificate is valid. One that ends before the node has opened a session
/// would be of no use.
fn certificates_for(text: &str) -> Result<Duration, String> {
    let time = crate::duration::parse(text)?;
    if time < Duration::from_secs(CERTIFICATE_SECONDS_MIN.into()) {
        return Err(format!(
            "`{text}` is too short; the least is {CERTIFICATE_SECONDS_MIN}s"
        ));
    }
    Ok(time)
}
