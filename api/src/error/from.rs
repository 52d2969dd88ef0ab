//! What the ledger, the read tables and the database answer instead of a result, as an [`Error`]:
//! the one place that maps it.

use std::fmt;
use std::sync::Arc;

use ledger::secrets::SecretError;
use ledger_protocol::refusal::Refusal;
use serde_json::{Map, json};

use super::{Error, map};

/// A database error met while reading, or in a single statement: UNAVAILABLE when trying again
/// can help, else INTERNAL.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if is_transient(&error) {
            Self::unavailable(error)
        } else {
            Self::internal(Defect(Arc::new(error)))
        }
    }
}

/// What the database does not do for this service, however often it is asked.
#[derive(Debug)]
struct Defect(Arc<sqlx::Error>);

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = self.0.as_database_error();
        match refused.map(|refused| (refused.table(), refused.constraint())) {
            Some((Some(table), Some(constraint))) => {
                write!(
                    f,
                    "table {table} does not take this: constraint {constraint}"
                )
            }
            Some((Some(table), None)) => write!(f, "table {table} does not take this"),
            Some((None, _)) => f.write_str("the database does not do this"),
            None => f.write_str("the database's answer is not understood"),
        }
    }
}

impl std::error::Error for Defect {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            // The words around it only repeat it.
            sqlx::Error::Database(refused) => Some(refused.as_ref()),
            other => Some(other),
        }
    }
}

impl From<ledger_projections::Error> for Error {
    fn from(error: ledger_projections::Error) -> Self {
        match error {
            ledger_projections::Error::Database(source) => source.into(),
            other => Self::internal(other),
        }
    }
}

/// What stands against putting a secret (SPEC P6).
impl From<SecretError> for Error {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::NoMasterKey => Self::InvalidState {
                message: format!("{error}; start it with --secrets-key"),
                details: map(json!({"reason": "no-master-key"})),
            },
            SecretError::Contended => Self::Conflict {
                message: format!("{error}; look which of them is wanted, and try again"),
                details: Map::new(),
            },
            SecretError::Seal(failure) => Self::internal(failure),
            SecretError::Projection(error) => error.into(),
        }
    }
}

/// What the append answered instead (SPEC L10): the one place that maps it.
impl From<ledger::Error> for Error {
    fn from(error: ledger::Error) -> Self {
        match error {
            ledger::Error::Refused(refusal) => refusal.into(),
            ledger::Error::Overloaded => Self::overloaded(),
            ledger::Error::OutcomeUnknown => Self::Unavailable {
                outcome_unknown: true,
                source: error.into(),
            },
            ledger::Error::Unavailable(ref source) if is_transient(source) => {
                Self::unavailable(error)
            }
            ledger::Error::Closed | ledger::Error::NoWorker { .. } => Self::unavailable(error),
            // The ledger's own words say that the database is away, which it is not.
            ledger::Error::Unavailable(source) => Self::internal(Defect(source)),
            ledger::Error::Projection(_)
            | ledger::Error::Fenced
            | ledger::Error::Corrupt(_)
            | ledger::Error::Event(_)
            | ledger::Error::Canonical(_)
            | ledger::Error::Schema { .. }
            | ledger::Error::Isolation { .. }
            | ledger::Error::Shape => Self::internal(error),
        }
    }
}

