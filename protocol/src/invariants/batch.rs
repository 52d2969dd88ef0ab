//! The events of a batch's life, and what it asks of its commands (SPEC P3).

use std::collections::BTreeSet;

use super::{Checker, Rule};
use crate::batch::{Leaf, Statement};
use crate::dsse::PublicKey;
use crate::event::{Actor, BatchApproved, BatchCreated, Body, CommandQueued, Event};
use crate::id::{BatchId, CommandId, TenantId};

/// A batch, as far as the rules ask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TrackedBatch {
    created: BatchCreated,
    created_by: Actor,
    tenant: TenantId,
    keys: BTreeSet<PublicKey>,
    people: BTreeSet<String>,
}

impl TrackedBatch {
    fn holds(&self) -> bool {
        self.keys.len() < self.created.quorum as usize
    }
}

impl Checker {
    pub(super) fn batch_event(&mut self, id: BatchId, event: &Event) {
        match (self.batches.contains_key(&id), &event.body) {
            (false, Body::BatchCreated(created)) => {
                let batch = TrackedBatch {
                    created: created.clone(),
                    created_by: event.actor.clone(),
                    tenant: event.tenant,
                    keys: BTreeSet::new(),
                    people: BTreeSet::new(),
                };
                self.batches.insert(id, batch);
            }
            (true, Body::BatchApproved(given)) => self.approved(id, given, event),
            (known, body) => {
                let state = if known { "proposed" } else { "not there" };
                let event_name = body.type_name();
                let rule = Rule::Transition {
                    event: event_name,
                    state,
                };
                self.broken(event, rule);
            }
        }
    }

    fn approved(&mut self, id: BatchId, given: &BatchApproved, event: &Event) {
        let Some(batch) = self.batches.get_mut(&id) else {
            return;
        };
        let created = &batch.created;
        let statement = Statement {
            batch_id: id,
            expires_at: created.expires_at,
            leaf_count: created.leaf_count,
            reason: &created.reason,
            root: &created.root,
            tenant_id: batch.tenant,
        };
        let (key, name) = (&given.key, &given.approver);
        let listed = created
            .approvers
            .iter()
            .any(|known| known.key == *key && known.name == *name);
        let signed =
            listed && event.tenant == batch.tenant && statement.is_signed_by(key, &given.signature);
        let at = created.expires_at;
        let creator = &batch.created_by;
        let proposer = creator.may_be(&event.actor) || creator.may_be(&Actor::api(name));
        let new_key = batch.keys.insert(*key);
        let new_person = batch.people.insert(event.actor.as_str().to_lowercase());
        if !signed {
            self.broken(event, Rule::NotSigned);
        }
        if proposer || !new_key || !new_person {
            self.broken(event, Rule::NotDistinct);
        }
        if event.at > at {
            self.broken(event, Rule::BatchExpired { at });
        }
    }

    /// A command that is queued: what its batch has to say.
    pub(super) fn check_batch(&mut self, queued: &CommandQueued, event: &Event) {
        let Some(id) = queued.batch_id else {
            if queued.held || queued.batch_inclusion.is_some() {
                self.broken(event, Rule::UnknownBatch);
            }
            return;
        };
        let batch = self.batches.get(&id);
        let Some(batch) = batch.filter(|batch| batch.tenant == event.tenant) else {
            return self.broken(event, Rule::UnknownBatch);
        };
        let leaf = Leaf::of(queued.node_id, &queued.kind, &queued.payload);
        let inclusion = queued.batch_inclusion.as_ref();
        let included = inclusion.is_some_and(|proof| proof.proves(&leaf, &batch.created));
        let (holds, at) = (batch.holds(), batch.created.expires_at);
        let (given, quorum) = (batch.keys.len(), batch.created.quorum);
        if !included {
            self.broken(event, Rule::OutsideBatch);
        }
        if event.at > at || queued.not_after > at {
            self.broken(event, Rule::BatchExpired { at });
        }
        if queued.held != holds {
            let held = queued.held;
            let rule = Rule::WronglyHeld {
                held,
                given,
                quorum,
            };
            self.broken(event, rule);
        }
    }

    /// A command that is released: whether its batch lets it go.
    pub(super) fn check_release(&mut self, command: CommandId, event: &Event) {
        let batch = self.commands.get(&command).and_then(|known| known.batch);
        let Some(batch) = batch.and_then(|id| self.batches.get(&id)) else {
            return self.broken(event, Rule::UnknownBatch);
        };
        let (given, quorum) = (batch.keys.len(), batch.created.quorum);
        let (holds, at) = (batch.holds(), batch.created.expires_at);
        if holds {
            self.broken(event, Rule::ReleasedEarly { given, quorum });
        }
        if event.at > at {
            self.broken(event, Rule::BatchExpired { at });
        }
    }
}
