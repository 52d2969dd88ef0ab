//! A witness (SPEC U4): C2SP tlog-witness, for whoever runs one apart from the log.
//!
//! For each log that it knows it cosigns one history: what it cosigns must extend what it cosigned
//! last. That is kept in a folder (`kept.rs`), flushed before a cosignature leaves, so a witness that
//! dies at any instruction has forgotten nothing that anybody has seen. To check and to keep is one
//! step, under the lock of that log.

mod kept;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use ledger::Clock;
use ledger_protocol::time::MICROS_PER_SECOND;
use ledger_protocol::tlog::{
    AddCheckpoint, Algorithm, Checkpoint, Cosigner, Note, NoteSignature, TreeHead, Uncosigned,
    VerifierKey,
};
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub use self::kept::Unopened;
use self::kept::{Folder, Kept};
use crate::limits::{
    ADD_CHECKPOINT_BYTES_MAX, ADD_CHECKPOINT_READ_WITHIN, COSIGNING_WAIT_MAX, COSIGNINGS_AT_ONCE,
    TOLD_EVERY,
};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// That a body is the size that the witness cosigned last.
const SIZE: HeaderValue = HeaderValue::from_static("text/x.tlog.size");

/// What cosigns, with what it must never forget. Copies are the same witness.
#[derive(Clone)]
pub struct Witness(Arc<Inner>);

struct Inner {
    cosigner: Cosigner,
    clock: Clock,
    folder: Folder,
    /// By origin.
    logs: BTreeMap<String, Log>,
    turns: Arc<Semaphore>,
}

/// A log that is known.
struct Log {
    keys: Vec<VerifierKey>,
    kept: Kept,
    state: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// What was cosigned last.
    last: Option<TreeHead>,
    /// When it was last told that something does not extend it.
    told: Option<Instant>,
}

/// What is answered.
enum Answer {
    Cosigned(NoteSignature),
    /// Another size was cosigned last, or another tree.
    Conflict(u64),
    Refused(StatusCode, String),
}

impl Witness {
    /// A witness of the logs with these keys, whose names are the logs' origins; a log may have more
    /// than one. Nobody else may use the folder meanwhile, which is made unless it is there.
    pub fn open(
        cosigner: Cosigner,
        logs: Vec<VerifierKey>,
        folder: &Path,
        clock: Clock,
    ) -> Result<Self, Unopened> {
        let own = cosigner.verifier_key();
        let folder = Folder::claim(folder)?;
        let mut keys: BTreeMap<String, Vec<VerifierKey>> = BTreeMap::new();
        for key in logs {
            let origin = key.name().as_str().to_owned();
            if key.algorithm() != Algorithm::Ed25519 {
                return Err(Unopened::NoLogKey { origin });
            }
            if key.public_key() == own.public_key() {
                return Err(Unopened::OwnKey { origin });
            }
            keys.entry(origin).or_default().push(key);
        }
        let mut known = BTreeMap::new();
        for (origin, keys) in keys {
            let kept = folder.of(&origin);
            let last = kept.read(&origin, &keys)?;
            let size = last.map_or(0, |last| last.size);
            tracing::info!(origin, size, "cosigns what extends this log");
            let state = Mutex::new(Seen { last, told: None });
            known.insert(origin, Log { keys, kept, state });
        }
        Ok(Self(Arc::new(Inner {
            cosigner,
            clock,
            folder,
            logs: known,
            turns: Arc::new(Semaphore::new(COSIGNINGS_AT_ONCE)),
        })))
    }

    /// What others verify its cosignatures with.
    pub fn verifier_key(&self) -> VerifierKey {
        self.0.cosigner.verifier_key()
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witness({})", self.verifier_key())
    }
}

/// `POST /add-checkpoint`. Without authentication beside the log's own signature.
pub fn witness_router(witness: Witness) -> Router {
    Router::new()
        .route("/add-checkpoint", post(add_checkpoint))
        .with_state(witness)
}

