//! One request against the world: the protocol's rules say what happens, this hands them what
//! they need. To add a request: a variant in `request.rs`, an arm here.

use std::collections::HashMap;

use ledger_protocol::batch::{Leaf, Place};
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::command::{Command, cancel, dispatch, expire, rejoin, release, report};
use ledger_protocol::dsse::Purpose;
use ledger_protocol::event::{Body, Stream};
use ledger_protocol::frame::JournalEntry;
use ledger_protocol::id::{CommandId, NodeId, TenantId};
use ledger_protocol::node::{Node, OpenSession};
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session;
use ledger_protocol::time::Timestamp;
use ledger_protocol::trust::intent;

use crate::request::{Item, NodeItem, Request};
use crate::{Error, Opened, Options, Outcome, Queued};

use super::batch;
use super::world::{Decision, World};

/// Decides one item and lets what was decided happen in the world.
pub(super) fn decide(
    world: &mut World,
    item: &Item,
    options: &Options,
    now: Timestamp,
) -> Result<Outcome, Error> {
    match item {
        Item::Node(item) => decide_on_node(world, item, options, now),
        Item::Batch(item) => batch::decide(world, item, &options.approval, now),
    }
}

fn decide_on_node(
    world: &mut World,
    item: &NodeItem,
    options: &Options,
    now: Timestamp,
) -> Result<Outcome, Error> {
    match &item.request {
        Request::Enqueue(enqueue) => decide_enqueue(world, item, enqueue, options, now),
        Request::Cancel { tenant, command } => {
            on_command(world, item, *command, Some(*tenant), now, |command, _| {
                Ok(cancel::decide(command))
            })
        }
        Request::Release { tenant, command } => {
            let batch = world.commands.get(command);
            let batch = batch.and_then(|command| command.queued.batch_id);
            let batch = batch.and_then(|id| world.batches.get(&id)).cloned();
            on_command(world, item, *command, Some(*tenant), now, |command, _| {
                let batch = batch.as_ref().ok_or(Refusal::NotHeld)?;
                release::decide(command, batch, now).map(|body| vec![body])
            })
        }
        Request::Dispatch { command, epoch } => {
            on_command(world, item, *command, None, now, |command, node| {
                dispatch::decide(command, node, *epoch, now).map(|body| vec![body])
            })
        }
        Request::Report {
            epoch,
            update,
            retry_at,
        } => on_command(
            world,
            item,
            update.command_id,
            None,
            now,
            |command, node| {
                let body = report::decide(command, node, *epoch, update, *retry_at)?;
                Ok(body.into_iter().collect())
            },
        ),
        Request::Expire {
            command,
            timeout_seconds,
        } => on_command(world, item, *command, None, now, |command, _| {
            let seconds = timeout_seconds.unwrap_or(command.queued.timeout_seconds);
            expire::decide(command, seconds, now).map(|body| vec![body])
        }),
        Request::RegisterNode { tenant, registered } => {
            if world.nodes.contains_key(&item.node) {
                return Err(Refusal::NodeExists(item.node).into());
            }
            let body = Node::decide_register(registered.clone())?;
            on_node(world, item, *tenant, Some(body), now)
        }
        Request::DeleteNode { tenant } => {
            let deleted = node(world, item.node)?.decide_delete(*tenant)?;
            let mut decisions = vec![(Stream::Node(item.node), deleted)];
            for command in commands_of(world, item.node) {
                let end = cancel::decide_node_deleted(command);
                decisions.extend(end.map(|end| (Stream::Command(command.id), end)));
            }
            world.apply(&item.actor, *tenant, now, decisions)?;
            Ok(Outcome::Node(Box::new(node(world, item.node)?.clone())))
        }
        Request::Certify(certified) => {
            let known = node(world, item.node)?;
            let tenant = known.tenant;
            let body = known.decide_certify(certified.clone())?;
            // A join that was only tried twice has had no session between.
            let joined_anew = known.certificate.is_some() && known.epoch > 0;
            let mut decisions = vec![(Stream::Node(item.node), body)];
            if joined_anew {
                for command in commands_of(world, item.node) {
                    let end = cancel::decide_node_reenrolled(command);
                    decisions.extend(end.map(|end| (Stream::Command(command.id), end)));
                }
            }
            world.apply(&item.actor, tenant, now, decisions)?;
            Ok(Outcome::Node(Box::new(node(world, item.node)?.clone())))
        }
        // Nothing ends: the machine, its journal and its session are what they were.
        Request::Renew { shown, certified } => {
            let node = node(world, item.node)?;
            let (tenant, body) = (node.tenant, node.decide_renew(shown, certified.clone())?);
            on_node(world, item, tenant, Some(body), now)
        }
        Request::RevokeCertificate { tenant, reason } => {
            let revoked = node(world, item.node)?.decide_revoke(*tenant, reason)?;
            let mut decisions = Vec::new();
            if let Some(revoked) = revoked {
                decisions.push((Stream::Node(item.node), revoked));
                for command in commands_of(world, item.node) {
                    let end = cancel::decide_certificate_revoked(command);
                    decisions.extend(end.map(|end| (Stream::Command(command.id), end)));
                }
            }
            world.apply(&item.actor, *tenant, now, decisions)?;
            Ok(Outcome::Node(Box::new(node(world, item.node)?.clone())))
        }
        Request::SetSpec { tenant, spec } => {
            let node = node(world, item.node)?;
            if node.tenant != *tenant || node.deleted_at.is_some() {
                return Err(Refusal::UnknownNode(item.node).into());
            }
            let mut body = node.decide_set_spec(spec.clone())?;
            sign(&mut body, Stream::Node(item.node), options, now)?;
            on_node(world, item, *tenant, Some(body), now)
        }
        Request::ApplyGeneration { epoch, generation } => {
            let node = node(world, item.node)?;
            let (tenant, body) = (
                node.tenant,
                node.decide_apply_generation(*epoch, *generation)?,
            );
            on_node(world, item, tenant, body, now)
        }
        Request::OpenSession { open, entries } => {
            decide_open_session(world, item, open, entries, now)
        }
        Request::CloseSession { epoch, reason } => {
            let node = node(world, item.node)?;
            let (tenant, body) = (node.tenant, node.decide_close_session(*epoch, reason));
            on_node(world, item, tenant, body, now)
        }
    }
}

