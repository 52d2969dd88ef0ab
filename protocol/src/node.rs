//! A node: the fold of its events, and what may happen to it next.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::command::rejoin::Rejoin;
use crate::command::{Command, Corrupt, State};
use crate::event::{
    Body, Event, JournalLost, NodeCertified, NodeDeleted, NodeGenerationApplied, NodeRegistered,
    NodeSessionClosed, NodeSessionOpened, NodeSpecSet, Stream,
};
use crate::frame::EntryState;
use crate::id::{JournalId, NodeId, TenantId};
use crate::kind::Role;
use crate::limits;
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;

mod certificate;

pub use certificate::{Joined, Presented, Revocation};

/// A node as its events tell it. Fields stand in the order of their wire names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Version of the agent in the newest session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Desired-state generation that the node has applied; 0 for none.
    pub applied_generation: u64,
    /// Boot id in the newest session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Its newest certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<NodeCertified>,
    /// When it left the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// The certificate of its newest join; absent while that is the newest of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolled: Option<Joined>,
    /// Epoch of the newest session; 0 before the first.
    pub epoch: u64,
    /// Generation of its desired state; 0 for none.
    pub generation: u64,
    /// Its id.
    pub id: NodeId,
    /// The newest session is that of an older copy of the journal, or came from another machine
    /// right after one: until a machine comes back twice in a row, no journal answers for what
    /// another session sent (SPEC D2, D8).
    #[serde(default, skip_serializing_if = "crate::event::is_false")]
    pub journal_copied: bool,
    /// Journal of the newest session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_id: Option<JournalId>,
    /// `seq` of the newest command when the journal was last lost: what the node answered of later
    /// ones, this journal has seen.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub journal_seq: u64,
    /// Epoch of the session before which the journal knows nothing (SPEC D8); 0 for a journal that
    /// was never lost.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub journal_since: u64,
    /// Labels that operators select by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name that people know it by.
    pub name: String,
    /// When it was registered.
    pub registered_at: Timestamp,
    /// The newest revocation of its certificates. It stands for as long as the key that it is about
    /// is the node's: a join with another ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocation: Option<Revocation>,
    /// What its agent is.
    pub role: Role,
    /// `seq` of its newest command; 0 before the first. It moves with every command, so it is no
    /// part of the snapshot: what is read back starts from `seq_lifted` and the newest command.
    #[serde(skip)]
    pub seq: u64,
    /// `seq` to which a journal that had seen more has lifted it (SPEC L11); 0 for none.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub seq_lifted: u64,
    /// Whether it is connected.
    pub session: Session,
    /// Whose it is.
    pub tenant: TenantId,
    /// Version of its stream.
    pub version: u64,
}

/// Whether a node is connected.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Session {
    /// It never was.
    Never,
    /// It is, through the named gateway.
    Open {
        /// Name of the gateway.
        gateway: String,
        /// Lease of the gateway's process, where it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<String>,
        /// Since when.
        since: Timestamp,
    },
    /// It was.
    Closed {
        /// Why the session ended.
        reason: String,
        /// Since when it is not.
        since: Timestamp,
    },
}

/// What a daemon says of itself, and shows, when it opens a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenSession {
    /// Version of the agent.
    pub agent_version: String,
    /// Desired-state generation that it has applied.
    pub applied_generation: u64,
    /// The machine's boot id.
    pub boot_id: String,
    /// The connection's certificate; unknown where there is none, as in a simulation.
    pub certificate: Option<Presented>,
    /// Name of the gateway.
    pub gateway: String,
    /// Lease of the gateway's process, where it has one.
    pub gateway_lease: Option<String>,
    /// The life of its journal.
    pub journal_id: JournalId,
    /// Highest `seq` that the journal has seen.
    pub highest_seq: u64,
    /// What the agent is.
    pub role: Role,
}

