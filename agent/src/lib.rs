//! The daemon on a node: disk and processes around the daemon machine.
//!
//! `kinds` holds what a node can be told to do, one file per kind. `host` is everything a kind may touch, handed in,
//! so that tests use folders and programs of their own.

mod clock;
mod error;
pub mod host;
pub mod journal;
mod kernel_log;
pub mod kinds;
pub mod limits;
mod nvidia_smi;
mod program;
mod state_dir;
mod sysfs;
mod xid;

#[cfg(test)]
mod fake_machine;

pub use clock::Clock;
pub use error::Error;
pub use state_dir::StateDir;