fn node(world: &World, id: NodeId) -> Result<&Node, Refusal> {
    world.nodes.get(&id).ok_or(Refusal::UnknownNode(id))
}

/// The node's live commands that the group has loaded, in `seq` order.
fn commands_of(world: &World, node: NodeId) -> Vec<&Command> {
    let mut commands: Vec<_> = world
        .commands
        .values()
        .filter(|command| command.node_id() == node && !command.state_name().is_terminal())
        .collect();
    commands.sort_unstable_by_key(|command| command.queued.seq);
    commands
}

fn on_node(
    world: &mut World,
    item: &NodeItem,
    tenant: TenantId,
    body: Option<Body>,
    now: Timestamp,
) -> Result<Outcome, Error> {
    let decisions = body
        .into_iter()
        .map(|body| (Stream::Node(item.node), body))
        .collect();
    world.apply(&item.actor, tenant, now, decisions)?;
    Ok(Outcome::Node(Box::new(node(world, item.node)?.clone())))
}

/// `tenant` is given where a caller's view decides what exists (SPEC A6).
fn on_command(
    world: &mut World,
    item: &NodeItem,
    id: CommandId,
    tenant: Option<TenantId>,
    now: Timestamp,
    rule: impl FnOnce(&Command, &Node) -> Result<Vec<Body>, Refusal>,
) -> Result<Outcome, Error> {
    let node = node(world, item.node)?;
    let command = world.commands.get(&id).filter(|command| {
        command.node_id() == item.node && tenant.is_none_or(|tenant| command.tenant == tenant)
    });
    let command = command.ok_or(Refusal::UnknownCommand(id))?;
    let owner = command.tenant;
    let bodies = rule(command, node)?;
    let decisions = bodies
        .into_iter()
        .map(|body| (Stream::Command(id), body))
        .collect();
    world.apply(&item.actor, owner, now, decisions)?;
    let command = world.commands.get(&id).ok_or(Refusal::UnknownCommand(id))?;
    Ok(Outcome::Command(Box::new(command.clone())))
}