impl Node {
    /// Folds one more event into the node; `None` before the first. Events of its commands count
    /// too: `command.queued` carries the node's next `seq`. Pure (SPEC L7).
    pub fn evolve(node: Option<Self>, event: &Event) -> Result<Self, Corrupt> {
        let stream = event.stream;
        let transition = |state: &str| Corrupt::Transition {
            stream,
            event: event.body.type_name(),
            state: state.to_owned(),
        };
        if let Body::CommandQueued(queued) = &event.body {
            let mut node = node.ok_or_else(|| transition("none"))?;
            if node.seq.checked_add(1) != Some(queued.seq) || queued.node_id != node.id {
                return Err(Corrupt::Mismatch {
                    stream,
                    event: event.body.type_name(),
                });
            }
            node.seq = queued.seq;
            return Ok(node);
        }
        let current = node.as_ref().map_or(0, |node| node.version);
        if event.version != current + 1 {
            return Err(Corrupt::Version {
                stream,
                current,
                given: event.version,
            });
        }
        match (node, &event.body, stream) {
            (None, Body::NodeRegistered(body), Stream::Node(id)) => Ok(Self {
                agent_version: None,
                applied_generation: 0,
                boot_id: None,
                certificate: None,
                deleted_at: None,
                enrolled: None,
                epoch: 0,
                generation: 0,
                id,
                journal_copied: false,
                journal_id: None,
                journal_seq: 0,
                journal_since: 0,
                labels: body.labels.clone(),
                name: body.name.clone(),
                registered_at: event.at,
                revocation: None,
                role: body.role,
                seq: 0,
                seq_lifted: 0,
                session: Session::Never,
                tenant: event.tenant,
                version: 1,
            }),
            (Some(node), _, Stream::Node(id)) if id == node.id => node.apply(event),
            (Some(_), _, _) => Err(Corrupt::Mismatch {
                stream,
                event: event.body.type_name(),
            }),
            (None, _, _) => Err(transition("none")),
        }
    }

    fn apply(mut self, event: &Event) -> Result<Self, Corrupt> {
        self.version = event.version;
        let gone = self.deleted_at.is_some();
        match &event.body {
            Body::NodeSessionOpened(body) if body.epoch > self.epoch && !gone => {
                self.agent_version = Some(body.agent_version.clone());
                self.applied_generation = body.applied_generation;
                self.journal_copied = match body.journal_lost {
                    None | Some(JournalLost::Replaced) => false,
                    Some(JournalLost::Behind) => true,
                    Some(JournalLost::Copied) => self.boot_id.as_ref() != Some(&body.boot_id),
                };
                self.boot_id = Some(body.boot_id.clone());
                self.epoch = body.epoch;
                self.journal_id = Some(body.journal_id);
                self.role = body.role;
                let lifted = body.seq_lifted.unwrap_or(0);
                self.seq = self.seq.max(lifted);
                if body.journal_lost.is_some() {
                    self.journal_since = body.epoch;
                    self.journal_seq = self.seq;
                }
                self.seq_lifted = self.seq_lifted.max(lifted);
                self.session = Session::Open {
                    gateway: body.gateway.clone(),
                    lease: body.gateway_lease.clone(),
                    since: event.at,
                };
            }
            Body::NodeSessionClosed(body) if body.epoch == self.epoch => {
                self.session = Session::Closed {
                    reason: body.reason.clone(),
                    since: event.at,
                };
            }
            Body::NodeCertified(body) if !gone && self.may_hold(body) => self.hold(body),
            Body::NodeCertificateRevoked(body) if !gone && self.can_be_revoked() => {
                self.revoke(body, event.at);
            }
            Body::NodeSpecSet(body) if body.generation > self.generation && !gone => {
                self.generation = body.generation;
            }
            Body::NodeGenerationApplied(body) if body.epoch == self.epoch => {
                self.applied_generation = body.generation;
            }
            Body::NodeDeleted(_) if !gone => {
                self.deleted_at = Some(event.at);
                if let Session::Open { .. } = self.session {
                    let reason = "node-deleted".to_owned();
                    self.session = Session::Closed {
                        reason,
                        since: event.at,
                    };
                }
            }
            Body::NodeRegistered(_)
            | Body::NodeSessionOpened(_)
            | Body::NodeSessionClosed(_)
            | Body::NodeCertified(_)
            | Body::NodeCertificateRevoked(_)
            | Body::NodeSpecSet(_)
            | Body::NodeGenerationApplied(_)
            | Body::NodeDeleted(_)
            | Body::CommandQueued(_)
            | Body::CommandReleased(_)
            | Body::CommandDispatched(_)
            | Body::CommandReturned(_)
            | Body::CommandAcked(_)
            | Body::CommandRunning(_)
            | Body::CommandCancelRequested(_)
            | Body::CommandSettled(_)
            | Body::CommandLateResult(_)
            | Body::BatchCreated(_)
            | Body::BatchApproved(_) => {
                return Err(Corrupt::Transition {
                    stream: event.stream,
                    event: event.body.type_name(),
                    state: format!("epoch {}, generation {}", self.epoch, self.generation),
                });
            }
        }
        Ok(self)
    }

