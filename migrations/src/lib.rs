//! The SQL files and their embedded migrator.
