//! Against real files and a real clock.

use axum::http::Request;
use ed25519_dalek::SigningKey;
use http_body_util::BodyExt as _;
use ledger_protocol::merkle::leaf_hash;
use ledger_protocol::tlog::{ConsistencyProof, RightEdge, Signer, Tiles};
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::*;

const ORIGIN: &str = "log.example/1";
const OTHER: &str = "log.example/2";

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn log(origin: &str, seed: u8) -> Signer {
    Signer::new(origin.parse().unwrap(), key(seed))
}

fn cosigner() -> Cosigner {
    Cosigner::new("witness.example/w".parse().unwrap(), key(9))
}

fn open(folder: &TempDir) -> Result<Witness, Unopened> {
    let logs = [log(ORIGIN, 1), log(OTHER, 2)].map(|log| log.verifier_key());
    Witness::open(
        cosigner(),
        logs.to_vec(),
        folder.path(),
        ledger::Clock::system(),
    )
}

/// The tree of the first `size` leaves of a history.
fn tree(size: u64, history: &str) -> (TreeHead, Tiles) {
    let (mut edge, mut tiles) = (RightEdge::new(), Tiles::default());
    for number in 0..size {
        let leaf = if number < 3 {
            format!("{number}")
        } else {
            format!("{history} {number}")
        };
        let full = edge.push(leaf_hash(leaf.as_bytes())).unwrap();
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

/// A body of `add-checkpoint`.
fn body(signer: &Signer, old: u64, size: u64, history: &str) -> String {
    let (head, tiles) = tree(size, history);
    let origin = signer.verifier_key();
    let text = Checkpoint::new(origin.name().as_str(), head)
        .unwrap()
        .to_string();
    let signature = signer.sign(&text).unwrap();
    let add = AddCheckpoint {
        old_size: old,
        consistency: ConsistencyProof::read(old.min(size), size, &tiles).unwrap(),
        checkpoint: Note::new(text, vec![signature]).unwrap(),
    };
    add.to_string()
}

/// Status, type and body of the answer.
async fn post(witness: &Witness, body: impl Into<Body>) -> (u16, String, String) {
    let request = Request::post("/add-checkpoint").body(body.into()).unwrap();
    let router = witness_router(witness.clone());
    let answer = router.oneshot(request).await.unwrap();
    let kind = answer.headers().get(header::CONTENT_TYPE).unwrap();
    let (status, kind) = (answer.status().as_u16(), kind.to_str().unwrap().to_owned());
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, kind, String::from_utf8(bytes.to_vec()).unwrap())
}

/// The answer holds this witness's cosignature of what the body asks for.
fn assert_cosigned(answer: &(u16, String, String), asked: &str) {
    let (status, _, lines) = answer;
    assert_eq!(*status, 200, "{lines}");
    let note = AddCheckpoint::parse(asked.as_bytes()).unwrap().checkpoint;
    let signatures = NoteSignature::parse_lines(lines.as_bytes()).unwrap();
    let note = note.with(signatures).unwrap();
    let key = [cosigner().verifier_key()];
    let verified = note.verify(&key).unwrap();
    assert!(verified[0].cosigned_at_seconds.unwrap() > 1_700_000_000);
}

#[tokio::test]
async fn u4_a_witness_answers_each_case_as_tlog_witness_says() {
    let folder = tempfile::tempdir().unwrap();
    let witness = open(&folder).unwrap();
    let signer = log(ORIGIN, 1);
    let status = async |body: String| {
        let (status, kind, told) = post(&witness, body).await;
        (status, kind == "text/x.tlog.size", told)
    };
    let first = body(&signer, 0, 5, "a");
    assert_cosigned(&post(&witness, first.clone()).await, &first);
    // 409, with the size: another beginning, the same tree from elsewhere, another tree of that size.
    for other in [
        body(&signer, 0, 5, "a"),
        body(&signer, 4, 9, "a"),
        body(&signer, 5, 5, "b"),
    ] {
        assert_eq!(status(other).await, (409, true, "5\n".to_owned()));
    }
    // The same again, and what extends it.
    for again in [body(&signer, 5, 5, "a"), body(&signer, 5, 300, "a")] {
        assert_cosigned(&post(&witness, again.clone()).await, &again);
    }
    // 422: another history.
    assert_eq!(status(body(&signer, 300, 301, "b")).await.0, 422);
    // 400: no body of a log, or one that begins behind its end.
    for wrong in [
        String::new(),
        "old 300\n".to_owned(),
        body(&signer, 300, 301, "a").replacen("old 300", "old 0300", 1),
        body(&signer, 300, 299, "a"),
    ] {
        assert_eq!(status(wrong.clone()).await.0, 400, "{wrong}");
    }
    // 403: signed by somebody else, or changed afterwards.
    assert_eq!(status(body(&log(ORIGIN, 2), 300, 301, "a")).await.0, 403);
    let changed = body(&signer, 300, 301, "a").replacen("\n301\n", "\n302\n", 1);
    assert_eq!(status(changed).await.0, 403);
    // 404: a log that is not known here.
    assert_eq!(
        status(body(&log("log.example/3", 1), 0, 5, "a")).await.0,
        404
    );
    // Each log stands for itself.
    let other = body(&log(OTHER, 2), 0, 7, "b");
    assert_cosigned(&post(&witness, other.clone()).await, &other);
    // More than is read.
    let long = "x".repeat(ADD_CHECKPOINT_BYTES_MAX + 1);
    assert_eq!(status(long).await.0, 413);
    let next = body(&signer, 300, 301, "a");
    assert_cosigned(&post(&witness, next.clone()).await, &next);
}

#[tokio::test]
async fn u4_a_witness_that_starts_again_has_forgotten_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let witness = open(&folder).unwrap();
    let (signer, other) = (log(ORIGIN, 1), log(OTHER, 2));
    assert_eq!(post(&witness, body(&signer, 0, 5, "a")).await.0, 200);
    assert_eq!(post(&witness, body(&other, 0, 9, "a")).await.0, 200);
    assert!(matches!(open(&folder), Err(Unopened::Taken { .. })));
    drop(witness);
    let witness = open(&folder).unwrap();
    assert_eq!(post(&witness, body(&signer, 5, 6, "b")).await.0, 422);
    assert_eq!(post(&witness, body(&signer, 5, 6, "a")).await.0, 200);
    assert_eq!(post(&witness, body(&other, 0, 9, "a")).await.2, "9\n");
    drop(witness);
    // What is damaged is no beginning.
    let kept = std::fs::read_dir(folder.path()).unwrap();
    let kept = kept.map(|entry| entry.unwrap().path());
    let files: Vec<_> = kept
        .filter(|path| path.extension().is_some_and(|end| end == "checkpoint"))
        .collect();
    assert_eq!(files.len(), 2);
    for file in files {
        let whole = std::fs::read_to_string(&file).unwrap();
        for text in ["", &whole[..whole.len() - 1], &whole.replacen('6', "5", 1)] {
            if text == whole {
                continue;
            }
            std::fs::write(&file, text).unwrap();
            let told = open(&folder).unwrap_err().to_string();
            assert!(told.contains("newest checkpoint"), "{told}");
        }
        std::fs::write(&file, whole).unwrap();
    }
    open(&folder).unwrap();
    // Nor may a witness be its own log, or a log have a witness's key.
    let clock = ledger::Clock::system;
    let own = log(ORIGIN, 9).verifier_key();
    let refused = Witness::open(cosigner(), vec![own], folder.path(), clock());
    assert!(matches!(refused, Err(Unopened::OwnKey { .. })));
    let witnesses = vec![cosigner().verifier_key()];
    let refused = Witness::open(cosigner(), witnesses, folder.path(), clock());
    assert!(matches!(refused, Err(Unopened::NoLogKey { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn u4_of_histories_that_come_at_once_one_is_cosigned() {
    let folder = tempfile::tempdir().unwrap();
    let witness = open(&folder).unwrap();
    let signer = log(ORIGIN, 1);
    assert_eq!(post(&witness, body(&signer, 0, 3, "a")).await.0, 200);
    let histories = ["a", "b", "c", "d"];
    let bodies = histories.map(|history| [4, 5, 9, 9].map(|size| body(&signer, 3, size, history)));
    let posts = bodies
        .iter()
        .flatten()
        .map(|body| post(&witness, body.clone()));
    let answers = futures_util::future::join_all(posts).await;
    let cosigned = answers.iter().filter(|(status, ..)| *status == 200).count();
    // Another one of the same tree begins elsewhere.
    assert_eq!(cosigned, 1, "{answers:?}");
}

#[tokio::test]
async fn u4_what_cannot_be_kept_is_not_cosigned() {
    let folder = tempfile::tempdir().unwrap();
    let witness = open(&folder).unwrap();
    let signer = log(ORIGIN, 1);
    assert_eq!(post(&witness, body(&signer, 0, 5, "a")).await.0, 200);
    // A folder in the place of the new file.
    let kept = witness.0.logs[ORIGIN]
        .kept
        .path()
        .with_extension("checkpoint.new");
    std::fs::create_dir(&kept).unwrap();
    assert_eq!(post(&witness, body(&signer, 5, 6, "a")).await.0, 500);
    std::fs::remove_dir(&kept).unwrap();
    // It still stands where it stood.
    assert_eq!(post(&witness, body(&signer, 6, 7, "a")).await.2, "5\n");
    assert_eq!(post(&witness, body(&signer, 5, 6, "a")).await.0, 200);
}
