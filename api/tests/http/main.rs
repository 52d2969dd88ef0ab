//! The API against a real Postgres, a database for each test: through the router, and through
//! sockets where the connection itself is what is tested.

#[cfg(test)]
mod harness;

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod batches;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod identities;
#[cfg(test)]
mod nodes;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod sockets;
