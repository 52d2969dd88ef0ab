//! What the journal says: the fold of its records. The running daemon changes its book only
//! through the records that it writes, so what a restart reads is what the process knew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sha2::{Digest, Sha256};

use super::approval::Unbatched;
use super::clock::Monotonic;
use super::limits::{
    CONFIRMED_BYTES_MAX, CONFIRMED_KEPT_BYTES_MAX, CONFIRMED_KEPT_MAX, CONFIRMED_MAX,
    FORGOTTEN_EXPIRED_MAX, FORGOTTEN_MAX, REFUSED_KEPT_MAX,
};
use super::record::{Confirmed, Ended, Forgotten, Record, Started};
use crate::event::Truncated;
use crate::frame::{self, EntryState, JournalEntry, Update, UpdateState};
use crate::id::CommandId;
use crate::kind::Lane;
use crate::time::Timestamp;
use crate::trust::{SignedBundle, TrustBundle, Unbelievable};

/// A record that cannot follow those before it: the journal was altered, or a defect wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistent {
    /// A record of a command.
    #[error("journal: a `{record}` of {command_id} cannot follow what stands before it")]
    Command {
        /// Name of the record.
        record: &'static str,
        /// Its command.
        command_id: CommandId,
    },
    /// A trust bundle that was never believed.
    #[error("journal: a trust bundle cannot have been believed")]
    Trust(#[source] Unbelievable),
}

/// Whether one word on a command has reached the ledger. Only the process knows; after a restart
/// everything is said again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Word {
    #[default]
    Unsaid,
    Said(Monotonic),
    Confirmed,
}

impl Word {
    /// Whether it is to be said again, when all that was said after `since` has time left.
    fn is_due(self, since: Option<Monotonic>) -> bool {
        match self {
            Self::Unsaid => true,
            Self::Said(at) => since.is_none_or(|since| at <= since),
            Self::Confirmed => false,
        }
    }
}

/// The words on one command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Words {
    acked: Word,
    running: Word,
    end: Word,
}

impl Words {
    fn of(&mut self, state: UpdateState) -> Option<&mut Word> {
        match state {
            UpdateState::Busy => None,
            UpdateState::Acked => Some(&mut self.acked),
            UpdateState::Running => Some(&mut self.running),
            UpdateState::Succeeded
            | UpdateState::Failed
            | UpdateState::Rejected
            | UpdateState::Cancelled => Some(&mut self.end),
        }
    }
}

/// Where the effect of an open command stands in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Run {
    /// To be started as soon as that may be.
    Due,
    /// An executor has it.
    Launched,
    /// Its effect is under way and will end the daemon, or did so to an earlier one.
    Underway,
}

/// A command that was accepted and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Open {
    pub(super) command: Box<frame::Command>,
    pub(super) started: Option<Started>,
    pub(super) run: Run,
    pub(super) cancel_requested: bool,
    words: Words,
}

impl Open {
    /// When the ledger gives it up; `None` for a command that should never have been accepted.
    pub(super) fn timeout_at(&self) -> Option<Timestamp> {
        let not_after = self.command.not_after?;
        Some(not_after.plus_seconds(self.command.timeout_seconds))
    }
}

/// A command that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Closed {
    pub(super) ended: Ended,
    pub(super) confirmed: Option<Confirmed>,
    /// What its records take in the journal, in bytes, about.
    bytes: usize,
    words: Words,
}

impl Closed {
    fn new(ended: &Ended, open: Option<&Open>) -> Self {
        const FIXED: usize = 512;
        let update = &ended.update;
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let payload = open.map_or(0, |open| open.command.payload.len());
        Self {
            ended: ended.clone(),
            confirmed: None,
            bytes: FIXED + payload + length(&update.result) + length(&update.details),
            words: open.map(|open| open.words).unwrap_or_default(),
        }
    }

    fn is_refused(&self) -> bool {
        self.confirmed
            .as_ref()
            .is_some_and(|confirmed| confirmed.refused.is_some())
    }

