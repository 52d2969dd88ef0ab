//! The log's tree as its only writer knows it: how it resumes, grows, and is held against what was
//! signed.

use ledger_projections::log::Recorded;
use ledger_projections::{log, log_tree, retention};
use ledger_protocol::merkle::{Hash, leaf_hash};
use ledger_protocol::tlog::{
    BundleIndex, ConsistencyProof, EntryBundle, Resource, RightEdge, TILE_WIDTH, Tile, TileIndex,
    Tiles, TreeFull, TreeHead,
};
use sqlx::PgConnection;

use super::error::{Alarm, Error};
use crate::archive::Archive;
use crate::limits::{LEAVES_PAGE_ROWS, LEAVES_UNWRITTEN_MAX};

/// The right edge of the tree, and the tiles that are not written yet.
#[derive(Debug)]
pub(super) struct Tree {
    edge: RightEdge,
    /// The hash of the last leaf, for seeing that the log still ends as it did.
    last: Option<Hash>,
    /// Full tiles that are not written.
    full: Vec<Tile>,
    /// How large the tree was when its tiles were last written.
    written: u64,
    /// What was signed last; the tree is not signed before it has reached that size.
    signed: Option<TreeHead>,
    /// Where the events are that have left the database, for the day on which tiles are lost.
    archive: Option<Archive>,
}

impl Tree {
    /// The tree of what was signed last, out of its tiles; where they are not there, the tree
    /// without leaves, so that all is hashed again and compared on the way.
    pub(super) async fn resume(
        conn: &mut PgConnection,
        signed: Option<TreeHead>,
        archive: Option<Archive>,
    ) -> Result<Self, Error> {
        let mut tree = Self {
            edge: RightEdge::new(),
            last: None,
            full: Vec::new(),
            written: 0,
            signed,
            archive,
        };
        let Some(signed) = signed.filter(|signed| signed.size > 0) else {
            return Ok(tree);
        };
        let head = log::head(conn).await?;
        if head < signed.size {
            let signed = signed.size;
            return Err(Alarm::Shrunk { signed, head }.into());
        }
        let end = end_of(signed.size);
        let mut wanted = RightEdge::tiles(signed.size);
        wanted.extend(end);
        let tiles = log_tree::tiles(conn, &wanted).await?;
        let leaf = tiles.iter().find_map(|tile| {
            let end =
                end.filter(|end| tile.index().level() == 0 && tile.index().index() == end.index())?;
            tile.hashes().get(usize::from(end.width()) - 1).copied()
        });
        let tiles = tiles.into_iter().collect();
        let (Ok(edge), Some(leaf)) = (RightEdge::resume(signed.size, &tiles), leaf) else {
            tracing::warn!(
                size = signed.size,
                "the tiles of what was signed are not all there; the log is hashed from its start"
            );
            return Ok(tree);
        };
        if edge.head() != signed {
            return Err(Alarm::Tiles { size: signed.size }.into());
        }
        (tree.edge, tree.last, tree.written) = (edge, Some(leaf), signed.size);
        Ok(tree)
    }

    /// Reads one page of the log; whether there may be more. The event that was read last is read
    /// again, because a database that has lost its tail may have got another one since.
    pub(super) async fn grow(&mut self, conn: &mut PgConnection) -> Result<bool, Error> {
        let (size, mut limit) = (self.edge.size(), LEAVES_PAGE_ROWS);
        let signed = self.signed.filter(|signed| size < signed.size);
        if let Some(signed) = signed {
            // It must be seen what the tree is at exactly that size.
            limit = u32::try_from(signed.size - size).map_or(limit, |left| limit.min(left));
        }
        let again = u32::from(self.last.is_some());
        let (page, is_archived) = self
            .read(conn, size - u64::from(again), limit + again)
            .await?;
        let mut events = page.into_iter();
        if let Some(last) = self.last {
            let Some(event) = events.next().filter(|event| event.position == size) else {
                let head = log::head(conn).await?;
                if head >= size {
                    return Err(Alarm::Gap { position: size }.into());
                }
                return Err(Alarm::Shrunk { signed: size, head }.into());
            };
            if leaf_hash(&event.bytes) != last {
                return Err(Alarm::Forked { size }.into());
            }
        }
        for event in events {
            let position = self.edge.size() + 1;
            if event.position != position {
                return Err(Alarm::Gap { position }.into());
            }
            let leaf = leaf_hash(&event.bytes);
            let full = self.edge.push(leaf);
            self.full.extend(full.map_err(|TreeFull| Alarm::Full)?);
            self.last = Some(leaf);
        }
        if let Some(signed) = signed.filter(|signed| signed.size == self.edge.size())
            && self.edge.head() != signed
        {
            return Err(Alarm::Forked { size: signed.size }.into());
        }
        let more = self.edge.size() == size + u64::from(limit);
        // A page out of the archive ends before the log does.
        Ok(more || is_archived)
    }

