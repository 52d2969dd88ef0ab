//! The witnesses that a log asks to cosign (SPEC U4; C2SP tlog-witness).
//!
//! All are asked at once, after a checkpoint is signed and remembered and before it is published, and
//! what comes within [`limits::COSIGNED_WITHIN`] is published with it. Nothing that a witness does
//! stops the log: an answer is bounded, a cosignature verified, and who fails is left alone for a
//! while that grows.

mod problem;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::net::IpAddr;

use futures_util::future::join_all;
use ledger_projections::log_tree;
use ledger_protocol::tlog::{
    AddCheckpoint, Algorithm, ConsistencyProof, Note, NoteSignature, Tiles, Unverified, VerifierKey,
};
use reqwest::{Client, StatusCode, Url, redirect};
use sqlx::PgPool;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use self::problem::{Problem, Told};
use super::memory::Signed;
use crate::limits;

/// Why a witness cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum InvalidWitness {
    /// A key that does not cosign.
    #[error("the key of `{name}` makes no cosignatures; its type must be 0x04")]
    Key {
        /// The witness's name.
        name: String,
    },
    /// Not where a witness can be.
    #[error(
        "the witness `{name}` needs the URL under which it takes add-checkpoint, http or https, without \
         a user, a query and a fragment"
    )]
    Url {
        /// The witness's name.
        name: String,
    },
    /// The machine cannot make requests.
    #[error("the witness `{name}` cannot be asked")]
    Client {
        /// The witness's name.
        name: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// One key twice: whoever counts cosignatures would count one witness twice.
    #[error("the witness `{name}` is named twice, or has the log's own key")]
    Repeated {
        /// The witness's name.
        name: String,
    },
    /// Too many.
    #[error("{given} witnesses are named; at most {max} are asked", max = limits::WITNESSES_MAX)]
    TooMany {
        /// How many there are.
        given: usize,
    },
}

/// A witness, and how it is asked.
#[derive(Debug, Clone)]
pub struct WitnessAt {
    key: VerifierKey,
    endpoint: Url,
    http: Client,
}

impl WitnessAt {
    /// The witness with this key, which takes `add-checkpoint` under this URL.
    pub fn new(key: VerifierKey, url: &str) -> Result<Self, InvalidWitness> {
        let name = key.name().to_string();
        if key.algorithm() != Algorithm::CosignatureV1 {
            return Err(InvalidWitness::Key { name });
        }
        let Some(endpoint) = endpoint(url) else {
            return Err(InvalidWitness::Url { name });
        };
        let mut http = Client::builder()
            .timeout(limits::COSIGNED_WITHIN)
            // A witness is where it was said to be.
            .redirect(redirect::Policy::none());
        if endpoint.scheme() == "http" {
            // Looking for the machine's authorities fails where it has none, and none is needed.
            http = http.tls_certs_only([]);
        }
        if is_loopback(&endpoint) {
            // A proxy for the outside world cannot reach this machine's own loopback.
            http = http.no_proxy();
        }
        let client = |source| InvalidWitness::Client { name, source };
        Ok(Self {
            key,
            endpoint,
            http: http.build().map_err(client)?,
        })
    }

    /// Requires that each of these is another, and none the log itself.
    pub fn check(witnesses: &[Self], log: &VerifierKey) -> Result<(), InvalidWitness> {
        let given = witnesses.len();
        if given > limits::WITNESSES_MAX {
            return Err(InvalidWitness::TooMany { given });
        }
        let mut seen = vec![log.public_key()];
        for witness in witnesses {
            if seen.contains(&witness.key.public_key()) {
                let name = witness.key.name().to_string();
                return Err(InvalidWitness::Repeated { name });
            }
            seen.push(witness.key.public_key());
        }
        Ok(())
    }
}

