//! What must hold while something dies.

mod parts;
mod publisher;
mod simulated_fleet;
mod sweeper;
