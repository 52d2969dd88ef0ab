//! What a session asks of the ledger. Several go on at once, and with those of other sessions the
//! ledger commits them in groups.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use ledger_projections::refused_reports::{self, Refused};
use ledger_projections::{commands, nodes};
use ledger_protocol::frame::{Frame, SecretRequest, Update, UpdateState};
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::{Answer, Close, acknowledge, busy_backoff, spec_frame};
use ledger_protocol::time::Timestamp;
use ledger_protocol::trust::Published;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, error, warn};

use super::complaints::Complaints;
use crate::gateway::Shared;
use crate::trust;

/// What a session waits for.
pub(super) type Works = FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>;

/// What came of it.
#[derive(Debug)]
pub(super) enum Done {
    /// Nothing to be done.
    Nothing,
    /// A frame to be sent.
    Frame(Frame),
    /// The ledger has this generation.
    Generation(u64),
    /// Trust bundles for the machine.
    Trust(Vec<Published>),
    /// The session is over.
    Over(Close),
}

/// One session's way to the ledger.
pub(super) struct Work {
    pub(super) shared: Arc<Shared>,
    pub(super) node: NodeId,
    pub(super) epoch: u64,
    pub(super) complaints: Arc<Complaints>,
}

impl Work {
    /// Reports updates, all at once. One that is refused says nothing about the others.
    pub(super) async fn report(self, updates: Vec<Update>) -> Done {
        let (work, node) = (&self, self.node);
        let reports = updates.into_iter().map(|update| async move {
            let (command, state) = (update.command_id, update.state);
            let shared = &work.shared;
            let retry_at = work.retry_at(command, state).await;
            let reported = shared
                .ledger
                .report(&shared.actor, node, work.epoch, update, retry_at)
                .await;
            (command, state, reported)
        });
        let mut answers = Vec::new();
        let mut refused = Vec::new();
        for (command, state, reported) in join_all(reports).await {
            let answer = match reported {
                Ok(_) => Answer::Recorded,
                Err(ledger::Error::Refused(Refusal::StaleEpoch { current, given })) => {
                    return Done::Over(Close::stale_epoch(current, given));
                }
                Err(ledger::Error::Refused(Refusal::NodeDeleted(_))) => {
                    return Done::Over(Close::node_deleted());
                }
                Err(ledger::Error::Refused(Refusal::CertificateRevoked(_))) => {
                    return Done::Over(Close::certificate_revoked());
                }
                Err(ledger::Error::Refused(refusal)) => {
                    // An unknown command may be one that a restored ledger has lost (SPEC L11).
                    if let Some(left_out) = self.complaints.admit() {
                        warn!(%node, %command, ?state, %refusal, left_out, "a report was refused");
                    }
                    let answer = Answer::refused(&refusal);
                    if let Answer::Refused { code, why } = &answer {
                        refused.push(Refused {
                            command,
                            state,
                            code,
                            problem: why.clone(),
                        });
                    }
                    answer
                }
                Err(error) => {
                    log("a report could not be recorded", node, &error);
                    Answer::None
                }
            };
            answers.push((command, state, answer));
        }
        if !refused.is_empty() {
            self.keep(&refused).await;
        }
        acknowledge(answers).map_or(Done::Nothing, Done::Frame)
    }

    /// Keeps refused reports where people see them. The daemon is answered whether it works or not.
    async fn keep(&self, refused: &[Refused]) {
        let (ledger, actor) = (&self.shared.ledger, &self.shared.actor);
        let kept = async {
            let mut conn = ledger.pool().acquire().await?;
            refused_reports::record(&mut conn, self.node, actor, refused, ledger.now()).await
        };
        if let Err(error) = kept.await {
            let error = &error as &dyn std::error::Error;
            warn!(node = %self.node, error, "refused reports could not be kept");
        }
    }

