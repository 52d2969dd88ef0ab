//! Fixtures for tests that need more than one crate.
