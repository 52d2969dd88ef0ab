//! The checkpointer: the one worker that grows the log's tree and signs it (SPEC U1, L11).
//!
//! It follows the log, hashes what is new (`tree.rs`), writes the tiles, and signs the tree twice a
//! second while it grows. What it signs must extend what it signed last, which it remembers beside
//! its key and not in the database (`memory.rs`); else it refuses, and says so until somebody has
//! looked. The order of its writes lets it die anywhere: tiles, memory, publication. What is
//! remembered and was not published is published first of all. Between memory and publication,
//! witnesses are asked to cosign (`witnesses.rs`, SPEC U4).

mod error;
mod memory;
#[cfg(test)]
mod pace;
#[cfg(test)]
pub(crate) mod tests;
mod thinning;
mod tree;
mod witnesses;

use std::path::PathBuf;
use std::sync::Arc;

use ledger::{Committed, Fence, Ledger, lease};
use ledger_projections::log_tree;
use ledger_protocol::tlog::{Checkpoint, Note, TreeHead};
use sqlx::PgConnection;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::error::{Alarm, Error};
use self::memory::{Memory, Signed};
use self::thinning::Thinning;
use self::tree::Tree;
use self::witnesses::Witnesses;
pub use self::witnesses::{InvalidWitness, WitnessAt};
use crate::archive::Archive;
use crate::limits;
use crate::log_key::LogKey;

/// Name of the checkpointer's lease.
const LEASE: &str = "checkpointer";

/// What a checkpointer is given.
#[derive(Debug, Clone)]
pub struct Checkpointing {
    /// What signs.
    pub key: Arc<dyn LogKey>,
    /// The file with the last checkpoint that was signed. Its folder is there.
    pub memory: PathBuf,
    /// Who is asked to cosign.
    pub witnesses: Vec<WitnessAt>,
    /// Where the events are that have left the database, should their tiles be lost.
    pub archive: Option<Archive>,
}

/// Grows and signs the log's tree until `shutdown`. May run in any number of processes, each under
/// a `holder` of its own: a lease chooses one. They must share the file of the memory.
pub async fn checkpoint(
    ledger: Ledger,
    checkpointing: Checkpointing,
    holder: String,
    shutdown: CancellationToken,
) {
    let memory = Memory::new(checkpointing.memory, checkpointing.key.verifier_key());
    let mut worker = Checkpointer {
        wakes: ledger.subscribe(),
        ledger,
        key: checkpointing.key,
        memory,
        witnesses: Witnesses::new(checkpointing.witnesses),
        thinning: Thinning::default(),
        archive: checkpointing.archive,
        told: Told::default(),
    };
    loop {
        let fence = tokio::select! {
            () = shutdown.cancelled() => return,
            fence = lead(&worker.ledger, &holder) => fence,
        };
        tracing::info!(term = fence.term, "became the checkpointer");
        let ledger = worker.ledger.clone();
        let refused = tokio::select! {
            () = shutdown.cancelled() => None,
            () = keep(&ledger, &fence) => {
                tracing::warn!(term = fence.term, "lost the checkpointer's lease");
                continue;
            }
            ended = worker.work(&fence) => match ended {
                Error::Fenced => continue,
                error => Some(error),
            },
        };
        // Another process may have what this one lacks.
        let released = lease::release(worker.ledger.pool(), &fence);
        if !matches!(timeout(limits::LOG_STEP_WITHIN, released).await, Ok(Ok(()))) {
            tracing::warn!("the checkpointer's lease runs out by itself");
        }
        let Some(error) = refused else {
            return;
        };
        worker.told.tell(&error);
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = sleep(limits::CHECKPOINTER_REFUSED_PAUSE) => {}
        }
    }
}

/// Waits until this process is the one that signs.
async fn lead(ledger: &Ledger, holder: &str) -> Fence {
    loop {
        let lease = lease::acquire(ledger.pool(), LEASE, holder, limits::CHECKPOINTER_LEASE);
        match timeout(limits::LOG_STEP_WITHIN, lease).await {
            Ok(Ok(Some(fence))) => return fence,
            Ok(Err(error)) => tracing::debug!(%error, "cannot become the checkpointer"),
            Ok(Ok(None)) | Err(_) => {}
        }
        sleep(limits::CHECKPOINTER_RETRY).await;
    }
}

