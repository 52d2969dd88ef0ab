#![doc = include_str!("../README.md")]

/// Every migration of the schema, embedded; forward only.
pub static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");
