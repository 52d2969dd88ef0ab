//! The log for whoever verifies it (SPEC U1): C2SP tlog-tiles over HTTP.
//!
//! Nothing is served that the newest published checkpoint does not cover. Each tile is held against
//! that checkpoint's root first, and each entry against its tile: the path from a tile's first leaf
//! to the root is made of all the hashes of the tile. So an entry may come from anywhere, also from
//! an archive.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use ledger_projections::{log, log_tree, retention};
use ledger_protocol::tlog::{
    BundleIndex, Checkpoint, EntryBundle, InclusionProof, Note, Resource, TILE_WIDTH, Tile,
    TileIndex, Tiles, TreeHead,
};
use sqlx::{PgConnection, PgPool};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::archive::{Archive, ArchiveError};
use crate::limits::{LOG_READS_AT_ONCE, LOG_STEP_WITHIN, TOLD_EVERY};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// What changes with every checkpoint.
const NEVER: HeaderValue = HeaderValue::from_static("no-cache");
/// What will soon be replaced by something wider, and never changes.
const SHORT: HeaderValue = HeaderValue::from_static("public, max-age=60");
const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// The log in this database: `/checkpoint`, `/tile/<level>/<index>`, `/tile/entries/<index>`.
/// Without authentication: whoever reaches it reads every event. Events that have left the database
/// come from the archive; without it they are not there.
pub fn router(pool: PgPool, archive: Option<Archive>) -> Router {
    let log = Log {
        pool,
        archive,
        reads: Arc::new(Semaphore::new(LOG_READS_AT_ONCE)),
        told: Arc::new(Mutex::new(None)),
    };
    Router::new()
        .route("/checkpoint", get(serve))
        .route("/tile/{*rest}", get(serve))
        .with_state(log)
}

#[derive(Debug, Clone)]
struct Log {
    pool: PgPool,
    archive: Option<Archive>,
    reads: Arc<Semaphore>,
    /// When it was last told that what is kept is not what was signed.
    told: Arc<Mutex<Option<Instant>>>,
}

/// Why there is nothing to serve.
#[derive(Debug, thiserror::Error)]
pub enum Unserved {
    /// The log has no such thing, or no checkpoint.
    #[error("the log has no such resource")]
    Absent,
    /// It is in an archive, and none was given.
    #[error("the events up to position {through} have left the database for an archive")]
    Archived {
        /// The last of them.
        through: u64,
    },
    /// The archive has it not, or another one.
    #[error("the archive cannot be read")]
    Archive(#[from] ArchiveError),
    /// The database.
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    /// Its tables.
    #[error("the log cannot be read")]
    Tables(#[from] ledger_projections::Error),
    /// The newest checkpoint.
    #[error("the published checkpoint of size {size} is none")]
    Checkpoint {
        /// The size that it is kept under.
        size: u64,
    },
    /// A tile was changed.
    #[error("`{tile}` is not what the checkpoint of size {size} was signed over")]
    Tile {
        /// Which.
        tile: TileIndex,
        /// Size of the tree that was signed.
        size: u64,
    },
    /// An event was changed.
    #[error("the events of `{0}` are not those that were signed")]
    Entries(BundleIndex),
}

async fn serve(State(log): State<Log>, uri: Uri) -> Response {
    let path = uri.path().strip_prefix('/').unwrap_or_default();
    let Ok(resource) = path.parse::<Resource>() else {
        return refuse(StatusCode::NOT_FOUND, &Unserved::Absent.to_string());
    };
    let read = async {
        // Never closed.
        let _slot = log.reads.acquire().await.ok();
        let mut conn = log.pool.acquire().await?;
        read(&mut conn, log.archive.as_ref(), resource).await
    };
    let busy = "the log cannot be read now; try again";
    match timeout(LOG_STEP_WITHIN, read).await {
        Ok(Ok(bytes)) => answer(resource, bytes),
        Ok(Err(error @ (Unserved::Absent | Unserved::Archived { .. }))) => {
            refuse(StatusCode::NOT_FOUND, &error.to_string())
        }
        Ok(Err(error @ (Unserved::Database(_) | Unserved::Tables(_) | Unserved::Archive(_)))) => {
            let error = crate::checkpointer::chain(&error);
            tracing::debug!(error, "the log was not served");
            refuse(StatusCode::SERVICE_UNAVAILABLE, busy)
        }
        Ok(Err(error)) => {
            let told = error.to_string();
            if log.is_news() {
                tracing::error!(
                    problem = told,
                    "what is kept of the log is not what was signed"
                );
            }
            refuse(StatusCode::INTERNAL_SERVER_ERROR, &told)
        }
        Err(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, busy),
    }
}

impl Log {
    /// Whether an alarm is to be told, which it is once a minute.
    fn is_news(&self) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = told.is_none_or(|at| at.elapsed() >= TOLD_EVERY);
        if is_news {
            *told = Some(Instant::now());
        }
        is_news
    }
}

fn answer(resource: Resource, bytes: Vec<u8>) -> Response {
    let (kind, keep) = match resource {
        Resource::Checkpoint => (TEXT, NEVER),
        Resource::Tile(tile) => (BYTES, if tile.is_full() { FOREVER } else { SHORT }),
        Resource::Entries(bundle) => {
            let is_full = bundle.width() == TILE_WIDTH;
            (BYTES, if is_full { FOREVER } else { SHORT })
        }
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)];
    (headers, Body::from(bytes)).into_response()
}

