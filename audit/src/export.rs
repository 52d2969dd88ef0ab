//! `audit export`: the log as one file that proves itself (SPEC U2), as `docs/export-format.md`
//! describes it.
//!
//! Hashes are those that the log had when its events were appended, from the tiles, and not made
//! again here: so a later change of an event's bytes shows at its position. Nothing is judged here;
//! that is [`crate::verify`]'s.

use std::collections::VecDeque;

use ledger_projections::log_tree::Published;
use ledger_projections::{log as events, log_export, log_tree, retention};
use ledger_protocol::export::{End, Frame, Header, Kind, MAGIC, Trust, Unwritable, record};
use ledger_protocol::tlog::{
    BundleIndex, Checkpoint, EntryBundle, KeyName, Note, Tile, new_bundles,
};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, PgPool};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::Error;
use crate::archive::Archive;
use crate::error::{database, rows};
use crate::limits::{CHECKPOINTS_PAGE_ROWS, EXPORT_PAGE_BUNDLES};
use crate::log;
use crate::trust;

/// What an export holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Which log it is of.
    pub origin: String,
    /// Events, which is the size of the last checkpoint.
    pub events: u64,
    /// Checkpoints, with the last one.
    pub checkpoints: u64,
    /// Trust bundles.
    pub trust_bundles: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
}

/// Writes the log up to its newest checkpoint, all from one snapshot of the database, and from the
/// archive what has left that. `progress` is told how many events of how many are written. A few
/// thousand events are held at a time.
pub async fn export<W: AsyncWrite + Unpin>(
    pool: &PgPool,
    archive: Option<&Archive>,
    to: W,
    mut progress: impl FnMut(u64, u64),
) -> Result<Exported, Error> {
    let mut snapshot = log::snapshot(pool).await?;
    let newest = log_tree::newest(&mut snapshot).await.map_err(rows)?;
    let last = newest.ok_or(Error::NoCheckpoint)?;
    let signers = Signers::of(&last)?;
    let size = signers.size;
    let mut file = File::new(to);
    file.raw(MAGIC).await?;
    let origin = signers.origin.clone();
    let header = Header { origin, size };
    let (frame, payload) = record(Kind::Header, &header).map_err(Error::Record)?;
    file.write(frame, &payload).await?;
    let through = retention::archived_through(&mut snapshot).await;
    let old = match (through.map_err(rows)?, archive) {
        (0, _) => None,
        (through, Some(archive)) => Some((through, archive)),
        (through, None) => return Err(Error::Archived { through }),
    };
    let bundles = trust::read_all(&mut snapshot).await?;
    let trust_bundles = bundles.len() as u64;
    for bundle in bundles {
        let (frame, payload) = record(Kind::Trust, &Trust::from(bundle)).map_err(Error::Record)?;
        file.write(frame, &payload).await?;
    }

    let mut older = Older::new(signers);
    let mut checkpoints = 1;
    let mut wanted = new_bundles(0, size);
    loop {
        let page: Vec<BundleIndex> = wanted.by_ref().take(EXPORT_PAGE_BUNDLES).collect();
        if page.is_empty() {
            break;
        }
        let tiles: Vec<_> = page.iter().map(|bundle| bundle.tile()).collect();
        let tiles = log_tree::tiles(&mut snapshot, &tiles).await.map_err(rows)?;
        for bundle in &page {
            let entries = match old {
                Some((through, archive)) if bundle.first_entry() < through => {
                    log::archived(&mut snapshot, archive, *bundle).await?
                }
                _ => read_bundle(&mut snapshot, *bundle).await?,
            };
            file.payload(Kind::Entries, &entries).await?;
            write_hashes(&mut file, *bundle, &tiles).await?;
            let end = bundle.first_entry() + u64::from(bundle.width());
            while let Some(note) = older.next_within(&mut snapshot, end).await? {
                checkpoints += 1;
                file.payload(Kind::Checkpoint, note.as_bytes()).await?;
            }
            progress(end, size);
        }
    }
    file.payload(Kind::Last, last.note.as_bytes()).await?;
    let digest = file.digest.clone().finalize().into();
    let end = End::new(digest, size, checkpoints, trust_bundles);
    let (frame, payload) = record(Kind::End, &end).map_err(Error::Record)?;
    file.write(frame, &payload).await?;
    file.to.flush().await.map_err(Error::Write)?;
    database(snapshot.rollback()).await?;
    Ok(Exported {
        origin: header.origin,
        events: size,
        checkpoints,
        trust_bundles,
        bytes: file.bytes,
    })
}

