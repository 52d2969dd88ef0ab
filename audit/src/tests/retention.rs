//! What is old leaves, and nothing is lost by it (SPEC section 10).

use std::fs;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use ledger_protocol::event::Event;
use ledger_protocol::tlog::{Policy as Trust, Resource, new_bundles, new_tiles};
use tempfile::TempDir;
use tokio::time::sleep;
use tower::ServiceExt as _;

use super::exports::{exported_with, verified};
use super::*;
use crate::archive::streams::Positions;
use crate::checkpointer::tests::{World as Signing, key};
use crate::{
    Archive, ArchiveError, ArchiverError, Kept, Policy as Keep, Retained, RetentionError, Trusted,
    receipt, retain, router,
};

/// Positions of a partition.
const SPAN: u64 = 500;
const MONTH: Duration = Duration::from_hours(30 * 24);

/// Partitions that a test can fill; where they lie is the schema owner's to say.
async fn small_partitions(pool: &PgPool) {
    let mut statements = vec!["DROP TABLE events_000000, events_000001, events_000002".to_owned()];
    for number in 0..12 {
        let (first, end) = (number * SPAN, (number + 1) * SPAN);
        statements.push(format!(
            "CREATE TABLE events_{number:06} PARTITION OF events FOR VALUES FROM ({first}) TO ({end})"
        ));
    }
    for statement in statements {
        let done = sqlx::query(AssertSqlSafe(statement)).execute(pool).await;
        done.unwrap();
    }
}

/// A ledger with an archive and a key.
struct Old {
    pool: PgPool,
    world: World,
    signing: Signing,
    folder: TempDir,
    archive: Archive,
    nodes: Vec<(NodeId, u64)>,
    commands: Vec<CommandId>,
}

impl Old {
    /// Each of two nodes has run so many commands, a year ago.
    async fn new(pool: PgPool, commands: usize) -> Self {
        small_partitions(&pool).await;
        let world = World::new(pool.clone());
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::folder(folder.path().join("archive"));
        let mut old = Self {
            signing: Signing::new(pool.clone()),
            pool,
            world,
            folder,
            archive,
            nodes: Vec::new(),
            commands: Vec::new(),
        };
        for name in ["one", "two"] {
            let node = old.world.node(name).await;
            let epoch = old.world.open_session(node).await;
            let applied = old
                .world
                .ledger
                .apply_generation(&old.world.actor, node, epoch, 1);
            applied.await.unwrap();
            old.nodes.push((node, epoch));
        }
        old.run(commands).await;
        old
    }

    async fn run(&mut self, commands: usize) {
        for _ in 0..commands {
            for (node, epoch) in self.nodes.clone() {
                let key = format!("api:{}", self.commands.len());
                let id = self.world.enqueue(node, &key).await;
                let sent = self
                    .world
                    .ledger
                    .dispatch(&self.world.actor, node, id, epoch);
                sent.await.unwrap();
                let ended = UpdateState::Succeeded;
                self.world
                    .report(node, epoch, id, UpdateState::Running)
                    .await;
                self.world.report(node, epoch, id, ended).await;
                self.commands.push(id);
            }
        }
    }

    async fn sign(&self) -> u64 {
        let mut conn = self.pool.acquire().await.unwrap();
        let size = ledger_projections::log::head(&mut conn).await.unwrap();
        self.signing.sign(size).await;
        size
    }

    async fn retain(&self, keep: Keep) -> Result<Retained, RetentionError> {
        let mut owner = self.pool.acquire().await.unwrap();
        retain(&mut owner, &self.archive, &trust(), keep, |_, _| {}).await
    }

    async fn drops(&self, keep: Keep) -> (Vec<String>, Option<Kept>) {
        let retained = self.retain(keep).await.unwrap();
        let dropped = retained.dropped.into_iter().map(|part| part.name);
        (dropped.collect(), retained.kept)
    }

    async fn partitions(&self) -> usize {
        let parts = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass";
        let parts: i64 = sqlx::query_scalar(parts)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        usize::try_from(parts).unwrap()
    }

    /// Every resource of the log at a size, as it is served; nothing for one that is not.
    async fn served(&self, archive: Option<Archive>, size: u64) -> Vec<Option<Vec<u8>>> {
        let router = router(self.pool.clone(), archive);
        let tiles = new_tiles(0, size).map(Resource::Tile);
        let all = tiles.chain(new_bundles(0, size).map(Resource::Entries));
        let mut served = Vec::new();
        for resource in all {
            let request = Request::builder().uri(format!("/{resource}"));
            let request = request.body(Body::empty()).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(
                [200, 404].contains(&status),
                "{resource}: {status} {body:?}"
            );
            served.push((status == 200).then(|| body.to_vec()));
        }
        served
    }

