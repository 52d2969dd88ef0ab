//! One group in one transaction: lock, load, decide, write, number, commit.

use std::collections::{HashMap, HashSet, VecDeque};

use ledger_projections::{batches, commands, nodes};
use ledger_protocol::batch::Leaf;
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::event::Event;
use ledger_protocol::id::{BatchId, CommandId, NodeId};
use ledger_protocol::kind::Lane;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::request::{BatchRequest, Item, NodeItem, Request};
use crate::{Error, Fence, Outcome, lease};

use super::world::World;
use super::{Inner, decide};

/// The answers to a group, and the events that carry them.
#[derive(Debug)]
pub(crate) struct Appended {
    /// One answer for each item, in order.
    pub(crate) answers: Vec<Result<Outcome, Error>>,
    /// Position of the first event, when there are events.
    pub(crate) first: u64,
    /// The events, in order.
    pub(crate) events: Vec<Event>,
}

/// Appends a group and answers each of its items. A group that the database refuses is halved
/// until the item at fault stands alone, so that it cannot block the rest.
pub(super) async fn append(inner: &Inner, items: Vec<Item>) -> Vec<Result<Outcome, Error>> {
    let mut answers = Vec::with_capacity(items.len());
    let mut rest = VecDeque::from([items]);
    while let Some(mut items) = rest.pop_front() {
        match append_once(inner, &items).await {
            Ok(appended) => {
                inner.tail.committed(appended.first, &appended.events);
                answers.extend(appended.answers);
            }
            Err(error) if items.len() > 1 && error.is_from_statement() => {
                tracing::warn!(
                    items = items.len(),
                    error = &error as &dyn std::error::Error,
                    "the group was refused; its halves are tried alone"
                );
                let second = items.split_off(items.len() / 2);
                rest.push_front(second);
                rest.push_front(items);
            }
            Err(error) => {
                tracing::error!(
                    items = items.len(),
                    error = &error as &dyn std::error::Error,
                    "the group was not appended"
                );
                answers.extend(items.iter().map(|_| Err(error.clone())));
            }
        }
    }
    answers
}

async fn append_once(inner: &Inner, items: &[Item]) -> Result<Appended, Error> {
    let mut connection = inner.pool.acquire().await?;
    // Whatever the database's default is: what is decided on was committed by others meanwhile.
    let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
    let mut transaction = connection.begin_with(begin).await?;
    let appended = append_within(inner, &mut transaction, items).await?;
    commit(transaction).await?;
    Ok(appended)
}

/// Class of SQLSTATE by which a server says that it ends the connection, not that it refuses.
const OPERATOR_INTERVENTION: &str = "57";

/// Commits. When the server itself refuses, nothing happened; when the link dies or the server
/// ends it, which may be after the commit took effect, nobody knows (SPEC L10).
pub(crate) async fn commit(
    transaction: sqlx::Transaction<'_, sqlx::Postgres>,
) -> Result<(), Error> {
    transaction.commit().await.map_err(|error| {
        let refused = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code)
            .is_some_and(|code| !code.starts_with(OPERATOR_INTERVENTION));
        if refused {
            Error::from(error)
        } else {
            Error::OutcomeUnknown
        }
    })
}

/// Everything but begin and commit.
pub(crate) async fn append_within(
    inner: &Inner,
    conn: &mut PgConnection,
    items: &[Item],
) -> Result<Appended, Error> {
    let fences = standing_fences(conn, items).await?;
    let mut world = load(inner, conn, items).await?;
    let now = inner.options.clock.now();
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let fence = item.of_node().and_then(|item| item.fence.as_ref());
        let stands = fence.is_none_or(|fence| fences.contains(fence));
        answers.push(if stands {
            decide::decide(&mut world, item, &inner.options, now)
        } else {
            Err(Error::Fenced)
        });
    }
    let changes = world.changes()?;
    let (events, bodies): (Vec<Event>, Vec<Vec<u8>>) =
        std::mem::take(&mut world.events).into_iter().unzip();
    if events.is_empty() {
        return Ok(Appended {
            answers,
            first: 0,
            events,
        });
    }
    changes.write(conn).await?;
    let first = number(conn, &events, bodies).await?;
    Ok(Appended {
        answers,
        first,
        events,
    })
}

/// Key of the advisory lock on the end of the log; the second part is the shard.
const END_OF_LOG: i32 = 0x434c_4544;

