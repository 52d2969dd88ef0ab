//! The deterministic simulation of the protocol: the real machines of `ledger-protocol` (a
//! gateway's sessions, the daemon, the rules of the ledger) under drivers that can be stopped,
//! cut, crashed and deceived between any two of their steps, by a schedule that a seed makes.
//!
//! After every step the invariants are checked: those of the log by
//! [`ledger_protocol::invariants`], those that need the node's truth by [`truth`]. At the end the
//! faults stop, and everything must end.
//!
//! To replay a seed: `SIM_SEED=<seed> cargo test -p ledger-sim --test all schedules -- --nocapture`.
//! To run more: `SIM_SCHEDULES=1000000`.

mod attest;
mod bug;
mod calm;
mod chance;
mod client;
mod disk;
mod dispatch;
mod executor;
mod faults;
mod gateway;
mod ledger;
mod machine;
mod run;
pub mod small;
mod sweeper;
mod tally;
pub mod truth;
mod works;
mod world;

pub use bug::Bug;
pub use chance::Chance;
pub use run::{Failure, Found, first_failure, run_many, run_one};
pub use tally::Tally;
