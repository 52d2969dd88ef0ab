//! The append on a real Postgres, a database for each test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ledger_projections::{commands, log, nodes};
use ledger_protocol::command::{Command, StateName};
use ledger_protocol::event::{Actor, Event, NodeRegistered, Outcome as End, Stream};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{JournalId, NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::OpenSession;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::time::Timestamp;
use serde_json::json;
use sqlx::{Executor as _, PgPool};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Clock, Error, Ledger, Options, Run, lease};

mod batches;
mod secrets;
mod signing;

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);

/// A ledger with a standing clock, and one connected node.
struct Ground {
    ledger: Ledger,
    actor: Actor,
    tenant: TenantId,
    node: NodeId,
    epoch: u64,
}

fn start(pool: &PgPool, change: impl FnOnce(&mut Options)) -> Ledger {
    let mut options = Options::new(Registry::builtin(), Clock::manual(NOW));
    change(&mut options);
    Ledger::start(
        pool.clone(),
        options,
        &TaskTracker::new(),
        CancellationToken::new(),
    )
    .unwrap()
}

fn open(boot: &str, journal: u8) -> OpenSession {
    OpenSession {
        agent_version: "1".to_owned(),
        applied_generation: 0,
        boot_id: boot.to_owned(),
        certificate: None,
        gateway: "g".to_owned(),
        gateway_lease: None,
        journal_id: JournalId::new(NOW, [journal; 10]),
        highest_seq: 0,
        role: Role::Node,
    }
}

impl Ground {
    async fn on(ledger: Ledger) -> Self {
        let actor = Actor::api("operator");
        let tenant = TenantId::new(NOW, ledger.new_id_random());
        let registered = NodeRegistered {
            labels: BTreeMap::new(),
            name: "n1".to_owned(),
            role: Role::Node,
        };
        let node = ledger
            .register_node(&actor, tenant, registered)
            .await
            .unwrap()
            .id;
        let opened = ledger
            .open_session(&actor, node, open("b1", 1), Vec::new())
            .await
            .unwrap();
        Self {
            ledger,
            actor,
            tenant,
            node,
            epoch: opened.node.epoch,
        }
    }

    fn run(&self, kind: &str, key: &str) -> Run {
        Run {
            tenant: self.tenant,
            node: self.node,
            kind: kind.to_owned(),
            payload: json!({}),
            idempotency_key: key.to_owned(),
            not_after: NOW.plus_seconds(600),
            not_before: None,
            min_generation: None,
            batch_id: None,
        }
    }

    async fn queue(&self, kind: &str, key: &str) -> Command {
        self.ledger
            .enqueue(&self.actor, self.run(kind, key))
            .await
            .unwrap()
            .command
    }

    async fn dispatched(&self, kind: &str, key: &str) -> Command {
        let id = self.queue(kind, key).await.id;
        self.ledger
            .dispatch(&self.actor, self.node, id, self.epoch)
            .await
            .unwrap()
    }

    async fn report(&self, command: &Command, state: UpdateState) -> Result<Command, Error> {
        let update = Update::bare(command.id, state);
        let retry_at = self.ledger.now().plus_seconds(1);
        self.ledger
            .report(&self.actor, self.node, self.epoch, update, retry_at)
            .await
    }

    async fn head(&self) -> u64 {
        log::head(&mut self.ledger.pool().acquire().await.unwrap())
            .await
            .unwrap()
    }

