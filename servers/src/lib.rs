//! Starts Postgres and NATS servers for development and tests.