    /// When a busy node is asked again. The read behind it is rare: credits keep nodes from
    /// being busy.
    async fn retry_at(&self, command: CommandId, state: UpdateState) -> Timestamp {
        let ledger = &self.shared.ledger;
        if state != UpdateState::Busy {
            return ledger.now();
        }
        let read = async {
            let mut conn = ledger.pool().acquire().await?;
            commands::get(&mut conn, command).await
        };
        let attempts = match read.await {
            Ok(command) => command.map_or(1, |command| command.attempts),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(%command, error, "the attempts of a busy command could not be read");
                1
            }
        };
        let [a, b, c, d, ..] = ledger.new_id_random();
        let wait: Duration = busy_backoff(attempts, u32::from_be_bytes([a, b, c, d]));
        ledger
            .now()
            .plus_micros(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX))
    }

    /// Tells the ledger what the node has applied.
    pub(super) async fn apply_generation(self, generation: u64) -> Done {
        let (shared, node) = (&self.shared, self.node);
        let applied = shared
            .ledger
            .apply_generation(&shared.actor, node, self.epoch, generation)
            .await;
        match applied {
            Ok(_) => Done::Generation(generation),
            Err(ledger::Error::Refused(Refusal::StaleEpoch { current, given })) => {
                Done::Over(Close::stale_epoch(current, given))
            }
            Err(ledger::Error::Refused(Refusal::CertificateRevoked(_))) => {
                Done::Over(Close::certificate_revoked())
            }
            Err(error) => {
                log("an applied generation could not be recorded", node, &error);
                Done::Nothing
            }
        }
    }

    /// Reads the trust bundles above a version: those that this process keeps, or, for a daemon that
    /// asks because it misses one, those that there are by now.
    pub(super) async fn read_trust(self, above: u64, asked: bool) -> Done {
        let ledger = &self.shared.ledger;
        let read = if asked {
            trust::read(ledger, above).await
        } else {
            self.shared.trust.above(ledger, above).await
        };
        match read {
            Ok(bundles) => Done::Trust(bundles),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(node = %self.node, error, "trust bundles could not be read");
                Done::Nothing
            }
        }
    }

    /// Has a node's question for a secret answered. The daemon asks again what was not.
    pub(super) async fn exchange(
        self,
        request: SecretRequest,
        place: OwnedSemaphorePermit,
    ) -> Done {
        let (ledger, node) = (&self.shared.ledger, self.node);
        let answered = ledger.exchange_secret(node, &request).await;
        drop(place);
        match answered {
            Ok(Some(secret)) => Done::Frame(secret.into()),
            Ok(None) => Done::Nothing,
            Err(error) => {
                log("a secret could not be exchanged", node, &error);
                Done::Nothing
            }
        }
    }

    /// Reads the desired state for the node.
    pub(super) async fn read_spec(self) -> Done {
        let read = async {
            let mut conn = self.shared.ledger.pool().acquire().await?;
            nodes::spec(&mut conn, self.node).await
        };
        match read.await {
            Ok(Some(spec)) => Done::Frame(spec_frame(spec)),
            Ok(None) => Done::Nothing,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(node = %self.node, error, "a desired state could not be read");
                Done::Nothing
            }
        }
    }
}

/// The daemon says again what was not answered; people are told as loud as they can do something.
fn log(what: &str, node: NodeId, error: &ledger::Error) {
    let source = error as &dyn std::error::Error;
    match error {
        ledger::Error::Overloaded | ledger::Error::Closed => {
            debug!(%node, error = source, "{what}");
        }
        ledger::Error::OutcomeUnknown
        | ledger::Error::NoWorker { .. }
        | ledger::Error::Unavailable(_)
        | ledger::Error::Refused(_) => warn!(%node, error = source, "{what}"),
        ledger::Error::Projection(_)
        | ledger::Error::Fenced
        | ledger::Error::Corrupt(_)
        | ledger::Error::Event(_)
        | ledger::Error::Canonical(_)
        | ledger::Error::Schema { .. }
        | ledger::Error::Isolation { .. }
        | ledger::Error::Shape => error!(%node, error = source, "{what}"),
    }
}
