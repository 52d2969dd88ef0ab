//! The daemon on a node: disk and processes around the daemon machine.
