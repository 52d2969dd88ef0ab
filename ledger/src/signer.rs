//! The keys that sign for the service (SPEC P1, P5): roots, which certify worker keys, and the
//! worker key of this process, which signs commands and desired states.
//!
//! To hold a root elsewhere, as in a KMS or an HSM: an implementation of [`RootKey`].

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ed25519_dalek::SigningKey;
use ledger_protocol::command::Command;
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use ledger_protocol::trust::{Signed, WorkerCertificate, intent};
use ledger_protocol::{canonical, session};
use rand::TryRng as _;
use rand::rngs::SysRng;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::limits::{
    ROOT_WITHIN, WORKER_BACKDATED_SECONDS, WORKER_LOOK_EVERY, WORKER_RETRY_MAX, WORKER_RETRY_MIN,
    WORKER_SECONDS,
};
use crate::{Clock, Error};

mod publish;
mod root;
pub(crate) mod watch;

pub use publish::{PublishError, newest_trust_bundle};
pub use root::{HeldRoot, RootFailure, RootKey, Signing};

/// What signs for this process.
#[derive(Debug)]
pub struct Signer {
    /// The first certifies this process's worker keys; all sign bundles.
    roots: Vec<Arc<dyn RootKey>>,
    clock: Clock,
    worker: RwLock<Option<Arc<Worker>>>,
}

/// A worker key with its certificate. Its private half leaves this process never, and is wiped
/// with it.
struct Worker {
    key: SigningKey,
    certificate: WorkerCertificate,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Worker").field(&self.certificate).finish()
    }
}

