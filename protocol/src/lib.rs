//! What both sides of a session, and the ledger itself, must agree on: ids, kinds, events, frames,
//! canonical bytes, limits, and the state machines of the server and of the daemon.
//!
//! Nothing here awaits, opens, connects, asks the time or draws a random number; the manifest has
//! no crate that could. So the same code runs in the service, in the replay and on every node.

pub mod attestation;
pub mod batch;
pub mod bytes;
pub mod canonical;
pub mod command;
pub mod daemon;
pub mod dsse;
pub mod event;
pub mod export;
pub mod frame;
pub mod id;
pub mod invariants;
pub mod kind;
pub mod limits;
pub mod merkle;
pub mod node;
pub mod receipt;
pub mod refusal;
pub mod secret;
pub mod session;
pub mod text;
pub mod time;
pub mod tlog;
pub mod trust;
