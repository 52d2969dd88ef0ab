//! The gateway on a real ledger, with small daemons over real TLS WebSockets.

mod attesting;
mod daemon;
mod dead_nodes;
mod dispatching;
mod frames;
mod joining;
mod journals;
mod leases;
mod outages;
mod renewing;
mod revoking;
mod scenarios;
mod sessions;
mod trust;
mod world;