/// Why there is no new worker key.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    /// The system gave no random bytes.
    #[error("the system gave no random bytes for a key")]
    Random(#[source] rand::rngs::SysError),
    /// The root did not sign.
    #[error("root {root} did not sign")]
    Root {
        /// The root.
        root: PublicKey,
        /// Why.
        #[source]
        source: RootFailure,
    },
    /// The root did not answer in time.
    #[error("root {root} did not sign within {} s", ROOT_WITHIN.as_secs())]
    Late {
        /// The root.
        root: PublicKey,
    },
    /// What came back is not the root's signature.
    #[error("root {root} gave a signature that is not its own")]
    Wrong {
        /// The root.
        root: PublicKey,
    },
    /// What is to be signed cannot be encoded.
    #[error("what a root is to sign cannot be encoded")]
    Encode(#[source] canonical::Error),
}

impl Signer {
    /// A signer without a worker key yet. `first` certifies; the others are believed as well and
    /// sign bundles, while roots are exchanged.
    pub fn new(first: Arc<dyn RootKey>, others: Vec<Arc<dyn RootKey>>, clock: Clock) -> Self {
        let mut roots = vec![first];
        roots.extend(others);
        Self {
            roots,
            clock,
            worker: RwLock::default(),
        }
    }

    fn worker(&self) -> Option<Arc<Worker>> {
        let worker = self.worker.read();
        worker.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When the worker key is to be replaced: at half its life, which leaves it long enough for the
    /// latest `notAfter` that a command may have. Now, when there is none.
    fn due(&self) -> Option<Timestamp> {
        let worker = self.worker()?;
        let (from, to) = (
            worker.certificate.not_before.as_micros(),
            worker.certificate.not_after.as_micros(),
        );
        Some(Timestamp::from_micros(from + (to - from) / 2))
    }

    /// Replaces the worker key if half of its life is over. Answers whether it did.
    pub async fn renew(&self) -> Result<bool, SignerError> {
        let now = self.clock.now();
        if self.due().is_some_and(|due| now < due) {
            return Ok(false);
        }
        let Some(root) = self.roots.first() else {
            return Ok(false);
        };
        let mut seed = Zeroizing::new([0; 32]);
        SysRng
            .try_fill_bytes(seed.as_mut())
            .map_err(SignerError::Random)?;
        let key = SigningKey::from_bytes(&seed);
        let backdated = i64::from(WORKER_BACKDATED_SECONDS) * MICROS_PER_SECOND;
        let lives = (
            now.plus_micros(-backdated),
            now.plus_seconds(WORKER_SECONDS),
        );
        let (public, by) = (PublicKey::of(&key), root.public_key());
        let statement =
            WorkerCertificate::statement(public, lives, by).map_err(SignerError::Encode)?;
        let signature = ask(root.as_ref(), Purpose::WorkerKey, &statement).await?;
        let certificate = WorkerCertificate {
            key: public,
            not_after: lives.1,
            not_before: lives.0,
            root: by,
            signature,
        };
        tracing::info!(worker = %public, root = %by, until = %lives.1, "a worker key is certified");
        let mut worker = self.worker.write().unwrap_or_else(PoisonError::into_inner);
        *worker = Some(Arc::new(Worker { key, certificate }));
        Ok(true)
    }

    /// Keeps a worker key at hand until `shutdown`. A root that does not answer is asked again,
    /// after waits that double up to a bound.
    pub async fn run(&self, shutdown: CancellationToken) {
        let mut retry = WORKER_RETRY_MIN;
        loop {
            let renewed = tokio::select! {
                renewed = self.renew() => renewed,
                () = shutdown.cancelled() => return,
            };
            let wait = match renewed {
                Ok(_) => {
                    retry = WORKER_RETRY_MIN;
                    self.until_due().min(WORKER_LOOK_EVERY)
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "no new worker key was certified; it is tried again");
                    let wait = retry;
                    retry = (retry * 2).min(WORKER_RETRY_MAX);
                    wait
                }
            };
            // The wait is by another clock than the life of a key, and is short for that reason.
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn until_due(&self) -> Duration {
        let left = self.due().map_or(0, |due| {
            due.as_micros().saturating_sub(self.clock.now().as_micros())
        });
        Duration::from_micros(u64::try_from(left).unwrap_or(0))
    }

    /// Whether one of the roots vouches for this command.
    pub(crate) fn has_signed(&self, command: &Command) -> bool {
        let queued = &command.queued;
        let intent = intent::of_command(&session::command(command.id, queued));
        let (Some(signed), Ok(intent)) = (&queued.signed, intent) else {
            return false;
        };
        let roots: Vec<_> = self.roots.iter().map(|root| root.public_key()).collect();
        // The worker key had to live from when the command was queued to its end, which is long ago
        // for a command that takes its time.
        let times = (command.queued_at, queued.not_after);
        let holds = signed.verify(&roots, times, Purpose::Command, &intent);
        holds.is_ok()
    }

    /// Signs a payload that may be acted on until `until`, which the key must outlive; without one,
    /// the payload is for as long as it is the newest.
    pub(crate) fn sign(
        &self,
        purpose: Purpose,
        payload: &[u8],
        now: Timestamp,
        until: Option<Timestamp>,
    ) -> Result<Signed, Error> {
        let worker = self.worker().filter(|worker| {
            let WorkerCertificate {
                not_after,
                not_before,
                ..
            } = worker.certificate;
            not_before <= now && until.unwrap_or(now) <= not_after
        });
        let worker = worker.ok_or(Error::NoWorker { not_after: until })?;
        Ok(Signed::new(
            &worker.key,
            &worker.certificate,
            purpose,
            payload,
        ))
    }
}

/// A root's signature, which is checked: whoever holds the root may hold the wrong one.
async fn ask(root: &dyn RootKey, purpose: Purpose, payload: &[u8]) -> Result<Vec<u8>, SignerError> {
    let by = root.public_key();
    let signature = tokio::time::timeout(ROOT_WITHIN, root.sign(purpose, payload)).await;
    let signature = signature.map_err(|_| SignerError::Late { root: by })?;
    let signature = signature.map_err(|source| SignerError::Root { root: by, source })?;
    if !by.verifies(purpose, payload, &signature) {
        return Err(SignerError::Wrong { root: by });
    }
    Ok(signature)
}
