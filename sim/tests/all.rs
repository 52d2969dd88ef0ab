//! The simulation, run.

mod bugs;
mod schedules;