    fn file(&self, resource: &str) -> std::path::PathBuf {
        self.folder.path().join("archive").join(resource)
    }
}

fn trust() -> Trust {
    let key = key().verifier_key();
    let origin = key.name().to_string();
    Trust::new(&origin, vec![key], Vec::new(), 0).unwrap()
}

const fn events_of(age: Duration) -> Keep {
    Keep {
        events: Some(age),
        commands: None,
        is_rehearsal: false,
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_a_log_whose_old_events_have_left_is_as_provable_as_before(pool: PgPool) {
    let mut old = Old::new(pool.clone(), 200).await;
    let size = old.sign().await;
    assert!((3 * SPAN..4 * SPAN - 256).contains(&size), "{size}");
    let served = old.served(None, size).await;
    assert!(served.iter().all(Option::is_some));
    let whole = exported_with(&pool, None).await;
    let asked = [
        old.commands[0],
        old.commands[150],
        *old.commands.last().unwrap(),
    ];
    let mut receipts = Vec::new();
    for command in asked {
        receipts.push(receipt(&pool, None, command).await.unwrap().to_json());
    }
    let stored: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT position, body FROM events ORDER BY position")
            .fetch_all(&pool)
            .await
            .unwrap();

    let (dropped, kept) = old.drops(events_of(MONTH)).await;
    assert_eq!(dropped, ["events_000000", "events_000001", "events_000002"]);
    let growing = "events_000003".to_owned();
    assert_eq!(kept, Some(Kept::Growing { partition: growing }));
    assert_eq!(old.partitions().await, 9);
    let left: i64 = sqlx::query_scalar("SELECT min(position) FROM events")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(left.unsigned_abs(), 3 * SPAN);

    // With the archive, all is as it was.
    let archive = Some(&old.archive);
    assert!(old.served(archive.cloned(), size).await == served);
    let again = exported_with(&pool, archive).await;
    assert!(again == whole);
    let trusted = Trusted::new(key().verifier_key(), Vec::new(), 0).unwrap();
    assert!(verified(&again, &trusted).is_clean());
    let report = replay(&pool, archive).await.unwrap();
    assert_eq!((report.events, report.differences), (size, vec![]));
    assert!(
        check(&pool, archive, &Registry::builtin())
            .await
            .unwrap()
            .is_clean()
    );
    for (command, before) in asked.into_iter().zip(&receipts) {
        let receipt = receipt(&pool, archive, command).await.unwrap();
        assert_eq!(&receipt.to_json(), before);
        receipt.verify(&trust()).unwrap();
    }
    // Where the events of each stream are is known without reading all of them.
    let mut conn = pool.acquire().await.unwrap();
    let ends = ledger_projections::retention::archived_ranges(&mut conn)
        .await
        .unwrap();
    for (node, _) in &old.nodes {
        let mut positions = Positions::of(node.uuid(), &ends);
        let mut found = Vec::new();
        while let Some(position) = positions.next(&old.archive).await.unwrap() {
            found.push(i64::try_from(position).unwrap());
        }
        found.reverse();
        let of_node = stored.iter().filter(|(position, bytes)| {
            *position < left && Event::decode(bytes).unwrap().stream.uuid() == node.uuid()
        });
        let expected: Vec<i64> = of_node.map(|(position, _)| *position).collect();
        assert!(!expected.is_empty() && found == expected, "{found:?}");
    }

    // Without it, each says where the rest is.
    let through = 3 * SPAN - 1;
    let gone = |error: &Error| matches!(error, Error::Archived { through: at } if *at == through);
    assert!(gone(&replay(&pool, None).await.unwrap_err()));
    assert!(gone(
        &check(&pool, None, &Registry::builtin()).await.unwrap_err()
    ));
    assert!(gone(
        &crate::export(&pool, None, Vec::new(), |_, _| {})
            .await
            .unwrap_err()
    ));
    let refused = receipt(&pool, None, asked[0]).await.unwrap_err();
    assert!(
        matches!(refused, crate::ReceiptError::Archived { .. }),
        "{refused}"
    );
    let last = receipt(&pool, None, asked[2]).await.unwrap();
    assert_eq!(last.to_json(), receipts[2]);
    let mut lacking = old.served(None, size).await.into_iter().zip(&served);
    let tiles = new_tiles(0, size).count();
    assert!(
        lacking
            .by_ref()
            .take(tiles)
            .all(|(now, before)| now == *before)
    );
    let bundles: Vec<bool> = lacking.map(|(now, _)| now.is_some()).collect();
    assert_eq!(bundles.iter().position(|is_there| *is_there), Some(6));

    // The ledger goes on, and so does the archive.
    old.run(150).await;
    let larger = old.sign().await;
    let (dropped, _) = old.drops(events_of(MONTH)).await;
    assert_eq!(dropped, ["events_000003", "events_000004"]);
    let archive = Some(&old.archive);
    assert!(replay(&pool, archive).await.unwrap().is_clean());
    let again = exported_with(&pool, archive).await;
    let again = verified(&again, &trusted);
    assert!(again.is_clean() && again.events == larger);
    let receipt = receipt(&pool, archive, asked[0]).await.unwrap();
    receipt.verify(&trust()).unwrap();
    // Tiles that are lost are made again, of the archive and what is left.
    let tiles = old.signing.tiles().await;
    sql(&pool, "DELETE FROM log_tiles").await;
    old.run(1).await;
    let mut conn = pool.acquire().await.unwrap();
    let head = ledger_projections::log::head(&mut conn).await.unwrap();
    drop(conn);
    old.signing.archive = Some(old.archive.clone());
    old.signing.sign(head).await;
    let again = old.signing.tiles().await;
    assert_eq!(again.len(), tiles.len());
    for (before, after) in tiles.iter().zip(&again) {
        let same = (before.0, before.1) == (after.0, after.1) && after.2.starts_with(&before.2);
        assert!(same, "{before:?}");
    }
    // The service may do none of it.
    let mut service = pool.acquire().await.unwrap();
    sqlx::query("SET ROLE command_ledger_service")
        .execute(&mut *service)
        .await
        .unwrap();
    for statement in [
        "INSERT INTO archivings (through, archive, checkpoint) VALUES (9999, '', '')",
        "INSERT INTO forgettings (ended_before) VALUES (0)",
        "DROP TABLE events_000005",
        "DELETE FROM archivings",
    ] {
        let refused = sqlx::query(statement)
            .execute(&mut *service)
            .await
            .unwrap_err();
        let code = refused
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        assert_eq!(code.as_deref(), Some("42501"), "{statement}");
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_nothing_leaves_before_it_is_old_signed_archived_published_and_over(pool: PgPool) {
    let mut old = Old::new(pool.clone(), 160).await;
    let absent = old.retain(events_of(MONTH)).await.unwrap_err();
    assert!(
        matches!(absent, RetentionError::Archiver(ArchiverError::Log(_))),
        "{absent}"
    );
    let size = old.sign().await;
    assert!(size > 2 * SPAN + 256, "{size}");
    let first = || "events_000000".to_owned();

    let kept = old.drops(events_of(MONTH * 600)).await.1;
    assert_eq!(
        kept,
        Some(Kept::Young {
            partition: first(),
            last: SPAN - 1
        })
    );
    let mark = "INSERT INTO publications VALUES ('LEDGER', 498)";
    sqlx::query(mark).execute(&pool).await.unwrap();
    let kept = old.drops(events_of(MONTH)).await.1;
    assert_eq!(
        kept,
        Some(Kept::Unpublished {
            partition: first(),
            told: 498
        })
    );
    sqlx::query("UPDATE publications SET position = 5000")
        .execute(&pool)
        .await
        .unwrap();

    // Only what the log's own key signed counts.
    let stranger = crate::HeldLogKey::new(
        key().verifier_key().name().clone(),
        SigningKey::from_bytes(&[99; 32]),
    );
    let stranger = crate::LogKey::verifier_key(&stranger);
    let other = Trust::new(
        stranger.name().as_str(),
        vec![stranger.clone()],
        Vec::new(),
        0,
    );
    let (mut owner, other) = (pool.acquire().await.unwrap(), other.unwrap());
    let refused = retain(
        &mut owner,
        &old.archive,
        &other,
        events_of(MONTH),
        |_, _| {},
    );
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, RetentionError::Untrusted(_)), "{refused}");
    drop(owner);

    // What the archive lacks, or has in another form, stays.
    for (file, position) in [
        ("tile/entries/000", 0),
        ("tile/entries/001", 40_000),
        ("tile/0/000", 8_191),
        ("tile/0/001", 3),
    ] {
        let path = old.file(file);
        let bytes = fs::read(&path).unwrap();
        let mut damaged = bytes.clone();
        damaged[position] ^= 1;
        for other in [Some(damaged), Some(bytes[..bytes.len() - 1].to_vec()), None] {
            match other {
                Some(other) => fs::write(&path, other).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let refused = old.retain(events_of(MONTH)).await.unwrap_err();
            let RetentionError::Archive { partition, source } = &refused else {
                panic!("{file}: {refused}");
            };
            assert_eq!(partition, "events_000000");
            let names = source.to_string().contains(file);
            assert!(
                names || matches!(source, ArchiveError::Missing { .. }),
                "{source}"
            );
        }
        fs::write(&path, bytes).unwrap();
    }
    let rehearsal = Keep {
        is_rehearsal: true,
        ..events_of(MONTH)
    };
    let (would, kept) = old.drops(rehearsal).await;
    assert_eq!((would.len(), old.partitions().await), (2, 12));
    assert!(matches!(kept, Some(Kept::Growing { .. })));

    // A reader's transaction is waited for.
    let mut reading = pool.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM events")
        .execute(&mut *reading)
        .await
        .unwrap();
    let read = async {
        sleep(Duration::from_millis(1_500)).await;
        reading.rollback().await.unwrap();
    };
    let live = old.world.enqueue(old.nodes[0].0, "api:live").await;
    let ((dropped, _), ()) = tokio::join!(old.drops(events_of(MONTH)), read);
    assert_eq!(dropped.len(), 2);
    // It keeps its own partition, however old that is.
    old.run(150).await;
    old.sign().await;
    let kept = old.drops(events_of(MONTH)).await.1;
    let partition = "events_000002".to_owned();
    assert_eq!(
        kept,
        Some(Kept::Live {
            partition,
            command: live
        })
    );
    assert!(replay(&pool, Some(&old.archive)).await.unwrap().is_clean());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a2_ended_commands_leave_the_tables_with_their_keys_and_seq_goes_on(pool: PgPool) {
    let old = Old::new(pool.clone(), 20).await;
    let waiting = old.world.enqueue(old.nodes[0].0, "api:waiting").await;
    old.sign().await;
    let keep = |commands| Keep {
        events: None,
        commands: Some(commands),
        is_rehearsal: false,
    };
    let count = async |table: &str| {
        let count = format!("SELECT count(*) FROM {table}");
        let count = sqlx::query_scalar::<_, i64>(AssertSqlSafe(count));
        count.fetch_one(&pool).await.unwrap()
    };
    assert_eq!(old.retain(keep(MONTH * 600)).await.unwrap().commands, 0);
    let rehearsal = Keep {
        is_rehearsal: true,
        ..keep(MONTH)
    };
    assert_eq!(old.retain(rehearsal).await.unwrap().commands, 39);
    assert_eq!(count("commands_settled").await, 40_i64);
    // Taken out by somebody else: nothing says that they may be missing.
    let taken = "CREATE TABLE taken AS SELECT * FROM commands_settled";
    sqlx::query(taken).execute(&pool).await.unwrap();
    sql(&pool, "DELETE FROM commands_settled").await;
    assert_eq!(replay(&pool, None).await.unwrap().differences_total, 40);
    sql(&pool, "INSERT INTO commands_settled SELECT * FROM taken").await;

    // The second node's newest command stays; the first's newest has not ended.
    assert_eq!(old.retain(keep(MONTH)).await.unwrap().commands, 39);
    assert_eq!(count("commands_settled").await, 1_i64);
    assert_eq!(count("command_keys").await, 2_i64);
    assert_eq!(replay(&pool, None).await.unwrap().differences, []);
    assert_eq!(old.retain(keep(MONTH)).await.unwrap().commands, 0);
    // That one may not be missing.
    let newest = "CREATE TABLE newest AS SELECT * FROM commands_settled";
    sqlx::query(newest).execute(&pool).await.unwrap();
    sql(&pool, "DELETE FROM commands_settled").await;
    let report = replay(&pool, None).await.unwrap();
    assert_eq!(places(&report), [("commands_settled", "(row)")]);
    let put_back = "INSERT INTO commands_settled SELECT * FROM newest";
    sql(&pool, put_back).await;
    // Their keys are free again, and no seq comes twice.
    for (place, (node, _)) in old.nodes.iter().enumerate() {
        let again = old.world.enqueue(*node, &format!("api:{place}")).await;
        assert!(!old.commands.contains(&again));
    }
    assert_eq!(replay(&pool, None).await.unwrap().differences, []);
    // Neither may what has not ended.
    let taken = format!("DELETE FROM commands_live WHERE id = '{}'", waiting.uuid());
    sql(&pool, &taken).await;
    let report = replay(&pool, None).await.unwrap();
    assert_eq!(places(&report), [("commands_live", "(row)")]);
}
