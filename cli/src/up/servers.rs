//! The Postgres and NATS that `up` starts for itself, and keeps running.

use std::path::Path;
use std::time::Duration;

use ledger_servers::{ADMIN, Nats, NatsOptions, Postgres, PostgresOptions};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, chain};
use crate::lifecycle::Phase;
use crate::limits::{
    SERVER_RESTART_AFTER_MAX, SERVER_RESTART_AFTER_MIN, STOP_SERVER_POLITELY_WITHIN,
};
use crate::secret::Secret;

/// Names the database; everything of this `up` is in it.
const DATABASE: &str = "command_ledger";
/// The login role that the migrations make: the log is append-only for it.
const SERVICE: &str = "command_ledger_service";

/// Where Postgres is.
#[derive(Debug, Clone)]
pub(crate) struct PostgresAt {
    /// Who owns the schema.
    pub(crate) owner: Secret,
    /// Who serves.
    pub(crate) service: Secret,
}

/// Starts Postgres under `folder`; it lives until the phase stops.
pub(crate) async fn start_postgres(folder: &Path, phase: &Phase) -> Result<PostgresAt, Failure> {
    let postgres = Postgres::start(PostgresOptions::new(folder.join("postgres"))).await?;
    postgres.create_database(DATABASE).await?;
    let at = PostgresAt {
        owner: Secret::new(postgres.url(DATABASE, ADMIN)),
        service: Secret::new(postgres.url(DATABASE, SERVICE)),
    };
    phase.tasks().spawn(keep(postgres, phase.token()));
    Ok(at)
}

/// Starts NATS under `folder`; it lives until the phase stops.
pub(crate) async fn start_nats(folder: &Path, phase: &Phase) -> Result<Secret, Failure> {
    let nats = Nats::start(NatsOptions::new(folder.join("nats"))).await?;
    let at = Secret::new(nats.url());
    phase.tasks().spawn(keep(nats, phase.token()));
    Ok(at)
}

/// What both servers can do.
trait Server {
    const NAME: &'static str;
    async fn exited(&mut self) -> Result<String, ledger_servers::Error>;
    async fn restart(&mut self) -> Result<(), ledger_servers::Error>;
    async fn stop(&mut self) -> Result<(), ledger_servers::Error>;
    async fn kill(&mut self) -> Result<(), ledger_servers::Error>;
}

macro_rules! server {
    ($server:ty, $name:literal) => {
        impl Server for $server {
            const NAME: &'static str = $name;

            async fn exited(&mut self) -> Result<String, ledger_servers::Error> {
                Ok(Self::exited(self).await?.to_string())
            }

            async fn restart(&mut self) -> Result<(), ledger_servers::Error> {
                Self::restart(self).await
            }

            async fn stop(&mut self) -> Result<(), ledger_servers::Error> {
                Self::stop(self).await
            }

            async fn kill(&mut self) -> Result<(), ledger_servers::Error> {
                Self::kill(self).await
            }
        }
    };
}

server!(Postgres, "Postgres");
server!(Nats, "NATS");

/// Starts a server that ends again, under the same URL, until the token is cancelled; then stops
/// it.
async fn keep<S: Server>(mut server: S, token: CancellationToken) {
    let mut restart_after = SERVER_RESTART_AFTER_MIN;
    loop {
        let why = tokio::select! {
            () = token.cancelled() => break,
            ended = server.exited() => match ended {
                Ok(status) => status,
                Err(error) => chain(&error.into()),
            },
        };
        tracing::warn!("{} has ended ({why}); it is started again", S::NAME);
        tokio::select! {
            () = token.cancelled() => break,
            () = restart(&mut server, &mut restart_after) => {}
        }
    }
    stop(server).await;
}

async fn restart<S: Server>(server: &mut S, after: &mut Duration) {
    loop {
        sleep(*after).await;
        match server.restart().await {
            Ok(()) => {
                *after = SERVER_RESTART_AFTER_MIN;
                return tracing::info!("{} runs again", S::NAME);
            }
            Err(error) => {
                *after = (*after * 2).min(SERVER_RESTART_AFTER_MAX);
                let error = chain(&error.into());
                tracing::error!("{} does not start: {error}", S::NAME);
            }
        }
    }
}

/// Politely at first; a server that takes its time over it is killed, and recovers at its next
/// start.
async fn stop<S: Server>(mut server: S) {
    let stopped = match timeout(STOP_SERVER_POLITELY_WITHIN, server.stop()).await {
        Ok(stopped) => stopped,
        Err(_) => server.kill().await,
    };
    if let Err(error) = stopped {
        let error = chain(&error.into());
        tracing::warn!("{} did not stop as it should: {error}", S::NAME);
    }
}
