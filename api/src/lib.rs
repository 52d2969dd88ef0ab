//! HTTP: one file per method.
