//! The ledger as it was, held against folds of its own and against the live tables (SPEC U2).

use std::collections::BTreeMap;

use ledger_protocol::command::Command;
use ledger_protocol::event::{Body, Event, Stream};
use ledger_protocol::node::Node;

use super::exports::{exported, sign_log, trusted, verified};
use super::*;
use crate::{Changed, CommandFacts, History, Item, Moment, diff};

/// All that there was.
#[derive(Debug, Default, Clone, PartialEq)]
struct Whole {
    commands: BTreeMap<CommandId, Command>,
    nodes: BTreeMap<NodeId, (Node, Option<Vec<u8>>)>,
    batches: BTreeMap<BatchId, Batch>,
}

impl Whole {
    fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Command(command) => {
                let twice = self.commands.insert(command.id, (*command).clone());
                assert_eq!(twice, None);
            }
            Item::Node(node, spec) => {
                let spec = spec.map(<[u8]>::to_vec);
                assert_eq!(self.nodes.insert(node.id, ((*node).clone(), spec)), None);
            }
            Item::Batch(batch, _) => {
                assert_eq!(self.batches.insert(batch.id, (*batch).clone()), None);
            }
        }
    }

    /// One more event, by the plainest fold there is.
    fn fold(&mut self, event: &Event) {
        match event.stream {
            Stream::Command(id) => {
                if let Body::CommandQueued(queued) = &event.body {
                    self.fold_node(queued.node_id, event);
                }
                let command = Command::evolve(self.commands.remove(&id), event);
                self.commands.insert(id, command.unwrap());
            }
            Stream::Node(id) => self.fold_node(id, event),
            Stream::Batch(id) => {
                let batch = Batch::evolve(self.batches.remove(&id), event);
                self.batches.insert(id, batch.unwrap());
            }
        }
    }

    fn fold_node(&mut self, id: NodeId, event: &Event) {
        let (node, mut spec) = self.nodes.remove(&id).map_or((None, None), |known| {
            let (node, spec) = known;
            (Some(node), spec)
        });
        if let Body::NodeSpecSet(set) = &event.body {
            spec = Some(set.spec.clone());
        }
        self.nodes
            .insert(id, (Node::evolve(node, event).unwrap(), spec));
    }

    fn count(&self, state: &str) -> u64 {
        let of_state = |command: &&Command| command.state_name().as_str() == state;
        self.commands.values().filter(of_state).count() as u64
    }
}

async fn whole(history: &mut History, position: u64, only: Option<Stream>) -> Whole {
    let mut whole = Whole::default();
    let mut each = |item: Item<'_>| {
        whole.take(&item);
        Ok(())
    };
    let past = history.past(position, only, Some(&mut each)).await.unwrap();
    assert_eq!(past.position, position);
    whole
}

