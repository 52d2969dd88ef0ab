//! A receipt of one command (SPEC U3), made from the log and its tree.

use ledger_projections::log::{self as stored, Recorded};
use ledger_projections::{log_tree, retention};
use ledger_protocol::event::{Body, Event, Stream};
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::receipt::{Entry, Receipt};
use ledger_protocol::tlog::{
    BundleIndex, Checkpoint, EntryBundle, InclusionProof, Malformed, Note, TILE_WIDTH, TileIndex,
    Tiles, Unreadable,
};
use sqlx::{PgConnection, PgPool};

use crate::archive::streams::Positions;
use crate::archive::{Archive, ArchiveError};
use crate::limits::CERTIFICATE_PAGE_ROWS;
use crate::log;

/// Why there is no receipt.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// The log has no such command.
    #[error("the log has no command {0}")]
    Unknown(CommandId),
    /// The log has no checkpoint.
    #[error("the log has no checkpoint yet; does a `serve` with --log-key run?")]
    NoCheckpoint,
    /// The newest checkpoint does not reach the command yet.
    #[error("the newest checkpoint has {size} events; the command begins at position {position}")]
    NotYet {
        /// Size of the checkpoint.
        size: u64,
        /// Where the command begins.
        position: u64,
    },
    /// The checkpoint in the database is none.
    #[error("the checkpoint of size {size} is not readable: it {source}")]
    Checkpoint {
        /// The size that it is kept under.
        size: u64,
        /// What is wrong.
        #[source]
        source: Malformed,
    },
    /// The tiles do not reach the checkpoint.
    #[error("the tree does not prove position {position}")]
    Tree {
        /// Which event.
        position: u64,
        /// What is missing.
        #[source]
        source: Unreadable,
    },
    /// An event is not readable.
    #[error("the event at position {position} is not readable")]
    Event {
        /// Where.
        position: u64,
        /// Why.
        #[source]
        source: ledger_protocol::event::Error,
    },
    /// Some of its events have left the database, and no archive was given.
    #[error(
        "the events up to position {through} have left the database for an archive; --archive says \
         where that is"
    )]
    Archived {
        /// The last of them.
        through: u64,
    },
    /// The archive has not what it should have.
    #[error("the archive cannot be read")]
    Archive(#[from] ArchiveError),
    /// An event out of the archive.
    #[error("the log cannot be read")]
    Log(#[source] crate::Error),
    /// The database.
    #[error("the log cannot be read")]
    Projection(#[from] ledger_projections::Error),
    /// No snapshot of it.
    #[error("the log cannot be read")]
    Snapshot(#[source] crate::Error),
}

impl From<sqlx::Error> for ReceiptError {
    fn from(error: sqlx::Error) -> Self {
        Self::Projection(error.into())
    }
}

/// The receipt of a command as far as the newest checkpoint goes: its events, its batch's, and the
/// certificate of its node that the signature over its end is held against. The archive gives what has
/// left the database.
pub async fn receipt(
    pool: &PgPool,
    archive: Option<&Archive>,
    command: CommandId,
) -> Result<Receipt, ReceiptError> {
    let mut conn = log::snapshot(pool).await.map_err(ReceiptError::Snapshot)?;
    let old = Old {
        ends: retention::archived_ranges(&mut conn).await?,
        archive,
    };
    let newest = log_tree::newest(&mut conn).await?;
    let newest = newest.ok_or(ReceiptError::NoCheckpoint)?;
    let kept_under = newest.size;
    let unreadable = |source| ReceiptError::Checkpoint {
        size: kept_under,
        source,
    };
    let checkpoint = Note::parse(newest.note.as_bytes()).map_err(unreadable)?;
    let size = Checkpoint::parse(checkpoint.text()).map_err(unreadable)?;
    let size = size.head().size;

    let mut events = old.stream(&mut conn, Stream::Command(command)).await?;
    let first = events.first().ok_or(ReceiptError::Unknown(command))?;
    let position = first.position;
    if position > size {
        return Err(ReceiptError::NotYet { size, position });
    }
    events.retain(|event| event.position <= size);
    let (mut batch, mut ended) = (None, None);
    for recorded in &events {
        match decode(recorded)?.body {
            Body::CommandQueued(queued) => batch = queued.batch_id,
            Body::CommandSettled(end) if end.node_sig.is_some() => {
                ended = Some((end.node_id, recorded.position));
            }
            _ => {}
        }
    }
    if let Some(batch) = batch {
        let events_of_it = old.stream(&mut conn, Stream::Batch(batch)).await?;
        events.extend(events_of_it.into_iter().filter(|it| it.position <= size));
    }
    if let Some((node, before)) = ended {
        events.extend(certificate(&mut conn, &old, node, before).await?);
    }
    events.sort_unstable_by_key(|recorded| recorded.position);
    let entries = prove(&mut conn, events, size).await?;
    Ok(Receipt {
        checkpoint,
        entries,
    })
}

fn decode(recorded: &Recorded) -> Result<Event, ReceiptError> {
    let position = recorded.position;
    Event::decode(&recorded.bytes).map_err(|source| ReceiptError::Event { position, source })
}

/// The certificate that the node had at a position.
async fn certificate(
    conn: &mut PgConnection,
    old: &Old<'_>,
    node: NodeId,
    mut before: u64,
) -> Result<Option<Recorded>, ReceiptError> {
    loop {
        let stream = Stream::Node(node);
        let page = stored::stream_before(conn, stream, before, CERTIFICATE_PAGE_ROWS).await?;
        let Some(last) = page.last() else {
            break;
        };
        before = last.position;
        for recorded in page {
            if matches!(decode(&recorded)?.body, Body::NodeCertified(_)) {
                return Ok(Some(recorded));
            }
        }
    }
    let mut positions = Positions::of(node.uuid(), &old.ends);
    while let Some(archive) = old.archive()? {
        let Some(position) = positions.next(archive).await? else {
            break;
        };
        if position < before {
            let recorded = old.event(conn, archive, position).await?;
            if matches!(decode(&recorded)?.body, Body::NodeCertified(_)) {
                return Ok(Some(recorded));
            }
        }
    }
    Ok(None)
}

/// What has left the database.
struct Old<'a> {
    /// The last positions of what left at once, in order.
    ends: Vec<u64>,
    archive: Option<&'a Archive>,
}

impl Old<'_> {
    /// The archive, which must be given where something has left; none where all is here.
    fn archive(&self) -> Result<Option<&Archive>, ReceiptError> {
        match (self.ends.last(), self.archive) {
            (None, _) => Ok(None),
            (Some(_), Some(archive)) => Ok(Some(archive)),
            (Some(through), None) => Err(ReceiptError::Archived { through: *through }),
        }
    }

    /// Every event of a stream, in order.
    async fn stream(
        &self,
        conn: &mut PgConnection,
        stream: Stream,
    ) -> Result<Vec<Recorded>, ReceiptError> {
        let mut recorded = stored::stream(conn, stream).await?;
        // Versions are gapless, from 1 (SPEC L1), and what leaves is what is oldest.
        let is_whole = match recorded.first() {
            Some(first) => decode(first)?.version == 1,
            None => false,
        };
        if is_whole {
            return Ok(recorded);
        }
        if let Some(archive) = self.archive()? {
            let mut positions = Positions::of(stream.uuid(), &self.ends);
            while let Some(position) = positions.next(archive).await? {
                recorded.push(self.event(conn, archive, position).await?);
            }
            recorded.sort_unstable_by_key(|recorded| recorded.position);
        }
        Ok(recorded)
    }

    /// An event out of the archive.
    async fn event(
        &self,
        conn: &mut PgConnection,
        archive: &Archive,
        position: u64,
    ) -> Result<Recorded, ReceiptError> {
        let (index, place) = (
            (position - 1) / u64::from(TILE_WIDTH),
            (position - 1) % u64::from(TILE_WIDTH),
        );
        let place = u16::try_from(place).unwrap_or(0);
        let missing = |_| {
            ReceiptError::Archive(ArchiveError::Missing {
                file: format!("position {position}"),
            })
        };
        let bundle = BundleIndex::new(index, place + 1).map_err(missing)?;
        let bytes = log::archived(conn, archive, bundle)
            .await
            .map_err(ReceiptError::Log)?;
        let entry = EntryBundle::first(&bytes, bundle.width()).last();
        let bytes = entry.unwrap_or_default().to_vec();
        Ok(Recorded { position, bytes })
    }
}

async fn prove(
    conn: &mut PgConnection,
    events: Vec<Recorded>,
    size: u64,
) -> Result<Vec<Entry>, ReceiptError> {
    let unproved = |position| move |source| ReceiptError::Tree { position, source };
    let mut wanted: Vec<TileIndex> = Vec::new();
    for event in &events {
        let tiles = InclusionProof::tiles(event.position - 1, size);
        wanted.extend(tiles.map_err(unproved(event.position))?);
    }
    wanted.sort_unstable();
    wanted.dedup();
    let tiles: Tiles = log_tree::tiles(conn, &wanted).await?.into_iter().collect();
    let entry = |event: Recorded| {
        let (position, index) = (event.position, event.position - 1);
        let inclusion = InclusionProof::read(index, size, &tiles).map_err(unproved(position))?;
        Ok(Entry {
            event: event.bytes,
            inclusion,
            index,
        })
    };
    events.into_iter().map(entry).collect()
}
