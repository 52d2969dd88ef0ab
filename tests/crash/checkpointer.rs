//! The signer of the log dies at any moment (SPEC U1, L11).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ledger_protocol::tlog::{
    Checkpoint, ConsistencyProof, Note, Tile, Tiles, TreeHead, VerifierKey,
};
use ledger_tests::ground::{Ground, head};
use ledger_tests::process::Process;
use ledger_tests::serve::serve_with;
use ledger_tests::wait::{in_time, until};
use ledger_tests::{database, http};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::sleep;

const KILLS: u64 = 20;
/// A signer lives up to this long after it has begun to serve.
const LIFE_MILLIS: u64 = 1_500;
const CALLERS: usize = 8;
const SEED: u64 = 11;
const ORIGIN: &str = "log.example/kills";

async fn fetch(log: &str, path: &str) -> Option<Vec<u8>> {
    let answer = http::client()
        .get(format!("{log}/{path}"))
        .send()
        .await
        .ok()?;
    let found = answer.status().as_u16() == 200;
    answer.bytes().await.ok().filter(|_| found).map(Into::into)
}

/// All that was ever shown: one root for each size.
struct Shown {
    key: VerifierKey,
    heads: BTreeMap<u64, TreeHead>,
    largest: u64,
}

impl Shown {
    fn take(&mut self, note: &[u8]) -> TreeHead {
        let note = Note::parse(note).unwrap();
        note.verify(std::slice::from_ref(&self.key)).unwrap();
        let head = *Checkpoint::parse(note.text()).unwrap().head();
        let known = *self.heads.entry(head.size).or_insert(head);
        assert_eq!(known, head, "two histories");
        head
    }

    fn take_newest(&mut self, note: &[u8]) {
        let size = self.take(note).size;
        assert!(self.largest <= size, "{} shrank to {size}", self.largest);
        self.largest = size;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u1_a_signer_killed_at_random_moments_under_load_never_signs_two_histories(pool: PgPool) {
    let (url, folder) = (database::url(&pool), tempfile::tempdir().unwrap());
    let key = folder.path().join("log.pem");
    let key = key.to_str().unwrap();
    Process::output(&["batch", "keygen", "--out", key]).await;
    let printed = Process::output(&["audit", "key", "--key", key, "--origin", ORIGIN]).await;
    let mut shown = Shown {
        key: printed.trim().parse().unwrap(),
        heads: BTreeMap::new(),
        largest: 0,
    };
    let ground = Ground::new(ledger::connect(url.as_str(), 8).await.unwrap());
    let loaded = Arc::new(AtomicBool::new(true));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (ground, loaded) = (ground.clone(), loaded.clone());
        callers.spawn(async move {
            let mut number = 0;
            while loaded.load(Ordering::Relaxed) {
                ground.node(&format!("n{caller}-{number}")).await;
                number += 1;
            }
        });
    }

    let arguments = [
        "--log-key",
        key,
        "--log-origin",
        ORIGIN,
        "--log-listen",
        "127.0.0.1:0",
    ];
    let mut random = StdRng::seed_from_u64(SEED);
    let mut grew = 0;
    for kill in 0..=KILLS {
        sqlx::query("UPDATE leases SET expires_at = '-infinity' WHERE name = 'checkpointer'")
            .execute(&pool)
            .await
            .unwrap();
        let mut service = serve_with(&url, &arguments).await;
        let line = service.told("the log is served").await;
        let log = format!("http://{}", line["address"].as_str().unwrap());
        if kill < KILLS {
            let (before, began) = (shown.largest, Instant::now());
            let life = Duration::from_millis(random.random_range(0..LIFE_MILLIS));
            while began.elapsed() < life {
                if let Some(note) = fetch(&log, "checkpoint").await {
                    shown.take_newest(&note);
                }
                // The moment of the kill is what is random.
                sleep(Duration::from_millis(5)).await;
            }
            service.process.kill().await;
            grew += u64::from(before < shown.largest);
            continue;
        }
        loaded.store(false, Ordering::Relaxed);
        while let Some(done) = in_time("the load ends", callers.join_next()).await {
            done.unwrap();
        }
        let last = head(&pool).await;
        until("everything is signed", async || {
            if let Some(note) = fetch(&log, "checkpoint").await {
                shown.take_newest(&note);
            }
            shown.largest == last
        })
        .await;
        let notes: Vec<String> = sqlx::query_scalar("SELECT note FROM checkpoints ORDER BY size")
            .fetch_all(&pool)
            .await
            .unwrap();
        for note in notes {
            shown.take(note.as_bytes());
        }
        // Each begins the next, by proofs out of what is served.
        let heads: Vec<&TreeHead> = shown.heads.values().collect();
        for pair in heads.windows(2) {
            let mut tiles = Tiles::default();
            for tile in ConsistencyProof::tiles(pair[0].size, pair[1].size).unwrap() {
                let bytes = fetch(&log, &tile.to_string()).await.unwrap();
                tiles.insert(Tile::decode(tile, &bytes).unwrap());
            }
            let proof = ConsistencyProof::read(pair[0].size, pair[1].size, &tiles).unwrap();
            proof.verify(pair[0], pair[1]).unwrap();
        }
    }
    assert!(grew > KILLS / 4, "only {grew} signed anything");
}
