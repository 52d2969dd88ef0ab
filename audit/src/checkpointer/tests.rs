//! Against a real Postgres: a log that grows, dies anywhere, is damaged, or is put back.

use std::fs;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use ledger::{Clock, Options};
use ledger_protocol::kind::Registry;
use ledger_protocol::merkle::leaf_hash;
use ledger_protocol::tlog::{KeyName, RightEdge, Tile};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::{AssertSqlSafe, PgPool};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use super::*;
use crate::HeldLogKey;

/// Longer than a slow machine needs.
const PATIENCE: Duration = Duration::from_mins(1);

/// A database with a log, and a folder for the signer's memory.
pub(crate) struct World {
    pub(crate) pool: PgPool,
    pub(crate) folder: TempDir,
    /// What the checkpointer is told of.
    pub(crate) archive: Option<Archive>,
    ledger: Ledger,
}

/// A checkpointer that works until this is dropped or stopped.
pub(crate) struct Working {
    shutdown: CancellationToken,
    task: JoinSet<()>,
}

impl Working {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.join_all().await;
    }
}

pub(crate) fn key() -> Arc<dyn LogKey> {
    key_of("log.example/1", 3)
}

fn key_of(origin: &str, seed: u8) -> Arc<dyn LogKey> {
    let origin: KeyName = origin.parse().unwrap();
    Arc::new(HeldLogKey::new(origin, SigningKey::from_bytes(&[seed; 32])))
}

/// What the event at a position holds; the tree takes any bytes.
fn body(position: u64, history: &str) -> Vec<u8> {
    format!("{history} {position}").into_bytes()
}

impl World {
    pub(crate) fn new(pool: PgPool) -> Self {
        let options = Options::new(Registry::builtin(), Clock::system());
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let ledger = Ledger::start(pool.clone(), options, &tasks, shutdown).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Self {
            pool,
            folder,
            archive: None,
            ledger,
        }
    }

    fn memory(&self) -> PathBuf {
        self.folder.path().join("log.pem.signed")
    }

