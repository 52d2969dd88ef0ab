//! What time has decided, appended (SPEC T1–T3).
//!
//! Every 5 s the one sweeper that leads looks at the commands past their `notAfter`: a pending one
//! ends as `expired`/`not_after`, one in flight, once its timeout has passed as well, as
//! `failed`/`timeout`. It decides nothing: each end is a request to the ledger, which decides on the
//! state that it has locked, so a report or a cancel that came first stands, and the sweeper's term
//! is checked in the same transaction. It also extends the log's partitions once a minute.

mod error;
mod limits;
mod lost_gateways;
mod overdue;
mod run;
mod sweep;
#[cfg(test)]
mod tests;

pub use run::run;
