//! The log's tree (SPEC U1): its tiles, each at its widest, and the checkpoints that were published.

use ledger_protocol::merkle::HASH_BYTES;
use ledger_protocol::time::Timestamp;
use ledger_protocol::tlog::{Tile, TileIndex};
use sqlx::PgConnection;

use crate::Error;
use crate::rows::{bigint, unsigned};

/// A checkpoint that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The size that it is kept under.
    pub size: u64,
    /// The signed note.
    pub note: String,
}

/// Those of these tiles that are kept, each as wide as it is; it may have become wider than was
/// asked. A row that can be no tile counts as none.
pub async fn tiles(conn: &mut PgConnection, wanted: &[TileIndex]) -> Result<Vec<Tile>, Error> {
    let (levels, indexes) = places(wanted.iter().copied());
    let rows: Vec<(i16, i64, Vec<u8>)> = sqlx::query_as(
        "SELECT level, index, hashes FROM log_tiles
         WHERE (level, index) IN (SELECT * FROM unnest($1::smallint[], $2::bigint[]))",
    )
    .bind(levels)
    .bind(indexes)
    .fetch_all(conn)
    .await?;
    let tile = |(level, index, hashes): (i16, i64, Vec<u8>)| {
        let width = u16::try_from(hashes.len() / HASH_BYTES).ok()?;
        let (level, index) = (u8::try_from(level).ok()?, u64::try_from(index).ok()?);
        let index = TileIndex::new(level, index, width).ok()?;
        Tile::decode(index, &hashes).ok()
    };
    Ok(rows.into_iter().filter_map(tile).collect())
}

/// Keeps tiles, each once. One that is kept wider stays so. Gives the first that has other hashes
/// than what is kept of it: it was not written, and the caller does not commit.
pub async fn write(conn: &mut PgConnection, tiles: &[Tile]) -> Result<Option<TileIndex>, Error> {
    let (levels, indexes) = places(tiles.iter().map(Tile::index));
    let hashes: Vec<Vec<u8>> = tiles.iter().map(Tile::encode).collect();
    let written: Vec<(i16, i64)> = sqlx::query_as(
        "INSERT INTO log_tiles AS kept (level, index, hashes)
         SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::bytea[])
         ON CONFLICT (level, index) DO UPDATE
         SET hashes = CASE WHEN octet_length(excluded.hashes) > octet_length(kept.hashes)
                      THEN excluded.hashes ELSE kept.hashes END
         WHERE substr(excluded.hashes, 1, octet_length(kept.hashes))
             = substr(kept.hashes, 1, octet_length(excluded.hashes))
         RETURNING level, index",
    )
    .bind(levels)
    .bind(indexes)
    .bind(hashes)
    .fetch_all(conn)
    .await?;
    let is_written = |tile: &TileIndex| {
        let place = (i16::from(tile.level()), bigint(tile.index()));
        written.contains(&place)
    };
    Ok(tiles.iter().map(Tile::index).find(|tile| !is_written(tile)))
}

fn places(tiles: impl Iterator<Item = TileIndex>) -> (Vec<i16>, Vec<i64>) {
    tiles
        .map(|tile| (i16::from(tile.level()), bigint(tile.index())))
        .unzip()
}

/// The newest checkpoint of any log that this database has been; none before the first.
pub async fn newest(conn: &mut PgConnection) -> Result<Option<Published>, Error> {
    let row = sqlx::query_as("SELECT size, note FROM checkpoints ORDER BY size DESC LIMIT 1");
    published(row.fetch_optional(conn).await?)
}

/// The newest checkpoint of the log with this origin.
pub async fn newest_of(conn: &mut PgConnection, origin: &str) -> Result<Option<Published>, Error> {
    let row = sqlx::query_as(
        "SELECT size, note FROM checkpoints WHERE starts_with(note, $1 || chr(10))
         ORDER BY size DESC LIMIT 1",
    );
    published(row.bind(origin).fetch_optional(conn).await?)
}

/// The newest checkpoint of any log that this database has been, and when it was published, if it is
/// larger than this.
pub async fn newest_after(
    conn: &mut PgConnection,
    size: u64,
) -> Result<Option<(Published, Timestamp)>, Error> {
    let row: Option<(i64, String, i64)> = sqlx::query_as(
        "SELECT size, note, (extract(epoch FROM signed_at) * 1000000)::bigint FROM checkpoints
         WHERE size > $1 ORDER BY size DESC LIMIT 1",
    )
    .bind(bigint(size))
    .fetch_optional(conn)
    .await?;
    let Some((size, note, at)) = row else {
        return Ok(None);
    };
    let published = published(Some((size, note)))?;
    Ok(published.map(|published| (published, Timestamp::from_micros(at))))
}

fn published(row: Option<(i64, String)>) -> Result<Option<Published>, Error> {
    row.map(|(size, note)| {
        let size = unsigned(size, "checkpoints", "size", &size)?;
        Ok(Published { size, note })
    })
    .transpose()
}

/// Publishes a checkpoint; `false` when another one of this size is there. The same one with other
/// signatures is no other: that of the log is always the same, those of witnesses never are.
pub async fn publish(conn: &mut PgConnection, size: u64, note: &str) -> Result<bool, Error> {
    let there: String = sqlx::query_scalar(
        "WITH added AS (
             INSERT INTO checkpoints (size, note, signed_at) VALUES ($1, $2, now())
             ON CONFLICT (size) DO NOTHING RETURNING note)
         SELECT note FROM added UNION ALL SELECT note FROM checkpoints WHERE size = $1 LIMIT 1",
    )
    .bind(bigint(size))
    .bind(note)
    .fetch_one(conn)
    .await?;
    Ok(text(&there) == text(note))
}

/// What was signed: a checkpoint has no empty line, and one comes after it.
fn text(note: &str) -> &str {
    note.split_once("\n\n").map_or(note, |(text, _)| text)
}

/// One look at which of the checkpoints that are older than an hour may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinned {
    /// How many were looked at.
    pub seen: u64,
    /// Where the next look begins.
    pub to: u64,
    /// How many went.
    pub deleted: u64,
}

/// Thins out checkpoints that are older than an hour and larger than `after`: of those that belong to the
/// same 4,096 events, the largest stays. Looks at no more than `rows_max`, which is 2 or more.
pub async fn thin(conn: &mut PgConnection, after: u64, rows_max: u32) -> Result<Thinned, Error> {
    let (seen, to, deleted): (i64, i64, i64) =
        sqlx::query_as("SELECT rows_seen, seen_to, rows_deleted FROM thin_checkpoints($1, $2)")
            .bind(bigint(after))
            .bind(i32::try_from(rows_max).unwrap_or(i32::MAX))
            .fetch_one(conn)
            .await?;
    let count = |number: i64, column| unsigned(number, "thin_checkpoints", column, &after);
    Ok(Thinned {
        seen: count(seen, "rows_seen")?,
        to: count(to, "seen_to")?,
        deleted: count(deleted, "rows_deleted")?,
    })
}
