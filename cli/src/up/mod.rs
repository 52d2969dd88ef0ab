//! The parts of `up`: a whole Command Ledger on one machine, for development and for tests
//! (SPEC section 12).

mod agents;
mod fleet;
mod home;
mod servers;
mod town;

pub(crate) use home::Home;
pub(crate) use town::{Plan, Ready, Town};
