//! Against a real Postgres: an honest ledger, and every way to tamper with it.

use std::sync::Arc;

use ed25519_dalek::SigningKey;
use ledger::{Clock, HeldRoot, Ledger, Options, Propose, RootKey, Run, Signer};
use ledger_protocol::batch::create::Policy;
use ledger_protocol::batch::{Batch, Leaf};
use ledger_protocol::canonical;
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::event::{Actor, Approver, NodeCertified, NodeRegistered, NodeSpecSet};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{BatchId, CommandId, JournalId, NodeId, TenantId};
use ledger_protocol::invariants::Rule;
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::OpenSession;
use ledger_protocol::time::Timestamp;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::tables::{KeyRow, Row, SpecRow};
use crate::{Checked, Error, Report, check, replay};
use ledger_projections::rows::{BatchRow, LeafRow, LiveRow, NodeRow, SettledRow};

mod exports;
mod past;
mod retention;

fn approver() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

struct World {
    ledger: Ledger,
    tenant: TenantId,
    actor: Actor,
}

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);

impl World {
    fn new(pool: PgPool) -> Self {
        Self::signing(pool, None)
    }

    /// A ledger that signs, where there is a signer.
    fn signing(pool: PgPool, signer: Option<Arc<Signer>>) -> Self {
        let clock = Clock::manual(NOW);
        let mut options = Options::new(Registry::builtin(), clock);
        let approver = Approver {
            key: PublicKey::of(&approver()),
            name: "grace".to_owned(),
        };
        options.approval = Policy::new(vec![approver], 1).unwrap();
        options.signer = signer;
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let ledger = Ledger::start(pool, options, &tasks, shutdown).unwrap();
        Self {
            ledger,
            tenant: TenantId::from_uuid(Uuid::from_u128(7)),
            actor: Actor::api("ada"),
        }
    }

    async fn node(&self, name: &str) -> NodeId {
        let labels = [("rack".to_owned(), "7".to_owned())].into();
        let registered = NodeRegistered {
            labels,
            name: name.to_owned(),
            role: Role::Node,
        };
        self.ledger
            .register_node(&self.actor, self.tenant, registered)
            .await
            .unwrap()
            .id
    }

    /// A batch that allows one command on the node, with the key of its only approver.
    async fn propose(&self, node: NodeId, key: &str) -> Batch {
        let payload = canonical::from_json(&json!({ "sections": ["cpu"] })).unwrap();
        let propose = Propose {
            tenant: self.tenant,
            reason: "a look".to_owned(),
            scope: vec![
                Leaf::of(node, "inventory.refresh", &payload),
                Leaf::of(node, "node.reboot", &[0x80]),
                Leaf::of(node, "gpu.reset", &[0x80]),
            ],
            idempotency_key: key.to_owned(),
            expires_in_seconds: 600,
        };
        let proposed = self.ledger.propose_batch(&self.actor, propose).await;
        proposed.unwrap().batch
    }

    async fn approve(&self, batch: &Batch) {
        let payload = batch.statement().encode().unwrap();
        let signature = sign(&approver(), Purpose::BatchApproval, &payload).to_vec();
        let (by, key) = (Actor::api("grace"), PublicKey::of(&approver()));
        self.ledger
            .approve_batch(&by, self.tenant, batch.id, key, signature)
            .await
            .unwrap();
        let released = self.ledger.release_approved(&by, Some(batch.id)).await;
        assert_eq!(released.unwrap().released, 1);
    }

    async fn enqueue(&self, node: NodeId, key: &str) -> CommandId {
        self.enqueue_in(node, key, None).await
    }

    async fn enqueue_in(&self, node: NodeId, key: &str, batch_id: Option<BatchId>) -> CommandId {
        let run = Run {
            tenant: self.tenant,
            node,
            kind: "inventory.refresh".to_owned(),
            payload: json!({ "sections": ["cpu"] }),
            idempotency_key: key.to_owned(),
            not_after: self.ledger.now().plus_seconds(600),
            not_before: None,
            min_generation: Some(1),
            batch_id,
        };
        self.ledger
            .enqueue(&self.actor, run)
            .await
            .unwrap()
            .command
            .id
    }

    async fn open_session(&self, node: NodeId) -> u64 {
        let open = OpenSession {
            agent_version: "1".to_owned(),
            applied_generation: 0,
            boot_id: "boot".to_owned(),
            certificate: None,
            gateway: "g".to_owned(),
            gateway_lease: None,
            journal_id: JournalId::from_uuid(Uuid::from_u128(9)),
            highest_seq: 0,
            role: Role::Node,
        };
        self.ledger
            .open_session(&self.actor, node, open, Vec::new())
            .await
            .unwrap()
            .node
            .epoch
    }

