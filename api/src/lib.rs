//! The HTTP API (SPEC section 4): `POST /api/compute/{service}/{method}`, JSON in and out.
//!
//! A request's way: `serve.rs` takes the connection and bounds what a slow or hostile client can
//! cost; `http.rs` finds the method, asks `auth` who calls, reads the body within its limits and
//! runs the method on a task of its own, so that a client that hangs up never leaves a database
//! connection in the middle of something (SPEC L10); the method, one file each in a folder per
//! service, takes its fields from `input`, asks the ledger or the read tables, and renders the
//! result. Whatever goes wrong on the way is one [`Error`], and `error.rs` alone says what callers
//! see of it.
//!
//! To add a method: a file in its service's folder, and a line in `methods.rs`, with its fields.

use std::sync::Arc;

use ledger::Ledger;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

pub mod auth;
mod command_batches;
pub mod commands;
mod error;
mod http;
mod input;
mod json;
pub mod limits;
mod methods;
mod nodes;
mod secrets;
mod serve;
pub mod shown;
mod tokens;

pub use error::{Cause, Code, Error};
pub use http::router;
pub use methods::names as method_names;
pub use serve::serve;

/// What the API tells operators of its surroundings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// URL of the gateway, shown beside a join token.
    pub gateway: Option<String>,
    /// The certificate authority's certificate in PEM, shown beside a join token, so that a new
    /// daemon knows whom to trust.
    pub ca_certificate: Option<String>,
}

/// The API of one ledger. Cloning is cheap.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

struct Inner {
    ledger: Ledger,
    options: Options,
    tokens: auth::cache::Cache,
    tasks: TaskTracker,
    requests: Arc<Semaphore>,
}

impl Api {
    /// The API of this ledger. What a caller no longer waits for is finished on `tasks`, so the
    /// process should wait for them before it ends.
    pub fn new(ledger: Ledger, options: Options, tasks: &TaskTracker) -> Self {
        Self(Arc::new(Inner {
            ledger,
            options,
            tokens: auth::cache::Cache::new(),
            tasks: tasks.clone(),
            requests: Arc::new(Semaphore::new(limits::REQUESTS_IN_FLIGHT_MAX)),
        }))
    }

    fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// A connection for one statement. Whoever needs two asks them one after the other: nothing
    /// here opens a transaction.
    async fn connection(&self) -> Result<sqlx::pool::PoolConnection<sqlx::Postgres>, Error> {
        Ok(self.0.ledger.pool().acquire().await?)
    }
}