    fn forgotten(self) -> Forgotten {
        let update = self.ended.update;
        let result_truncated = update.result_truncated.or_else(|| {
            update.result.map(|result| Truncated {
                bytes: result.len() as u64,
                sha256: hex::encode(Sha256::digest(&result)),
            })
        });
        Forgotten {
            command_id: update.command_id,
            not_after: self.ended.not_after,
            reason: update.reason,
            result_truncated,
            state: update.state,
        }
    }
}

/// A bundle that was believed, as it came and as it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Trusted {
    signed: Box<SignedBundle>,
    bundle: TrustBundle,
}

impl Trusted {
    fn after(before: Option<&Self>, signed: &SignedBundle) -> Result<Self, Unbelievable> {
        let bundle = TrustBundle::decode(&signed.bundle)?;
        let (known, given) = (before.map_or(0, |it| it.bundle.version), bundle.version);
        if given <= known {
            return Err(Unbelievable::Older { known, given });
        }
        let signed = Box::new(signed.clone());
        Ok(Self { signed, bundle })
    }
}

/// The fold of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Book {
    highest_seq: u64,
    applied_generation: u64,
    trusted: Option<Trusted>,
    unbatched: Unbatched,
    open: BTreeMap<CommandId, Open>,
    closed: BTreeMap<CommandId, Closed>,
    /// In the order of their confirmation.
    confirmed: VecDeque<CommandId>,
    confirmed_bytes: usize,
    unconfirmed_bytes: usize,
    /// In the order in which they were forgotten.
    forgotten: VecDeque<Forgotten>,
    forgotten_ids: BTreeSet<CommandId>,
}

impl Book {
    pub(super) fn highest_seq(&self) -> u64 {
        self.highest_seq
    }

    pub(super) fn applied_generation(&self) -> u64 {
        self.applied_generation
    }

    /// The newest trust bundle that was believed.
    pub(super) fn trusted(&self) -> Option<&TrustBundle> {
        self.trusted.as_ref().map(|trusted| &trusted.bundle)
    }

    pub(super) fn unbatched(&self) -> &Unbatched {
        &self.unbatched
    }

    pub(super) fn open(&self) -> impl Iterator<Item = &Open> {
        self.open.values()
    }

    pub(super) fn find_open(&self, id: CommandId) -> Option<&Open> {
        self.open.get(&id)
    }

    pub(super) fn find_open_mut(&mut self, id: CommandId) -> Option<&mut Open> {
        self.open.get_mut(&id)
    }

    pub(super) fn find_closed(&self, id: CommandId) -> Option<&Closed> {
        self.closed.get(&id)
    }

    pub(super) fn find_forgotten(&self, id: CommandId) -> Option<&Forgotten> {
        if !self.forgotten_ids.contains(&id) {
            return None;
        }
        self.forgotten.iter().find(|kept| kept.command_id == id)
    }

    /// Ends that the ledger will never take, with its reason.
    pub(super) fn refused(&self) -> impl Iterator<Item = (CommandId, &str)> {
        self.closed.iter().filter_map(|(id, closed)| {
            let refused = closed.confirmed.as_ref()?.refused.as_deref()?;
            Some((*id, refused))
        })
    }

    pub(super) fn in_lane(&self, lane: Lane) -> usize {
        let in_lane = |open: &&Open| open.command.lane == lane;
        self.open.values().filter(in_lane).count()
    }

    /// Entries that `Hello` names.
    pub(super) fn unsettled_count(&self) -> usize {
        self.open.len() + self.closed.len() - self.confirmed.len()
    }

    pub(super) fn unconfirmed_bytes(&self) -> usize {
        self.unconfirmed_bytes
    }

    /// Open and unconfirmed entries, as `Hello` names them, in `seq` order.
    pub(super) fn entries(&self) -> Vec<JournalEntry> {
        let open = self.open.values().map(|open| JournalEntry {
            command_id: open.command.command_id,
            seq: open.command.seq,
            state: match open.started {
                Some(_) => EntryState::Started,
                None => EntryState::Accepted,
            },
        });
        let unconfirmed = |closed: &&Closed| closed.confirmed.is_none();
        let closed = self.closed.values().filter(unconfirmed);
        let closed = closed.map(|closed| JournalEntry {
            command_id: closed.ended.update.command_id,
            seq: closed.ended.seq,
            state: EntryState::Finished,
        });
        let mut entries: Vec<_> = open.chain(closed).collect();
        entries.sort_by_key(|entry| entry.seq);
        entries
    }

