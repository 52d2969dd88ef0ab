//! Against a real Postgres, on a clock that the test sets.

mod lost_gateways;

use std::time::Duration;

use ed25519_dalek::SigningKey;
use ledger::{Clock, Fence, Ledger, Options, Propose, Run, lease};
use ledger_projections::commands;
use ledger_protocol::batch::create::Policy;
use ledger_protocol::batch::{Batch, Leaf};
use ledger_protocol::canonical;
use ledger_protocol::command::{Command, State};
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::event::{Actor, Approver, NodeRegistered};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{BatchId, CommandId, JournalId, NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::OpenSession;
use ledger_protocol::time::Timestamp;
use serde_json::json;
use sqlx::PgPool;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::error::Error;
use crate::run::{Pace, run_at};
use crate::sweep::{Sweeper, Swept};

const START: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);
const DEADLINE: Duration = Duration::from_mins(1);
/// Time that the commands of these tests may wait, in seconds.
const WAIT_SECONDS: u32 = 600;
/// Timeout of `inventory.refresh`, in seconds.
const TIMEOUT_SECONDS: u32 = 300;

fn approver() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

struct World {
    ledger: Ledger,
    clock: Clock,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    tenant: TenantId,
    node: NodeId,
    actor: Actor,
    epoch: u64,
}

impl World {
    async fn new(pool: PgPool) -> Self {
        Self::with(pool, Registry::builtin()).await
    }

    async fn with(pool: PgPool, registry: Registry) -> Self {
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let clock = Clock::manual(START);
        let mut options = Options::new(registry, clock.clone());
        let approver = Approver {
            key: PublicKey::of(&approver()),
            name: "grace".to_owned(),
        };
        options.approval = Policy::new(vec![approver], 1).unwrap();
        let ledger = Ledger::start(pool, options, &tasks, shutdown.clone()).unwrap();
        let (tenant, actor) = (TenantId::from_uuid(Uuid::from_u128(7)), Actor::gateway("g"));
        let registered = NodeRegistered {
            labels: [].into(),
            name: "one".to_owned(),
            role: Role::Node,
        };
        let node = ledger
            .register_node(&actor, tenant, registered)
            .await
            .unwrap()
            .id;
        let open = hello(None);
        let epoch = ledger
            .open_session(&actor, node, open, Vec::new())
            .await
            .unwrap()
            .node
            .epoch;
        Self {
            ledger,
            clock,
            tasks,
            shutdown,
            tenant,
            node,
            actor,
            epoch,
        }
    }

    async fn enqueue(&self, key: &str) -> CommandId {
        self.enqueue_as(key, "inventory.refresh", None).await
    }

    /// A batch that allows `inventory.refresh` on the node, once it is approved.
    async fn propose(&self) -> Batch {
        let propose = Propose {
            tenant: self.tenant,
            reason: "a look".to_owned(),
            scope: vec![Leaf::of(self.node, "inventory.refresh", &[0x80])],
            idempotency_key: "api:batch".to_owned(),
            expires_in_seconds: 10 * WAIT_SECONDS,
        };
        let proposed = self.ledger.propose_batch(&self.actor, propose).await;
        proposed.unwrap().batch
    }

    /// The approval of one who dies before the commands are released.
    async fn approve(&self, batch: &Batch) {
        let payload = batch.statement().encode().unwrap();
        let signature = sign(&approver(), Purpose::BatchApproval, &payload).to_vec();
        let (by, key) = (Actor::api("grace"), PublicKey::of(&approver()));
        self.ledger
            .approve_batch(&by, self.tenant, batch.id, key, signature)
            .await
            .unwrap();
    }

    async fn enqueue_as(&self, key: &str, kind: &str, batch_id: Option<BatchId>) -> CommandId {
        let run = Run {
            tenant: self.tenant,
            node: self.node,
            kind: kind.to_owned(),
            payload: json!({}),
            idempotency_key: key.to_owned(),
            not_after: self.ledger.now().plus_seconds(WAIT_SECONDS),
            not_before: None,
            min_generation: None,
            batch_id,
        };
        self.ledger
            .enqueue(&self.actor, run)
            .await
            .unwrap()
            .command
            .id
    }

