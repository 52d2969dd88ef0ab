//! The log to JetStream, in order, and the wakes.