    /// Appends events up to a position.
    pub(crate) async fn append(&self, to: u64, history: &str) {
        sqlx::query(
            "INSERT INTO events (shard, position, stream, body)
             SELECT 0, n, gen_random_uuid(), convert_to($2 || ' ' || n, 'UTF8')
             FROM generate_series((SELECT coalesce(max(position), 0) + 1 FROM events), $1) AS n",
        )
        .bind(i64::try_from(to).unwrap())
        .bind(history)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// Does what nobody may.
    pub(crate) async fn tamper(&self, sql: &str) {
        let mut transaction = self.pool.begin().await.unwrap();
        for sql in ["SET LOCAL session_replication_role = replica", sql] {
            let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
            done.execute(&mut *transaction).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }

    pub(crate) fn start(&self, holder: &str) -> Working {
        self.start_with(holder, Vec::new())
    }

    /// A checkpointer that asks these witnesses.
    pub(crate) fn start_with(&self, holder: &str, witnesses: Vec<WitnessAt>) -> Working {
        let shutdown = CancellationToken::new();
        let checkpointing = Checkpointing {
            key: key(),
            memory: self.memory(),
            witnesses,
            archive: self.archive.clone(),
        };
        let (ledger, holder) = (self.ledger.clone(), holder.to_owned());
        let task = checkpoint(ledger, checkpointing, holder, shutdown.clone());
        let task: JoinSet<()> = [task].into_iter().collect();
        Working { shutdown, task }
    }

    async fn newest(&self) -> Option<log_tree::Published> {
        let mut conn = self.pool.acquire().await.unwrap();
        log_tree::newest(&mut conn).await.unwrap()
    }

    /// Waits until a checkpoint of this size is published.
    pub(crate) async fn published(&self, size: u64) -> String {
        let waiting = async {
            loop {
                if let Some(newest) = self.newest().await.filter(|newest| newest.size == size) {
                    return newest.note;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap()
    }

    /// Signs all that there is and stops.
    pub(crate) async fn sign(&self, size: u64) -> String {
        let working = self.start("one");
        let note = self.published(size).await;
        working.stop().await;
        note
    }

    /// How a turn as the leader ends; the test fails when it goes on.
    async fn ends(&self, key: Arc<dyn LogKey>, memory: PathBuf) -> Error {
        let held = lease::acquire(&self.pool, LEASE, "test", Duration::from_mins(1));
        let fence = held.await.unwrap().unwrap();
        let mut worker = Checkpointer {
            wakes: self.ledger.subscribe(),
            ledger: self.ledger.clone(),
            memory: Memory::new(memory, key.verifier_key()),
            key,
            witnesses: Witnesses::new(Vec::new()),
            thinning: Thinning::default(),
            archive: None,
            told: Told::default(),
        };
        let ended = timeout(PATIENCE, worker.work(&fence)).await.unwrap();
        lease::release(&self.pool, &fence).await.unwrap();
        ended
    }

    /// The alarm that the log's own signer raises, which changes nothing of what was signed.
    async fn alarm(&self) -> Alarm {
        let before = (fs::read(self.memory()).ok(), self.notes().await);
        let ended = self.ends(key(), self.memory()).await;
        let after = (fs::read(self.memory()).ok(), self.notes().await);
        assert_eq!(before, after);
        match ended {
            Error::Refused(alarm) => alarm,
            other => panic!("{other}"),
        }
    }

    pub(crate) async fn tiles(&self) -> Vec<(i16, i64, Vec<u8>)> {
        let sql = "SELECT level, index, hashes FROM log_tiles ORDER BY level, index";
        sqlx::query_as(sql).fetch_all(&self.pool).await.unwrap()
    }

    async fn notes(&self) -> Vec<(i64, String)> {
        let sql = "SELECT size, note FROM checkpoints ORDER BY size";
        sqlx::query_as(sql).fetch_all(&self.pool).await.unwrap()
    }
}

/// Level, index and hashes of a tile.
type Row = (i16, i64, Vec<u8>);

/// The tree of such a log, made at once: its rows, and its head at these sizes.
fn tree(size: u64, history: &str, heads_at: &[u64]) -> (Vec<Row>, Vec<TreeHead>) {
    let (mut edge, mut tiles, mut heads) = (RightEdge::new(), Vec::new(), Vec::new());
    for position in 1..=size {
        tiles.extend(edge.push(leaf_hash(&body(position, history))).unwrap());
        if heads_at.contains(&position) {
            heads.push(edge.head());
        }
    }
    tiles.extend(edge.partial_tiles_since(0));
    let row = |tile: &Tile| {
        let place = tile.index();
        let index = i64::try_from(place.index()).unwrap();
        (i16::from(place.level()), index, tile.encode())
    };
    let mut rows: Vec<_> = tiles.iter().map(row).collect();
    rows.sort();
    (rows, heads)
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_a_log_that_grew_in_random_steps_has_the_tiles_of_one_that_was_built_at_once(
    pool: PgPool,
) {
    let world = World::new(pool);
    let mut random = StdRng::seed_from_u64(1);
    let (mut size, last) = (0, 66_000);
    for step in [1, 254, 1, 1, 300, 20_000, 45_000, 0, 0, 0, 0] {
        let some = if step == 0 {
            random.random_range(1..200)
        } else {
            step
        };
        size = last.min(size + some);
        world.append(size, "a").await;
        // Each time another process, so that every step resumes from what is stored.
        world.sign(size).await;
    }
    let notes = world.notes().await;
    let sizes: Vec<u64> = notes
        .iter()
        .map(|(size, _)| u64::try_from(*size).unwrap())
        .collect();
    let (rows, heads) = tree(size, "a", &sizes);
    assert!(rows.len() > 258 && world.tiles().await == rows);
    for ((_, note), head) in notes.iter().zip(&heads) {
        assert_eq!(
            Signed::read(note, &key().verifier_key()).unwrap().head,
            *head
        );
    }
    assert_eq!(notes.len(), heads.len());
    // Nothing is new, so nothing is signed.
    let working = world.start("two");
    sleep(limits::LOG_LOOK_EVERY * 2).await;
    working.stop().await;
    assert_eq!(world.notes().await, notes);
    // Whoever removes the tiles gets them again.
    world.tamper("DELETE FROM log_tiles").await;
    world.append(size + 1, "a").await;
    world.sign(size + 1).await;
    assert!(world.tiles().await == tree(size + 1, "a", &[]).0);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_an_older_copy_of_the_database_is_never_signed_again(pool: PgPool) {
    let world = World::new(pool);
    world.append(900, "a").await;
    world.sign(900).await;
    let saved = "CREATE TABLE kept_tiles AS SELECT * FROM log_tiles;
                 CREATE TABLE kept_checkpoints AS SELECT * FROM checkpoints";
    world.tamper(saved).await;
    world.append(1_100, "a").await;
    world.sign(1_100).await;
    let put_back = "DELETE FROM events WHERE position > 900;
                    DELETE FROM log_tiles; INSERT INTO log_tiles SELECT * FROM kept_tiles;
                    DELETE FROM checkpoints; INSERT INTO checkpoints SELECT * FROM kept_checkpoints";
    world.tamper(put_back).await;
    let alarm = world.alarm().await;
    assert!(
        matches!(
            alarm,
            Alarm::Shrunk {
                signed: 1_100,
                head: 900
            }
        ),
        "{alarm}"
    );
    // It goes on, and becomes longer than what was signed.
    world.append(1_099, "b").await;
    assert!(matches!(world.alarm().await, Alarm::Shrunk { .. }));
    world.append(1_100, "b").await;
    let alarm = world.alarm().await;
    assert!(
        matches!(alarm, Alarm::Forked { size: 1_100 } | Alarm::Tile(_)),
        "{alarm}"
    );
    world.append(2_000, "b").await;
    let alarm = world.alarm().await;
    assert!(
        matches!(alarm, Alarm::Forked { size: 1_100 } | Alarm::Tile(_)),
        "{alarm}"
    );
    // Even when all of the tree is made anew.
    world
        .tamper("DELETE FROM log_tiles; DELETE FROM checkpoints")
        .await;
    let alarm = world.alarm().await;
    assert!(matches!(alarm, Alarm::Forked { size: 1_100 }), "{alarm}");
    // The tail comes back: from a standby, say.
    world
        .tamper("DELETE FROM events WHERE position > 900; DELETE FROM log_tiles")
        .await;
    world.append(1_300, "a").await;
    world.sign(1_300).await;
    assert!(world.tiles().await == tree(1_300, "a", &[]).0);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_a_tail_that_is_lost_under_a_running_signer_is_seen(pool: PgPool) {
    let world = World::new(pool);
    world.append(300, "a").await;
    world.sign(300).await;
    for (history, again) in [("a", 299), ("b", 310)] {
        let working = async {
            sleep(limits::LOG_LOOK_EVERY).await;
            world
                .tamper("DELETE FROM events WHERE position > 290")
                .await;
            world.append(again, history).await;
        };
        let (alarm, ()) = tokio::join!(world.alarm(), working);
        let is_seen = matches!(
            alarm,
            Alarm::Shrunk { signed: 300, .. }
                | Alarm::Gap { position: 300 }
                | Alarm::Forked { size: 300 }
        );
        assert!(is_seen, "{alarm}");
        world
            .tamper("DELETE FROM events WHERE position > 290")
            .await;
        world.append(300, "a").await;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_what_was_remembered_and_not_published_is_published_as_it_was(pool: PgPool) {
    let world = World::new(pool);
    world.append(300, "a").await;
    world.sign(300).await;
    world.append(700, "a").await;
    let note = world.sign(700).await;
    let (notes, tiles) = (world.notes().await, world.tiles().await);
    // As if it had died before the last step; then, as if all of its tiles were gone as well.
    for lost in [
        "",
        "; DELETE FROM log_tiles",
        "; DELETE FROM log_tiles WHERE level = 1",
    ] {
        world
            .tamper(&format!("DELETE FROM checkpoints WHERE size = 700{lost}"))
            .await;
        assert_eq!(world.sign(700).await, note);
        assert_eq!(
            (world.notes().await, world.tiles().await),
            (notes.clone(), tiles.clone())
        );
    }
    world.append(701, "a").await;
    world.sign(701).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_tiles_that_were_changed_are_an_alarm_and_not_signed_over(pool: PgPool) {
    let world = World::new(pool);
    world.append(700, "a").await;
    world.sign(700).await;
    let flip = |level: u8, index: u8, at: u16| {
        format!(
            "UPDATE log_tiles SET hashes = set_byte(hashes, {at}, get_byte(hashes, {at}) # 1)
             WHERE level = {level} AND index = {index}"
        )
    };
    for (level, index, at) in [(0, 2, 0), (0, 2, 187 * 32), (1, 0, 0), (1, 0, 63)] {
        world.tamper(&flip(level, index, at)).await;
        let alarm = world.alarm().await;
        assert!(matches!(alarm, Alarm::Tiles { size: 700 }), "{alarm}");
        world.tamper(&flip(level, index, at)).await;
    }
    // Events that were changed are seen when tiles are made of them.
    world
        .tamper("UPDATE events SET body = 'x' WHERE position = 650")
        .await;
    world.tamper("DELETE FROM log_tiles WHERE level = 1").await;
    world.append(800, "a").await;
    let alarm = world.alarm().await;
    assert!(
        matches!(alarm, Alarm::Tile(_) | Alarm::Forked { .. }),
        "{alarm}"
    );
    world
        .tamper("DELETE FROM events WHERE position = 650; DELETE FROM log_tiles")
        .await;
    let alarm = world.alarm().await;
    assert!(matches!(alarm, Alarm::Gap { position: 650 }), "{alarm}");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_a_memory_that_is_damaged_missing_or_old_is_refused(pool: PgPool) {
    let world = World::new(pool);
    world.append(100, "a").await;
    let old = world.sign(100).await;
    world.append(200, "a").await;
    let new = world.sign(200).await;
    world.append(300, "a").await;
    let path = world.memory();
    assert_eq!(fs::read_to_string(&path).unwrap(), new);
    let damaged = [
        String::new(),
        new[..new.len() / 2].to_owned(),
        new[..new.len() - 1].to_owned(),
        new.replacen("200", "199", 1),
        format!("{new}\n"),
        "\0\0\0".to_owned(),
    ];
    for text in damaged {
        fs::write(&path, &text).unwrap();
        let alarm = world.alarm().await;
        let told = alarm.to_string();
        assert!(
            told.contains("damaged") && told.contains("newest checkpoint"),
            "{told}"
        );
    }
    fs::write(&path, [0xFF, 0xFE]).unwrap();
    assert!(world.alarm().await.to_string().contains("it is no text"));
    fs::write(&path, &old).unwrap();
    let alarm = world.alarm().await;
    assert!(
        matches!(
            alarm,
            Alarm::Behind {
                remembered: 100,
                published: 200,
                ..
            }
        ),
        "{alarm}"
    );
    fs::remove_file(&path).unwrap();
    let told = world.alarm().await.to_string();
    for part in ["log.pem.signed is missing", "size 200", "put the file back"] {
        assert!(told.contains(part), "{told}");
    }
    // A folder in its place cannot be read.
    fs::create_dir(&path).unwrap();
    assert!(matches!(
        world.alarm().await,
        Alarm::Memory(memory::MemoryError::Io { .. })
    ));
    fs::remove_dir(&path).unwrap();
    // Another key may not take over the name.
    let alarm = world.ends(key_of("log.example/1", 4), path.clone()).await;
    assert!(
        matches!(alarm, Error::Refused(Alarm::Foreign { size: 200, .. })),
        "{alarm}"
    );
    // What the alarm says to do.
    fs::write(&path, &new).unwrap();
    world.sign(300).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_checkpointers_that_work_at_once_sign_one_history(pool: PgPool) {
    let world = World::new(pool);
    let working = [world.start("one"), world.start("two"), world.start("three")];
    let mut random = StdRng::seed_from_u64(2);
    let mut size = 0;
    for turn in 0..12 {
        size += random.random_range(1..400);
        world.append(size, "a").await;
        // Each loses the lease at any moment, and another takes it.
        world
            .tamper("UPDATE leases SET term = term + 1, expires_at = '-infinity'")
            .await;
        if turn % 4 == 0 {
            world.published(size).await;
        } else {
            sleep(Duration::from_millis(random.random_range(0..400))).await;
        }
    }
    world.published(size).await;
    for one in working {
        one.stop().await;
    }
    let notes = world.notes().await;
    let sizes: Vec<u64> = notes
        .iter()
        .map(|(size, _)| u64::try_from(*size).unwrap())
        .collect();
    for ((_, note), head) in notes.iter().zip(tree(size, "a", &sizes).1) {
        assert_eq!(
            Signed::read(note, &key().verifier_key()).unwrap().head,
            head
        );
    }
    // One that does not share the memory is told.
    let elsewhere = world.folder.path().join("elsewhere");
    let alarm = world.ends(key(), elsewhere).await;
    assert!(
        matches!(alarm, Error::Refused(Alarm::Forgotten { .. })),
        "{alarm}"
    );
}