/// Renews the lease; returns when it is lost.
async fn keep(ledger: &Ledger, fence: &Fence) {
    loop {
        sleep(limits::CHECKPOINTER_LEASE / limits::CHECKPOINTER_RENEWALS).await;
        // The term is checked in every write, so trying on after an error does no harm.
        if let Ok(false) = lease::renew(ledger.pool(), fence, limits::CHECKPOINTER_LEASE).await {
            return;
        }
    }
}

struct Checkpointer {
    ledger: Ledger,
    wakes: broadcast::Receiver<Arc<Committed>>,
    key: Arc<dyn LogKey>,
    memory: Memory,
    witnesses: Witnesses,
    thinning: Thinning,
    archive: Option<Archive>,
    told: Told,
}

/// A turn as the leader.
struct Turn {
    tree: Tree,
    remembered: Option<Signed>,
    /// Whether what is remembered is still to be published.
    unpublished: bool,
    /// The size that another log of this database has published; a larger one must be signed.
    floor: u64,
    signed_at: Option<Instant>,
}

impl Checkpointer {
    /// Works until it must not, or cannot, go on.
    async fn work(&mut self, fence: &Fence) -> Error {
        let mut turn = match within(self.begin()).await {
            Ok(turn) => turn,
            Err(error) => return error,
        };
        loop {
            self.wakes = self.wakes.resubscribe();
            if let Err(error) = self.follow(&mut turn, fence).await {
                return error;
            }
            self.told.summary(turn.remembered.as_ref());
            self.thinning.go_on(self.ledger.pool()).await;
            let pause = sleep(limits::LOG_LOOK_EVERY);
            tokio::select! {
                () = pause => {}
                woken = self.wakes.recv() => if let Err(broadcast::error::RecvError::Closed) = woken {
                    // The ledger stops, and this worker with it.
                    sleep(limits::LOG_LOOK_EVERY).await;
                },
            }
            if let Some(at) = turn.signed_at {
                sleep_until(at + limits::CHECKPOINT_EVERY).await;
            }
        }
    }

    /// Finds out where the tree was left.
    async fn begin(&self) -> Result<Turn, Error> {
        let remembered = self.remembered().await?;
        let mut conn = self.ledger.pool().acquire().await?;
        let key = self.key.verifier_key();
        let published = log_tree::newest_of(&mut conn, key.name().as_str()).await?;
        let own = published.as_ref().map_or(0, |published| published.size);
        if let Some(published) = published {
            let size = published.size;
            let signed = Signed::read(&published.note, &key);
            let signed = signed.map_err(|problem| Alarm::Foreign { size, problem })?;
            self.check_remembers(&signed.head, remembered.as_ref())?;
        }
        let head = remembered.as_ref().map(|signed| signed.head);
        let tree = Tree::resume(&mut conn, head, self.archive.clone()).await?;
        let newest = log_tree::newest(&mut conn).await?;
        let floor = newest.map_or(0, |newest| newest.size);
        let signed = remembered.as_ref().map_or(0, |signed| signed.head.size);
        Ok(Turn {
            tree,
            remembered,
            unpublished: signed > own.max(floor),
            floor,
            signed_at: None,
        })
    }

    /// Requires that the memory is no older than what was published.
    fn check_remembers(
        &self,
        published: &TreeHead,
        remembered: Option<&Signed>,
    ) -> Result<(), Alarm> {
        let (path, size) = (self.memory.path().to_owned(), published.size);
        let Some(remembered) = remembered.map(|signed| signed.head) else {
            return Err(Alarm::Forgotten { path, size });
        };
        if remembered.size < size {
            return Err(Alarm::Behind {
                path,
                remembered: remembered.size,
                published: size,
            });
        }
        if remembered.size == size && remembered != *published {
            return Err(Alarm::Published { size });
        }
        Ok(())
    }

    async fn remembered(&self) -> Result<Option<Signed>, Error> {
        let memory = self.memory.clone();
        let read = tokio::task::spawn_blocking(move || memory.read()).await?;
        Ok(read.map_err(Alarm::from)?)
    }

