//! The simulation, run.

#[cfg(test)]
mod bugs;
#[cfg(test)]
mod model;
#[cfg(test)]
mod schedules;