/// A log with a bit of everything, a late word among it; every prefix's fold, from before the first.
async fn prefixes(pool: &PgPool) -> Vec<Whole> {
    let world = World::new(pool.clone());
    world.live_a_little().await;
    let node = world.node("late").await;
    let spec = NodeSpecSet {
        signed: None,
        generation: 1,
        spec: vec![0x80],
    };
    let set = world
        .ledger
        .set_spec(&world.actor, world.tenant, node, spec);
    set.await.unwrap();
    let epoch = world.open_session(node).await;
    let applied = world
        .ledger
        .apply_generation(&world.actor, node, epoch, 1)
        .await;
    applied.unwrap();
    let command = world.enqueue(node, "api:late").await;
    let (ledger, actor) = (&world.ledger, &world.actor);
    ledger.dispatch(actor, node, command, epoch).await.unwrap();
    world
        .report(node, epoch, command, UpdateState::Cancelled)
        .await;
    world.enqueue(node, "api:between").await;
    world
        .report(node, epoch, command, UpdateState::Succeeded)
        .await;

    let mut folds = vec![Whole::default()];
    let mut conn = pool.acquire().await.unwrap();
    let events = ledger_projections::log::read(&mut conn, 0, 1_000).await;
    for event in events.unwrap() {
        let mut next = folds.last().unwrap().clone();
        next.fold(&Event::decode(&event.bytes).unwrap());
        folds.push(next);
    }
    folds
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_the_ledger_at_every_position_is_the_fold_of_the_events_to_there(pool: PgPool) {
    let folds = prefixes(&pool).await;
    let mut history = History::of_database(&pool, None).await.unwrap();
    let last = folds.len() as u64 - 1;
    for (position, expected) in (0..).zip(&folds) {
        assert_eq!(&whole(&mut history, position, None).await, expected);
        let counted = history.past(position, None, None).await.unwrap();
        for (state, count) in &counted.counts.commands {
            assert_eq!(*count, expected.count(state), "{state} at {position}");
        }
        let all: u64 = counted.counts.commands.values().sum();
        assert_eq!(all, expected.commands.len() as u64);
        assert_eq!(counted.counts.batches, expected.batches.len() as u64);
        let nodes = counted.counts.nodes + counted.counts.deleted;
        assert_eq!(nodes, expected.nodes.len() as u64);
    }

    // At its end, it is what the live tables hold.
    let end = folds.last().unwrap();
    let mut conn = pool.acquire().await.unwrap();
    for (id, expected) in &end.commands {
        let live = ledger_projections::commands::get(&mut conn, *id).await;
        assert_eq!(live.unwrap().as_ref(), Some(expected));
        let alone = whole(&mut history, last, Some(Stream::Command(*id))).await;
        assert_eq!(alone.commands.get(id), Some(expected));
        assert_eq!((alone.commands.len(), alone.nodes.len()), (1, 0));
    }
    for (id, (expected, spec)) in &end.nodes {
        let live = ledger_projections::nodes::get(&mut conn, *id).await;
        assert_eq!(live.unwrap().as_ref(), Some(expected));
        let alone = whole(&mut history, last, Some(Stream::Node(*id))).await;
        assert_eq!(alone.nodes.get(id), Some(&(expected.clone(), spec.clone())));
        assert_eq!((alone.commands.len(), alone.nodes.len()), (0, 1));
    }
    for (id, expected) in &end.batches {
        let live = ledger_projections::batches::get(&mut conn, *id).await;
        assert_eq!(live.unwrap().as_ref(), Some(expected));
        let alone = whole(&mut history, last, Some(Stream::Batch(*id))).await;
        assert_eq!(alone.batches.get(id), Some(expected));
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_what_changed_leads_from_any_position_to_any_later_one(pool: PgPool) {
    let folds = prefixes(&pool).await;
    sign_log(&pool, 1_000).await;
    let file = exported(&pool).await;
    assert!(verified(&file, &trusted()).is_clean());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.export");
    std::fs::write(&path, file).unwrap();
    let mut history = History::File(path);
    let state = |whole: &Whole, id: &CommandId| whole.commands.get(id).map(Command::state_name);
    for from in 0..folds.len() {
        for to in (from..folds.len()).step_by(3) {
            let (before, after) = (&folds[from], &folds[to]);
            let changes = diff(&mut history, from as u64, to as u64).await.unwrap();
            assert!(changes.is_sorted_by_key(|change| change.position));
            let events: u64 = changes.iter().map(|change| change.events).sum();
            assert_eq!(events, (to - from) as u64, "{from} to {to}");
            let mut changed = Vec::new();
            for change in &changes {
                match &change.changed {
                    Changed::Command(id, was, is) => {
                        let was = was.as_ref().map(|was: &CommandFacts| was.state);
                        assert_eq!(was, state(before, id), "{id}, {from} to {to}");
                        assert_eq!(Some(is.state), state(after, id), "{id}, {from} to {to}");
                        changed.push(*id);
                    }
                    Changed::Node(id, was, is) => {
                        let epoch = |whole: &Whole| whole.nodes.get(id).map(|node| node.0.epoch);
                        assert_eq!(was.as_ref().map(|was| was.epoch), epoch(before));
                        assert_eq!(Some(is.epoch), epoch(after));
                    }
                    Changed::Batch(id, was, is) => {
                        let given =
                            |whole: &Whole| whole.batches.get(id).map(|one| one.approvals.len());
                        assert_eq!(was.as_ref().map(|was| was.approvals.len()), given(before));
                        assert_eq!(Some(is.approvals.len()), given(after));
                    }
                }
            }
            // What is not named is as it was.
            for (id, command) in &after.commands {
                let same = before.commands.get(id) == Some(command);
                assert_eq!(same, !changed.contains(id), "{id}, {from} to {to}");
            }
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_a_past_point_is_a_position_or_the_last_event_at_a_time(pool: PgPool) {
    World::new(pool.clone()).live_a_little().await;
    let mut history = History::of_database(&pool, None).await.unwrap();
    let last = history
        .position(Moment::Time(Timestamp::MAX))
        .await
        .unwrap();
    // All of it was recorded at one time.
    for (time, position) in [
        (NOW.plus_micros(-1), 0),
        (NOW, last),
        (NOW.plus_micros(1), last),
    ] {
        let moment = time.to_string().parse().unwrap();
        assert_eq!(history.position(moment).await.unwrap(), position);
    }
    assert_eq!("17".parse(), Ok(Moment::Position(17)));
    assert!("yesterday".parse::<Moment>().is_err());
    let beyond = history.position(Moment::Position(last + 1)).await;
    let told = beyond.unwrap_err().to_string();
    let (asked, end) = (last + 1, last);
    assert_eq!(
        told,
        format!("position {asked} is beyond the log, which ends at position {end}")
    );
    let unknown = Stream::Command(CommandId::from_uuid(Uuid::nil()));
    assert_eq!(
        whole(&mut history, last, Some(unknown)).await,
        Whole::default()
    );
}
