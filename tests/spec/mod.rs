//! What must hold, through real processes, sockets and servers.

mod attested;
mod audits;
mod bad_frames;
mod bad_input;
mod batches;
mod callers_transaction;
mod defects;
mod exports;
mod hang_ups;
mod link_cut;
mod lying_gateway;
mod one_end;
mod receipts;
mod renewals;
mod replicas;
mod retries;
mod revocations;
mod secrets;
mod secrets_kept;
mod signals;
mod starts;
mod tail;
mod trust;
mod up;
mod usage;
