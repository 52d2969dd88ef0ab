//! The simulation, run.

mod bugs;
mod model;
mod schedules;
