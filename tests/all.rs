//! One binary for every test that needs more than one crate.
