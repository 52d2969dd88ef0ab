//! The events of a node's life.

use std::collections::BTreeMap;

use super::{Checker, Rule};
use crate::event::{Body, Event, NodeCertified};
use crate::id::{CommandId, NodeId};
use crate::kind::Lane;
use crate::limits::lane_credits;
use crate::time::Timestamp;

/// A node, as far as the rules ask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TrackedNode {
    pub(super) seq: u64,
    pub(super) epoch: u64,
    pub(super) deleted: bool,
    pub(super) connected_at: Timestamp,
    pub(super) applied_generation: u64,
    pub(super) generation_at: Timestamp,
    pub(super) certified_at: Option<Timestamp>,
    /// Its newest certificate.
    pub(super) certificate: Option<NodeCertified>,
    revoked: bool,
    open: bool,
    generation: u64,
    lanes: [TrackedLane; 3],
}

/// One lane of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TrackedLane {
    credits: u32,
    pub(super) in_flight: u32,
    /// What waits, by `seq`.
    pub(super) pending: BTreeMap<u64, CommandId>,
    /// What came into flight by the node's word on a command that was returned, by `seq`; when.
    pub(super) reported: BTreeMap<u64, Timestamp>,
    /// When something last changed in it.
    pub(super) changed_at: Timestamp,
}

impl TrackedLane {
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.credits
    }
}

impl TrackedNode {
    fn new(at: Timestamp) -> Self {
        let lane = |lane| TrackedLane {
            credits: lane_credits(lane),
            in_flight: 0,
            pending: BTreeMap::new(),
            reported: BTreeMap::new(),
            changed_at: at,
        };
        Self {
            seq: 0,
            epoch: 0,
            deleted: false,
            connected_at: at,
            applied_generation: 0,
            generation_at: at,
            certified_at: None,
            certificate: None,
            revoked: false,
            open: false,
            generation: 0,
            lanes: Lane::ALL.map(lane),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.open && !self.deleted
    }

    /// A join, or a renewal: which changes neither key nor kinds, and comes to no node that has no
    /// certificate. Answers what stands against it.
    fn certified(&mut self, body: &NodeCertified, at: Timestamp) -> Option<&'static str> {
        let held = self.certificate.replace(body.clone());
        let same_key = held
            .as_ref()
            .filter(|held| held.public_key == body.public_key);
        if body.renews.is_some() {
            let continues = same_key.is_some_and(|held| held.allowed_kinds == body.allowed_kinds);
            return (!continues || self.revoked).then_some("not of this certificate");
        }
        let is_same_key = self.revoked && same_key.is_some();
        self.certified_at = Some(at);
        self.revoked = false;
        is_same_key.then_some("revoked, with this key")
    }

    pub(super) fn accepts(&self, kind: &str) -> bool {
        let certificate = self.certificate.as_ref();
        let allowed = certificate.and_then(|held| held.allowed_kinds.as_ref());
        allowed.is_none_or(|allowed| allowed.iter().any(|name| name == kind))
    }

    pub(super) fn lane(&self, lane: Lane) -> &TrackedLane {
        let [control, provision, bulk] = &self.lanes;
        match lane {
            Lane::Control => control,
            Lane::Provision => provision,
            Lane::Bulk => bulk,
        }
    }

    pub(super) fn lane_mut(&mut self, lane: Lane) -> &mut TrackedLane {
        let [control, provision, bulk] = &mut self.lanes;
        match lane {
            Lane::Control => control,
            Lane::Provision => provision,
            Lane::Bulk => bulk,
        }
    }
}

impl Checker {
    pub(super) fn node_event(&mut self, id: NodeId, event: &Event) {
        let name = event.body.type_name();
        let at = event.at;
        let Some(node) = self.nodes.get_mut(&id) else {
            self.nodes.insert(id, TrackedNode::new(at));
            if !matches!(event.body, Body::NodeRegistered(_)) {
                let state = "not there";
                self.broken(event, Rule::Transition { event: name, state });
            }
            return;
        };
        let impossible = |state| Rule::Transition { event: name, state };
        let mut rule = node.deleted.then(|| impossible("deleted"));
        match &event.body {
            Body::NodeRegistered(_) => rule = Some(impossible("registered")),
            Body::NodeSessionOpened(body) => {
                if node.revoked {
                    rule = Some(impossible("revoked"));
                }
                if body.epoch <= node.epoch {
                    let (newest, given) = (node.epoch, body.epoch);
                    rule = Some(Rule::OldEpoch { newest, given });
                }
                node.epoch = body.epoch;
                node.open = true;
                node.connected_at = at;
                node.seq = node.seq.max(body.seq_lifted.unwrap_or(0));
                if node.applied_generation != body.applied_generation {
                    node.applied_generation = body.applied_generation;
                    node.generation_at = at;
                }
            }
            Body::NodeSessionClosed(body) => {
                if body.epoch == node.epoch {
                    node.open = false;
                } else {
                    let (newest, given) = (node.epoch, body.epoch);
                    rule = Some(Rule::OldEpoch { newest, given });
                }
            }
            Body::NodeCertified(body) => {
                if let Some(state) = node.certified(body, at) {
                    rule = Some(impossible(state));
                }
            }
            Body::NodeCertificateRevoked(_) => {
                if node.certified_at.is_none() || node.revoked {
                    rule = Some(impossible("without a certificate"));
                }
                node.revoked = true;
                node.open = false;
            }
            Body::NodeSpecSet(body) => {
                if body.generation <= node.generation {
                    rule = Some(impossible("at this generation or a later one"));
                }
                node.generation = body.generation;
            }
            Body::NodeGenerationApplied(body) => {
                node.applied_generation = body.generation;
                node.generation_at = at;
                let epoch = body.epoch;
                self.check_epoch(event, id, epoch);
            }
            Body::NodeDeleted(_) => {
                node.deleted = true;
                node.open = false;
            }
            Body::CommandQueued(_)
            | Body::CommandReleased(_)
            | Body::CommandDispatched(_)
            | Body::CommandReturned(_)
            | Body::CommandAcked(_)
            | Body::CommandRunning(_)
            | Body::CommandCancelRequested(_)
            | Body::CommandSettled(_)
            | Body::CommandLateResult(_)
            | Body::BatchCreated(_)
            | Body::BatchApproved(_) => rule = Some(impossible("a node")),
        }
        if let Some(rule) = rule {
            self.broken(event, rule);
        }
    }
}
