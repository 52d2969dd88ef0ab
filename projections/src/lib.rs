//! The read tables: how an event changes each, and every question asked of them.
