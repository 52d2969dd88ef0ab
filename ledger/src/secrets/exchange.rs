//! A gateway's way to the keeper: a row of a table, read again until it has its answer.

use ledger_projections::secrets::exchanges::{self, Asked, Found, PER_COMMAND_MAX};
use ledger_protocol::dsse::SIGNATURE_BYTES;
use ledger_protocol::frame;
use ledger_protocol::id::NodeId;
use ledger_protocol::secret::{Refused, check_name};
use tokio::time::{Instant, timeout_at};

use crate::limits::{EXCHANGE_LOOK_EVERY, EXCHANGE_WITHIN};
use crate::{Error, Ledger};

/// The answer that there is no value, and why.
pub(super) fn refused(request: &frame::SecretRequest, why: Refused) -> frame::Secret {
    frame::Secret {
        command_id: request.command_id,
        key: request.key,
        refused: Some(why.code().to_owned()),
        sealed: None,
        signed: None,
    }
}

impl Ledger {
    /// Asks the keeper for the secret that a command of this node needs (SPEC P6), and waits a moment for
    /// the answer. `None` when there is none yet: the same request, asked again, goes on waiting for it.
    pub async fn exchange_secret(
        &self,
        node: NodeId,
        request: &frame::SecretRequest,
    ) -> Result<Option<frame::Secret>, Error> {
        if check_name(&request.secret_ref).is_err() {
            // Nothing can have this name, and a row should not hold it.
            return Ok(Some(refused(request, Refused::UnknownSecret)));
        }
        let until = Instant::now() + EXCHANGE_WITHIN;
        let (command, key) = (request.command_id, request.key);
        if !self.ask(node, request).await? {
            return Ok(Some(refused(request, Refused::TooMany)));
        }
        loop {
            let answered = self.inner.wakes.answered.notified();
            tokio::pin!(answered);
            // From here on no wake-up is missed.
            answered.as_mut().enable();
            let mut conn = self.pool().acquire().await?;
            let found = exchanges::find(&mut conn, node, command, key).await?;
            drop(conn);
            if let Found::Answered(answer) = found {
                return Ok(Some(*answer));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            // An answer by another process wakes nobody here.
            let look = until.min(Instant::now() + EXCHANGE_LOOK_EVERY);
            let _ = timeout_at(look, answered).await;
        }
    }

    /// Whether the question is in the table; it is not when the node has asked too often.
    async fn ask(&self, node: NodeId, request: &frame::SecretRequest) -> Result<bool, Error> {
        let node_sig = request.node_sig.clone();
        let asked = Asked {
            command: request.command_id,
            node,
            key: request.key,
            secret_ref: request.secret_ref.clone(),
            // Of another length it is none, and is refused as none.
            node_sig: node_sig.filter(|signature| signature.len() == SIGNATURE_BYTES),
            asked_at: self.now(),
        };
        let mut conn = self.pool().acquire().await?;
        // Whoever else asks for the same command at this moment may take the place that this one would
        // have; as often as there are places.
        for _ in 0..=PER_COMMAND_MAX {
            let found = exchanges::find(&mut conn, node, asked.command, asked.key).await?;
            if found != Found::Nothing {
                return Ok(true);
            }
            if exchanges::ask(&mut conn, &asked).await? {
                self.inner.wakes.asked.notify_one();
                return Ok(true);
            }
        }
        Ok(false)
    }
}
