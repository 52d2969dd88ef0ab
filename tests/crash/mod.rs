//! What must hold while something dies.

mod any_part;
mod checkpointer;
mod lost_gateway;
mod parts;
mod publisher;
mod simulated_fleet;
mod storm;
mod sweeper;
mod witness;
