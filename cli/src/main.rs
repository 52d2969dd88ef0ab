//! The binary `command-ledger`.
fn main() {}