/// The events of one bundle.
async fn read_bundle(conn: &mut PgConnection, bundle: BundleIndex) -> Result<Vec<u8>, Error> {
    let (first, width) = (bundle.first_entry(), bundle.width());
    let read = events::read(conn, first, width.into()).await;
    let read = read.map_err(rows)?;
    let mut bodies = Vec::with_capacity(read.len());
    for (expected, found) in (first + 1..).zip(&read) {
        if found.position != expected {
            return Err(Error::Missing { position: expected });
        }
        bodies.push(found.bytes.as_slice());
    }
    if bodies.len() < usize::from(width) {
        let position = first + bodies.len() as u64 + 1;
        return Err(Error::Missing { position });
    }
    let entries = EntryBundle::new(bodies).map_err(|source| Error::Bundle { first, source })?;
    Ok(entries.encode())
}

/// What the log had hashed of the events of one bundle.
async fn write_hashes<W: AsyncWrite + Unpin>(
    file: &mut File<W>,
    bundle: BundleIndex,
    tiles: &[Tile],
) -> Result<(), Error> {
    let (first, width) = (bundle.first_entry(), bundle.width());
    let at_least = |tile: &&Tile| {
        let index = tile.index();
        index.level() == 0 && index.index() == bundle.index() && index.width() >= width
    };
    let tile = tiles.iter().find(at_least);
    let hashes = tile.and_then(|tile| tile.hashes().get(..width.into()));
    let hashes = hashes.ok_or(Error::NoTile { first: first + 1 })?;
    file.payload(Kind::Hashes, hashes.as_flattened()).await
}

/// By whom, and of what, the last checkpoint is.
struct Signers {
    origin: String,
    size: u64,
    /// Name and ID of the keys that signed it as the log.
    keys: Vec<(KeyName, u32)>,
}

impl Signers {
    fn of(published: &Published) -> Result<Self, Error> {
        let size = published.size;
        let bad = |source| Error::Checkpoint { size, source };
        let note = Note::parse(published.note.as_bytes()).map_err(bad)?;
        let checkpoint = Checkpoint::parse(note.text()).map_err(bad)?;
        if checkpoint.head().size != size {
            let given = checkpoint.head().size;
            return Err(Error::CheckpointSize { size, given });
        }
        let origin = checkpoint.origin().to_owned();
        let all = note.signatures().iter();
        let own = all.filter(|signature| signature.name().as_str() == origin);
        let keys = own.map(|by| (by.name().clone(), by.key_id())).collect();
        Ok(Self { origin, size, keys })
    }

    /// Whether it is by one of the same keys. A log may have had another key before.
    fn signed(&self, published: &Published) -> bool {
        Note::parse(published.note.as_bytes()).is_ok_and(|note| {
            let mut all = note.signatures().iter();
            all.any(|by| {
                let mut keys = self.keys.iter();
                keys.any(|(name, id)| name == by.name() && *id == by.key_id())
            })
        })
    }
}

/// The checkpoints before the last, in order.
struct Older {
    signers: Signers,
    read_to: u64,
    page: VecDeque<Published>,
    is_over: bool,
}

impl Older {
    const fn new(signers: Signers) -> Self {
        Self {
            signers,
            read_to: 0,
            page: VecDeque::new(),
            is_over: false,
        }
    }

    /// The next one, if it is of no more than `size` leaves.
    async fn next_within(
        &mut self,
        conn: &mut PgConnection,
        size: u64,
    ) -> Result<Option<String>, Error> {
        loop {
            if self.page.is_empty() && !self.is_over {
                let between = (self.read_to, self.signers.size);
                let origin = &self.signers.origin;
                let page =
                    log_export::checkpoints(conn, origin, between, CHECKPOINTS_PAGE_ROWS).await;
                self.page = page.map_err(rows)?.into();
                self.is_over = self.page.is_empty();
                self.read_to = self.page.back().map_or(self.read_to, |last| last.size);
            }
            if self.page.front().is_none_or(|next| next.size > size) {
                return Ok(None);
            }
            let next = self.page.pop_front();
            if let Some(next) = next.filter(|next| self.signers.signed(next)) {
                return Ok(Some(next.note));
            }
        }
    }
}

/// The file as it is written.
struct File<W> {
    to: W,
    bytes: u64,
    /// Over everything but the payloads of bundles of events.
    digest: Sha256,
}

impl<W: AsyncWrite + Unpin> File<W> {
    fn new(to: W) -> Self {
        Self {
            to,
            bytes: 0,
            digest: Sha256::new(),
        }
    }

    async fn raw(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.digest.update(bytes);
        self.put(bytes).await
    }

    async fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes).await.map_err(Error::Write)
    }

    async fn payload(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let frame = Frame::of(kind, payload);
        let frame = frame.map_err(|error| Error::Record(Unwritable::Frame(error)))?;
        self.write(frame, payload).await
    }

    async fn write(&mut self, frame: Frame, payload: &[u8]) -> Result<(), Error> {
        self.raw(&frame.encode()).await?;
        if frame.kind == Kind::Entries {
            self.put(payload).await
        } else {
            self.raw(payload).await
        }
    }
}
