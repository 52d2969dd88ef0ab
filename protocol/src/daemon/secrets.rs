//! Questions for secrets (SPEC P6): asked until they are answered by who may answer, or until their
//! command ends. The keys and the values are the driver's; none of it is journaled, for a command that
//! was started and lost its process does not run again.

use super::limits::{SECRET_RETRY_SECONDS, SECRETS_WANTED_MAX};
use super::{Daemon, Doubt, Effect, Monotonic, Run};
use crate::dsse::Purpose;
use crate::frame::{Secret, SecretRequest};
use crate::id::CommandId;
use crate::secret::{Exchange, OneTimeKey};

/// A question without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) again_at: Monotonic,
    pub(super) command_id: CommandId,
    secret_ref: String,
}

impl Daemon {
    /// An executor asks. Who runs no command gets no secret; the executor waits for a bounded time,
    /// whatever comes of it.
    pub(super) fn want_secret(
        &mut self,
        command_id: CommandId,
        key: OneTimeKey,
        secret_ref: String,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        let open = self.book.find_open(command_id);
        let runs = open.is_some_and(|open| open.run == Run::Launched);
        if !runs || self.secrets.len() >= SECRETS_WANTED_MAX {
            return;
        }
        let asked = Asked {
            again_at: now,
            command_id,
            secret_ref,
        };
        self.secrets.insert(key, asked);
        self.ask_for_secrets(now, out);
    }

    /// The session is new, so nothing that was asked before is answered in it.
    pub(super) fn ask_for_all_secrets(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        for asked in self.secrets.values_mut() {
            asked.again_at = now;
        }
        self.ask_for_secrets(now, out);
    }

    /// Asks what is due.
    pub(super) fn ask_for_secrets(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        if !self.is_welcome() {
            return;
        }
        for (key, asked) in &mut self.secrets {
            if asked.again_at > now {
                continue;
            }
            asked.again_at = now.plus_seconds(SECRET_RETRY_SECONDS);
            let request = SecretRequest {
                command_id: asked.command_id,
                key: *key,
                node_sig: None,
                secret_ref: asked.secret_ref.clone(),
            };
            out.push(Effect::Send(request.into()));
        }
    }

    /// An answer came. One that the service has not signed is passed over, and asked for again.
    pub(super) fn told_secret(&mut self, secret: Secret, now: Monotonic, out: &mut Vec<Effect>) {
        let Secret {
            command_id,
            key,
            refused,
            sealed,
            signed,
        } = secret;
        let asked = self.secrets.get(&key);
        let Some(asked) = asked.filter(|asked| asked.command_id == command_id) else {
            return;
        };
        let answer = match (sealed, refused) {
            (Some(sealed), _) => {
                let exchange = Exchange {
                    command_id,
                    key,
                    node_id: self.identity.node_id,
                    secret_ref: &asked.secret_ref,
                };
                let statement = exchange.statement(&sealed).ok();
                let Some(server_now) = self.clock.now(now) else {
                    return;
                };
                let times = (server_now, server_now);
                let verified = self.verify(
                    signed.as_deref(),
                    times,
                    Purpose::Secret,
                    statement.as_deref(),
                );
                if let Err(why) = verified {
                    if why.may_pass() {
                        self.ask_for_trust(now, out);
                    }
                    return out.push(Effect::Doubt(Doubt::Secret { command_id, why }));
                }
                Ok(sealed)
            }
            (None, Some(code)) => Err(code),
            (None, None) => return,
        };
        self.secrets.remove(&key);
        out.push(Effect::Secret {
            command_id,
            key,
            answer,
        });
    }
}
