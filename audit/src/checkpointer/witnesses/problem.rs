//! What a witness can do wrong, and how that is told.

use reqwest::StatusCode;
use tokio::time::Instant;

use crate::limits;

/// Why there is no cosignature.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("it did not answer within {} ms", limits::COSIGNED_WITHIN.as_millis())]
    Late,
    #[error("it cannot be reached ({0})")]
    Unreachable(String),
    #[error("it answers {0}: {1}")]
    Status(StatusCode, String),
    #[error("its answer has more than {} bytes", limits::WITNESS_ANSWER_BYTES_MAX)]
    TooLong,
    #[error("its answer is no cosignature")]
    Unreadable,
    #[error("its answer has no cosignature by its key")]
    Missing,
    #[error("its cosignature is not by its key")]
    Forged,
    #[error("its cosignature states no time")]
    Timeless,
    #[error("the proof for it cannot be made ({0})")]
    Proof(String),
    #[error("it has cosigned size {theirs} of this log, which has {ours}")]
    Ahead { theirs: u64, ours: u64 },
    #[error("it has cosigned another tree of size {0}")]
    Other(u64),
    #[error("what it has cosigned, of size {0}, is no beginning of this log ({1})")]
    Inconsistent(u64, String),
}

impl Problem {
    /// Whether the witness says that this log has two histories.
    pub(super) const fn is_fork(&self) -> bool {
        matches!(
            self,
            Self::Ahead { .. } | Self::Other(_) | Self::Inconsistent(..)
        )
    }
}

/// What the log of this process was told of a witness.
#[derive(Debug, Default)]
pub(super) struct Told {
    failed_at: Option<Instant>,
    forked_at: Option<Instant>,
    is_failing: bool,
}

impl Told {
    /// Tells how a witness answered, unless it was told within the last minute.
    pub(super) fn tell(&mut self, witness: &str, problem: Option<&Problem>) {
        let Some(problem) = problem else {
            if self.is_failing {
                tracing::info!(witness, "the witness cosigns again");
                self.is_failing = false;
            }
            return;
        };
        let told_at = if problem.is_fork() {
            &mut self.forked_at
        } else {
            &mut self.failed_at
        };
        if told_at.is_some_and(|at| at.elapsed() < limits::TOLD_EVERY) {
            return;
        }
        (*told_at, self.is_failing) = (Some(Instant::now()), true);
        if problem.is_fork() {
            tracing::error!(
                witness,
                %problem,
                "a witness has seen another history of this log: its events were changed, or \
                 somebody else signs with its key"
            );
        } else {
            tracing::warn!(witness, %problem, "a witness does not cosign; it is asked again");
        }
    }
}