fn refuse(status: StatusCode, told: &str) -> Response {
    let headers = [(header::CONTENT_TYPE, TEXT), (header::CACHE_CONTROL, NEVER)];
    (status, headers, format!("{told}\n")).into_response()
}

async fn read(
    conn: &mut PgConnection,
    archive: Option<&Archive>,
    resource: Resource,
) -> Result<Vec<u8>, Unserved> {
    let (note, checkpoint) = newest(conn).await?;
    match resource {
        Resource::Checkpoint => Ok(note.into_bytes()),
        Resource::Tile(tile) => Ok(hashes(conn, tile, checkpoint.head()).await?.encode()),
        Resource::Entries(bundle) => entries(conn, archive, bundle, checkpoint.head()).await,
    }
}

/// The newest checkpoint, as it is and as it is read.
pub(crate) async fn newest(conn: &mut PgConnection) -> Result<(String, Checkpoint), Unserved> {
    let published = log_tree::newest(conn).await?.ok_or(Unserved::Absent)?;
    let size = published.size;
    let checkpoint = Note::parse(published.note.as_bytes())
        .and_then(|note| Checkpoint::parse(note.text()))
        .ok()
        .filter(|checkpoint| checkpoint.head().size == size);
    let checkpoint = checkpoint.ok_or(Unserved::Checkpoint { size })?;
    Ok((published.note, checkpoint))
}

/// A tile, as wide as asked, that is shown to be what was signed.
pub(crate) async fn hashes(
    conn: &mut PgConnection,
    wanted: TileIndex,
    head: &TreeHead,
) -> Result<Tile, Unserved> {
    let height = 8 * (u32::from(wanted.level()) + 1);
    let leaves = u128::from(wanted.index()) << height;
    let below = 8 * u32::from(wanted.level());
    let end = leaves + (u128::from(wanted.width()) << below);
    let first = u64::try_from(leaves).map_err(|_| Unserved::Absent)?;
    if end > u128::from(head.size) {
        return Err(Unserved::Absent);
    }
    let wrong = || Unserved::Tile {
        tile: wanted,
        size: head.size,
    };
    let mut needed = InclusionProof::tiles(first, head.size).map_err(|_| wrong())?;
    // A tree of one leaf needs no proof.
    let lowest = TileIndex::new(0, first / u64::from(TILE_WIDTH), 1).map_err(|_| wrong())?;
    needed.extend([lowest, wanted]);
    let tiles = log_tree::tiles(conn, &needed).await?;
    let find = |at: TileIndex| {
        let same =
            |tile: &&Tile| (tile.index().level(), tile.index().index()) == (at.level(), at.index());
        tiles.iter().find(same)
    };
    let leaf = find(lowest).and_then(|tile| tile.hashes().first().copied());
    let bytes = find(wanted).map(Tile::encode);
    let (Some(leaf), Some(bytes)) = (leaf, bytes) else {
        return Err(wrong());
    };
    let bytes = bytes
        .get(..usize::from(wanted.width()) * 32)
        .ok_or_else(wrong)?;
    let tile = Tile::decode(wanted, bytes).map_err(|_| wrong())?;
    // The path takes the first hash of every tile above the leaves from below, and not from it.
    let mut under = at(&tiles, 0, lowest.index());
    for level in 1..=wanted.level() {
        let index = first.checked_shr(8 * (u32::from(level) + 1)).unwrap_or(0);
        let above = at(&tiles, level, index).ok_or_else(wrong)?;
        if under.map(Tile::root) != above.hashes().first().copied() {
            return Err(wrong());
        }
        under = Some(above);
    }
    let tiles: Tiles = tiles.iter().cloned().collect();
    let proof = InclusionProof::read(first, head.size, &tiles).map_err(|_| wrong())?;
    proof.verify(&leaf, first, head).map_err(|_| wrong())?;
    Ok(tile)
}

fn at(tiles: &[Tile], level: u8, index: u64) -> Option<&Tile> {
    let place = |tile: &&Tile| (tile.index().level(), tile.index().index()) == (level, index);
    tiles.iter().find(place)
}

/// Entries that are shown to be what was signed.
pub(crate) async fn entries(
    conn: &mut PgConnection,
    archive: Option<&Archive>,
    bundle: BundleIndex,
    head: &TreeHead,
) -> Result<Vec<u8>, Unserved> {
    let tile = hashes(conn, bundle.tile(), head).await?;
    let events = log::read(conn, bundle.first_entry(), bundle.width().into()).await?;
    if events.len() < usize::from(bundle.width()) {
        let through = retention::archived_through(conn).await?;
        if through > bundle.first_entry() {
            let archive = archive.ok_or(Unserved::Archived { through })?;
            return Ok(archive.entries(bundle, &tile).await?);
        }
    }
    let bodies = events.iter().map(|event| event.bytes.as_slice()).collect();
    let wrong = |_| Unserved::Entries(bundle);
    let found = EntryBundle::new(bodies).map_err(wrong)?;
    if !found.leaf_hashes().eq(tile.hashes().iter().copied()) {
        return Err(Unserved::Entries(bundle));
    }
    Ok(found.encode())
}
