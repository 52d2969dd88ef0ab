//! The ledger as it was (SPEC U2): the log folded up to a past position by the same pure functions
//! that decided it, and what changed between two.
//!
//! Commands that have ended are let go as soon as nothing more can come of them, so memory holds what
//! is live at a time, with nodes and batches, whatever the length of the log. For that, late words,
//! which are few, are looked for first.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use ledger_projections::log as events;
use ledger_protocol::event::{Body, Event, Stream};
use ledger_protocol::id::CommandId;
use ledger_protocol::time::Timestamp;
use sqlx::{PgPool, Postgres, Transaction};

use crate::archive::Archive;
use crate::error::database;
use crate::limits::FILE_READ_BYTES;
use crate::{Error, log, verify};

mod diff;
mod world;

pub use diff::{BatchFacts, Change, Changed, CommandFacts, NodeFacts, diff};
pub use world::{Counts, Each, Item, Past};

use world::World;

/// A point of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// After the event at this position; 0 is before the first.
    Position(u64),
    /// After the last position whose event was recorded at or before this time.
    Time(Timestamp),
}

/// Text that is no point of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is neither a position nor a time such as 2026-01-31T09:30:00Z (RFC 3339)")]
pub struct NoMoment;

impl std::str::FromStr for Moment {
    type Err = NoMoment;

    fn from_str(text: &str) -> Result<Self, NoMoment> {
        let position = text.parse().map(Self::Position);
        let time = || Timestamp::parse_rfc3339(text).map(Self::Time);
        position.or_else(|_| time().ok_or(NoMoment))
    }
}

/// Where the log is read from: always in one state, however often.
#[derive(Debug)]
pub enum History {
    /// One snapshot of a database, with the archive of what has left it.
    Database(Transaction<'static, Postgres>, Option<Archive>),
    /// An export, which is believed.
    File(PathBuf),
}

impl History {
    /// The log of a database, as it is now.
    pub async fn of_database(pool: &PgPool, archive: Option<Archive>) -> Result<Self, Error> {
        let snapshot = log::snapshot(pool).await?;
        Ok(Self::Database(snapshot, archive))
    }

    /// Hands over the events up to a position, and returns the log's last.
    async fn read(
        &mut self,
        to: u64,
        mut take: impl FnMut(u64, Event) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        match self {
            Self::Database(snapshot, archive) => {
                let hand_over = |stored: log::Stored| -> Result<(), Error> {
                    take(stored.position, stored.event)
                };
                log::read_to(snapshot, archive.as_ref(), to, hand_over).await?;
                self.last().await
            }
            // Nothing else happens in a process that asks this, so nothing waits for the disk.
            Self::File(path) => {
                let file = File::open(path).map_err(Error::File)?;
                verify::events(BufReader::with_capacity(FILE_READ_BYTES, file), to, take)
            }
        }
    }

    /// The log's last position.
    async fn last(&mut self) -> Result<u64, Error> {
        match self {
            Self::Database(snapshot, _) => {
                let head = events::head(snapshot);
                database(async { Ok(head.await) })
                    .await?
                    .map_err(Error::Log)
            }
            Self::File(path) => {
                let file = File::open(path).map_err(Error::File)?;
                verify::events(file, 0, |_, _| Ok(()))
            }
        }
    }

    /// The position of a moment. Clocks of several processes write times, so that these may go back
    /// by as much as the clocks differ: the whole log is read for a time.
    pub async fn position(&mut self, moment: Moment) -> Result<u64, Error> {
        match moment {
            Moment::Position(asked) => {
                let last = self.last().await?;
                if asked > last {
                    return Err(Error::Beyond { asked, last });
                }
                Ok(asked)
            }
            Moment::Time(time) => {
                let mut found = 0;
                let take = |position, event: Event| {
                    if event.at <= time {
                        found = position;
                    }
                    Ok(())
                };
                self.read(u64::MAX, take).await?;
                Ok(found)
            }
        }
    }

    /// Commands of which a late word came after `after`, up to `to`.
    async fn late(&mut self, after: u64, to: u64) -> Result<HashSet<CommandId>, Error> {
        let mut late = HashSet::new();
        let take = |position, event: Event| {
            if position > after
                && let (Body::CommandLateResult(_), Stream::Command(id)) =
                    (&event.body, event.stream)
            {
                late.insert(id);
            }
            Ok(())
        };
        self.read(to, take).await?;
        Ok(late)
    }

    /// The ledger as it was at a position. `only` leaves out all but one node, command or batch;
    /// each thing that there was is handed to `each`, where it is given: first the commands, in the
    /// order in which they ended, those that had not by their ids, then nodes and batches.
    pub async fn past(
        &mut self,
        position: u64,
        only: Option<Stream>,
        each: Option<&mut Each<'_>>,
    ) -> Result<Past, Error> {
        let mut each = each;
        let kept = match (only, &each) {
            (Some(Stream::Command(id)), Some(_)) => [id].into(),
            (None, Some(_)) => self.late(0, position).await?,
            (_, _) => HashSet::new(),
        };
        let mut world = World::new(only, kept);
        self.read(position, |position, event| {
            let ended = world.apply(position, &event)?;
            match (&mut each, ended) {
                (Some(each), Some(ended)) => each(Item::Command(&ended)),
                (_, _) => Ok(()),
            }
        })
        .await?;
        if let Some(each) = each {
            world.hand_over(each)?;
        }
        Ok(world.past(position))
    }
}
