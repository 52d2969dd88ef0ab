//! One file for each subcommand: its options, and what it does.
//!
//! To add a subcommand: a file here with `Options` and `run`, and an arm in `args.rs`.

pub(crate) mod api;
pub(crate) mod watch;
