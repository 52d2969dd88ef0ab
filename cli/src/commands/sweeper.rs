//! `sweeper`: enforces the deadlines.

use clap::Args;

use crate::exit::Failure;
use crate::lifecycle::{Signals, endings};
use crate::limits::CONNECTIONS_DEFAULT;
use crate::postgres::PostgresOption;
use crate::service::{Core, Service};
use crate::signing::Signing;

/// End commands whose deadline has passed, every 5 s; of several sweepers one leads.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    postgres: PostgresOption,
}

/// Sweeps until a signal.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    let signals = Signals::listen()?;
    let core = Core::start(
        &options.postgres.postgres,
        CONNECTIONS_DEFAULT,
        Signing::default(),
    )
    .await?;
    let service = Service::new(core);
    service.start_sweeper();
    // Nothing here is essential: the worker comes back by itself.
    let (_endings, ended) = endings();
    service.run(signals, ended).await
}
