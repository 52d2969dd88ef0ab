//! The keeper: answers nodes that need secrets. It stands where the master key and the signer are, and
//! no gateway does.

use std::sync::Arc;

use ledger_projections::secrets::exchanges::{self, Asked};
use ledger_projections::{commands, nodes};
use ledger_protocol::command::Command;
use ledger_protocol::dsse::Purpose;
use ledger_protocol::secret::{Exchange, OneTimeKey, Refused};
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use ledger_protocol::{canonical, frame};
use rand::SeedableRng as _;
use rand::rngs::{StdRng, SysRng};
use sqlx::PgConnection;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{Held, SecretStore, StoreFailure};
use crate::limits::{
    EXCHANGE_ANSWERED_SECONDS, EXCHANGE_KEPT_SECONDS, FORGET_EVERY, FORGET_PAGE_ROWS,
    FORGET_PAGES_MAX, KEEPER_LOOK_EVERY, KEEPER_PAGE_ROWS, SECRET_WITHIN,
};
use crate::{Error, Ledger};

/// Answers questions for secrets out of this store until `shutdown`. Any number of processes may do so
/// at once; each question is answered once.
pub async fn keep(ledger: Ledger, store: Arc<dyn SecretStore>, shutdown: CancellationToken) {
    let keeper = Keeper { ledger, store };
    let mut look = interval(KEEPER_LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut forget = interval(FORGET_EVERY);
    forget.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let done = tokio::select! {
            () = keeper.ledger.inner.wakes.asked.notified() => None,
            // For what other processes ask.
            _ = look.tick() => None,
            _ = forget.tick() => Some(keeper.forget().await),
            () = shutdown.cancelled() => return,
        };
        let done = match done {
            Some(forgotten) => forgotten,
            None => keeper.turn(&shutdown).await,
        };
        if let Err(error) = done {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "nodes got no secrets; it is tried again");
        }
    }
}

pub(super) struct Keeper {
    pub(super) ledger: Ledger,
    pub(super) store: Arc<dyn SecretStore>,
}

/// What became of a question.
enum Verdict {
    Answer(Box<frame::Secret>),
    Refused(Refused),
    /// Something does not answer; the question is looked at again.
    Later,
}

