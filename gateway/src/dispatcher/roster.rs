//! The sessions that are here: of each node the open one, and those that are about to open.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ledger_protocol::command::{Command, State};
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::node::Node;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::{Batches, Cancels, Close, Peer};
use tracing::{info, warn};

use super::Replayed;
use crate::session::Handle;

/// A session that is here.
#[derive(Debug)]
pub(super) struct Entry {
    /// The cancels that it owes its node.
    pub(super) cancels: Cancels,
    /// 0 until it is open.
    pub(super) epoch: u64,
    pub(super) handle: Handle,
    journal: JournalId,
    /// The commands that have left flight since a check began; nothing while none is under way.
    left: Option<HashSet<CommandId>>,
    /// How often the ledger told of a session of this node since this one was about to open.
    openings: u32,
    pub(super) peer: Peer,
    /// The commands in flight that the node was sent in this session, or is about to be. A hint
    /// only, for finding those that it was not: credits are counted from the ledger.
    pub(super) sent: HashSet<CommandId>,
    session: u64,
}

impl Entry {
    /// The word of its own opening may have been missed, so that the next is looked into.
    pub(super) fn doubt_openings(&mut self) {
        self.openings = self.openings.max(1);
    }
}

impl Entry {
    /// The command is in flight no more.
    pub(super) fn left(&mut self, command: CommandId) {
        self.cancels.ended(command);
        self.sent.remove(&command);
        if let Some(left) = &mut self.left {
            left.insert(command);
        }
    }

    /// A check reads what is in flight. What opens only now has sent all of it.
    pub(super) fn begin_check(&mut self) {
        self.left = (self.epoch > 0).then(HashSet::new);
    }

    /// The check is over.
    pub(super) fn end_check(&mut self) {
        self.left = None;
    }

    /// Sends what the check found in flight to this session and was never sent in it: its dispatch
    /// was committed, but the link died before anybody was told. A command that has left flight
    /// since the reading is not sent; its node may have forgotten it, and would run it again.
    pub(super) fn make_up(&mut self, in_flight: &[Command], batches: &Batches) {
        let Some(left) = &self.left else { return };
        for command in in_flight
            .iter()
            .filter(|command| !left.contains(&command.id))
        {
            let is_ours = command.state == (State::Dispatched { epoch: self.epoch });
            if is_ours && self.sent.insert(command.id) {
                self.handle.send(&batches.command_frame(command));
            }
            if command.cancel_requested_at.is_some() {
                self.cancels.request(command.id);
            }
        }
    }
}

/// All sessions that are here, by node.
#[derive(Debug, Default)]
pub(super) struct Roster {
    entries: HashMap<NodeId, Vec<Entry>>,
}

impl Roster {
    /// A session is about to open.
    pub(super) fn opening(&mut self, handle: Handle, journal: JournalId, peer: Peer, session: u64) {
        let entry = Entry {
            cancels: Cancels::default(),
            epoch: 0,
            handle,
            journal,
            left: None,
            openings: 0,
            peer,
            sent: HashSet::new(),
            session,
        };
        self.entries
            .entry(entry.peer.node_id)
            .or_default()
            .push(entry);
    }

    /// The session is open under `epoch`; older ones are let go (SPEC D2).
    pub(super) fn opened(
        &mut self,
        node: NodeId,
        session: u64,
        epoch: u64,
        replay: Vec<Replayed>,
        elapsed: Duration,
    ) {
        let Some(entries) = self.entries.get_mut(&node) else {
            return;
        };
        let Some(entry) = entries.iter_mut().find(|entry| entry.session == session) else {
            return;
        };
        entry.epoch = epoch;
        for Replayed {
            command,
            is_cancelled,
        } in replay
        {
            entry.sent.insert(command);
            if is_cancelled {
                entry.cancels.sent(command, elapsed);
            }
        }
        let Some(newest) = entries.iter().max_by_key(|entry| entry.epoch) else {
            return;
        };
        let (newest, journal) = (newest.epoch, newest.journal);
        for entry in entries
            .iter()
            .filter(|entry| (1..newest).contains(&entry.epoch))
        {
            supersede(node, entry, newest, Some(journal));
        }
        entries.retain(|entry| entry.epoch == 0 || entry.epoch == newest);
    }

    /// The session has ended.
    pub(super) fn closed(&mut self, node: NodeId, session: u64) {
        if let Some(entries) = self.entries.get_mut(&node) {
            entries.retain(|entry| entry.session != session);
            if entries.is_empty() {
                self.entries.remove(&node);
            }
        }
    }

    /// Whether a session of the node is here, open or about to be.
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.entries.contains_key(&node)
    }

    /// The node's open session.
    pub(super) fn open(&self, node: NodeId) -> Option<&Entry> {
        self.entries
            .get(&node)?
            .iter()
            .find(|entry| entry.epoch > 0)
    }

    /// The node's open session.
    pub(super) fn open_mut(&mut self, node: NodeId) -> Option<&mut Entry> {
        self.entries
            .get_mut(&node)?
            .iter_mut()
            .find(|entry| entry.epoch > 0)
    }

    /// For each session of the node.
    pub(super) fn each(&mut self, node: NodeId, mut act: impl FnMut(&mut Entry)) {
        for entry in self.entries.get_mut(&node).into_iter().flatten() {
            act(entry);
        }
    }

    /// Every node that has a session here.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.entries.keys().copied().collect()
    }

    /// The ledger tells that a session of the node was opened. The first such word after a
    /// session was about to open may be about itself; one more is about another.
    pub(super) fn is_opened_elsewhere(&mut self, node: NodeId) -> bool {
        let mut elsewhere = false;
        self.each(node, |entry| {
            entry.openings += 1;
            elsewhere |= entry.openings > 1;
        });
        elsewhere
    }

    /// Lets go what is not the newest session of the node, by what the ledger says.
    pub(super) fn compare(&mut self, node: &Node) {
        let is_deleted = node.deleted_at.is_some();
        self.each(node.id, |entry| {
            if is_deleted {
                entry.handle.close(Close::node_deleted());
            } else if let Some(refusal) = entry.peer.refusal(node) {
                entry.handle.close(match refusal {
                    Refusal::CertificateRevoked(_) => Close::certificate_revoked(),
                    _ => Close::certificate_replaced(),
                });
            } else if (1..node.epoch).contains(&entry.epoch) {
                supersede(node.id, entry, node.epoch, node.journal_id);
            } else if entry.epoch == node.epoch && !node.is_connected() {
                // Closed for a gateway that was taken for lost: the daemon opens another.
                entry.handle.close(Close::gateway_lost());
            }
        });
    }
}

/// Ends a session whose node has a newer one. A daemon that lost its connection comes back with
/// its own journal; with another journal it is another daemon.
fn supersede(node: NodeId, entry: &Entry, newest: u64, journal: Option<JournalId>) {
    let epoch = entry.epoch;
    if journal == Some(entry.journal) {
        info!(%node, epoch, newest, "a session is superseded by a newer one of the same daemon");
    } else {
        warn!(%node, epoch, newest, "two daemons have one identity, or one lost its journal");
    }
    entry.handle.close(Close::superseded());
}