/// Takes the end of the log and writes the events behind it, as the last thing before the commit:
/// from here on every other append waits. The end is a lock and the newest row, not a row of its
/// own: one that every append rewrites would grow while anybody's transaction stays open (SPEC L4).
async fn number(
    conn: &mut PgConnection,
    events: &[Event],
    bodies: Vec<Vec<u8>>,
) -> Result<u64, Error> {
    // A statement of its own: the next one then sees what was committed before it got the lock.
    sqlx::query("SELECT pg_advisory_xact_lock($1, 0)")
        .bind(END_OF_LOG)
        .execute(&mut *conn)
        .await?;
    let streams: Vec<Uuid> = events.iter().map(|event| event.stream.uuid()).collect();
    let before: i64 = sqlx::query_scalar(
        "WITH head AS MATERIALIZED (
             SELECT coalesce((SELECT position FROM events WHERE shard = 0
                 ORDER BY position DESC LIMIT 1), 0) AS before
         ), written AS (
             INSERT INTO events (shard, position, stream, body)
             SELECT 0, head.before + new.place, new.stream, new.body
             FROM head, unnest($1::uuid[], $2::bytea[])
                 WITH ORDINALITY AS new (stream, body, place)
         )
         SELECT before FROM head",
    )
    .bind(streams)
    .bind(bodies)
    .fetch_one(conn)
    .await?;
    Ok(u64::try_from(before).unwrap_or(0) + 1)
}

async fn standing_fences(conn: &mut PgConnection, items: &[Item]) -> Result<HashSet<Fence>, Error> {
    let asked: HashSet<&Fence> = items
        .iter()
        .filter_map(|item| item.of_node()?.fence.as_ref())
        .collect();
    let mut standing = HashSet::new();
    for fence in asked {
        if lease::stands(conn, fence).await? {
            standing.insert(fence.clone());
        }
    }
    Ok(standing)
}

async fn load(inner: &Inner, conn: &mut PgConnection, items: &[Item]) -> Result<World, Error> {
    let mut world = World::default();
    let of_nodes: Vec<&NodeItem> = items.iter().filter_map(Item::of_node).collect();
    if !of_nodes.is_empty() {
        load_nodes(inner, conn, &mut world, &of_nodes).await?;
    }
    load_batches(conn, &mut world, items).await?;
    Ok(world)
}

async fn load_nodes(
    inner: &Inner,
    conn: &mut PgConnection,
    world: &mut World,
    items: &[&NodeItem],
) -> Result<(), Error> {
    let ids: HashSet<Uuid> = items.iter().map(|item| item.node.uuid()).collect();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    world.nodes = nodes::lock(conn, &ids)
        .await?
        .into_iter()
        .map(|node| (node.id, node))
        .collect();

    let mut wanted: HashSet<CommandId> = items.iter().filter_map(|item| item.command()).collect();
    load_enqueues(world, conn, items, inner.options.pending_per_lane_max).await?;
    wanted.extend(world.keys.values());
    if !wanted.is_empty() {
        let wanted: Vec<Uuid> = wanted.into_iter().map(CommandId::uuid).collect();
        for command in commands::get_many(conn, &wanted).await? {
            world.commands.insert(command.id, command);
        }
    }
    let whole: Vec<Uuid> = items
        .iter()
        .filter(|item| item.needs_live_commands())
        .map(|item| item.node.uuid())
        .collect();
    if !whole.is_empty() {
        for command in commands::live_of(conn, &whole).await? {
            world.commands.insert(command.id, command);
        }
        for (node, newest) in nodes::newest_seqs(conn, &whole).await? {
            world.number(node, newest);
        }
    }
    let opening: Vec<Uuid> = items
        .iter()
        .filter(|item| matches!(item.request, Request::OpenSession { .. }))
        .map(|item| item.node.uuid())
        .collect();
    if !opening.is_empty() {
        world.answered = nodes::answered_seqs(conn, &opening).await?;
    }
    Ok(())
}