fn endpoint(url: &str) -> Option<Url> {
    let prefix: Url = url.parse().ok()?;
    let is_plain = matches!(prefix.scheme(), "http" | "https")
        && prefix.host_str().is_some()
        && prefix.username().is_empty()
        && prefix.password().is_none()
        && prefix.query().is_none()
        && prefix.fragment().is_none();
    let prefix = is_plain.then(|| prefix.as_str().trim_end_matches('/').to_owned())?;
    format!("{prefix}/add-checkpoint").parse().ok()
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let address = address.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A witness with what is known of it.
#[derive(Debug)]
struct Asked {
    at: WitnessAt,
    /// The size that it cosigned last, as far as is known.
    size: u64,
    failures: u32,
    not_before: Option<Instant>,
    told: Told,
}

/// All witnesses of a log.
#[derive(Debug)]
pub(super) struct Witnesses(Vec<Asked>);

/// What the witnesses answered, to be told once the checkpoint is published: a process that does not
/// lead any more may hear of a tree that is larger than its own, and nothing is wrong.
pub(super) struct Answers(Vec<(usize, Result<(), Problem>)>);

impl Witnesses {
    pub(super) fn new(witnesses: Vec<WitnessAt>) -> Self {
        let asked = |at| Asked {
            at,
            size: 0,
            failures: 0,
            not_before: None,
            told: Told::default(),
        };
        Self(witnesses.into_iter().map(asked).collect())
    }

    /// The checkpoint with the cosignatures that come in time.
    pub(super) async fn cosign(&mut self, pool: &PgPool, signed: &Signed) -> (String, Answers) {
        let Ok(note) = Note::parse(signed.note.as_bytes()) else {
            return (signed.note.clone(), Answers(Vec::new()));
        };
        let proofs = Proofs::new(pool, signed.head.size);
        let now = Instant::now();
        let due = self.0.iter_mut().enumerate().filter(|(_, asked)| {
            let is_there = |signature: &NoteSignature| {
                let key = &asked.at.key;
                (signature.name(), signature.key_id()) == (key.name(), key.id())
            };
            // What was remembered may be a checkpoint as it was served.
            asked.not_before.is_none_or(|at| at <= now) && !note.signatures().iter().any(is_there)
        });
        let asking = due.map(async |(number, asked)| (number, asked.cosign(&note, &proofs).await));
        let mut signatures = Vec::new();
        let mut answers = Vec::new();
        for (number, answer) in join_all(asking).await {
            answers.push((number, answer.map(|signature| signatures.push(signature))));
        }
        let cosigned = note.with(signatures);
        let text = cosigned.map_or_else(|_| signed.note.clone(), |note| note.to_string());
        (text, Answers(answers))
    }

    /// Tells of those that did not cosign, of each once a minute.
    pub(super) fn tell(&mut self, answers: &Answers) {
        for (number, answer) in &answers.0 {
            if let Some(asked) = self.0.get_mut(*number) {
                let name = asked.at.key.name().as_str();
                asked.told.tell(name, answer.as_ref().err());
            }
        }
    }
}

impl Asked {
    async fn cosign(&mut self, note: &Note, proofs: &Proofs<'_>) -> Result<NoteSignature, Problem> {
        let asked = timeout(limits::COSIGNED_WITHIN, self.ask(note, proofs)).await;
        let answer = asked.unwrap_or(Err(Problem::Late));
        if answer.is_ok() {
            (self.failures, self.not_before) = (0, None);
        } else {
            let factor = 2_u32.saturating_pow(self.failures);
            let pause = limits::WITNESS_PAUSE_MIN.saturating_mul(factor);
            self.failures = self.failures.saturating_add(1);
            self.not_before = Some(Instant::now() + pause.min(limits::WITNESS_PAUSE_MAX));
        }
        answer
    }

    /// Asks, and once more from where the witness says that it stands.
    async fn ask(&mut self, note: &Note, proofs: &Proofs<'_>) -> Result<NoteSignature, Problem> {
        // Another process that led meanwhile may have got further.
        let mut old = if self.size > proofs.size {
            0
        } else {
            self.size
        };
        let mut is_first = true;
        loop {
            let consistency = proofs.from(old).await.map_err(Problem::Proof)?;
            let add = AddCheckpoint {
                old_size: old,
                consistency,
                checkpoint: note.clone(),
            };
            let (status, body) = self.post(add.to_string()).await?;
            let told = || printable(&body);
            match status {
                StatusCode::OK => {
                    let signature = cosignature(&self.at.key, note, &body)?;
                    self.size = proofs.size;
                    return Ok(signature);
                }
                StatusCode::CONFLICT => {
                    let theirs = size(&body).ok_or_else(|| Problem::Status(status, told()))?;
                    let ours = proofs.size;
                    if theirs > ours {
                        return Err(Problem::Ahead { theirs, ours });
                    }
                    if theirs == old {
                        return Err(if old == ours {
                            Problem::Other(ours)
                        } else {
                            Problem::Status(status, told())
                        });
                    }
                    if !is_first {
                        return Err(Problem::Status(status, told()));
                    }
                    (old, self.size, is_first) = (theirs, theirs, false);
                }
                StatusCode::UNPROCESSABLE_ENTITY => {
                    return Err(Problem::Inconsistent(old, told()));
                }
                _ => return Err(Problem::Status(status, told())),
            }
        }
    }

    async fn post(&self, body: String) -> Result<(StatusCode, Vec<u8>), Problem> {
        let failed = |error: reqwest::Error| {
            if error.is_timeout() {
                return Problem::Late;
            }
            // The outermost cause says that it was a request, the innermost what is wrong.
            let mut cause = error.source();
            while let Some(deeper) = cause.and_then(std::error::Error::source) {
                cause = Some(deeper);
            }
            let told = cause.map_or_else(|| error.to_string(), ToString::to_string);
            Problem::Unreachable(printable(told.as_bytes()))
        };
        let request = self.at.http.post(self.at.endpoint.clone()).body(body);
        let mut answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > limits::WITNESS_ANSWER_BYTES_MAX {
                return Err(Problem::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body))
    }
}

/// The witness's cosignature in its answer. Those of other keys are ignored.
fn cosignature(key: &VerifierKey, note: &Note, body: &[u8]) -> Result<NoteSignature, Problem> {
    let lines = NoteSignature::parse_lines(body).map_err(|_| Problem::Unreadable)?;
    let is_its = |line: &NoteSignature| (line.name(), line.key_id()) == (key.name(), key.id());
    let signature = lines.into_iter().find(is_its).ok_or(Problem::Missing)?;
    let alone = Note::new(note.text().to_owned(), vec![signature.clone()]);
    let alone = alone.map_err(|_| Problem::Unreadable)?;
    match alone.verify(std::slice::from_ref(key)) {
        Ok(verified) => {
            let times = verified.iter().filter_map(|one| one.cosigned_at_seconds);
            if times.max().is_some_and(|seconds| seconds > 0) {
                Ok(signature)
            } else {
                Err(Problem::Timeless)
            }
        }
        Err(Unverified::Unknown | Unverified::Forged { .. }) => Err(Problem::Forged),
    }
}

/// The body of a 409.
fn size(body: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(body).ok()?.strip_suffix('\n')?;
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_decimal)
}