async fn add_checkpoint(State(Witness(witness)): State<Witness>, body: Body) -> Response {
    let read = to_bytes(body, ADD_CHECKPOINT_BYTES_MAX);
    let bytes = match timeout(ADD_CHECKPOINT_READ_WITHIN, read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let told = format!("at most {ADD_CHECKPOINT_BYTES_MAX} bytes are read, to their end");
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &told);
        }
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
    };
    let turn = Arc::clone(&witness.turns).acquire_owned();
    let Ok(Ok(turn)) = timeout(COSIGNING_WAIT_MAX, turn).await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too much to do; try again");
    };
    // It goes on to its end also when the client has gone.
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        witness.decide(&bytes)
    });
    match done.await {
        Ok(Answer::Cosigned(signature)) => {
            ([(header::CONTENT_TYPE, TEXT)], format!("{signature}\n")).into_response()
        }
        Ok(Answer::Conflict(size)) => {
            let headers = [(header::CONTENT_TYPE, SIZE)];
            (StatusCode::CONFLICT, headers, format!("{size}\n")).into_response()
        }
        Ok(Answer::Refused(status, told)) => refuse(status, &told),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the witness failed"),
    }
}

fn refuse(status: StatusCode, told: &str) -> Response {
    (status, [(header::CONTENT_TYPE, TEXT)], format!("{told}\n")).into_response()
}

impl Inner {
    /// Verifies, keeps and cosigns, in the order that tlog-witness gives.
    fn decide(&self, bytes: &[u8]) -> Answer {
        let refused = |status, told: &dyn fmt::Display| Answer::Refused(status, told.to_string());
        let add = match AddCheckpoint::parse(bytes) {
            Ok(add) => add,
            Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
        };
        let checkpoint = match Checkpoint::parse(add.checkpoint.text()) {
            Ok(checkpoint) => checkpoint,
            Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
        };
        let Some(log) = self.logs.get(checkpoint.origin()) else {
            return refused(StatusCode::NOT_FOUND, &"this log is not known here");
        };
        if let Err(error) = add.checkpoint.verify(&log.keys) {
            return refused(StatusCode::FORBIDDEN, &format!("the checkpoint {error}"));
        }
        // A writer that panicked has changed nothing here.
        let mut state = log.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(problem) = add.check(&checkpoint, state.last.as_ref()) {
            return match problem {
                Uncosigned::Backwards { .. } => refused(StatusCode::BAD_REQUEST, &problem),
                Uncosigned::Conflict { size } => {
                    if size == checkpoint.head().size && add.old_size == size {
                        state.tell(&add.checkpoint, &problem);
                    }
                    Answer::Conflict(size)
                }
                Uncosigned::Unproved(_) => {
                    state.tell(&add.checkpoint, &problem);
                    refused(StatusCode::UNPROCESSABLE_ENTITY, &problem)
                }
            };
        }
        if state.last.as_ref() != Some(checkpoint.head()) {
            let kept = log.of_the_log(&add.checkpoint);
            if let Err(error) = self.folder.keep(&log.kept, &kept) {
                tracing::error!(%error, "what is to be cosigned cannot be kept");
                let told = "what is to be cosigned cannot be kept";
                return refused(StatusCode::INTERNAL_SERVER_ERROR, &told);
            }
            state.last = Some(*checkpoint.head());
        }
        let seconds = self.clock.now().as_micros() / MICROS_PER_SECOND;
        let cosigned = self
            .cosigner
            .cosign(&checkpoint, u64::try_from(seconds).unwrap_or(0));
        match cosigned {
            Ok(signature) => Answer::Cosigned(signature),
            Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error),
        }
    }
}

impl Log {
    /// The note with the signatures of the log alone: what others added may be of any size.
    fn of_the_log(&self, note: &Note) -> String {
        let own = |signature: &&NoteSignature| {
            let same = |key: &VerifierKey| {
                key.name() == signature.name() && key.id() == signature.key_id()
            };
            self.keys.iter().any(same)
        };
        let own = note.signatures().iter().filter(own).cloned().collect();
        Note::new(note.text().to_owned(), own)
            .map_or_else(|_| note.to_string(), |own| own.to_string())
    }
}

impl Seen {
    /// Says, once a minute, that a checkpoint which the log signed does not extend what was cosigned.
    fn tell(&mut self, note: &Note, problem: &Uncosigned) {
        if self.told.is_some_and(|at| at.elapsed() < TOLD_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let cosigned = self.last.map_or(0, |last| last.size);
        tracing::error!(
            cosigned,
            %problem,
            checkpoint = note.text(),
            "the log signed what is not shown to extend what was cosigned: it may have two histories"
        );
    }
}
