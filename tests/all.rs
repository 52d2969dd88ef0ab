//! One binary for every test that needs more than one crate.
//!
//! They run under `with-servers` and beside a built `command-ledger`: `make test`. To add a test: a
//! file in `spec/` for what must hold, in `crash/` for what must hold while something dies, in
//! `tidy/` for a house rule.

#[cfg(test)]
mod crash;
#[cfg(test)]
mod spec;
#[cfg(test)]
mod tidy;