/// Whether the same statement may work later: the database is away, full or busy.
fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_)
        | sqlx::Error::Configuration(_) => true,
        // Classes: connection, transaction rollback, resources, not in prerequisite state (lock
        // timeout), operator intervention (also statement timeout and shutdown), system.
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            ["08", "25", "40", "53", "55", "57", "58"]
                .iter()
                .any(|class| code.starts_with(class))
        }),
        _ => false,
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::UnknownNode(_) | Refusal::UnknownCommand(_) | Refusal::UnknownBatch(_) => {
                Self::NotFound {
                    what: message.trim_end_matches(" not found").to_owned(),
                }
            }
            Refusal::KeyConflict { field, command } => Self::Conflict {
                message,
                details: map(json!({"field": field, "commandId": command})),
            },
            Refusal::BatchKeyConflict { field, batch } => Self::Conflict {
                message,
                details: map(json!({"field": field, "batchId": batch})),
            },
            Refusal::OutsideBatch { .. } => {
                Self::invalid("batchId", message.trim_start_matches("batch ").to_owned())
            }
            Refusal::StaleSpec { current, .. } => Self::Conflict {
                message,
                details: map(json!({"field": "generation", "generation": current})),
            },
            Refusal::NodeExists(_) => Self::Conflict {
                message,
                details: Map::new(),
            },
            Refusal::PendingFull { lane, limit } => Self::LimitExceeded {
                message,
                details: map(json!({"lane": lane.as_str(), "limit": limit})),
                retry_after_seconds: None,
            },
            Refusal::BatchRequired { kind } => Self::InvalidState {
                message,
                details: map(json!({"reason": "batch-required", "kind": kind})),
            },
            Refusal::Invalid { field, problem } => Self::invalid(field, problem),
            // The caller asked in time; the service was too slow, and a later try may work.
            Refusal::WaitedTooLong { .. } => Self::unavailable(refusal),
            Refusal::NodeDeleted(_)
            | Refusal::CertificateReplaced(_)
            | Refusal::CertificateRevoked(_)
            | Refusal::KeyRevoked(_)
            | Refusal::UnknownKey(_)
            | Refusal::NeverJoined(_)
            | Refusal::StaleEpoch { .. }
            | Refusal::NotPending { .. }
            | Refusal::NotDue { .. }
            | Refusal::Held
            | Refusal::NotHeld
            | Refusal::PastDeadline { .. }
            | Refusal::StaleGeneration { .. }
            | Refusal::NeverDispatched
            | Refusal::Unattested { .. }
            | Refusal::BadAttestation(_)
            | Refusal::NotOverdue { .. }
            | Refusal::BatchExpired { .. }
            | Refusal::BatchNotApproved { .. }
            | Refusal::BatchRecordedOnly(_)
            | Refusal::ApprovedByCreator { .. }
            | Refusal::ApprovedBySamePerson { .. }
            | Refusal::ApprovedWithSameKey { .. }
            | Refusal::RestrictedIdentity { .. } => Self::InvalidState {
                message,
                details: Map::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use ledger_protocol::id::{CommandId, NodeId};
    use ledger_protocol::kind::Lane;

    use super::*;
    use crate::error::Code;

    #[test]
    fn a_no_word_of_the_database_reaches_a_caller() {
        for error in [
            Error::from(sqlx::Error::Protocol("secret of the database".to_owned())),
            Error::from(sqlx::Error::ColumnNotFound(
                "secret of the database".to_owned(),
            )),
        ] {
            assert!(!error.body().to_string().contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn a_each_refusal_of_the_ledger_has_its_code() {
        let node: NodeId = "node_01h455vb4pex5vsknk084sn02q".parse().unwrap();
        let command: CommandId = "cmd_01h455vb4pex5vsknk084sn02q".parse().unwrap();
        let lane = Lane::Bulk;
        let link = || Arc::new(sqlx::Error::PoolTimedOut);
        let defect = || Arc::new(sqlx::Error::RowNotFound);
        let kind = "node.reboot".to_owned();
        for (error, code) in [
            (Refusal::UnknownNode(node).into(), Code::NotFound),
            (Refusal::UnknownCommand(command).into(), Code::NotFound),
            (
                Refusal::KeyConflict {
                    field: "kind",
                    command,
                }
                .into(),
                Code::Conflict,
            ),
            (
                Refusal::StaleSpec {
                    current: 2,
                    given: 1,
                }
                .into(),
                Code::Conflict,
            ),
            (
                Refusal::RestrictedIdentity { node, kind }.into(),
                Code::InvalidState,
            ),
            (
                Refusal::PendingFull { lane, limit: 1_000 }.into(),
                Code::LimitExceeded,
            ),
            (
                Refusal::payload_too_large(50_000).into(),
                Code::InvalidInput,
            ),
            (
                Refusal::WaitedTooLong {
                    not_after: ledger_protocol::time::Timestamp::from_micros(1),
                }
                .into(),
                Code::Unavailable,
            ),
            (ledger::Error::Overloaded, Code::LimitExceeded),
            (ledger::Error::OutcomeUnknown, Code::Unavailable),
            (ledger::Error::Closed, Code::Unavailable),
            (
                ledger::Error::NoWorker { not_after: None },
                Code::Unavailable,
            ),
            (ledger::Error::Unavailable(link()), Code::Unavailable),
            (ledger::Error::Unavailable(defect()), Code::Internal),
            (ledger::Error::Shape, Code::Internal),
        ] {
            let shown = format!("{error:?}");
            assert_eq!(Error::from(error).code(), code, "{shown}");
        }
        let unknown = Error::from(ledger::Error::OutcomeUnknown);
        assert_eq!(unknown.details()["outcome"], "unknown");
        let not_found = Error::from(Refusal::UnknownNode(node));
        assert_eq!(not_found.to_string(), format!("node {node} not found"));
    }
}
