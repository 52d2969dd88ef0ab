//! Rows of the log, written by the thousand: in Postgres' binary form of COPY.

use sqlx::PgPool;

use super::town::Row;
use crate::exit::Failure;

/// What a file of this form begins with: its signature, no flags, no more header.
const BEGIN: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// No more rows.
const END: i16 = -1;
const COLUMNS: i16 = 4;

/// Rows that wait.
#[derive(Default)]
pub(super) struct Writer {
    rows: usize,
    bytes: Vec<u8>,
}

impl Writer {
    /// How many wait.
    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    /// Adds the row of the event at this position.
    pub(super) fn add(&mut self, position: u64, row: &Row) -> Result<(), Failure> {
        if self.rows == 0 {
            self.bytes.extend_from_slice(BEGIN);
        }
        self.rows += 1;
        self.bytes.extend_from_slice(&COLUMNS.to_be_bytes());
        self.field(&0_i16.to_be_bytes())?;
        self.field(&position.to_be_bytes())?;
        self.field(&row.stream)?;
        self.field(&row.bytes)
    }

    fn field(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let length = i32::try_from(bytes.len())?;
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes what waits.
    pub(super) async fn flush(&mut self, pool: &PgPool) -> Result<(), Failure> {
        if self.rows == 0 {
            return Ok(());
        }
        self.bytes.extend_from_slice(&END.to_be_bytes());
        let bytes = std::mem::take(&mut self.bytes);
        self.rows = 0;
        let mut conn = pool.acquire().await?;
        let into = "COPY events (shard, position, stream, body) FROM STDIN (FORMAT binary)";
        let mut copy = conn.copy_in_raw(into).await?;
        copy.send(bytes).await?;
        copy.finish().await?;
        Ok(())
    }
}
