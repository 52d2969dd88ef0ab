//! The daemon on a node: disk and processes around the daemon machine.
//!
//! `run` is a node's agent as a whole. `session` drives one life of one daemon, with a journal in a file or in memory
//! and with real or scripted executors, so that one process may hold a fleet. `kinds` holds what a node can be told to
//! do, one file per kind. `host` is everything a kind may touch, handed in, so that tests use folders and programs of
//! their own.

mod boot;
mod clock;
mod connect;
mod credentials;
mod error;
mod executor;
mod gateway_address;
pub mod host;
pub mod journal;
mod kernel_log;
pub mod kinds;
pub mod limits;
mod nvidia_smi;
mod program;
mod redaction;
mod renewal;
mod run;
mod script;
pub mod secrets;
pub mod session;
mod simulate;
mod state_dir;
mod sysfs;
mod tls;
mod xid;

#[cfg(test)]
mod fake_gateway;
#[cfg(test)]
mod fake_machine;
#[cfg(test)]
mod fake_site;

pub use boot::Boot;
pub use clock::Clock;
pub use connect::Connector;
pub use credentials::Credentials;
pub use error::Error;
pub use executor::Executor;
pub use gateway_address::GatewayAddress;
pub use run::{AgentOptions, Machine, live, run};
pub use script::{EFFECTS_FILE, ScriptedExecutor};
pub use simulate::{Faults, simulate};
pub use state_dir::StateDir;
