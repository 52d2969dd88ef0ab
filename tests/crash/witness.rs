//! A witness dies at any moment while logs try to show it two histories (SPEC U4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use ledger_protocol::merkle::{Hash, leaf_hash};
use ledger_protocol::tlog::{
    AddCheckpoint, Checkpoint, ConsistencyProof, KeyName, Note, NoteSignature, RightEdge, Signer,
    Tiles, TreeHead, VerifierKey,
};
use ledger_tests::http;
use ledger_tests::serve::witness;
use ledger_tests::wait::{found, in_time};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

const KILLS: u64 = 20;
/// A witness lives up to this long after it has begun to serve.
const LIFE_MILLIS: u64 = 250;
const LOGS: u8 = 3;
/// Histories of each log that are shown at once.
const HISTORIES: usize = 3;
const SEED: u64 = 12;

/// All that the witness ever cosigned of one log: the leaves, each time.
type Cosigned = BTreeMap<u64, Vec<Hash>>;

fn signer(log: u8) -> Signer {
    let name: KeyName = format!("log.example/{log}").parse().unwrap();
    Signer::new(name, SigningKey::from_bytes(&[log + 1; 32]))
}

/// A tree, and what its proofs are read from.
fn tree(leaves: &[Hash]) -> (TreeHead, Tiles) {
    let (mut edge, mut tiles) = (RightEdge::new(), Tiles::default());
    for leaf in leaves {
        let full = edge.push(*leaf).unwrap();
        for tile in full {
            tiles.insert(tile);
        }
    }
    let partial = edge.partial_tiles_since(0);
    for tile in partial {
        tiles.insert(tile);
    }
    (edge.head(), tiles)
}

/// The body that asks to cosign these leaves after the first `old` of them.
fn body(signer: &Signer, old: u64, leaves: &[Hash]) -> String {
    let (head, tiles) = tree(leaves);
    let origin = signer.verifier_key().name().to_string();
    let text = Checkpoint::new(&origin, head).unwrap().to_string();
    let signature = signer.sign(&text).unwrap();
    let add = AddCheckpoint {
        old_size: old,
        consistency: ConsistencyProof::read(old, head.size, &tiles).unwrap(),
        checkpoint: Note::new(text, vec![signature]).unwrap(),
    };
    add.to_string()
}

/// Status and body, where an answer comes.
async fn post(url: &str, body: &str) -> Option<(u16, String)> {
    let asked = http::client().post(url).body(body.to_owned()).send();
    let answer = asked.await.ok()?;
    let status = answer.status().as_u16();
    Some((status, answer.text().await.ok()?))
}

/// Shows a witness one history of a log, and others from where they part, until it is aborted. What
/// is cosigned is the one to go on from.
async fn show(
    log: u8,
    url: String,
    key: VerifierKey,
    cosigned: Arc<Mutex<Cosigned>>,
    mut random: StdRng,
) {
    let signer = signer(log);
    loop {
        let known = cosigned
            .lock()
            .await
            .last_key_value()
            .map(|(_, all)| all.clone());
        let known = known.unwrap_or_default();
        let mut histories = Vec::new();
        for _ in 0..HISTORIES {
            // Some part earlier: those are lies in any case.
            let lie = random.random_range(0..4) == 0;
            let back = if lie {
                random.random_range(0..=known.len())
            } else {
                known.len()
            };
            let mut leaves = known[..back].to_vec();
            let more = random.random_range(1..4) + known.len() - back;
            leaves.extend((0..more).map(|_| leaf_hash(&random.random::<[u8; 8]>())));
            histories.push(leaves);
        }
        let asked = histories.into_iter().map(async |mut leaves| {
            let mut old = known.len() as u64;
            // Once more from where the witness says that it is, as after an answer that was lost.
            for _ in 0..2 {
                let (status, told) = post(&url, &body(&signer, old, &leaves)).await?;
                match status {
                    200 => return Some((leaves, told)),
                    409 => old = told.trim().parse().unwrap(),
                    422 => return None,
                    _ => panic!("{status}: {told}"),
                }
                while (leaves.len() as u64) < old {
                    leaves.push([0; 32]);
                }
            }
            None
        });
        let answers = futures_util::future::join_all(asked).await;
        let mut cosigned = cosigned.lock().await;
        for (leaves, told) in answers.into_iter().flatten() {
            let (head, _) = tree(&leaves);
            let origin = signer.verifier_key().name().to_string();
            let text = Checkpoint::new(&origin, head).unwrap().to_string();
            let lines = NoteSignature::parse_lines(told.as_bytes()).unwrap();
            let note = Note::new(text, lines).unwrap();
            note.verify(std::slice::from_ref(&key)).unwrap();
            let before = cosigned.insert(head.size, leaves.clone());
            assert!(
                before.is_none_or(|before| before == leaves),
                "two trees of a size"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn u4_a_witness_killed_at_random_moments_cosigns_one_history_of_each_log() {
    let folder = tempfile::tempdir().unwrap();
    let logs: Vec<String> = (0..LOGS)
        .map(|log| signer(log).verifier_key().to_string())
        .collect();
    let logs: Vec<&str> = logs.iter().map(String::as_str).collect();
    let mut process = witness(folder.path(), "witness.example", &logs).await;
    let key: VerifierKey = process.process.stdout().trim().parse().unwrap();
    let url = format!("http://{}/add-checkpoint", process.address);
    let cosigned: Vec<Arc<Mutex<Cosigned>>> = (0..LOGS).map(|_| Arc::default()).collect();
    let mut random = StdRng::seed_from_u64(SEED);
    let mut grew = 0;
    let count = async || {
        let mut count = 0;
        for log in &cosigned {
            count += log.lock().await.len();
        }
        count
    };
    for _ in 0..KILLS {
        let before = count().await;
        let mut showing = JoinSet::new();
        for (log, cosigned) in (0..).zip(&cosigned) {
            let random = StdRng::seed_from_u64(random.random());
            let (url, key) = (url.clone(), key.clone());
            showing.spawn(show(log, url, key, cosigned.clone(), random));
        }
        let life = Duration::from_millis(random.random_range(0..LIFE_MILLIS));
        // The moment of the kill is what is random.
        sleep(life).await;
        process.process.kill().await;
        // Answers that were on their way are read before those who asked are sent away.
        sleep(Duration::from_millis(20)).await;
        showing.abort_all();
        while let Some(ended) = in_time("who shows ends", showing.join_next()).await {
            assert!(
                ended.is_err_and(|error| error.is_cancelled()),
                "a checker failed"
            );
        }
        grew += u64::from(count().await > before);
        process.revive().await;
    }
    assert!(grew > KILLS / 4, "only {grew} cosigned anything");
    for (log, cosigned) in (0..).zip(&cosigned) {
        let cosigned = cosigned.lock().await;
        // Each begins the next.
        for (one, next) in cosigned.values().zip(cosigned.values().skip(1)) {
            assert_eq!(next[..one.len()], one[..], "two histories");
        }
        // The witness stands where it cosigned last, or after an answer that was lost.
        let Some((size, leaves)) = cosigned.last_key_value() else {
            continue;
        };
        let older = body(&signer(log), 0, &leaves[..1]);
        let at = found("the witness answers", async || post(&url, &older).await).await;
        assert_eq!(at.0, 409);
        assert!(at.1.trim().parse::<u64>().unwrap() >= *size, "it went back");
    }
}
