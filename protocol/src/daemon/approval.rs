//! Whether people have allowed a destructive command (SPEC P3, P4), and how many were taken
//! without that.

use std::collections::VecDeque;

use super::Daemon;
use super::limits::UNBATCHED_PER_HOUR_MAX;
use crate::batch::{Leaf, Unapproved};
use crate::frame::Command;
use crate::time::{MICROS_PER_SECOND, Timestamp};

const HOUR_MICROS: i64 = 3_600 * MICROS_PER_SECOND;

/// When destructive commands were accepted without a batch, in the server's time. Only so many are
/// kept as may be allowed, and none is dropped for its age: a server whose time is set back and
/// forth does not make the node forget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Unbatched(VecDeque<Timestamp>);

impl Unbatched {
    pub(super) fn add(&mut self, at: Timestamp) {
        self.0.push_back(at);
        if self.0.len() > UNBATCHED_PER_HOUR_MAX {
            self.0.pop_front();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Timestamp> {
        self.0.iter().copied()
    }

    /// How many of the last hour; one from the future, by a server whose time was set back, is.
    fn within_the_hour(&self, now: Timestamp) -> usize {
        let recent = |at: &&Timestamp| now.micros_since(**at) < HOUR_MICROS;
        self.0.iter().filter(recent).count()
    }
}

/// Why a destructive command is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotAllowed {
    Unapproved(Unapproved),
    /// This many were taken in the last hour, which is all that may be.
    Limit(usize),
}

impl Daemon {
    /// Whether the command may do its harm; when it counts as one without a batch, at what time.
    pub(super) fn allow(
        &self,
        command: &Command,
        server_now: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Timestamp>, NotAllowed> {
        let Some(bundle) = self.bundle().filter(|bundle| !bundle.approvers.is_empty()) else {
            return Ok(None);
        };
        let kind = self.identity.kinds.0.get(&command.kind);
        let destructive = command.destructive || kind.is_some_and(|kind| kind.destructive);
        if let Some(id) = command.batch_id {
            let proof = command.batch.as_ref().ok_or(Unapproved::NoProof(id));
            let leaf = Leaf::of(command.node_id, &command.kind, &command.payload);
            let approved = proof.and_then(|proof| proof.approves(id, &leaf, until, bundle));
            return approved.map(|()| None).map_err(NotAllowed::Unapproved);
        }
        if !destructive {
            return Ok(None);
        }
        let limit = usize::try_from(bundle.unbatched_destructive_per_hour).unwrap_or(usize::MAX);
        let limit = limit.min(UNBATCHED_PER_HOUR_MAX);
        if limit == 0 {
            return Err(NotAllowed::Unapproved(Unapproved::NoBatch));
        }
        if self.book.unbatched().within_the_hour(server_now) >= limit {
            return Err(NotAllowed::Limit(limit));
        }
        Ok(Some(server_now))
    }
}
