//! Receipts (SPEC U3): what happened to one command, with the proof that a log says so, in one small
//! file that needs neither the service nor its database to be checked.
//!
//! A receipt holds events as they are stored, each with its inclusion proof under one checkpoint: those
//! of the command, and those that its signatures are to be held against, the certificate of its node
//! and its batch. It is JSON; each entry with the checkpoint is what C2SP tlog-proof has as text
//! ([`Receipt::proof`]).
//!
//! What it proves: the log that the reader trusts says just this, in this order, and nothing is left out
//! between the first event of the command and the last one shown. What it cannot prove: that nothing was
//! added after the last event, which the log alone can say; a command that has ended changes no more.

use std::collections::BTreeMap;

use crate::attestation::{Statement, Unproved as Unattested};
use crate::batch::Batch;
use crate::command::{Command, Corrupt, State};
use crate::event::{self, Body, Event, NodeCertified, Stream};
use crate::merkle::leaf_hash;
use crate::tlog::{
    InclusionProof, InvalidProof, Malformed, Note, Policy, TlogProof, TrustedCheckpoint, Untrusted,
};

mod text;

/// What a receipt calls itself.
pub const FORMAT: &str = "command-ledger receipt v1";
/// Largest receipt that is read, in bytes: the largest events that a command can have, in base64.
pub const RECEIPT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most events of a receipt.
pub const RECEIPT_ENTRIES_MAX: usize = 4_096;

/// A command's events, with proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The log's checkpoint, with whatever cosignatures there are.
    pub checkpoint: Note,
    /// In the order of their indexes.
    pub entries: Vec<Entry>,
}

/// An event in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its bytes, as they are stored.
    pub event: Vec<u8>,
    /// What leads to the checkpoint's root.
    pub inclusion: InclusionProof,
    /// Its index in the log: its position less one.
    pub index: u64,
}

/// Why a receipt cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is too long.
    #[error("the receipt has {bytes} bytes; the limit is {RECEIPT_BYTES_MAX}")]
    TooLong {
        /// Its size, in bytes.
        bytes: usize,
    },
    /// It is no JSON of the right shape.
    #[error("the receipt is not readable")]
    Json(#[source] serde_json::Error),
    /// It is something else, or of a later version.
    #[error("the file's `format` is not `{FORMAT}`")]
    Format,
    /// Too many events.
    #[error("the receipt has {given} entries; the limit is {RECEIPT_ENTRIES_MAX}")]
    Entries {
        /// How many there are.
        given: usize,
    },
    /// The checkpoint is none.
    #[error("`checkpoint` {0}")]
    Checkpoint(Malformed),
    /// An entry has a field that is not base64, or of another length than it must be.
    #[error("entry {number}: `{field}` {problem}")]
    Entry {
        /// Which entry, from 1.
        number: usize,
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}

/// Why a receipt proves nothing.
#[derive(Debug, thiserror::Error)]
pub enum Unproved {
    /// The checkpoint is not believed.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The log does not have an event.
    #[error("position {position}: {source}")]
    NotIncluded {
        /// Where it should be.
        position: u64,
        /// Why.
        #[source]
        source: InvalidProof,
    },
    /// The bytes are no event.
    #[error("position {position}: the event is not readable")]
    Event {
        /// Where it is.
        position: u64,
        /// Why.
        #[source]
        source: event::Error,
    },
    /// Events are not in the order of the log.
    #[error("position {position} comes after position {before}")]
    Order {
        /// The position before.
        before: u64,
        /// The position that follows.
        position: u64,
    },
    /// An event cannot follow the ones before: something is left out, or the log is not sound.
    #[error("position {position}: {source}")]
    Corrupt {
        /// Where it is.
        position: u64,
        /// Why.
        #[source]
        source: Corrupt,
    },
    /// No command, or several.
    #[error("the receipt is about {given} commands; it must be about one")]
    Commands {
        /// How many.
        given: usize,
    },
    /// An event that has nothing to do with the command.
    #[error("position {position} is about {stream}, with which the command has nothing to do")]
    Foreign {
        /// Where it is.
        position: u64,
        /// What it is about.
        stream: Stream,
    },
    /// The node's signature does not hold.
    #[error("the node's signature over the end does not hold: {0}")]
    Attestation(Unattested),
    /// An approver's signature does not hold.
    #[error("the approval by {approver} does not hold")]
    Approval {
        /// Whose it should be.
        approver: String,
    },
}

/// What a receipt proves.
#[derive(Debug)]
pub struct Proved<'p> {
    /// The command, as the events make it.
    pub command: Command,
    /// Its events with their positions.
    pub events: Vec<(u64, Event)>,
    /// The node's certificate that its signature over the end was held against; none where the end has
    /// no signature.
    pub attested_by: Option<NodeCertified>,
    /// Its batch as far as the receipt has it.
    pub batch: Option<Batch>,
    /// What the log says of itself.
    pub checkpoint: TrustedCheckpoint<'p>,
}