    /// Whether the node's identity accepts commands of this kind (SPEC D11).
    pub fn accepts(&self, kind: &str) -> bool {
        let allowed = self
            .certificate
            .as_ref()
            .and_then(|held| held.allowed_kinds.as_ref());
        allowed.is_none_or(|allowed| allowed.iter().any(|name| name == kind))
    }

    /// Lease of the gateway's process that holds its session; nothing without a session, or when
    /// the process has none.
    pub fn gateway_lease(&self) -> Option<&str> {
        match &self.session {
            Session::Open { lease, .. } => lease.as_deref(),
            Session::Never | Session::Closed { .. } => None,
        }
    }

    /// Whether it is connected now.
    pub fn is_connected(&self) -> bool {
        matches!(self.session, Session::Open { .. })
    }

    /// Refuses everything but the newest session (SPEC D2).
    pub fn check_epoch(&self, given: u64) -> Result<(), Refusal> {
        if self.deleted_at.is_some() {
            Err(Refusal::NodeDeleted(self.id))
        } else if self.is_revoked() {
            Err(Refusal::CertificateRevoked(self.id))
        } else if given != self.epoch || !self.is_connected() {
            Err(Refusal::StaleEpoch {
                current: self.epoch,
                given,
            })
        } else {
            Ok(())
        }
    }

    fn check_present(&self) -> Result<(), Refusal> {
        match self.deleted_at {
            Some(_) => Err(Refusal::NodeDeleted(self.id)),
            None => Ok(()),
        }
    }