    /// Takes in all that is new, signing on the way.
    async fn follow(&mut self, turn: &mut Turn, fence: &Fence) -> Result<(), Error> {
        loop {
            if let Some(signed) = turn.remembered.clone().filter(|_| turn.unpublished)
                && turn.tree.is_at(&signed.head)
            {
                within(self.write(&mut turn.tree, fence)).await?;
                within(self.publish(fence, &signed)).await?;
                turn.unpublished = false;
            }
            let more = within(async {
                let mut conn = self.ledger.pool().acquire().await?;
                turn.tree.grow(&mut conn).await
            });
            let more = more.await?;
            let due = turn
                .signed_at
                .is_none_or(|at| at.elapsed() >= limits::CHECKPOINT_EVERY);
            if !more || due || turn.tree.is_due() {
                within(self.write(&mut turn.tree, fence)).await?;
            }
            if (!more || due)
                && let Some(head) = turn.tree.unsigned().filter(|head| head.size > turn.floor)
            {
                // From its beginning, so that waiting for witnesses is part of the interval.
                turn.signed_at = Some(Instant::now());
                within(self.sign(turn, fence, head)).await?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    async fn write(&self, tree: &mut Tree, fence: &Fence) -> Result<(), Error> {
        if tree.is_written() {
            return Ok(());
        }
        let mut transaction = self.ledger.pool().begin().await?;
        check_fence(&mut transaction, fence).await?;
        tree.write(&mut transaction).await?;
        transaction.commit().await?;
        tree.committed();
        Ok(())
    }

    /// Signs a tree whose tiles are written; remembers it; publishes it.
    async fn sign(&mut self, turn: &mut Turn, fence: &Fence, head: TreeHead) -> Result<(), Error> {
        let mut conn = self.ledger.pool().acquire().await?;
        turn.tree.check_extends(&mut conn, &head).await?;
        drop(conn);
        let text = Checkpoint::new(self.key.verifier_key().name().as_str(), head)?.to_string();
        let signature = self.key.sign(&text).await.map_err(Error::Key)?;
        let note = Note::new(text, vec![signature])?.to_string();
        let (memory, before, after) = (self.memory.clone(), turn.remembered.clone(), note.clone());
        let kept = tokio::task::spawn_blocking(move || memory.replace(before.as_ref(), &after));
        kept.await?.map_err(Alarm::from)?;
        let signed = Signed { head, note };
        turn.tree.signed(head);
        turn.remembered = Some(signed.clone());
        self.publish(fence, &signed).await
    }

    /// Publishes what is remembered, with the cosignatures that come in time.
    async fn publish(&mut self, fence: &Fence, signed: &Signed) -> Result<(), Error> {
        let size = signed.head.size;
        let (note, answers) = self.witnesses.cosign(self.ledger.pool(), signed).await;
        let mut transaction = self.ledger.pool().begin().await?;
        check_fence(&mut transaction, fence).await?;
        if !log_tree::publish(&mut transaction, size, &note).await? {
            return Err(Alarm::Published { size }.into());
        }
        transaction.commit().await?;
        self.witnesses.tell(&answers);
        Ok(())
    }
}

async fn check_fence(conn: &mut PgConnection, fence: &Fence) -> Result<(), Error> {
    if lease::stands(conn, fence).await? {
        Ok(())
    } else {
        Err(Error::Fenced)
    }
}

async fn within<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let within = limits::LOG_STEP_WITHIN;
    match timeout(within, work).await {
        Ok(done) => done,
        Err(_) => Err(Error::TimedOut {
            seconds: within.as_secs(),
        }),
    }
}

/// What the log of this process was told, so that it is not told every second.
#[derive(Debug, Default)]
struct Told {
    alarm: Option<(String, Instant)>,
    summary: Option<Instant>,
    size: u64,
}

impl Told {
    fn tell(&mut self, error: &Error) {
        let text = chain(error);
        let known = self.alarm.as_ref().filter(|(known, _)| *known == text);
        if known.is_some_and(|(_, at)| at.elapsed() < limits::TOLD_EVERY) {
            return;
        }
        if error.is_alarm() {
            tracing::error!(
                problem = text,
                "the log is not signed, and will not be by itself"
            );
        } else {
            tracing::warn!(problem = text, "the log is not signed; it is tried again");
        }
        self.alarm = Some((text, Instant::now()));
    }

    fn summary(&mut self, signed: Option<&Signed>) {
        let size = signed.map_or(0, |signed| signed.head.size);
        let recent = self
            .summary
            .is_some_and(|at| at.elapsed() < limits::TOLD_EVERY);
        if size == self.size || recent {
            return;
        }
        let since = size.saturating_sub(self.size);
        tracing::info!(size, since, "the log was signed");
        (self.summary, self.size) = (Some(Instant::now()), size);
    }
}

/// An error and its causes in one line, for the log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