    /// Every update that the ledger has not confirmed, in `seq` order; of those that were said
    /// already, the ones said at `since` or before.
    pub(super) fn due_updates(&self, since: Option<Monotonic>) -> Vec<Update> {
        let mut due: Vec<(u64, Update)> = Vec::new();
        let mut bare = |seq, id, accepted: bool, started: bool, words: &Words| {
            for (state, said, word) in [
                (UpdateState::Acked, accepted, words.acked),
                (UpdateState::Running, started, words.running),
            ] {
                if said && word.is_due(since) {
                    due.push((seq, Update::bare(id, state)));
                }
            }
        };
        for (id, open) in &self.open {
            let started = open.started.is_some() && open.run != Run::Due;
            bare(open.command.seq, *id, true, started, &open.words);
        }
        let unconfirmed = || {
            let closed = self.closed.iter();
            closed.filter(|(_, closed)| closed.confirmed.is_none())
        };
        for (id, closed) in unconfirmed() {
            let ended = &closed.ended;
            bare(ended.seq, *id, ended.accepted, ended.started, &closed.words);
        }
        for (_, closed) in unconfirmed() {
            if closed.words.end.is_due(since) {
                due.push((closed.ended.seq, closed.ended.update.clone()));
            }
        }
        // The sort is stable, so that the words on one command keep their order.
        due.sort_by_key(|(seq, _)| *seq);
        due.into_iter().map(|(_, update)| update).collect()
    }

    pub(super) fn mark(&mut self, id: CommandId, state: UpdateState, word: Word) {
        let words = self.open.get_mut(&id).map(|open| &mut open.words);
        let words = words.or_else(|| self.closed.get_mut(&id).map(|closed| &mut closed.words));
        if let Some(known) = words.and_then(|words| words.of(state))
            && *known != Word::Confirmed
        {
            *known = word;
        }
    }