impl Keeper {
    /// Goes once through everything that waits.
    pub(super) async fn turn(&self, shutdown: &CancellationToken) -> Result<(), Error> {
        // Nobody waits for the answer to an older one.
        let mut after = (
            self.ago(EXCHANGE_ANSWERED_SECONDS),
            OneTimeKey::from_bytes([0; 32]),
        );
        while !shutdown.is_cancelled() {
            let mut transaction = self.ledger.pool().begin().await?;
            let page = exchanges::take(&mut transaction, after, KEEPER_PAGE_ROWS).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = (last.asked_at, last.key);
            for asked in &page {
                if !shutdown.is_cancelled() {
                    self.answer(&mut transaction, asked).await?;
                }
            }
            transaction.commit().await?;
            self.ledger.inner.wakes.answered.notify_waiters();
            if page.len() < KEEPER_PAGE_ROWS as usize {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Forgets old questions, whose keys are long gone.
    pub(super) async fn forget(&self) -> Result<(), Error> {
        let before = self.ago(EXCHANGE_KEPT_SECONDS);
        for _ in 0..FORGET_PAGES_MAX {
            let mut conn = self.ledger.pool().acquire().await?;
            let gone = exchanges::forget(&mut conn, before, FORGET_PAGE_ROWS).await?;
            if gone < u64::from(FORGET_PAGE_ROWS) {
                break;
            }
        }
        Ok(())
    }

    fn ago(&self, seconds: u32) -> Timestamp {
        let micros = i64::from(seconds) * MICROS_PER_SECOND;
        self.ledger.now().plus_micros(-micros)
    }

    async fn answer(&self, conn: &mut PgConnection, asked: &Asked) -> Result<(), Error> {
        let (command, node, secret) = (asked.command, asked.node, &asked.secret_ref);
        let verdict = match self.decide(conn, asked).await {
            // The transaction is gone with the link.
            Err(error @ Error::Unavailable(_)) => return Err(error),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(%command, %node, secret, error, "a node's question has no answer");
                Verdict::Later
            }
            Ok(verdict) => verdict,
        };
        let answer = match verdict {
            Verdict::Later => return Ok(()),
            Verdict::Answer(answer) => {
                tracing::info!(%command, %node, secret, "a node gets a secret");
                *answer
            }
            Verdict::Refused(why) => {
                let why = why.code();
                tracing::warn!(%command, %node, secret, why, "a node gets no secret");
                frame::Secret {
                    command_id: asked.command,
                    key: asked.key,
                    refused: Some(why.to_owned()),
                    sealed: None,
                    signed: None,
                }
            }
        };
        exchanges::answer(conn, asked, &answer, self.ledger.now()).await?;
        Ok(())
    }

    /// In the order in which what is checked is known to be true: nothing is said of a command to whom
    /// it is not for, nothing of a secret to whom no command names it.
    async fn decide(&self, conn: &mut PgConnection, asked: &Asked) -> Result<Verdict, Error> {
        let command = commands::get(conn, asked.command).await?;
        let command = command.filter(|it| it.node_id() == asked.node && self.is_meant(it));
        let Some(command) = command else {
            return Ok(Verdict::Refused(Refused::UnknownCommand));
        };
        let node = nodes::get(conn, asked.node).await?;
        let node = node.filter(|node| !node.is_revoked() && node.deleted_at.is_none());
        let certificate = node.as_ref().and_then(|node| node.certificate.as_ref());
        let exchange = Exchange {
            command_id: asked.command,
            key: asked.key,
            node_id: asked.node,
            secret_ref: &asked.secret_ref,
        };
        let signature = asked.node_sig.as_deref().unwrap_or_default();
        if exchange.verify(certificate, signature).is_err() {
            return Ok(Verdict::Refused(Refused::BadSignature));
        }
        if !command.is_in_flight() {
            return Ok(Verdict::Refused(Refused::NotInFlight));
        }
        if !names(&command, &asked.secret_ref) {
            return Ok(Verdict::Refused(Refused::NotNamed));
        }
        let held = match self.held(&command, asked).await {
            Ok(held) => held,
            Err(verdict) => return Ok(verdict),
        };
        if !allows(&held, &command) {
            return Ok(Verdict::Refused(Refused::NotAllowed));
        }
        self.seal(&exchange, &held)
    }

    /// Whether the service itself has queued it. A row that somebody who reaches the database has made
    /// up has no signature of ours; without roots there is nothing to tell it by.
    fn is_meant(&self, command: &Command) -> bool {
        let signer = self.ledger.inner.options.signer.as_ref();
        signer.is_none_or(|signer| signer.has_signed(command))
    }

    async fn held(&self, command: &Command, asked: &Asked) -> Result<Held, Verdict> {
        let (tenant, secret) = (command.tenant, &asked.secret_ref);
        let held = timeout(SECRET_WITHIN, self.store.get(tenant, secret)).await;
        let failure = match held {
            Ok(Ok(Some(held))) => return Ok(held),
            Ok(Ok(None)) => return Err(Verdict::Refused(Refused::UnknownSecret)),
            Ok(Err(failure)) => failure,
            Err(elapsed) => StoreFailure::Unavailable(elapsed.into()),
        };
        let verdict = match &failure {
            StoreFailure::Unreadable(_) => Verdict::Refused(Refused::Unreadable),
            StoreFailure::Unavailable(_) => Verdict::Later,
        };
        let error = &failure as &dyn std::error::Error;
        tracing::warn!(%tenant, secret, error, "a secret is not to be had");
        Err(verdict)
    }

    fn seal(&self, exchange: &Exchange<'_>, held: &Held) -> Result<Verdict, Error> {
        // Seeded each time: nothing is left of what sealed a value.
        let rng = StdRng::try_from_rng(&mut SysRng);
        let Ok(mut rng) = rng else {
            tracing::error!("the system gave no random bytes; nodes wait for their secrets");
            return Ok(Verdict::Later);
        };
        let sealed = match exchange.seal(&held.value, &mut rng) {
            Ok(sealed) => sealed,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "a secret cannot be sealed for its node");
                return Ok(Verdict::Refused(Refused::Unreadable));
            }
        };
        let statement = exchange.statement(&sealed)?;
        let signer = self.ledger.inner.options.signer.as_ref();
        let now = self.ledger.now();
        let word = signer.map(|it| it.sign(Purpose::Secret, &statement, now, None));
        Ok(Verdict::Answer(Box::new(frame::Secret {
            command_id: exchange.command_id,
            key: exchange.key,
            refused: None,
            sealed: Some(sealed),
            signed: word.transpose()?.map(Box::new),
        })))
    }
}

/// Whether the command's payload names this secret.
fn names(command: &Command, secret: &str) -> bool {
    let payload = canonical::to_json(&command.queued.payload).ok();
    let named = payload.as_ref().and_then(|it| it.get("secretRef"));
    named.and_then(serde_json::Value::as_str) == Some(secret)
}

/// Whether the secret is for this command's kind and node.
fn allows(held: &Held, command: &Command) -> bool {
    let kinds = held.kinds.as_ref();
    let nodes = held.nodes.as_ref();
    kinds.is_none_or(|kinds| kinds.contains(&command.queued.kind))
        && nodes.is_none_or(|nodes| nodes.contains(&command.node_id()))
}
