//! Fixtures for tests that need more than one crate: real servers, real processes, real sockets.
//!
//! `binary` finds the program, `process` and `serve` run it, `up` runs a whole town of it; `ground`
//! is a ledger in this process, `api` an API of it, `proxy` a link to Postgres that can be cut,
//! `daemon` a node's end of a session, `fleet` many nodes, `front` one address for several services,
//! `liar` a gateway that somebody has taken over, `module` a program that queues commands, `site` an
//! agent with what it reaches,
//! `nats` a server and what its stream holds, `bucket` an S3-compatible server, `tree` what the system knows of processes and sockets.
//! To add a fixture: a module here, and everything that it
//! starts ends with the value that stands for it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a fixture that fails is a test that fails, and says so at once"
)]

pub mod api;
pub mod binary;
pub mod bucket;
pub mod daemon;
pub mod database;
pub mod fleet;
pub mod front;
pub mod ground;
pub mod http;
pub mod liar;
pub mod module;
pub mod nats;
pub mod process;
pub mod proxy;
pub mod repository;
pub mod serve;
pub mod site;
pub mod tree;
pub mod up;
pub mod wait;
