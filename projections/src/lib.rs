//! The read tables: how a fold becomes a row, and every question asked of them.
//!
//! Nothing is decided here. A command's row is the fold of its events, written in the same
//! transaction as they are, so a reader sees what was appended as soon as the caller does
//! (SPEC L8), and `audit replay` can compare row with fold.

pub mod batches;
pub mod commands;
mod error;
pub mod join_tokens;
pub mod log;
pub mod log_export;
pub mod log_tree;
pub mod nodes;
pub mod refused_reports;
pub mod retention;
pub mod rows;
pub mod secrets;
pub mod trust;
pub mod write;

pub use error::Error;
