//! Requests about batches against the world.

use ledger_protocol::batch::create::{Create, Policy};
use ledger_protocol::batch::{Batch, approve};
use ledger_protocol::event::Stream;
use ledger_protocol::id::BatchId;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::time::Timestamp;

use crate::request::{BatchItem, BatchRequest};
use crate::{Error, Outcome, Proposed};

use super::world::World;

pub(super) fn decide(
    world: &mut World,
    item: &BatchItem,
    policy: &Policy,
    now: Timestamp,
) -> Result<Outcome, Error> {
    match &item.request {
        BatchRequest::Create(create) => propose(world, item, create, policy, now),
        BatchRequest::Approve {
            tenant,
            batch: id,
            key,
            signature,
        } => {
            let known = batch(world, *id)?;
            if known.tenant != *tenant {
                return Err(Refusal::UnknownBatch(*id).into());
            }
            let body = approve::decide(known, &item.actor, key, signature, now)?;
            let decisions = body.into_iter().map(|body| (Stream::Batch(*id), body));
            world.apply(&item.actor, *tenant, now, decisions.collect())?;
            Ok(Outcome::Batch(Box::new(batch(world, *id)?.clone())))
        }
    }
}

fn batch(world: &World, id: BatchId) -> Result<&Batch, Refusal> {
    world.batches.get(&id).ok_or(Refusal::UnknownBatch(id))
}

fn propose(
    world: &mut World,
    item: &BatchItem,
    create: &Create,
    policy: &Policy,
    now: Timestamp,
) -> Result<Outcome, Error> {
    let first = world.batch_keys.get(&create.idempotency_key);
    if let Some(first) = first.and_then(|id| world.batches.get(id)) {
        create.is_retry_of(first)?;
        let proposed = Proposed {
            batch: first.clone(),
            replayed: true,
        };
        return Ok(Outcome::Proposed(Box::new(proposed)));
    }
    let body = create.decide(policy, now)?;
    let decisions = vec![(Stream::Batch(create.id), body)];
    world.apply(&item.actor, create.tenant, now, decisions)?;
    world.scopes.push((create.id, create.scope.clone()));
    let proposed = Proposed {
        batch: batch(world, create.id)?.clone(),
        replayed: false,
    };
    Ok(Outcome::Proposed(Box::new(proposed)))
}