    /// The events after a position, at most `limit`, and whether they are out of the archive, which alone
    /// has what has left the database. The root at the signed size shows whether they are those of
    /// the log.
    async fn read(
        &self,
        conn: &mut PgConnection,
        after: u64,
        limit: u32,
    ) -> Result<(Vec<Recorded>, bool), Error> {
        let page = log::read(conn, after, limit).await?;
        if page
            .first()
            .is_some_and(|first| first.position == after + 1)
        {
            return Ok((page, false));
        }
        let through = retention::archived_through(conn).await?;
        if after >= through {
            return Ok((page, false));
        }
        let archive = self.archive.as_ref().ok_or(Alarm::Archived { through })?;
        let (mut page, mut last) = (Vec::new(), after);
        // The archive's bundles are full where events have left.
        while last < through && page.len() < limit as usize {
            let bundle = BundleIndex::new(last / u64::from(TILE_WIDTH), TILE_WIDTH);
            let bundle = bundle.map_err(|_| Alarm::Full)?;
            let file = Resource::Entries(bundle);
            let bytes = archive.read(file).await?;
            let missing = || Alarm::Gap { position: last + 1 };
            let bytes = bytes.ok_or_else(missing)?;
            let entries = EntryBundle::decode(&bytes, TILE_WIDTH).map_err(|_| missing())?;
            let places = (bundle.first_entry() + 1..).zip(entries.entries());
            let new = places.skip_while(|(position, _)| *position <= after);
            page.extend(new.map(|(position, bytes)| Recorded {
                position,
                bytes: bytes.to_vec(),
            }));
            last = bundle.first_entry() + u64::from(TILE_WIDTH);
        }
        page.truncate(limit as usize);
        Ok((page, true))
    }

    /// Whether so many leaves wait that their tiles must be written.
    pub(super) fn is_due(&self) -> bool {
        self.edge.size() - self.written >= LEAVES_UNWRITTEN_MAX
    }

    /// Whether there is nothing to write.
    pub(super) fn is_written(&self) -> bool {
        self.edge.size() == self.written
    }

    /// Whether it is this tree now.
    pub(super) fn is_at(&self, head: &TreeHead) -> bool {
        self.edge.size() == head.size && self.edge.head() == *head
    }

    /// Writes the tiles that the tree has got since it was last written.
    pub(super) async fn write(&mut self, conn: &mut PgConnection) -> Result<(), Error> {
        let partial = self.edge.partial_tiles_since(self.written);
        let tiles: Vec<Tile> = self.full.iter().cloned().chain(partial).collect();
        if let Some(tile) = log_tree::write(conn, &tiles).await? {
            return Err(Alarm::Tile(tile).into());
        }
        Ok(())
    }

    /// Notes that what [`Self::write`] wrote is committed.
    pub(super) fn committed(&mut self) {
        self.full.clear();
        self.written = self.edge.size();
    }

    /// The tree to sign now, if it is larger than what was signed.
    pub(super) fn unsigned(&self) -> Option<TreeHead> {
        let signed = self.signed.map_or(0, |signed| signed.size);
        (self.edge.size() > signed).then(|| self.edge.head())
    }

    /// Requires that the tiles, as they are stored, show this tree to extend what was signed last.
    pub(super) async fn check_extends(
        &self,
        conn: &mut PgConnection,
        to: &TreeHead,
    ) -> Result<(), Error> {
        let Some(from) = self.signed else {
            return Ok(());
        };
        let alarm = || Alarm::Tiles { size: to.size };
        let wanted = ConsistencyProof::tiles(from.size, to.size).map_err(|_| alarm())?;
        let tiles: Tiles = log_tree::tiles(conn, &wanted).await?.into_iter().collect();
        let proof = ConsistencyProof::read(from.size, to.size, &tiles).map_err(|_| alarm())?;
        proof.verify(&from, to).map_err(|_| alarm())?;
        Ok(())
    }

    /// Notes that this tree was signed.
    pub(super) fn signed(&mut self, head: TreeHead) {
        self.signed = Some(head);
    }
}

/// The tile with the last leaf of a tree, no wider than to that leaf.
fn end_of(size: u64) -> Option<TileIndex> {
    let last = size.checked_sub(1)?;
    let width = u16::try_from(last % 256 + 1).ok()?;
    TileIndex::new(0, last / 256, width).ok()
}
