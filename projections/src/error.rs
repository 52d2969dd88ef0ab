//! What can go wrong while reading or writing the read tables.

use ledger_protocol::canonical;

/// A question that could not be answered, or a row that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database did not answer, or refused.
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    /// A row holds what no writer of this crate writes.
    #[error("{table}.{column} of row {key} is not readable")]
    Row {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row's key.
        key: String,
        /// What is wrong with the value.
        #[source]
        source: canonical::Error,
    },
    /// A number in a row is outside of what it counts.
    #[error("{table}.{column} of row {key} is negative or too large: {value}")]
    Number {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row's key.
        key: String,
        /// The value.
        value: i64,
    },
    /// A fold cannot be written as a row.
    #[error("a fold cannot be encoded")]
    Encode(#[source] canonical::Error),
}