    async fn dispatch(&self, command: CommandId) {
        self.ledger
            .dispatch(&self.actor, self.node, command, self.epoch)
            .await
            .unwrap();
    }

    async fn report(&self, command: CommandId, state: UpdateState) {
        let update = Update::bare(command, state);
        let (now, epoch) = (self.ledger.now(), self.epoch);
        self.ledger
            .report(&self.actor, self.node, epoch, update, now)
            .await
            .unwrap();
    }

    async fn get(&self, command: CommandId) -> Command {
        let mut conn = self.ledger.pool().acquire().await.unwrap();
        commands::get(&mut conn, command).await.unwrap().unwrap()
    }

    /// State, reason and details.
    async fn end_of(&self, command: CommandId) -> (String, Option<String>, serde_json::Value) {
        let command = self.get(command).await;
        let state = command.state_name().to_string();
        let State::Settled(settled) = command.state else {
            return (state, None, json!(null));
        };
        let details = settled
            .end
            .details
            .map(|bytes| canonical::to_json(&bytes).unwrap());
        (state, settled.end.reason, details.unwrap_or_default())
    }

    async fn fence(&self) -> Fence {
        let ttl = Duration::from_secs(30);
        lease::acquire(self.ledger.pool(), "sweeper", "test", ttl)
            .await
            .unwrap()
            .unwrap()
    }

    async fn sweep(&self) -> Swept {
        let fence = self.fence().await;
        Sweeper::default()
            .sweep(&self.ledger, &fence)
            .await
            .unwrap()
    }
}

/// What a daemon says through a gateway whose process has this lease.
fn hello(lease: Option<&str>) -> OpenSession {
    OpenSession {
        agent_version: "1".to_owned(),
        applied_generation: 0,
        boot_id: "boot".to_owned(),
        certificate: None,
        gateway: "g".to_owned(),
        gateway_lease: lease.map(str::to_owned),
        journal_id: JournalId::from_uuid(Uuid::from_u128(9)),
        highest_seq: 0,
        role: Role::Node,
    }
}

