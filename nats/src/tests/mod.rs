//! Against a real NATS server and a real Postgres.

mod copies;
mod outages;
mod publishing;
mod standby;
mod world;
