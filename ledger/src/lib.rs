//! The one append (group commit) and reading by position.