impl Receipt {
    /// The proof of one entry as C2SP tlog-proof has it.
    pub fn proof(&self, entry: &Entry) -> TlogProof {
        TlogProof {
            extra: None,
            index: entry.index,
            inclusion: entry.inclusion.clone(),
            checkpoint: self.checkpoint.clone(),
        }
    }

    /// What the receipt proves to who trusts as the policy says.
    pub fn verify<'p>(&self, policy: &'p Policy) -> Result<Proved<'p>, Unproved> {
        let checkpoint = policy.believe(&self.checkpoint)?;
        let head = checkpoint.checkpoint.head();
        let (mut before, mut events) = (0, Vec::with_capacity(self.entries.len()));
        for entry in &self.entries {
            // No index reaches the largest number: the proof below would not hold.
            let position = entry.index.saturating_add(1);
            if position <= before {
                return Err(Unproved::Order { before, position });
            }
            let included = entry
                .inclusion
                .verify(&leaf_hash(&entry.event), entry.index, head);
            included.map_err(|source| Unproved::NotIncluded { position, source })?;
            let event = Event::decode(&entry.event);
            let event = event.map_err(|source| Unproved::Event { position, source })?;
            events.push((position, event));
            before = position;
        }
        let mut commands = BTreeMap::new();
        for (position, event) in &events {
            if let Stream::Command(id) = event.stream {
                let command = Command::evolve(commands.remove(&id), event);
                let position = *position;
                let command = command.map_err(|source| Unproved::Corrupt { position, source })?;
                commands.insert(id, command);
            }
        }
        let given = commands.len();
        let command = commands.into_values().next().filter(|_| given == 1);
        let command = command.ok_or(Unproved::Commands { given })?;
        let (own, beside): (Vec<_>, Vec<_>) = events
            .into_iter()
            .partition(|(_, event)| event.command_id().is_some());
        let mut proved = Proved {
            command,
            events: own,
            attested_by: None,
            batch: None,
            checkpoint,
        };
        let certificate = proved.take_beside(beside)?;
        proved.check_end(certificate)?;
        proved.check_approvals()?;
        Ok(proved)
    }
}

impl Proved<'_> {
    /// Sorts out what stands beside the command; answers with its node's certificate.
    fn take_beside(
        &mut self,
        beside: Vec<(u64, Event)>,
    ) -> Result<Option<NodeCertified>, Unproved> {
        let mut certificate = None;
        for (position, event) in beside {
            match (event.stream, &event.body) {
                (Stream::Node(node), Body::NodeCertified(certified))
                    if node == self.command.node_id() =>
                {
                    certificate = Some(certified.clone());
                }
                (Stream::Batch(batch), _) if self.command.queued.batch_id == Some(batch) => {
                    let batch = Batch::evolve(self.batch.take(), &event);
                    let batch = batch.map_err(|source| Unproved::Corrupt { position, source })?;
                    self.batch = Some(batch);
                }
                (stream, _) => return Err(Unproved::Foreign { position, stream }),
            }
        }
        Ok(certificate)
    }

    fn check_end(&mut self, certificate: Option<NodeCertified>) -> Result<(), Unproved> {
        let State::Settled(settled) = &self.command.state else {
            return Ok(());
        };
        let Some(signature) = &settled.end.node_sig else {
            return Ok(());
        };
        let statement = Statement::of_end(self.command.id, &settled.end);
        let held = statement.verify(certificate.as_ref(), signature);
        held.map_err(Unproved::Attestation)?;
        self.attested_by = certificate;
        Ok(())
    }

    fn check_approvals(&self) -> Result<(), Unproved> {
        let Some(batch) = &self.batch else {
            return Ok(());
        };
        let statement = batch.statement();
        let given = batch.approvals.iter().map(|approval| &approval.given);
        let mut bad = given.filter(|given| !statement.is_signed_by(&given.key, &given.signature));
        bad.next().map_or(Ok(()), |given| {
            let approver = given.approver.clone();
            Err(Unproved::Approval { approver })
        })
    }
}
