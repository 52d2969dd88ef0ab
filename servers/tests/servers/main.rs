//! Starts real servers: `make services` must have run.

#[cfg(test)]
mod launch;
#[cfg(test)]
mod support;
#[cfg(test)]
mod with_servers;