fn swept(ended: u64) -> Swept {
    Swept {
        ended,
        ..Swept::default()
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_a_pending_command_expires_after_its_deadline_and_not_before(pool: PgPool) {
    let world = World::new(pool).await;
    let command = world.enqueue("api:1").await;
    world.clock.advance_seconds(WAIT_SECONDS);
    assert_eq!(world.sweep().await, swept(0));
    world.clock.advance_seconds(1);
    assert_eq!(world.sweep().await, swept(1));
    let (state, reason, details) = world.end_of(command).await;
    assert_eq!(
        (state.as_str(), reason.as_deref()),
        ("expired", Some("not_after"))
    );
    assert_eq!(details, json!(null));
    assert_eq!(world.sweep().await, swept(0), "it ends once");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_a_command_in_flight_fails_after_its_timeout_and_says_how_far_it_came(pool: PgPool) {
    let world = World::new(pool).await;
    let (delivered, accepted, started) = (
        world.enqueue("api:1").await,
        world.enqueue("api:2").await,
        world.enqueue("api:3").await,
    );
    for command in [delivered, accepted, started] {
        world.dispatch(command).await;
    }
    world.report(accepted, UpdateState::Acked).await;
    world.report(started, UpdateState::Running).await;
    world.clock.advance_seconds(WAIT_SECONDS + TIMEOUT_SECONDS);
    assert_eq!(world.sweep().await, swept(0));
    world.clock.advance_seconds(1);
    assert_eq!(world.sweep().await, swept(3));
    for (command, phase) in [
        (delivered, "delivered"),
        (accepted, "accepted"),
        (started, "started"),
    ] {
        let (state, reason, details) = world.end_of(command).await;
        assert_eq!(
            (state.as_str(), reason.as_deref()),
            ("failed", Some("timeout"))
        );
        assert_eq!(details, json!({ "phase": phase }));
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_what_was_approved_and_not_released_is_released_by_the_next_sweep(pool: PgPool) {
    let world = World::new(pool.clone()).await;
    let batch = world.propose().await;
    let id = Some(batch.id);
    let mut held = Vec::new();
    for number in 0..3 {
        let key = format!("api:{number}");
        held.push(world.enqueue_as(&key, "inventory.refresh", id).await);
    }
    assert_eq!(world.sweep().await, swept(0));
    world.approve(&batch).await;
    // A row that cannot be read does not hold up the others.
    sqlx::query("UPDATE commands_live SET snapshot = '\\x00' WHERE id = $1")
        .bind(held[0].uuid())
        .execute(&pool)
        .await
        .unwrap();
    let released = Swept {
        released: 2,
        ..Swept::default()
    };
    assert_eq!(world.sweep().await, released);
    let mut conn = pool.acquire().await.unwrap();
    let due = commands::due(&mut conn, &[world.node], world.ledger.now()).await;
    let due: Vec<_> = due.unwrap().into_iter().map(|command| command.id).collect();
    assert_eq!(due, held[1..]);
    assert_eq!(world.sweep().await, swept(0));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t3_a_held_command_expires_too(pool: PgPool) {
    let world = World::new(pool).await;
    let batch = Some(world.propose().await.id);
    let command = world.enqueue_as("api:1", "inventory.refresh", batch).await;
    world.clock.advance_seconds(WAIT_SECONDS + 1);
    assert_eq!(world.sweep().await, swept(1));
    assert_eq!(world.end_of(command).await.0, "expired");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn k2_a_kind_that_is_no_longer_registered_has_15_minutes(pool: PgPool) {
    let mut registry = Registry::builtin();
    let mut own = registry.get("diag.nvml").unwrap().clone();
    (own.name, own.timeout_seconds) = ("module.probe".into(), 5);
    registry.register(own).unwrap();
    let world = World::with(pool.clone(), registry).await;
    let command = world.enqueue_as("acceptance:1", "module.probe", None).await;
    world.dispatch(command).await;

    // A process that does not know the kind any more.
    let options = Options::new(Registry::builtin(), world.clock.clone());
    let newer = Ledger::start(pool, options, &world.tasks, world.shutdown.clone()).unwrap();
    let fence = world.fence().await;
    world.clock.advance_seconds(WAIT_SECONDS + 15 * 60);
    assert_eq!(
        Sweeper::default().sweep(&newer, &fence).await.unwrap(),
        swept(0)
    );
    world.clock.advance_seconds(1);
    assert_eq!(
        Sweeper::default().sweep(&newer, &fence).await.unwrap(),
        swept(1)
    );
    assert_eq!(world.end_of(command).await.1.as_deref(), Some("timeout"));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l3_a_stale_sweep_loses_against_a_report(pool: PgPool) {
    let world = World::new(pool).await;
    let command = world.enqueue("api:1").await;
    world.dispatch(command).await;
    world
        .clock
        .advance_seconds(WAIT_SECONDS + TIMEOUT_SECONDS + 1);
    let stale = world.get(command).await;
    world.report(command, UpdateState::Succeeded).await;
    let refused = world.ledger.expire(&world.fence().await, &stale).await;
    assert!(
        matches!(refused, Err(ledger::Error::Refused(_))),
        "{refused:?}"
    );
    assert_eq!(world.sweep().await, swept(0));
    assert_eq!(world.end_of(command).await.0, "succeeded");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_a_poisoned_row_is_told_of_once_and_stops_nobody(pool: PgPool) {
    let world = World::new(pool.clone()).await;
    let unreadable = world.enqueue("api:0").await;
    let broken = world.enqueue("api:1").await;
    let good = [world.enqueue("api:2").await, world.enqueue("api:3").await];
    sqlx::query("UPDATE commands_live SET snapshot = '\\xc1' WHERE id = $1")
        .bind(unreadable.uuid())
        .execute(&pool)
        .await
        .unwrap();
    // Its end cannot be written, because the row of an end is there already.
    sqlx::query(
        "INSERT INTO commands_settled (id, node, seq, state, snapshot)
         VALUES ($1, $2, 1000, 'failed', '\\x80')",
    )
    .bind(broken.uuid())
    .bind(world.node.uuid())
    .execute(&pool)
    .await
    .unwrap();
    world.clock.advance_seconds(WAIT_SECONDS + 1);
    let fence = world.fence().await;
    let mut sweeper = Sweeper::default();
    let first = sweeper.sweep(&world.ledger, &fence).await.unwrap();
    assert_eq!(
        first,
        Swept {
            released: 0,
            ended: 2,
            overtaken: 0,
            failed: 2,
            told: 2
        }
    );
    for command in good {
        assert_eq!(world.end_of(command).await.0, "expired");
    }
    let later = world.enqueue("api:4").await;
    world.clock.advance_seconds(WAIT_SECONDS + 1);
    let second = sweeper.sweep(&world.ledger, &fence).await.unwrap();
    assert_eq!(
        second,
        Swept {
            released: 0,
            ended: 1,
            overtaken: 0,
            failed: 2,
            told: 0
        }
    );
    assert_eq!(world.end_of(later).await.0, "expired");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_a_sweep_goes_through_every_page(pool: PgPool) {
    const COMMANDS: u32 = 2 * crate::limits::PAGE_ROWS + 7;
    let world = World::new(pool).await;
    for lane in ["control", "bulk"] {
        let kind = if lane == "control" {
            "inventory.refresh"
        } else {
            "logs.collect"
        };
        let queued = (0..COMMANDS / 2).map(|number| {
            let world = &world;
            async move {
                world
                    .enqueue_as(&format!("api:{lane}:{number}"), kind, None)
                    .await
            }
        });
        futures_util::future::join_all(queued).await;
    }
    world.clock.advance_seconds(WAIT_SECONDS + 1);
    assert_eq!(world.sweep().await, swept(u64::from(COMMANDS / 2) * 2));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_a_sweeper_that_lost_its_lease_ends_nothing(pool: PgPool) {
    let world = World::new(pool).await;
    let command = world.enqueue("api:1").await;
    let old = world.fence().await;
    let new = world.fence().await;
    world.clock.advance_seconds(WAIT_SECONDS + 1);
    let ended = Sweeper::default().sweep(&world.ledger, &old).await;
    assert!(matches!(ended, Err(Error::Fenced)), "{ended:?}");
    assert_eq!(world.end_of(command).await.0, "pending");
    assert_eq!(
        Sweeper::default().sweep(&world.ledger, &new).await.unwrap(),
        swept(1)
    );
}

async fn holder(pool: &PgPool) -> Option<(String, i64)> {
    sqlx::query_as("SELECT holder, term FROM leases WHERE name = 'sweeper' AND expires_at > now()")
        .fetch_optional(pool)
        .await
        .unwrap()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t2_of_two_replicas_one_leads_and_the_other_takes_over_when_it_dies(pool: PgPool) {
    let world = World::new(pool.clone()).await;
    let pace = Pace {
        sweep_every: Duration::from_millis(20),
        lease: Duration::from_millis(1_500),
    };
    let start = |name: &str| {
        let (ledger, shutdown) = (world.ledger.clone(), world.shutdown.clone());
        world
            .tasks
            .spawn(run_at(pace, ledger, name.to_owned(), shutdown))
    };
    let first = start("one");
    until("the first leads", async || holder(&pool).await.is_some()).await;
    start("two");
    let command = world.enqueue("api:1").await;
    world.clock.advance_seconds(WAIT_SECONDS + 1);
    until("the first sweeps", async || {
        world.end_of(command).await.0 == "expired"
    })
    .await;
    assert_eq!(holder(&pool).await, Some(("one".to_owned(), 1)));

    first.abort();
    let command = world.enqueue("api:2").await;
    world.clock.advance_seconds(WAIT_SECONDS + 1);
    until("the second sweeps", async || {
        world.end_of(command).await.0 == "expired"
    })
    .await;
    assert_eq!(holder(&pool).await, Some(("two".to_owned(), 2)));

    // Who shuts down gives the lease up at once.
    world.shutdown.cancel();
    world.tasks.close();
    tokio::time::timeout(DEADLINE, world.tasks.wait())
        .await
        .unwrap();
    assert_eq!(holder(&pool).await, None);
}