    /// The event that registers a node, or why not.
    pub fn decide_register(registered: NodeRegistered) -> Result<Body, Refusal> {
        let text = |field: &'static str, value: &str, min: usize| {
            let max = limits::NAME_BYTES_MAX;
            let problem = if (min..=max).contains(&value.len()) {
                text::flaw(value).map(|flaw| flaw.to_string())
            } else {
                let given = value.len();
                Some(format!("must have {min} to {max} bytes; it has {given}"))
            };
            problem.map_or(Ok(()), |problem| Err(Refusal::Invalid { field, problem }))
        };
        text("name", &registered.name, 1)?;
        if registered.labels.len() > limits::LABELS_MAX {
            let problem = format!("must have at most {} entries", limits::LABELS_MAX);
            return Err(Refusal::Invalid {
                field: "labels",
                problem,
            });
        }
        for (key, value) in &registered.labels {
            text("labels", key, 1)?;
            text("labels", value, 0)?;
        }
        Ok(Body::NodeRegistered(registered))
    }

    /// Highest `seq` that the journal is known to have seen: that of a command which it took on.
    /// `live` are the node's commands that have not ended; `answered` is the highest `seq` of those
    /// that ended by the node's word, 0 for none.
    pub fn journal_seen<'a>(
        &self,
        live: impl IntoIterator<Item = &'a Command>,
        answered: u64,
    ) -> u64 {
        let taken_on = live.into_iter().filter_map(|command| match command.state {
            State::Acked { epoch } | State::Running { epoch } => {
                (epoch >= self.journal_since).then_some(command.queued.seq)
            }
            State::Pending { .. } | State::Dispatched { .. } | State::Settled(_) => None,
        });
        // What was queued before the journal began, an earlier one may have answered.
        let answered = Some(answered).filter(|seq| *seq > self.journal_seq);
        taken_on.chain(answered).max().unwrap_or(0)
    }

    fn journal_lost(&self, open: &OpenSession, seen: u64) -> Option<JournalLost> {
        let known = self.journal_id?;
        if known != open.journal_id {
            Some(JournalLost::Replaced)
        } else if open.highest_seq < seen {
            Some(JournalLost::Behind)
        } else {
            self.journal_copied.then_some(JournalLost::Copied)
        }
    }

    /// What the opening proves of a command of which the journal holds `entry` (SPEC D6–D9). The
    /// boot of another machine proves nothing.
    pub fn rejoin(&self, opened: &NodeSessionOpened, entry: Option<EntryState>) -> Rejoin {
        let same_machine = match opened.journal_lost {
            None | Some(JournalLost::Replaced) => true,
            Some(JournalLost::Behind | JournalLost::Copied) => false,
        };
        let new_boot = self
            .boot_id
            .as_ref()
            .is_some_and(|boot| *boot != opened.boot_id);
        Rejoin {
            journal_lost: opened.journal_lost.is_some(),
            new_boot: new_boot && same_machine,
            entry,
        }
    }

    /// The event that opens a session under the next epoch, or why not. A certificate that was
    /// revoked, or that a join has replaced, opens none: it must not let go the session of the one
    /// that came after it.
    /// `seen` is what [`journal_seen`](Self::journal_seen) says.
    pub fn decide_open_session(
        &self,
        open: OpenSession,
        seen: u64,
    ) -> Result<NodeSessionOpened, Refusal> {
        self.check_present()?;
        if let Some(shown) = &open.certificate {
            self.check_certificate(shown)?;
        }
        for (field, text) in [
            ("agentVersion", &open.agent_version),
            ("bootId", &open.boot_id),
        ] {
            let fits = (1..=limits::NAME_BYTES_MAX).contains(&text.len());
            if !fits {
                let problem = format!("must have 1 to {} bytes", limits::NAME_BYTES_MAX);
                return Err(Refusal::Invalid { field, problem });
            }
            if let Some(flaw) = text::flaw(text) {
                let problem = flaw.to_string();
                return Err(Refusal::Invalid { field, problem });
            }
        }
        check_count(
            "appliedGeneration",
            open.applied_generation,
            limits::COUNT_MAX,
        )?;
        let seq_max = self
            .seq
            .saturating_add(limits::SEQ_LIFT_MAX)
            .min(limits::COUNT_MAX);
        check_count("highestSeq", open.highest_seq, seq_max)?;
        let journal_lost = self.journal_lost(&open, seen);
        Ok(NodeSessionOpened {
            agent_version: open.agent_version,
            applied_generation: open.applied_generation,
            boot_id: open.boot_id,
            epoch: self.epoch + 1,
            gateway: open.gateway,
            gateway_lease: open.gateway_lease,
            journal_id: open.journal_id,
            journal_lost,
            role: open.role,
            seq_lifted: (open.highest_seq > self.seq).then_some(open.highest_seq),
        })
    }

    /// The event that closes the session of this epoch; none when a newer one has taken over.
    pub fn decide_close_session(&self, epoch: u64, reason: &str) -> Option<Body> {
        (self.epoch == epoch && self.is_connected()).then(|| {
            let reason = reason.chars().take(limits::REASON_BYTES_MAX / 4).collect();
            Body::NodeSessionClosed(NodeSessionClosed { epoch, reason })
        })
    }

    /// The event that sets a newer desired state, or why not.
    pub fn decide_set_spec(&self, spec: NodeSpecSet) -> Result<Body, Refusal> {
        self.check_present()?;
        check_count("generation", spec.generation, limits::COUNT_MAX)?;
        if spec.generation <= self.generation {
            let (current, given) = (self.generation, spec.generation);
            return Err(Refusal::StaleSpec { current, given });
        }
        if spec.spec.len() > limits::SPEC_BYTES_MAX {
            let problem = format!("must have at most {} bytes", limits::SPEC_BYTES_MAX);
            return Err(Refusal::Invalid {
                field: "spec",
                problem,
            });
        }
        Ok(Body::NodeSpecSet(spec))
    }

    /// The event of an applied generation; none when it is known already.
    pub fn decide_apply_generation(
        &self,
        epoch: u64,
        generation: u64,
    ) -> Result<Option<Body>, Refusal> {
        self.check_epoch(epoch)?;
        check_count("appliedGeneration", generation, limits::COUNT_MAX)?;
        let news = generation != self.applied_generation;
        let applied = NodeGenerationApplied { epoch, generation };
        Ok(news.then_some(Body::NodeGenerationApplied(applied)))
    }

    /// The event that takes the node out of the fleet, or why not.
    pub fn decide_delete(&self, tenant: TenantId) -> Result<Body, Refusal> {
        if tenant != self.tenant || self.deleted_at.is_some() {
            return Err(Refusal::UnknownNode(self.id));
        }
        Ok(Body::NodeDeleted(NodeDeleted {}))
    }
}

/// Refuses a count that no honest side names. What is appended once stays for ever, so a number
/// that later sums would not survive must never get in.
fn check_count(field: &'static str, given: u64, max: u64) -> Result<(), Refusal> {
    if given <= max {
        return Ok(());
    }
    let problem = format!("is {given}; it must be at most {max}");
    Err(Refusal::Invalid { field, problem })
}