    async fn read(&self, command: &Command) -> Option<Command> {
        let mut conn = self.ledger.pool().acquire().await.unwrap();
        commands::get(&mut conn, command.id).await.unwrap()
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l8_what_was_appended_is_read_at_once(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let queued = ground.queue("inventory.refresh", "api:1").await;
    assert_eq!(ground.read(&queued).await, Some(queued.clone()));
    assert_eq!(
        (queued.queued.seq, queued.state_name()),
        (1, StateName::Pending)
    );
    let sent = ground
        .ledger
        .dispatch(&ground.actor, ground.node, queued.id, ground.epoch)
        .await
        .unwrap();
    assert_eq!(ground.read(&queued).await, Some(sent));
    for state in [
        UpdateState::Acked,
        UpdateState::Running,
        UpdateState::Succeeded,
    ] {
        let told = ground.report(&queued, state).await.unwrap();
        assert_eq!(ground.read(&queued).await, Some(told));
    }
    let mut conn = pool.acquire().await.unwrap();
    let recorded = log::stream(&mut conn, Stream::Command(queued.id))
        .await
        .unwrap();
    let mut fold = None;
    for event in &recorded {
        fold = Some(Command::evolve(fold, &Event::decode(&event.bytes).unwrap()).unwrap());
    }
    assert_eq!(recorded.len(), 5);
    assert_eq!(fold, ground.read(&queued).await);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_a_retry_returns_the_first_command_and_appends_nothing(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let first = ground.dispatched("diag.nvml", "api:k").await;
    let head = ground.head().await;
    let again = ground
        .ledger
        .enqueue(&ground.actor, ground.run("diag.nvml", "api:k"))
        .await;
    let again = again.unwrap();
    assert!(again.replayed);
    assert_eq!(again.command, first);
    let other = ground
        .ledger
        .enqueue(&ground.actor, ground.run("node.reboot", "api:k"))
        .await;
    let Err(Error::Refused(refusal)) = other else {
        panic!("{other:?}")
    };
    assert_eq!(
        refusal,
        Refusal::KeyConflict {
            field: "kind",
            command: first.id
        }
    );
    assert_eq!(ground.head().await, head);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_concurrent_retries_on_two_replicas_make_one_command(pool: PgPool) {
    let here = Ground::on(start(&pool, |_| {})).await;
    let there = start(&pool, |_| {});
    let before = here.head().await;
    let tries = (0..300).map(|index| {
        let ledger = if index % 2 == 0 {
            here.ledger.clone()
        } else {
            there.clone()
        };
        let (actor, run) = (here.actor.clone(), here.run("diag.nvml", "api:same"));
        TaskTracker::new().spawn(async move { ledger.enqueue(&actor, run).await.unwrap() })
    });
    let mut ids = std::collections::HashSet::new();
    let mut new = 0;
    for tried in tries.collect::<Vec<_>>() {
        let queued = tried.await.unwrap();
        ids.insert(queued.command.id);
        new += usize::from(!queued.replayed);
    }
    assert_eq!((ids.len(), new), (1, 1));
    assert_eq!(here.head().await, before + 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a7_seq_is_gapless_per_node_whoever_queues(pool: PgPool) {
    let here = Ground::on(start(&pool, |_| {})).await;
    let there = start(&pool, |_| {});
    let tasks: Vec<_> = (0..200)
        .map(|index| {
            let ledger = if index % 2 == 0 {
                here.ledger.clone()
            } else {
                there.clone()
            };
            let (actor, run) = (
                here.actor.clone(),
                here.run("diag.nvml", &format!("api:{index}")),
            );
            TaskTracker::new().spawn(async move { ledger.enqueue(&actor, run).await })
        })
        .collect();
    let mut seqs = Vec::new();
    for task in tasks {
        seqs.push(task.await.unwrap().unwrap().command.queued.seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=200).collect::<Vec<_>>());
    let mut conn = pool.acquire().await.unwrap();
    assert_eq!(
        nodes::get(&mut conn, here.node).await.unwrap().unwrap().seq,
        200
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l3_a_refused_request_fails_alone_in_its_group(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let commands: Vec<_> = [
        ground.queue("diag.nvml", "api:1").await,
        ground.queue("diag.nvml", "api:2").await,
    ]
    .into();
    let (ledger, actor, node) = (&ground.ledger, &ground.actor, ground.node);
    let (good, stale, twice) = tokio::join!(
        ledger.dispatch(actor, node, commands[0].id, ground.epoch),
        ledger.dispatch(actor, node, commands[1].id, ground.epoch - 1),
        ledger.dispatch(actor, node, commands[0].id, ground.epoch),
    );
    assert!(good.is_ok());
    assert!(
        matches!(stale, Err(Error::Refused(Refusal::StaleEpoch { .. }))),
        "{stale:?}"
    );
    assert!(
        matches!(twice, Err(Error::Refused(Refusal::NotPending { .. }))),
        "{twice:?}"
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l3_an_item_that_the_database_refuses_does_not_block_its_group(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    pool.execute(
        "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF NEW.key = 'api:13' THEN RAISE EXCEPTION 'poisoned'; END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER poison BEFORE INSERT ON command_keys
             FOR EACH ROW EXECUTE FUNCTION poison()",
    )
    .await
    .unwrap();
    let tasks: Vec<_> = (0..40)
        .map(|index| {
            let (ledger, actor) = (ground.ledger.clone(), ground.actor.clone());
            let run = ground.run("diag.nvml", &format!("api:{index}"));
            TaskTracker::new().spawn(async move { ledger.enqueue(&actor, run).await })
        })
        .collect();
    let mut failed = Vec::new();
    for (index, task) in tasks.into_iter().enumerate() {
        if task.await.unwrap().is_err() {
            failed.push(index);
        }
    }
    assert_eq!(failed, [13]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l4_a_callers_transaction_commits_both_or_neither(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    pool.execute("CREATE TABLE orders (name text)")
        .await
        .unwrap();
    let before = ground.head().await;
    let mut tx = ground.ledger.within(pool.begin().await.unwrap());
    tx.connection()
        .execute("INSERT INTO orders VALUES ('a')")
        .await
        .unwrap();
    tx.enqueue(&ground.actor, ground.run("diag.nvml", "wf:a:1"))
        .unwrap();
    drop(tx);
    assert_eq!(ground.head().await, before);

    let mut tx = ground.ledger.within(pool.begin().await.unwrap());
    tx.connection()
        .execute("INSERT INTO orders VALUES ('b')")
        .await
        .unwrap();
    let id = tx
        .enqueue(&ground.actor, ground.run("diag.nvml", "wf:a:1"))
        .unwrap();
    tx.commit().await.unwrap();
    let orders: Vec<String> = sqlx::query_scalar("SELECT name FROM orders")
        .fetch_all(&pool)
        .await
        .unwrap();
    assert_eq!(orders, ["b"]);
    let command = commands::get(&mut pool.acquire().await.unwrap(), id)
        .await
        .unwrap()
        .unwrap();

    // One refusal takes the caller's rows with it.
    let mut tx = ground.ledger.within(pool.begin().await.unwrap());
    tx.connection()
        .execute("INSERT INTO orders VALUES ('c')")
        .await
        .unwrap();
    tx.cancel(&ground.actor, ground.tenant, ground.node, command.id)
        .unwrap();
    tx.enqueue(&ground.actor, ground.run("node.reboot", "wf:a:1"))
        .unwrap();
    assert!(matches!(
        tx.commit().await,
        Err(Error::Refused(Refusal::KeyConflict { .. }))
    ));
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(count, 1);
    assert_eq!(
        ground.read(&command).await.unwrap().state_name(),
        StateName::Pending
    );

    let mut tx = ground.ledger.within(pool.begin().await.unwrap());
    tx.cancel(&ground.actor, ground.tenant, ground.node, command.id)
        .unwrap();
    tx.commit().await.unwrap();
    let state = ground.read(&command).await.unwrap().state_name();
    assert_eq!(state, StateName::Ended(End::Cancelled));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l4_a_callers_transaction_that_cannot_see_what_others_commit_is_refused(pool: PgPool) {
    let default = "ALTER DATABASE current SET default_transaction_isolation = 'repeatable read'";
    let name: String = sqlx::query_scalar("SELECT quote_ident(current_database())")
        .fetch_one(&pool)
        .await
        .unwrap();
    let default = default.replace("current", &name);
    sqlx::raw_sql(sqlx::AssertSqlSafe(default))
        .execute(&pool)
        .await
        .unwrap();
    // Connections from here on have the default; the append itself does not follow it.
    let fresh = PgPool::connect_with((*pool.connect_options()).clone())
        .await
        .unwrap();
    let ground = Ground::on(start(&fresh, |_| {})).await;
    ground.queue("diag.nvml", "api:1").await;
    let mut transaction = ground.ledger.within(fresh.begin().await.unwrap());
    let run = ground.run("diag.nvml", "wf:a:1");
    transaction.enqueue(&ground.actor, run).unwrap();
    let refused = transaction.commit().await.unwrap_err();
    assert!(matches!(refused, Error::Isolation { .. }), "{refused:?}");
    assert!(refused.to_string().contains("repeatable read"), "{refused}");
    let head = ground.head().await;
    assert_eq!(head, 3, "registered, opened, queued once");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l4_an_open_callers_transaction_stalls_no_append_even_on_its_node(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let mut tx = ground.ledger.within(pool.begin().await.unwrap());
    tx.enqueue(&ground.actor, ground.run("diag.nvml", "wf:slow:1"))
        .unwrap();
    for index in 0..50 {
        ground.queue("diag.nvml", &format!("api:{index}")).await;
    }
    let outcomes = tx.commit().await.unwrap();
    let crate::Outcome::Queued(queued) = &outcomes[0] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(queued.command.queued.seq, 51);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l5_a_reader_by_position_never_misses_an_event(pool: PgPool) {
    let here = Arc::new(Ground::on(start(&pool, |_| {})).await);
    let there = start(&pool, |_| {});
    let done = CancellationToken::new();
    let reader = TaskTracker::new().spawn({
        let (pool, done) = (pool.clone(), done.clone());
        async move {
            let mut seen = 0;
            loop {
                let finished = done.is_cancelled();
                let mut conn = pool.acquire().await.unwrap();
                let recorded = log::read(&mut conn, seen, 50).await.unwrap();
                for event in &recorded {
                    assert_eq!(event.position, seen + 1);
                    seen = event.position;
                }
                if finished && recorded.is_empty() {
                    return seen;
                }
            }
        }
    });
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (here, there) = (here.clone(), there.clone());
            TaskTracker::new().spawn(async move {
                for index in 0..25 {
                    let run = here.run("diag.nvml", &format!("api:{writer}:{index}"));
                    let ledger = if writer % 2 == 0 {
                        &here.ledger
                    } else {
                        &there
                    };
                    if writer == 3 {
                        let mut tx = ledger.within(ledger.pool().begin().await.unwrap());
                        tx.enqueue(&here.actor, run).unwrap();
                        tx.commit().await.unwrap();
                    } else {
                        ledger.enqueue(&here.actor, run).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    done.cancel();
    assert_eq!(reader.await.unwrap(), here.head().await);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l5_who_subscribes_before_the_first_append_hears_of_it(pool: PgPool) {
    const ROUNDS: usize = 40;
    let (actor, tenant) = (Actor::api("operator"), TenantId::new(NOW, [1; 10]));
    for round in 0..ROUNDS {
        // The tail of a new process is still finding out where the log ends.
        let ledger = start(&pool, |_| ());
        let mut heard = ledger.subscribe();
        let registered = NodeRegistered {
            labels: BTreeMap::new(),
            name: format!("n{round}"),
            role: Role::Node,
        };
        let node = ledger.register_node(&actor, tenant, registered).await;
        let node = node.unwrap().id;
        let committed = tokio::time::timeout(Duration::from_secs(10), heard.recv()).await;
        let committed = committed.unwrap_or_else(|_| panic!("round {round}: nothing was heard"));
        assert_eq!(committed.unwrap().events[0].node, Some(node));
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l5_subscribers_hear_of_every_event_once_in_order(pool: PgPool) {
    let here = Ground::on(start(&pool, |_| {})).await;
    let there = start(&pool, |_| {});
    // The tail knows where the log ends as soon as it passes on something.
    let mut heard = here.ledger.subscribe();
    here.queue("diag.nvml", "api:first").await;
    let first = heard.recv().await.unwrap();
    let mut seen = first.last;
    for index in 0..60 {
        let ledger = if index % 3 == 0 { &there } else { &here.ledger };
        ledger
            .enqueue(&here.actor, here.run("diag.nvml", &format!("api:{index}")))
            .await
            .unwrap();
    }
    let head = here.head().await;
    while seen < head {
        let heard = tokio::time::timeout(Duration::from_secs(10), heard.recv())
            .await
            .unwrap();
        let committed = match heard {
            Ok(committed) => committed,
            Err(RecvError::Lagged(_) | RecvError::Closed) => panic!("the subscriber was left"),
        };
        assert_eq!(committed.first, seen + 1);
        assert_eq!(
            committed.events.len() as u64,
            committed.last - committed.first + 1
        );
        seen = committed.last;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l6_the_database_itself_refuses_to_change_the_log(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    ground.queue("diag.nvml", "api:1").await;
    for role in ["command_ledger_service", "none"] {
        for statement in [
            "UPDATE events SET body = body",
            "DELETE FROM events",
            "TRUNCATE events",
            "UPDATE events_000000 SET body = body",
            "DELETE FROM events_000000",
            "TRUNCATE events_000000",
        ] {
            let mut conn = pool.acquire().await.unwrap();
            let set = format!("SET ROLE {role}");
            sqlx::query(sqlx::AssertSqlSafe(set))
                .execute(&mut *conn)
                .await
                .unwrap();
            let refused = sqlx::query(statement)
                .execute(&mut *conn)
                .await
                .unwrap_err();
            let code = refused
                .as_database_error()
                .and_then(|e| e.code().map(std::borrow::Cow::into_owned));
            assert_eq!(
                code.as_deref(),
                Some("42501"),
                "{role}: {statement}: {refused}"
            );
            conn.execute("RESET ROLE").await.unwrap();
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l6_the_services_role_can_do_all_that_the_service_does(pool: PgPool) {
    let options = (*pool.connect_options()).clone();
    let service = sqlx::postgres::PgPoolOptions::new()
        .max_connections(4)
        .connect_with(options.username("command_ledger_service"))
        .await
        .unwrap();
    let ground = Ground::on(start(&service, |_| {})).await;
    let command = ground.dispatched("inventory.refresh", "api:1").await;
    ground
        .report(&command, UpdateState::Succeeded)
        .await
        .unwrap();
    ground.report(&command, UpdateState::Failed).await.unwrap();
    let spec = ledger_protocol::event::NodeSpecSet {
        signed: None,
        generation: 1,
        spec: vec![0x80],
    };
    let ledger = &ground.ledger;
    ledger
        .set_spec(&ground.actor, ground.tenant, ground.node, spec)
        .await
        .unwrap();
    lease::acquire(&service, "sweeper", "me", Duration::from_secs(5))
        .await
        .unwrap()
        .unwrap();
    crate::maintain(&service).await.unwrap();
    ledger
        .delete_node(&ground.actor, ground.tenant, ground.node)
        .await
        .unwrap();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_caller_who_goes_away_leaves_no_open_transaction(pool: PgPool) {
    let options = (*pool.connect_options()).clone();
    let two = sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect_with(options)
        .await
        .unwrap();
    let ground = Ground::on(start(&two, |_| {})).await;
    for round in 0..300_u64 {
        let run = ground.run("diag.nvml", &format!("api:{round}"));
        let call = ground.ledger.enqueue(&ground.actor, run);
        let limit = Duration::from_micros(round * 7 % 2_000);
        let _ = tokio::time::timeout(limit, call).await;
    }
    ground.queue("diag.nvml", "api:last").await;
    let open: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(open, 0);
    let counted: i64 = sqlx::query_scalar("SELECT count(*) FROM commands_live")
        .fetch_one(&pool)
        .await
        .unwrap();
    let node = nodes::get(&mut pool.acquire().await.unwrap(), ground.node)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(u64::try_from(counted).unwrap(), node.seq);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn k4_a_lane_has_a_limit_and_the_others_do_not_feel_it(pool: PgPool) {
    let ground = Ground::on(start(&pool, |options| options.pending_per_lane_max = 5)).await;
    for index in 0..5 {
        ground.queue("logs.collect", &format!("api:{index}")).await;
    }
    let sixth = ground
        .ledger
        .enqueue(&ground.actor, ground.run("logs.collect", "api:6"))
        .await;
    assert!(matches!(
        sixth,
        Err(Error::Refused(Refusal::PendingFull { limit: 5, .. }))
    ));
    ground.queue("diag.nvml", "api:7").await;
    // What is in flight does not count, and what waits in another lane does not either.
    let mut conn = pool.acquire().await.unwrap();
    let due = commands::due(&mut conn, &[ground.node], NOW).await.unwrap();
    ground
        .ledger
        .dispatch(&ground.actor, ground.node, due[0].id, ground.epoch)
        .await
        .unwrap();
    ground.queue("logs.collect", "api:8").await;
    let again = ground
        .ledger
        .enqueue(&ground.actor, ground.run("logs.collect", "api:9"))
        .await;
    assert!(again.is_err());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d3_what_is_due_goes_in_seq_order_within_credits(pool: PgPool) {
    let ground = Ground::on(start(&pool, batches::with_approvers)).await;
    for index in 0..12 {
        ground
            .queue("inventory.refresh", &format!("api:c{index}"))
            .await;
        ground.queue("logs.collect", &format!("api:b{index}")).await;
    }
    let mut held = ground.run("inventory.refresh", "api:held");
    held.batch_id = Some(batches::proposed(&ground, "inventory.refresh").await.id);
    let held = ground.ledger.enqueue(&ground.actor, held).await.unwrap();
    assert_eq!(held.command.state_name().as_str(), "pending");
    let mut conn = pool.acquire().await.unwrap();
    let mut due = async || commands::due(&mut conn, &[ground.node], NOW).await.unwrap();
    let first = due().await;
    let kinds = |kind: &str, due: &[Command]| {
        due.iter()
            .filter(|c| c.queued.kind == kind)
            .map(|c| c.queued.seq)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        kinds("inventory.refresh", &first),
        [1, 3, 5, 7, 9, 11, 13, 15]
    );
    assert_eq!(kinds("logs.collect", &first), [2, 4]);
    for command in &first {
        ground
            .ledger
            .dispatch(&ground.actor, ground.node, command.id, ground.epoch)
            .await
            .unwrap();
    }
    assert!(due().await.is_empty());
    ground
        .report(&first[0], UpdateState::Succeeded)
        .await
        .unwrap();
    ground.report(&first[1], UpdateState::Busy).await.unwrap();
    let next = due().await;
    assert_eq!(kinds("inventory.refresh", &next), [17]);
    assert_eq!(kinds("logs.collect", &next), [6]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a4_pages_go_newest_first_across_live_and_settled(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    for index in 0..9 {
        let command = ground.queue("diag.nvml", &format!("api:{index}")).await;
        if index % 3 == 0 {
            let ledger = &ground.ledger;
            ledger
                .cancel(&ground.actor, ground.tenant, ground.node, command.id)
                .await
                .unwrap();
        }
    }
    let mut conn = pool.acquire().await.unwrap();
    let mut pages = async |state, before_seq| {
        let list = commands::List {
            node: ground.node,
            state,
            limit: 4,
            before_seq,
        };
        let page = commands::list(&mut conn, &list).await.unwrap();
        page.into_iter()
            .map(|command| command.queued.seq)
            .collect::<Vec<_>>()
    };
    assert_eq!(pages(None, None).await, [9, 8, 7, 6]);
    assert_eq!(pages(None, Some(6)).await, [5, 4, 3, 2]);
    assert_eq!(pages(None, Some(2)).await, [1]);
    assert_eq!(
        pages(Some(StateName::Ended(End::Cancelled)), None).await,
        [7, 4, 1]
    );
    assert_eq!(pages(Some(StateName::Pending), Some(9)).await, [8, 6, 5, 3]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a6_another_tenants_node_and_command_are_not_found(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let command = ground.queue("diag.nvml", "api:1").await;
    let other = TenantId::new(NOW, [9; 10]);
    let mut run = ground.run("diag.nvml", "api:2");
    run.tenant = other;
    let ledger = &ground.ledger;
    let queued = ledger.enqueue(&ground.actor, run).await;
    assert!(matches!(
        queued,
        Err(Error::Refused(Refusal::UnknownNode(_)))
    ));
    let cancelled = ledger
        .cancel(&ground.actor, other, ground.node, command.id)
        .await;
    assert!(matches!(
        cancelled,
        Err(Error::Refused(Refusal::UnknownCommand(_)))
    ));
    let deleted = ledger.delete_node(&ground.actor, other, ground.node).await;
    assert!(matches!(
        deleted,
        Err(Error::Refused(Refusal::UnknownNode(_)))
    ));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a11_a_deleted_nodes_commands_end_with_it(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let flying = ground.dispatched("diag.nvml", "api:1").await;
    let waiting = ground.queue("diag.nvml", "api:2").await;
    let ledger = &ground.ledger;
    ledger
        .delete_node(&ground.actor, ground.tenant, ground.node)
        .await
        .unwrap();
    let ended = ground.read(&waiting).await.unwrap();
    let ledger_protocol::command::State::Settled(settled) = &ended.state else {
        panic!()
    };
    assert_eq!(settled.end.state, End::Cancelled);
    assert_eq!(settled.end.reason.as_deref(), Some("node-deleted"));
    // Nobody will ever hear what became of what was in flight.
    let ended = ground.read(&flying).await.unwrap();
    let ledger_protocol::command::State::Settled(settled) = &ended.state else {
        panic!("{ended:?}")
    };
    assert_eq!(settled.end.state, End::Failed);
    assert_eq!(settled.end.reason.as_deref(), Some("node-deleted"));
    let late = ground.report(&flying, UpdateState::Succeeded).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::NodeDeleted(_)))));
    let again = ledger
        .enqueue(&ground.actor, ground.run("diag.nvml", "api:3"))
        .await;
    assert!(matches!(
        again,
        Err(Error::Refused(Refusal::UnknownNode(_)))
    ));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d6_a_new_session_settles_what_it_proves_and_replays_the_rest(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let safe = ground.dispatched("inventory.refresh", "api:1").await;
    let reboot = ground.dispatched("node.reboot", "api:2").await;
    ground.report(&reboot, UpdateState::Running).await.unwrap();
    let waiting = ground.queue("diag.nvml", "api:3").await;
    let opened = ground
        .ledger
        .open_session(&ground.actor, ground.node, open("b2", 2), Vec::new())
        .await
        .unwrap();
    assert_eq!(opened.node.epoch, ground.epoch + 1);
    let replayed: Vec<_> = opened.replay.iter().map(|command| command.id).collect();
    assert_eq!(replayed, [safe.id]);
    let state = ground.read(&reboot).await.unwrap().state_name();
    assert_eq!(state, StateName::Ended(End::Succeeded));
    assert_eq!(
        ground.read(&waiting).await.unwrap().state_name(),
        StateName::Pending
    );
    // Closing the old session never touches the new one.
    let ledger = &ground.ledger;
    ledger
        .close_session(&ground.actor, ground.node, ground.epoch, "late")
        .await
        .unwrap();
    let node = nodes::get(&mut pool.acquire().await.unwrap(), ground.node)
        .await
        .unwrap()
        .unwrap();
    assert!(node.is_connected());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_a_leader_that_was_replaced_is_fenced(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let command = ground.queue("diag.nvml", "api:1").await;
    let ttl = Duration::from_mins(1);
    let old = lease::acquire(&pool, "sweeper", "a", ttl)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        lease::acquire(&pool, "sweeper", "b", ttl).await.unwrap(),
        None
    );
    lease::release(&pool, &old).await.unwrap();
    let new = lease::acquire(&pool, "sweeper", "b", ttl)
        .await
        .unwrap()
        .unwrap();
    assert!(!lease::renew(&pool, &old, ttl).await.unwrap());
    ground.ledger.clock().set(NOW.plus_seconds(601));
    let fenced = ground.ledger.expire(&old, &command).await;
    assert!(matches!(fenced, Err(Error::Fenced)));
    let ended = ground.ledger.expire(&new, &command).await.unwrap();
    assert_eq!(ended.state_name(), StateName::Ended(End::Expired));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn k1_a_payload_that_does_not_fit_its_kind_is_named(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let before = ground.head().await;
    for (kind, payload, named) in [
        ("diag.nvml", json!({ "x": 1 }), "\"x\""),
        ("diag.nvml", json!(null), "object"),
        ("diag.nvml", json!([]), "object"),
        ("inventory.refresh", json!({ "sections": [] }), "/sections"),
        (
            "inventory.refresh",
            json!({ "sections": ["cpu", "cpu"] }),
            "/sections",
        ),
        (
            "inventory.refresh",
            json!({ "sections": ["fans"] }),
            "/sections/0",
        ),
        ("inventory.refresh", json!({ "rescan": "yes" }), "/rescan"),
        (
            "logs.collect",
            json!({ "sinceSeconds": 59 }),
            "/sinceSeconds",
        ),
        (
            "logs.collect",
            json!({ "sinceSeconds": 604_801 }),
            "/sinceSeconds",
        ),
        (
            "logs.collect",
            json!({ "sinceSeconds": 60.5 }),
            "/sinceSeconds",
        ),
        ("logs.collect", json!({ "units": ["-x"] }), "/units/0"),
        ("logs.collect", json!({ "units": ["a\u{0}b"] }), "/units/0"),
        ("logs.collect", json!({ "units": vec!["a"; 17] }), "/units"),
        (
            "logs.collect",
            json!({ "units": ["x".repeat(60_000)] }),
            "49152",
        ),
    ] {
        let mut run = ground.run(kind, "api:1");
        run.payload = payload.clone();
        let Err(Error::Refused(Refusal::Invalid {
            field: "payload",
            problem,
        })) = ground.ledger.enqueue(&ground.actor, run).await
        else {
            panic!("{kind} {payload} was taken")
        };
        assert!(problem.contains(named), "{problem}");
    }
    assert_eq!(ground.head().await, before);
}

/// Runs `body` when a transaction that took a key commits.
async fn at_commit(pool: &PgPool, body: &str) {
    let sql = format!(
        "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN {body} RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON command_keys
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit()"
    );
    pool.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_backend_that_is_ended_during_the_commit_leaves_the_outcome_unknown(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    at_commit(&pool, "PERFORM pg_terminate_backend(pg_backend_pid());").await;
    let run = || ground.run("diag.nvml", "api:1");
    let unknown = ground.ledger.enqueue(&ground.actor, run()).await;
    assert!(matches!(unknown, Err(Error::OutcomeUnknown)), "{unknown:?}");

    // The same key tells what happened.
    pool.execute("DROP TRIGGER at_commit ON command_keys")
        .await
        .unwrap();
    let again = ground.ledger.enqueue(&ground.actor, run()).await.unwrap();
    assert_eq!(again.command.queued.seq, 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_commit_that_the_database_refuses_has_not_happened(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    at_commit(&pool, "RAISE EXCEPTION 'refused';").await;
    let before = ground.head().await;
    let run = ground.run("diag.nvml", "api:1");
    let refused = ground.ledger.enqueue(&ground.actor, run).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert_eq!(ground.head().await, before);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a1_what_was_asked_in_time_and_decided_too_late_is_no_fault_of_the_caller(pool: PgPool) {
    let clock = Clock::manual(NOW);
    let ground = Ground::on(start(&pool, |options| options.clock = clock.clone())).await;
    let run = |key: &str| Run {
        not_after: NOW.plus_seconds(10),
        ..ground.run("diag.nvml", key)
    };
    let mut slow = ground.ledger.within(pool.begin().await.unwrap());
    slow.enqueue(&ground.actor, run("wf:a:1")).unwrap();
    clock.advance_seconds(11);
    let refused = slow.commit().await;
    let waited = matches!(
        refused,
        Err(Error::Refused(Refusal::WaitedTooLong { not_after }))
            if not_after == NOW.plus_seconds(10)
    );
    assert!(waited, "{refused:?}");
    // Who asks for a time that is over gets told so.
    let refused = ground.ledger.enqueue(&ground.actor, run("wf:a:1")).await;
    let field = "notAfter";
    assert!(
        matches!(refused, Err(Error::Refused(Refusal::Invalid { field: f, .. })) if f == field)
    );
}