fn decide_enqueue(
    world: &mut World,
    item: &NodeItem,
    enqueue: &Enqueue,
    options: &Options,
    now: Timestamp,
) -> Result<Outcome, Error> {
    enqueue.node_in_view(world.nodes.get(&enqueue.node))?;
    let key = (enqueue.node, enqueue.idempotency_key.clone());
    if let Some(first) = world.keys.get(&key).and_then(|id| world.commands.get(id)) {
        enqueue.is_retry_of(first)?;
        let queued = Queued {
            command: first.clone(),
            replayed: true,
        };
        return Ok(Outcome::Queued(Box::new(queued)));
    }
    enqueue.is_approvable(&options.approval)?;
    let place = place_in_batch(world, enqueue, now)?;
    let node = node(world, enqueue.node)?;
    let pending = world
        .pending
        .get(&(enqueue.node, enqueue.kind.lane))
        .copied()
        .unwrap_or_default();
    let mut body = enqueue.decide(node, place, pending, options.pending_per_lane_max, now)?;
    sign(&mut body, Stream::Command(enqueue.id), options, now)?;
    let decisions = vec![(Stream::Command(enqueue.id), body)];
    world.apply(&item.actor, enqueue.tenant, now, decisions)?;
    let command = world
        .commands
        .get(&enqueue.id)
        .ok_or(Refusal::UnknownCommand(enqueue.id))?
        .clone();
    Ok(Outcome::Queued(Box::new(Queued {
        command,
        replayed: false,
    })))
}

/// Signs what goes to a node, where this service signs (SPEC P1, P5).
fn sign(body: &mut Body, stream: Stream, options: &Options, now: Timestamp) -> Result<(), Error> {
    let Some(signer) = &options.signer else {
        return Ok(());
    };
    match (body, stream) {
        (Body::CommandQueued(queued), Stream::Command(id)) => {
            let intent = intent::of_command(&session::command(id, queued))?;
            let until = Some(queued.not_after);
            queued.signed = Some(Box::new(signer.sign(
                Purpose::Command,
                &intent,
                now,
                until,
            )?));
        }
        (Body::NodeSpecSet(set), Stream::Node(node)) => {
            let intent = intent::of_spec(node, set.generation, &set.spec)?;
            set.signed = Some(Box::new(signer.sign(
                Purpose::DesiredState,
                &intent,
                now,
                None,
            )?));
        }
        (_, _) => {}
    }
    Ok(())
}

/// Where the command stands in the batch that it names, if it names one.
fn place_in_batch(
    world: &World,
    enqueue: &Enqueue,
    now: Timestamp,
) -> Result<Option<Place>, Error> {
    let Some(id) = enqueue.batch_id else {
        return Ok(None);
    };
    let batch = world.batches.get(&id);
    let batch = batch.filter(|batch| batch.tenant == enqueue.tenant);
    let batch = batch.ok_or(Refusal::UnknownBatch(id))?;
    let leaf = Leaf::of(enqueue.node, &enqueue.kind.name, &enqueue.payload);
    let inclusion = world.inclusions.get(&(id, leaf.hash()?));
    Ok(Some(batch.admit(&leaf, inclusion, now)?))
}

fn decide_open_session(
    world: &mut World,
    item: &NodeItem,
    open: &OpenSession,
    entries: &[JournalEntry],
    now: Timestamp,
) -> Result<Outcome, Error> {
    let known = node(world, item.node)?;
    let tenant = known.tenant;
    let live = commands_of(world, item.node);
    let answered = world.answered.get(&item.node).copied().unwrap_or(0);
    let seen = known.journal_seen(live.iter().copied(), answered);
    let opened = known.decide_open_session(open.clone(), seen)?;
    let (epoch, journal_lost) = (opened.epoch, opened.journal_lost);
    let entries: HashMap<_, _> = entries
        .iter()
        .map(|entry| (entry.command_id, entry.state))
        .collect();
    let ends: Vec<Decision> = live
        .into_iter()
        .filter_map(|command| {
            let proof = known.rejoin(&opened, entries.get(&command.id).copied());
            let end = rejoin::decide(command, proof, epoch)?;
            Some((Stream::Command(command.id), end))
        })
        .collect();
    let mut decisions = vec![(Stream::Node(item.node), Body::NodeSessionOpened(opened))];
    decisions.extend(ends);
    world.apply(&item.actor, tenant, now, decisions)?;
    let replay = commands_of(world, item.node)
        .into_iter()
        .filter(|command| command.is_in_flight())
        .cloned()
        .collect();
    let node = node(world, item.node)?.clone();
    Ok(Outcome::Opened(Box::new(Opened {
        journal_lost,
        node,
        replay,
    })))
}