    async fn report(&self, node: NodeId, epoch: u64, command: CommandId, state: UpdateState) {
        let update = Update::bare(command, state);
        let now = self.ledger.now();
        self.ledger
            .report(&self.actor, node, epoch, update, now)
            .await
            .unwrap();
    }

    /// A bit of everything: commands in each state, a node that left, a restricted one.
    async fn live_a_little(&self) {
        let (ledger, actor) = (&self.ledger, &self.actor);
        let node = self.node("one").await;
        let certified = NodeCertified {
            allowed_kinds: Some(vec!["inventory.refresh".to_owned(), "diag.nvml".to_owned()]),
            fingerprint: "00".repeat(32),
            not_after: ledger.now().plus_seconds(3_600),
            not_before: ledger.now(),
            public_key: vec![1; 32],
            renews: None,
        };
        ledger.certify(actor, node, certified).await.unwrap();
        let spec = NodeSpecSet {
            signed: None,
            generation: 1,
            spec: vec![0x81, 0xa1, b'a', 1],
        };
        ledger
            .set_spec(actor, self.tenant, node, spec)
            .await
            .unwrap();
        let epoch = self.open_session(node).await;
        ledger
            .apply_generation(actor, node, epoch, 1)
            .await
            .unwrap();

        let holding = self.propose(node, "api:batch-1").await;
        self.enqueue_in(node, "api:held", Some(holding.id)).await;
        let approved = self.propose(node, "api:batch-2").await;
        self.enqueue_in(node, "api:released", Some(approved.id))
            .await;
        self.approve(&approved).await;
        let mut commands = Vec::new();
        for number in 0..6 {
            commands.push(self.enqueue(node, &format!("api:{number}")).await);
        }
        for command in &commands[1..5] {
            ledger.dispatch(actor, node, *command, epoch).await.unwrap();
        }
        self.report(node, epoch, commands[2], UpdateState::Running)
            .await;
        self.report(node, epoch, commands[3], UpdateState::Succeeded)
            .await;
        self.report(node, epoch, commands[4], UpdateState::Busy)
            .await;
        ledger
            .cancel(actor, self.tenant, node, commands[5])
            .await
            .unwrap();
        ledger
            .cancel(actor, self.tenant, node, commands[2])
            .await
            .unwrap();
        // Another word after the end is kept beside it.
        self.report(node, epoch, commands[3], UpdateState::Failed)
            .await;
        ledger
            .close_session(actor, node, epoch, "gone")
            .await
            .unwrap();

        let left = self.node("two").await;
        self.enqueue(left, "api:0").await;
        ledger.delete_node(actor, self.tenant, left).await.unwrap();
    }
}

async fn sql(pool: &PgPool, statement: &str) {
    let mut transaction = pool.begin().await.unwrap();
    // As a superuser can: without the triggers that guard the log.
    sqlx::query("SET LOCAL session_replication_role = replica")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let done = sqlx::query(AssertSqlSafe(statement))
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert!(done.rows_affected() > 0, "{statement} changed nothing");
    transaction.commit().await.unwrap();
}

