//! A receipt of one command (SPEC U3), made from the log and its tree.

use ledger_projections::log::{self, Recorded};
use ledger_projections::log_tree;
use ledger_protocol::event::{Body, Event, Stream};
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::receipt::{Entry, Receipt};
use ledger_protocol::tlog::{
    Checkpoint, InclusionProof, Malformed, Note, TileIndex, Tiles, Unreadable,
};
use sqlx::{PgConnection, PgPool};

use crate::limits::CERTIFICATE_PAGE_ROWS;
use crate::log::snapshot;

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
/// certificate of its node that the signature over its end is held against.
pub async fn receipt(pool: &PgPool, command: CommandId) -> Result<Receipt, ReceiptError> {
    let mut conn = snapshot(pool).await.map_err(ReceiptError::Snapshot)?;
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

    let mut events = log::stream(&mut conn, Stream::Command(command)).await?;
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
        let events_of_it = log::stream(&mut conn, Stream::Batch(batch)).await?;
        events.extend(events_of_it.into_iter().filter(|it| it.position <= size));
    }
    if let Some((node, before)) = ended {
        events.extend(certificate(&mut conn, node, before).await?);
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
    node: NodeId,
    mut before: u64,
) -> Result<Option<Recorded>, ReceiptError> {
    loop {
        let stream = Stream::Node(node);
        let page = log::stream_before(conn, stream, before, CERTIFICATE_PAGE_ROWS).await?;
        let Some(last) = page.last() else {
            return Ok(None);
        };
        before = last.position;
        for recorded in page {
            if matches!(decode(&recorded)?.body, Body::NodeCertified(_)) {
                return Ok(Some(recorded));
            }
        }
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