/// The beginning of what somebody else wrote, for the log.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.trim().chars().take(limits::WITNESS_TOLD_CHARS_MAX);
    shown
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// The proofs that lead to one tree, each made once.
struct Proofs<'a> {
    pool: &'a PgPool,
    size: u64,
    /// Held while one is made, so that all witnesses together take one connection.
    made: Mutex<BTreeMap<u64, ConsistencyProof>>,
}

impl<'a> Proofs<'a> {
    fn new(pool: &'a PgPool, size: u64) -> Self {
        let made = Mutex::default();
        Self { pool, size, made }
    }

    /// The proof from a size that is no larger.
    async fn from(&self, old: u64) -> Result<ConsistencyProof, String> {
        let mut made = self.made.lock().await;
        if let Some(proof) = made.get(&old) {
            return Ok(proof.clone());
        }
        let wanted = ConsistencyProof::tiles(old, self.size).map_err(|error| error.to_string())?;
        let mut tiles = Vec::new();
        if !wanted.is_empty() {
            let conn = self.pool.acquire().await;
            let mut conn = conn.map_err(|error| error.to_string())?;
            let read = log_tree::tiles(&mut conn, &wanted).await;
            tiles = read.map_err(|error| error.to_string())?;
        }
        let tiles: Tiles = tiles.into_iter().collect();
        let proof = ConsistencyProof::read(old, self.size, &tiles);
        let proof = proof.map_err(|error| error.to_string())?;
        made.insert(old, proof.clone());
        Ok(proof)
    }
}
