//! The house rules, held by tests (STYLE 14). One file per rule in `tidy/`.

mod arrows;
mod binary;
mod readme;
mod schema;
mod spec_ids;
mod tables;
mod words;