    /// Folds one more record in.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), Inconsistent> {
        let inconsistent = |record, command_id| Err(Inconsistent::Command { record, command_id });
        match record {
            Record::Accepted(command) => {
                let id = command.command_id;
                let known = self.open.contains_key(&id) || self.closed.contains_key(&id);
                if known || self.forgotten_ids.contains(&id) {
                    return inconsistent("accepted", id);
                }
                self.highest_seq = self.highest_seq.max(command.seq);
                let open = Open {
                    command: command.clone(),
                    started: None,
                    run: Run::Due,
                    cancel_requested: false,
                    words: Words::default(),
                };
                self.open.insert(id, open);
            }
            Record::Started(started) => match self.open.get_mut(&started.command_id) {
                Some(open) if open.started.is_none() => open.started = Some(started.clone()),
                Some(_) | None => return inconsistent("started", started.command_id),
            },
            Record::Ended(ended) => {
                let id = ended.update.command_id;
                if self.closed.contains_key(&id) {
                    return inconsistent("ended", id);
                }
                let open = self.open.remove(&id);
                self.highest_seq = self.highest_seq.max(ended.seq);
                let closed = Closed::new(ended, open.as_ref());
                self.unconfirmed_bytes += closed.bytes;
                self.closed.insert(id, closed);
            }
            Record::Confirmed(confirmed) => match self.closed.get_mut(&confirmed.command_id) {
                Some(closed) if closed.confirmed.is_none() => {
                    closed.confirmed = Some(confirmed.clone());
                    self.confirmed.push_back(confirmed.command_id);
                    self.confirmed_bytes += closed.bytes;
                    self.unconfirmed_bytes -= closed.bytes;
                }
                Some(_) | None => return inconsistent("confirmed", confirmed.command_id),
            },
            Record::Forgotten(forgotten) => {
                if self.forgotten_ids.insert(forgotten.command_id) {
                    self.forgotten.push_back(forgotten.clone());
                }
            }
            Record::Seen(seq) => self.highest_seq = self.highest_seq.max(*seq),
            Record::Applied(generation) => {
                self.applied_generation = self.applied_generation.max(*generation);
            }
            Record::Trusted(signed) => {
                let trusted = Trusted::after(self.trusted.as_ref(), signed);
                self.trusted = Some(trusted.map_err(Inconsistent::Trust)?);
            }
            Record::Unbatched(at) => self.unbatched.add(*at),
        }
        Ok(())
    }

    /// Takes back a refusal that the journal could not take: the command is as unknown as before.
    pub(super) fn take_back(&mut self, id: CommandId) {
        if self
            .closed
            .get(&id)
            .is_some_and(|closed| closed.confirmed.is_none())
            && let Some(closed) = self.closed.remove(&id)
        {
            self.unconfirmed_bytes -= closed.bytes;
        }
    }

    /// Whether enough was confirmed to rewrite the journal without it.
    pub(super) fn wants_rewrite(&self) -> bool {
        self.confirmed.len() >= CONFIRMED_MAX || self.confirmed_bytes >= CONFIRMED_BYTES_MAX
    }

    /// Forgets the results of confirmed ends, apart from the newest ones, and keeps their
    /// outcomes. An outcome itself is only given up for room: of commands that could not be
    /// accepted any more first.
    pub(super) fn forget(&mut self, server_now: Option<Timestamp>) {
        let (mut kept, mut kept_bytes, mut refused) = (0, 0, 0);
        let mut stays = BTreeSet::new();
        for id in self.confirmed.iter().rev() {
            let Some(closed) = self.closed.get(id) else {
                continue;
            };
            let stay = if closed.is_refused() {
                refused += 1;
                refused <= REFUSED_KEPT_MAX
            } else {
                kept += 1;
                kept_bytes += closed.bytes;
                kept <= CONFIRMED_KEPT_MAX && kept_bytes <= CONFIRMED_KEPT_BYTES_MAX
            };
            if stay {
                stays.insert(*id);
            }
        }
        for id in std::mem::take(&mut self.confirmed) {
            if stays.contains(&id) {
                self.confirmed.push_back(id);
            } else if let Some(closed) = self.closed.remove(&id) {
                self.confirmed_bytes -= closed.bytes;
                if self.forgotten_ids.insert(id) {
                    self.forgotten.push_back(closed.forgotten());
                }
            }
        }
        let is_expired = |kept: &Forgotten| match (kept.not_after, server_now) {
            (Some(not_after), Some(now)) => not_after < now,
            (None, _) => true,
            (Some(_), None) => false,
        };
        let expired = self
            .forgotten
            .iter()
            .filter(|kept| is_expired(kept))
            .count();
        let mut surplus = expired.saturating_sub(FORGOTTEN_EXPIRED_MAX);
        let ids = &mut self.forgotten_ids;
        self.forgotten.retain(|kept| {
            let goes = surplus > 0 && is_expired(kept);
            if goes {
                surplus -= 1;
                ids.remove(&kept.command_id);
            }
            !goes
        });
        while self.forgotten.len() > FORGOTTEN_MAX {
            if let Some(oldest) = self.forgotten.pop_front() {
                self.forgotten_ids.remove(&oldest.command_id);
            }
        }
    }

    /// The records that make this book, as few as there can be.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let mut records = vec![Record::Seen(self.highest_seq)];
        if self.applied_generation > 0 {
            records.push(Record::Applied(self.applied_generation));
        }
        let trusted = self.trusted.iter();
        records.extend(trusted.map(|trusted| Record::Trusted(trusted.signed.clone())));
        records.extend(self.unbatched.iter().map(Record::Unbatched));
        records.extend(self.forgotten.iter().cloned().map(Record::Forgotten));
        let ended = |closed: &Closed| Record::Ended(Box::new(closed.ended.clone()));
        for id in &self.confirmed {
            if let Some(closed) = self.closed.get(id) {
                records.push(ended(closed));
                records.extend(closed.confirmed.clone().map(Record::Confirmed));
            }
        }
        let unconfirmed = |closed: &&Closed| closed.confirmed.is_none();
        records.extend(self.closed.values().filter(unconfirmed).map(ended));
        for open in self.open.values() {
            records.push(Record::Accepted(open.command.clone()));
            records.extend(open.started.clone().map(Record::Started));
        }
        records
    }
}
