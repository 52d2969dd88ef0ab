//! The event log: the one append, and who is woken by it.
//!
//! Everything that changes state goes through [`Ledger`]: it decides on rows that it has locked,
//! writes the read tables and the log in one transaction, and numbers the events last, under the
//! head's lock, so that commit order and position order are one (SPEC L3, L5).
//!
//! Life of an append: a caller's request enters a bounded queue (`append.rs`); whatever waits
//! when the last commit returns is one group; `append/group.rs` locks the nodes that the group
//! touches, in order of id, loads what it needs, decides each request in memory
//! (`append/decide.rs`), writes the rows, then takes the head for its shortest time; after the
//! commit the callers get their answers and `wake.rs` tells the tail's readers. The locks, in
//! order: lease rows, node rows by id, keys of batches, batches by id, the head.

mod append;
mod batches;
mod clock;
mod connect;
mod error;
pub mod lease;
pub mod limits;
mod payload;
mod request;
pub mod secrets;
mod signer;
#[cfg(test)]
mod tests;
mod transaction;
mod wake;

pub use append::{Ledger, Options};
pub use batches::Released;
pub use clock::Clock;
pub use connect::{connect, maintain};
pub use error::Error;
pub use lease::Fence;
pub use request::{Opened, Outcome, Propose, Proposed, Queued, Run};
pub use signer::{
    HeldRoot, PublishError, RootFailure, RootKey, Signer, SignerError, Signing, newest_trust_bundle,
};
pub use transaction::LedgerTx;
pub use wake::{Committed, Notice};
