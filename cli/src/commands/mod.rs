//! One file for each subcommand: its options, and what it does.
//!
//! To add a subcommand: a file here with `Options` and `run`, and an arm in `args.rs`.

pub(crate) mod agent;
pub(crate) mod api;
pub(crate) mod audit;
pub(crate) mod batch;
pub(crate) mod bench;
pub(crate) mod gateway;
pub(crate) mod migrate;
pub(crate) mod node;
pub(crate) mod retention;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod sweeper;
pub(crate) mod tenant;
pub(crate) mod token;
pub(crate) mod up;
pub(crate) mod watch;
pub(crate) mod witness;
