//! What must hold while something dies.

mod parts;
mod publisher;
mod sweeper;