/// The batches that are proposed again, approved, or named by commands, with the proofs of the
/// leaves that are asked for. Locked after the nodes, keys before batches.
async fn load_batches(
    conn: &mut PgConnection,
    world: &mut World,
    items: &[Item],
) -> Result<(), Error> {
    let (mut keys, mut ids, mut leaves) = (Vec::new(), HashSet::new(), Vec::new());
    for item in items {
        match item {
            Item::Batch(item) => match &item.request {
                BatchRequest::Create(create) => keys.push(create.idempotency_key.as_str()),
                BatchRequest::Approve { batch, .. } => _ = ids.insert(*batch),
            },
            Item::Node(item) => match &item.request {
                Request::Enqueue(enqueue) => {
                    if let Some(batch) = enqueue.batch_id {
                        let kind = &enqueue.kind.name;
                        let leaf = Leaf::of(enqueue.node, kind, &enqueue.payload);
                        ids.insert(batch);
                        leaves.push((batch, leaf.hash()?));
                    }
                }
                Request::Release { command, .. } => {
                    let command = world.commands.get(command);
                    ids.extend(command.and_then(|command| command.queued.batch_id));
                }
                _ => {}
            },
        }
    }
    if !keys.is_empty() {
        for batch in batches::lock_keys(conn, &keys).await? {
            let key = batch.created.idempotency_key.clone();
            world.batch_keys.insert(key, batch.id);
            world.batches.insert(batch.id, batch);
        }
    }
    if !ids.is_empty() {
        let ids: Vec<Uuid> = ids.into_iter().map(BatchId::uuid).collect();
        for batch in batches::lock(conn, &ids).await? {
            world.batches.insert(batch.id, batch);
        }
    }
    if !leaves.is_empty() {
        for (batch, hash, inclusion) in batches::inclusions(conn, &leaves).await? {
            if let Ok(hash) = hash.try_into() {
                world.inclusions.insert((batch, hash), inclusion);
            }
        }
    }
    Ok(())
}

/// Which keys are taken, and how many commands wait in each lane that gets new ones (SPEC A2, K4).
/// The span from the oldest waiting `seq` to the newest is an upper bound that costs one look at
/// an index; only where it reaches the limit are the commands counted.
async fn load_enqueues(
    world: &mut World,
    conn: &mut PgConnection,
    items: &[&NodeItem],
    pending_max: u32,
) -> Result<(), Error> {
    let enqueues: Vec<&Enqueue> = items
        .iter()
        .filter_map(|item| match &item.request {
            Request::Enqueue(enqueue) => Some(enqueue.as_ref()),
            _ => None,
        })
        .collect();
    if enqueues.is_empty() {
        return Ok(());
    }
    let asked: Vec<_> = enqueues
        .iter()
        .map(|enqueue| commands::Asked {
            node: enqueue.node,
            key: &enqueue.idempotency_key,
            lane: enqueue.kind.lane,
        })
        .collect();
    let found = commands::before_enqueue(conn, &asked).await?;
    let mut new: HashMap<(NodeId, Lane), u32> = HashMap::new();
    for (asked, found) in asked.iter().zip(found) {
        if let Some(command) = found.command {
            let key = (asked.node, asked.key.to_owned());
            world.keys.insert(key, CommandId::from_uuid(command));
        }
        let lane = (asked.node, asked.lane);
        *new.entry(lane).or_default() += 1;
        let newest = u64::try_from(found.newest_seq).unwrap_or(0);
        world.number(asked.node, newest);
        if let Some(oldest) = found.oldest_pending_seq {
            let span = (newest + 1).saturating_sub(u64::try_from(oldest).unwrap_or(0));
            let span = u32::try_from(span).unwrap_or(u32::MAX);
            world.pending.insert(lane, span);
        }
    }
    let crowded: Vec<_> = new
        .into_iter()
        .filter(|(lane, new)| {
            let waiting = world.pending.get(lane).copied().unwrap_or_default();
            waiting.saturating_add(*new) > pending_max
        })
        .map(|(lane, _)| lane)
        .collect();
    if crowded.is_empty() {
        return Ok(());
    }
    let (nodes, names): (Vec<Uuid>, Vec<&str>) = crowded
        .iter()
        .map(|(node, lane)| (node.uuid(), lane.as_str()))
        .unzip();
    for lane in &crowded {
        world.pending.insert(*lane, 0);
    }
    for (node, lane, count) in commands::count_pending(conn, &nodes, &names).await? {
        let Some(lane) = Lane::parse(&lane) else {
            continue;
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        world.pending.insert((NodeId::from_uuid(node), lane), count);
    }
    Ok(())
}
