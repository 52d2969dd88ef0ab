//! Secrets for the commands that run (P6): asked for over the session with a key of its own for each question, held in
//! memory for as long as the command runs, and taken out of all that it tells.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ledger_protocol::{
    daemon::Input,
    id::{CommandId, NodeId},
    secret::{Exchange, OneTimeKey, PrivateKey, Sealed, SecretValue, check_name},
};
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::random_seed,
    error::chain,
    kinds::Finished,
    limits::{SECRET_WAIT_SECONDS_MAX, VALUE_CHARS_MAX},
    redaction::{Ends, Redaction},
    sysfs::clean,
};

/// What came for a question: the value, sealed, or the code of a refusal.
pub(crate) type Answer = Result<Sealed, String>;

/// A question of an executor to the session.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) command_id: CommandId,
    pub(crate) key: OneTimeKey,
    secret_ref: String,
    /// Dropped without an answer when there will be none.
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl Wanted {
    /// The question as the machine takes it in, and to whom the answer goes.
    pub(crate) fn split(self) -> (Input, oneshot::Sender<Answer>) {
        let input = Input::SecretWanted {
            command_id: self.command_id,
            key: self.key,
            secret_ref: self.secret_ref,
        };
        (input, self.answer)
    }
}

/// The secrets of one command that runs.
pub struct Secrets {
    node: NodeId,
    command: CommandId,
    session: mpsc::Sender<Wanted>,
    /// Takes out whatever was given out.
    redaction: Arc<Mutex<Redaction>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("node", &self.node)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// Why an executor does not get a secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SecretFailure {
    /// The command was cancelled while it waited.
    Cancelled,
    /// There is none for it.
    Unavailable {
        /// The service's code, if it refused.
        code: Option<String>,
        /// In words.
        why: String,
    },
}

impl SecretFailure {
    fn because(why: impl Into<String>) -> Self {
        Self::Unavailable {
            code: None,
            why: why.into(),
        }
    }

    /// How a command ends that needs this secret.
    pub(crate) fn finished(self, name: &str) -> Finished {
        let (code, why) = match self {
            Self::Cancelled => return Finished::cancelled(),
            Self::Unavailable { code, why } => (code, why),
        };
        let mut details = json!({ "secretRef": name, "why": format!("{why}; nothing was sent") });
        if let Some(code) = code {
            details["code"] = json!(code);
        }
        Finished {
            details: Some(details),
            ..Finished::failed("secret-unavailable", "")
        }
    }
}

impl Secrets {
    pub(crate) fn new(node: NodeId, command: CommandId, session: mpsc::Sender<Wanted>) -> Self {
        Self {
            node,
            command,
            session,
            redaction: Arc::default(),
        }
    }

    /// The value of a secret that the command's payload names: asked for anew each time, with a key that nothing
    /// outside this call knows.
    pub(crate) async fn get(
        &self,
        name: &str,
        until: Instant,
        cancel: &CancellationToken,
    ) -> Result<SecretValue, SecretFailure> {
        check_name(name)
            .map_err(|invalid| SecretFailure::because(format!("secretRef {invalid}")))?;
        let seed = random_seed().map_err(|error| {
            SecretFailure::because(format!("this machine has no randomness: {}", chain(&error)))
        })?;
        let key = PrivateKey::derive(&seed);
        let exchange = Exchange {
            command_id: self.command,
            key: key.public(),
            node_id: self.node,
            secret_ref: name,
        };
        let longest = Duration::from_secs(SECRET_WAIT_SECONDS_MAX);
        let asked = Instant::now();
        let answered = timeout_at(until.min(asked + longest), self.ask(&exchange));
        let answer = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SecretFailure::Cancelled),
            answered = answered => answered,
        };
        let sealed = match answer {
            Err(_) => {
                let seconds = asked.elapsed().as_secs();
                let why = format!("the service did not answer within {seconds} s");
                return Err(SecretFailure::because(why));
            }
            Ok(None) => return Err(SecretFailure::because("the agent's session ended")),
            Ok(Some(Err(code))) => {
                let code = clean(&code, VALUE_CHARS_MAX);
                return Err(SecretFailure::Unavailable {
                    why: refusal(&code),
                    code: Some(code),
                });
            }
            Ok(Some(Ok(sealed))) => sealed,
        };
        let value = key.open(&exchange, &sealed).map_err(|error| {
            SecretFailure::because(format!("the answer cannot be opened: {}", chain(&error)))
        })?;
        let mut redaction = self
            .redaction
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        redaction.add(name, value.reveal());
        Ok(value)
    }

    async fn ask(&self, exchange: &Exchange<'_>) -> Option<Answer> {
        let (answer, answered) = oneshot::channel();
        let wanted = Wanted {
            command_id: exchange.command_id,
            key: exchange.key,
            secret_ref: exchange.secret_ref.to_owned(),
            answer,
        };
        self.session.send(wanted).await.ok()?;
        answered.await.ok()
    }

    /// A text of the other side without the command's secrets; for what is cut before it is returned.
    pub(crate) fn redact(&self, text: &str) -> String {
        self.redact_to(text, Ends::Whole)
    }

    /// The same for a text of which the rest may not have been read.
    pub(crate) fn redact_to(&self, text: &str, ends: Ends) -> String {
        let redaction = self
            .redaction
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        redaction.text_of(text, ends).into_owned()
    }

    /// How the command ended, without its secrets.
    pub(crate) fn redact_finished(&self, finished: Finished) -> Finished {
        let redaction = self
            .redaction
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        redaction.finished(finished)
    }
}

/// What a refusal says to an operator. A newer service may have others.
fn refusal(code: &str) -> String {
    use ledger_protocol::secret::Refused;
    let known = Refused::ALL
        .into_iter()
        .find(|refused| refused.code() == code);
    let why = match known {
        Some(Refused::UnknownCommand) => "the service does not know this command of this node",
        Some(Refused::BadSignature) => "the request is not signed with the key of this node",
        Some(Refused::NotInFlight) => "the command is not in flight any more",
        Some(Refused::NotNamed) => "the command's payload does not name this secret",
        Some(Refused::UnknownSecret) => "there is no secret of this name",
        Some(Refused::NotAllowed) => "the secret is not for this kind or this node",
        Some(Refused::Unreadable) => "the service cannot read the secret",
        Some(Refused::TooMany) => "the secret was asked for too often",
        None => "the service refused the secret",
    };
    why.to_owned()
}

#[cfg(test)]
pub(crate) mod tests;