fn places(report: &Report) -> Vec<(&str, &str)> {
    let mut places: Vec<_> = report
        .differences
        .iter()
        .map(|found| (found.table, found.column.as_str()))
        .collect();
    places.sort_unstable();
    places.dedup();
    places
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l7_an_honest_ledger_is_what_its_log_says(pool: PgPool) {
    assert_eq!(
        replay(&pool, None).await.unwrap(),
        Report::default(),
        "an empty one, too"
    );
    World::new(pool.clone()).live_a_little().await;
    let report = replay(&pool, None).await.unwrap();
    assert_eq!(report.differences, []);
    assert!(report.is_clean());
    assert_eq!((report.commands, report.nodes), (9, 2));
    let head: i64 = sqlx::query_scalar("SELECT max(position) FROM events")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(report.events, u64::try_from(head).unwrap());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l7_a_replay_reads_one_snapshot_while_appends_go_on(pool: PgPool) {
    let world = World::new(pool.clone());
    let node = world.node("one").await;
    let appends = async {
        for number in 0..200 {
            world.enqueue(node, &format!("api:{number}")).await;
        }
    };
    let replays = async {
        for _ in 0..10 {
            assert_eq!(replay(&pool, None).await.unwrap().differences, []);
        }
    };
    tokio::join!(appends, replays);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l7_a_log_of_more_than_one_page_is_folded_whole(pool: PgPool) {
    let world = World::new(pool.clone());
    let node = world.node("one").await;
    for number in 0..(crate::limits::PAGE_ROWS / 3 + 10) {
        let command = world.enqueue(node, &format!("api:{number}")).await;
        world
            .ledger
            .cancel(&world.actor, world.tenant, node, command)
            .await
            .unwrap();
    }
    let report = replay(&pool, None).await.unwrap();
    assert!(i64::try_from(report.events).unwrap() > crate::limits::PAGE_ROWS);
    assert_eq!(report.differences, []);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l7_every_row_that_was_tampered_with_is_found_and_named(pool: PgPool) {
    World::new(pool.clone()).live_a_little().await;
    for table in [
        "nodes",
        "node_specs",
        "commands_live",
        "commands_settled",
        "command_keys",
    ] {
        sql(
            &pool,
            &format!("CREATE TABLE saved_{table} AS SELECT * FROM {table}"),
        )
        .await;
    }
    let zero = "'00000000-0000-0000-0000-000000000000'";
    let cases: &[(&str, String, &str)] = &[
        ("nodes", format!("tenant = {zero}"), "tenant"),
        ("nodes", "deleted = NOT deleted".into(), "deleted"),
        (
            "nodes",
            "applied_generation = 9".into(),
            "applied_generation",
        ),
        (
            "nodes",
            "allowed_kinds = ARRAY['disk.wipe']".into(),
            "allowed_kinds",
        ),
        ("nodes", "gateway_lease = 'x'".into(), "gateway_lease"),
        ("nodes", "snapshot = '\\x80'".into(), "snapshot.name"),
        ("nodes", "snapshot = '\\xc1'".into(), "snapshot"),
        ("node_specs", "generation = 2".into(), "generation"),
        ("node_specs", "spec = '\\x81a16102'".into(), "spec.a"),
        ("node_specs", "signed = '\\x80'".into(), "signed"),
        ("commands_live", format!("node = {zero}"), "node"),
        ("commands_live", "seq = seq + 100".into(), "seq"),
        ("commands_live", "lane = 'bulk'".into(), "lane"),
        ("commands_live", "kind = 'disk.wipe'".into(), "kind"),
        ("commands_live", "state = 'failed'".into(), "state"),
        (
            "commands_live",
            "in_flight = NOT in_flight".into(),
            "in_flight",
        ),
        ("commands_live", "due_at = due_at - 1".into(), "due_at"),
        (
            "commands_live",
            "not_after = not_after + 1".into(),
            "not_after",
        ),
        (
            "commands_live",
            "min_generation = 0".into(),
            "min_generation",
        ),
        (
            "commands_live",
            "snapshot = '\\x80'".into(),
            "snapshot.state",
        ),
        ("commands_settled", format!("node = {zero}"), "node"),
        ("commands_settled", "seq = seq + 100".into(), "seq"),
        ("commands_settled", "state = 'expired'".into(), "state"),
        (
            "commands_settled",
            "snapshot = '\\x80'".into(),
            "snapshot.state",
        ),
        ("command_keys", format!("command = {zero}"), "command"),
        ("command_keys", "key = key || '!'".into(), "(row)"),
    ];
    for (table, change, column) in cases {
        sql(&pool, &format!("UPDATE {table} SET {change}")).await;
        let report = replay(&pool, None).await.unwrap();
        let named = places(&report);
        assert!(
            named.contains(&(*table, *column)),
            "{table}: {change}: {named:?}"
        );
        assert!(named.iter().all(|(found, _)| found == table), "{named:?}");
        restore(&pool, table).await;
    }
    for table in [
        "nodes",
        "node_specs",
        "commands_live",
        "commands_settled",
        "command_keys",
    ] {
        sql(&pool, &format!("DELETE FROM {table}")).await;
        let report = replay(&pool, None).await.unwrap();
        assert_eq!(places(&report), [(table, "(row)")]);
        assert!(
            report.differences[0]
                .to_string()
                .contains("the table holds no such row")
        );
        restore(&pool, table).await;
    }
    assert_eq!(replay(&pool, None).await.unwrap().differences, []);
}

async fn restore(pool: &PgPool, table: &str) {
    let mut transaction = pool.begin().await.unwrap();
    for statement in [
        format!("DELETE FROM {table}"),
        format!("INSERT INTO {table} SELECT * FROM saved_{table}"),
    ] {
        sqlx::query(AssertSqlSafe(statement))
            .execute(&mut *transaction)
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l7_rows_that_the_log_never_made_are_found(pool: PgPool) {
    World::new(pool.clone()).live_a_little().await;
    let nil = "'00000000-0000-0000-0000-000000000000'";
    for (table, id, values) in [
        (
            "nodes",
            "id",
            format!("{nil}, {nil}, false, 0, NULL, '\\x80'"),
        ),
        ("node_specs", "node", format!("{nil}, 1, '\\x80'")),
        (
            "commands_live",
            "id",
            format!("{nil}, {nil}, 1, 'a', 'b', 'c', true, 0, 0, 0, '\\x80'"),
        ),
        (
            "commands_settled",
            "id",
            format!("{nil}, {nil}, 1, 'failed', '\\x80'"),
        ),
        ("command_keys", "node", format!("{nil}, '', {nil}")),
    ] {
        sql(&pool, &format!("INSERT INTO {table} VALUES ({values})")).await;
        let report = replay(&pool, None).await.unwrap();
        assert_eq!(places(&report), [(table, "(row)")]);
        assert_eq!(report.differences_total, 1);
        assert!(
            report.differences[0]
                .to_string()
                .contains("the table holds this row")
        );
        sql(&pool, &format!("DELETE FROM {table} WHERE {id} = {nil}")).await;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l7_a_log_that_was_altered_is_an_error_that_names_the_position(pool: PgPool) {
    World::new(pool.clone()).live_a_little().await;
    let head: i64 = sqlx::query_scalar("SELECT max(position) FROM events")
        .fetch_one(&pool)
        .await
        .unwrap();
    sql(&pool, "CREATE TABLE saved AS SELECT * FROM events").await;
    let restore = async || {
        sql(&pool, "DELETE FROM events").await;
        sql(&pool, "INSERT INTO events SELECT * FROM saved").await;
    };

    // Its first byte: the map's length.
    sql(
        &pool,
        "UPDATE events SET body = set_byte(body, 0, 200) WHERE position = 4",
    )
    .await;
    let error = replay(&pool, None).await.unwrap_err();
    assert!(
        matches!(error, Error::Unreadable { position: 4, .. }),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "the event at position 4 is not readable");
    restore().await;

    // Its last byte: the version of its stream.
    sql(
        &pool,
        "UPDATE events SET body = set_byte(body, length(body) - 1, 77) WHERE position = 5",
    )
    .await;
    let error = replay(&pool, None).await.unwrap_err();
    assert!(
        matches!(error, Error::Corrupt { position: 5, .. }),
        "{error:?}"
    );
    restore().await;

    sql(&pool, "DELETE FROM events WHERE position = 3").await;
    let error = replay(&pool, None).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Gap {
                expected: 3,
                found: 4
            }
        ),
        "{error:?}"
    );
    restore().await;

    sql(
        &pool,
        &format!("DELETE FROM events WHERE position = {head}"),
    )
    .await;
    // The log itself is whole, but the live tables know more than it says.
    let report = replay(&pool, None).await.unwrap();
    assert!(!report.is_clean());
    restore().await;

    sql(
        &pool,
        "UPDATE events SET stream = gen_random_uuid() WHERE position = 2",
    )
    .await;
    assert_eq!(
        places(&replay(&pool, None).await.unwrap()),
        [("events", "stream")]
    );
    restore().await;

    sql(
        &pool,
        "UPDATE events SET body = (SELECT body FROM saved AS other
         WHERE other.position = 25 - events.position) WHERE position IN (12, 13)",
    )
    .await;
    assert!(replay(&pool, None).await.is_err(), "two events swapped");
    restore().await;
    assert!(replay(&pool, None).await.unwrap().is_clean());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l7_every_column_of_every_table_is_compared(pool: PgPool) {
    fn named<R: Row>(row: &R) -> (&'static str, Vec<String>) {
        (
            R::TABLE,
            row.columns()
                .into_iter()
                .map(|(column, _)| column.to_owned())
                .collect(),
        )
    }
    World::new(pool.clone()).live_a_little().await;
    let mut conn = pool.acquire().await.unwrap();
    let tables = [
        named(&NodeRow::page(&mut conn, None).await.unwrap()[0]),
        named(&SpecRow::page(&mut conn, None).await.unwrap()[0]),
        named(&LiveRow::page(&mut conn, None).await.unwrap()[0]),
        named(&SettledRow::page(&mut conn, None).await.unwrap()[0]),
        named(&KeyRow::page(&mut conn, None).await.unwrap()[0]),
        named(&BatchRow::page(&mut conn, None).await.unwrap()[0]),
        named(&LeafRow::page(&mut conn, None).await.unwrap()[0]),
    ];
    for (table, columns) in tables {
        let found: Vec<String> = sqlx::query_scalar(
            "SELECT column_name::text FROM information_schema.columns
             WHERE table_schema = 'public' AND table_name = $1 ORDER BY ordinal_position",
        )
        .bind(table)
        .fetch_all(&mut *conn)
        .await
        .unwrap();
        assert_eq!(columns, found, "{table}");
    }
}

#[test]
fn l7_a_report_is_bounded_and_counts_on() {
    let mut report = Report::default();
    for number in 0..(crate::limits::DIFFERENCES_MAX + 5) {
        report.add("nodes", &number.to_string(), "seq", &"é".repeat(500), "1");
    }
    assert_eq!(report.differences.len(), crate::limits::DIFFERENCES_MAX);
    assert_eq!(
        report.differences_total,
        crate::limits::DIFFERENCES_MAX as u64 + 5
    );
    assert!(report.differences[0].expected.ends_with("… (1000 bytes)"));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_a_scope_that_was_tampered_with_is_found(pool: PgPool) {
    World::new(pool.clone()).live_a_little().await;
    assert!(replay(&pool, None).await.unwrap().is_clean());
    sql(&pool, "CREATE TABLE saved AS SELECT * FROM batch_leaves").await;
    let first = "(batch, place) = (SELECT batch, place FROM saved ORDER BY batch, place LIMIT 1)";
    for (change, column) in [
        (
            format!("UPDATE batch_leaves SET leaf = leaf || 'x' WHERE {first}"),
            "(scope)",
        ),
        (format!("DELETE FROM batch_leaves WHERE {first}"), "(scope)"),
        (
            "DELETE FROM batch_leaves WHERE batch = (SELECT batch FROM saved LIMIT 1)".to_owned(),
            "(scope)",
        ),
        (
            format!("UPDATE batch_leaves SET hash = 'x' WHERE {first}"),
            "hash",
        ),
        (
            format!("UPDATE batch_leaves SET path = '' WHERE {first}"),
            "path",
        ),
        (
            format!("UPDATE batch_leaves SET place = 7 WHERE {first}"),
            "(scope)",
        ),
        (
            "INSERT INTO batch_leaves SELECT gen_random_uuid(), place, hash, leaf, path
             FROM saved LIMIT 1"
                .to_owned(),
            "(row)",
        ),
    ] {
        sql(&pool, &change).await;
        let report = replay(&pool, None).await.unwrap();
        let found = places(&report);
        assert_eq!(found, [("batch_leaves", column)], "{change}");
        sql(&pool, "DELETE FROM batch_leaves").await;
        sql(&pool, "INSERT INTO batch_leaves SELECT * FROM saved").await;
    }
    sql(&pool, "UPDATE batches SET approved = NOT approved").await;
    let report = replay(&pool, None).await.unwrap();
    assert_eq!(places(&report), [("batches", "approved")]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_what_is_signed_is_held_against_the_roots_that_were_published(pool: PgPool) {
    let root = |number: u8| -> Arc<dyn RootKey> {
        Arc::new(HeldRoot::new(SigningKey::from_bytes(&[number; 32])))
    };
    let signer = Arc::new(Signer::new(root(21), Vec::new(), Clock::manual(NOW)));
    signer.renew().await.unwrap();
    World::signing(pool.clone(), Some(signer.clone()))
        .live_a_little()
        .await;
    let kinds = Registry::builtin();
    // Without a bundle there is nothing to hold it against.
    let policy = Policy::default();
    assert_eq!(broken(&check(&pool, None, &kinds).await.unwrap()), 0);
    signer.publish(&pool, &policy, 0).await.unwrap();
    assert_eq!(broken(&check(&pool, None, &kinds).await.unwrap()), 0);

    // Another root's bundle in its place: no signature holds, neither of commands nor of the state.
    sql(&pool, "DELETE FROM trust_bundles").await;
    let other = Signer::new(root(22), Vec::new(), Clock::manual(NOW));
    other.publish(&pool, &policy, 0).await.unwrap();
    let signed = sqlx::query_scalar("SELECT count(*) FROM command_keys");
    let signed: i64 = signed.fetch_one(&pool).await.unwrap();
    let checked = check(&pool, None, &kinds).await.unwrap();
    assert_eq!(broken(&checked), usize::try_from(signed).unwrap() + 1);

    sql(&pool, "UPDATE trust_bundles SET version = 2").await;
    let checked = check(&pool, None, &kinds).await.unwrap();
    assert_eq!(
        checked.broken_trust.as_ref().map(|broken| broken.version),
        Some(2)
    );
    assert!(!checked.is_clean());
}

/// Signatures that do not hold.
fn broken(checked: &Checked) -> usize {
    let signatures = checked
        .violations
        .iter()
        .filter(|found| matches!(found.rule, Rule::Signature { .. }));
    signatures.count()
}
