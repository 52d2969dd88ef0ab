//! Starts Postgres and NATS servers for development and tests (SPEC section 12).
//!
//! A server is a child process with everything it has under one folder, so that the same folder
//! starts again where it stopped. Postgres listens on a Unix socket only and never runs as root;
//! NATS listens on the loopback address and asks for a token. Whoever starts one owns it: its folder
//! is locked while the launcher lives, and a server that a crashed launcher left behind is stopped
//! by the next start on the same folder. Nothing here is for production, where operators give the
//! URLs of their own servers.
//!
//! ```no_run
//! # async fn example() -> Result<(), ledger_servers::Error> {
//! use ledger_servers::{Nats, NatsOptions, Postgres, PostgresOptions};
//!
//! let mut postgres = Postgres::start(PostgresOptions::new(".ledger/postgres")).await?;
//! postgres.create_database("command_ledger").await?;
//! let mut nats = Nats::start(NatsOptions::new(".ledger/nats")).await?;
//! println!("{} {}", postgres.url("command_ledger", "ledger_admin"), nats.url());
//! nats.stop().await?;
//! postgres.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The programs come from an explicit folder, `COMMAND_LEDGER_TOOLS`, `.dev/tools` (filled by
//! `make services`), `PATH` or Debian's folders: see [`tools`].

mod account;
mod error;
mod files;
mod limits;
mod nats;
mod options;
mod postgres;
mod process;
pub mod tools;

pub use error::Error;
pub use nats::{Nats, NatsOptions};
pub use options::{Durability, ProcessGroup};
pub use postgres::{ADMIN, Postgres, PostgresOptions};
