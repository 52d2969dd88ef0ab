//! One session per node: WebSocket and mutual TLS around the session machine; joins and
//! certificates (SPEC D1–D3, D6, D12–D14, A11).
//!
//! - `serve` accepts connections on one TLS port, bounded at every stage, and ends sessions in
//!   order at shutdown.
//! - `http` tells a join, a renewal and a session apart; `join` turns a join token and a certificate
//!   request into a certificate of [`CertificateAuthority`], `renew` a certificate and a request into
//!   one that lasts longer.
//! - `session` drives one session: what to do with a frame is decided by the machine in
//!   `ledger_protocol::session`, what happened is appended by the ledger.
//! - `dispatcher` sends due commands to the nodes whose sessions are here. It is woken by what the
//!   ledger commits, asks one question for all woken nodes, and repairs what it missed once a
//!   second.
//! - `trust` passes trust bundles on, and keeps what nodes say that they believe.
//!
//! A session's order of things: `Hello` → the ledger opens it under a higher epoch and settles
//! what the reconnect proves → `Welcome`, every command in flight in `seq` order, the cancels
//! that are owed → updates are acknowledged once they are committed.

mod authority;
mod batches;
mod dispatcher;
mod error;
mod gateway;
mod http;
mod join;
mod lease;
pub mod limits;
mod renew;
mod serve;
mod session;
#[cfg(test)]
mod tests;
mod trust;

pub use authority::{
    ALLOWED_KINDS_OID, CertificateAuthority, NodeCertificate, NodeCertificateTerms,
    ServerCertificate,
};
pub use error::Error;
pub use gateway::{Gateway, Options};
pub use serve::serve;
