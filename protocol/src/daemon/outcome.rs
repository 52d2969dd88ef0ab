//! What an executor hands back, made to fit the wire (SPEC D13).

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::limits::{DETAILS_PART_BYTES, RESULT_PART_BYTES, WHY_CHARS_MAX};
use crate::canonical;
use crate::event::Truncated;
use crate::frame::{Update, UpdateState};
use crate::id::CommandId;
use crate::limits::{DETAILS_BYTES_MAX, REASON_BYTES_MAX, RESULT_BYTES_MAX};
use crate::text;

/// How a command ended on the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The end.
    pub end: End,
    /// A short word for machines, where the end alone does not say enough.
    pub reason: Option<String>,
    /// What is known about the reason.
    pub details: Option<Value>,
    /// The kind's result.
    pub result: Option<Value>,
}

/// The ends that an executor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// It did what it was asked to.
    Succeeded,
    /// It did not.
    Failed,
    /// It was stopped before anything took effect.
    Cancelled,
    /// The effect is under way and ends the daemon; the next boot proves the end (SPEC D9).
    Underway,
}

/// A result as canonical bytes, at most 48 KiB. Of a longer one it keeps the beginning and the
/// end of its JSON text, and says what the whole was.
pub fn fit_result(result: &Value) -> (Option<Vec<u8>>, Option<Truncated>) {
    // What is nested too deeply to be encoded is still kept as text.
    let whole = canonical::from_json(result).unwrap_or_else(|_| result.to_string().into_bytes());
    if whole.len() <= RESULT_BYTES_MAX && canonical::check(&whole).is_ok() {
        return (Some(whole), None);
    }
    let truncated = Truncated {
        bytes: whole.len() as u64,
        sha256: hex::encode(Sha256::digest(&whole)),
    };
    let parts = head_and_tail(&result.to_string(), RESULT_PART_BYTES);
    (canonical::from_json(&parts).ok(), Some(truncated))
}

/// Details as canonical bytes, at most 4 KiB; of longer ones, the beginning and the end.
pub(super) fn fit_details(details: &Value) -> Option<Vec<u8>> {
    canonical::from_json(details)
        .ok()
        .filter(|bytes| bytes.len() <= DETAILS_BYTES_MAX)
        .or_else(|| {
            canonical::from_json(&head_and_tail(&details.to_string(), DETAILS_PART_BYTES)).ok()
        })
}

/// Details of one field `why`.
pub(super) fn why(why: &str) -> Option<Vec<u8>> {
    let why: String = why.chars().take(WHY_CHARS_MAX).collect();
    fit_details(&json!({ "why": why }))
}

fn head_and_tail(text: &str, part_bytes: usize) -> Value {
    let head = &text[..text.floor_char_boundary(part_bytes)];
    let tail_from = text.len().saturating_sub(part_bytes).max(head.len());
    let tail = &text[text.ceil_char_boundary(tail_from)..];
    json!({ "head": head, "tail": tail })
}

/// The update that reports an end of this state.
pub(super) fn update(command_id: CommandId, state: UpdateState, report: &Report) -> Update {
    let (result, result_truncated) = report.result.as_ref().map_or((None, None), fit_result);
    let reason = report.reason.as_ref().map(|reason| {
        // The ledger takes neither longer reasons nor characters that nobody sees; a space is never longer.
        let shown = reason.replace(|c| !text::is_printable(c), " ");
        shown[..shown.floor_char_boundary(REASON_BYTES_MAX)].to_owned()
    });
    Update {
        details: report.details.as_ref().and_then(fit_details),
        reason,
        result,
        result_truncated,
        ..Update::bare(command_id, state)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::command::report::check_bounds;
    use crate::limits::DEPTH_MAX;

    fn reported(report: &Report) -> Update {
        update(
            CommandId::from_uuid(uuid::Uuid::nil()),
            UpdateState::Failed,
            report,
        )
    }

    fn result_of(length: usize) -> Value {
        json!({ "text": "x".repeat(length) })
    }

    #[test]
    fn d13_a_result_of_48_kib_is_inline_and_one_byte_more_is_cut() {
        // A map of one, a key of four letters, a text with a header of three bytes.
        let around = 1 + 5 + 3;
        let fits = result_of(RESULT_BYTES_MAX - around);
        let (inline, truncated) = fit_result(&fits);
        assert_eq!(inline, canonical::from_json(&fits).ok());
        assert_eq!(truncated, None);

        let longer = result_of(RESULT_BYTES_MAX - around + 1);
        let (inline, truncated) = fit_result(&longer);
        let whole = canonical::from_json(&longer).unwrap();
        assert_eq!(
            truncated,
            Some(Truncated {
                bytes: whole.len() as u64,
                sha256: hex::encode(Sha256::digest(&whole)),
            })
        );
        let kept = canonical::to_json(&inline.unwrap()).unwrap();
        assert!(
            kept["head"]
                .as_str()
                .unwrap()
                .starts_with(r#"{"text":"xxx"#)
        );
        assert!(kept["tail"].as_str().unwrap().ends_with(r#"xxx"}"#));
    }

    #[test]
    fn d13_a_result_that_is_nested_too_deeply_is_kept_as_text() {
        let deep = (0..=DEPTH_MAX).fold(json!(1), |inner, _| json!([inner]));
        let (inline, truncated) = fit_result(&deep);
        let kept = canonical::to_json(&inline.unwrap()).unwrap();
        assert_eq!(kept, json!({ "head": deep.to_string(), "tail": "" }));
        assert_eq!(truncated.unwrap().bytes, deep.to_string().len() as u64);
    }

    proptest! {
        #[test]
        fn d13_whatever_an_executor_says_fits_the_ledgers_bounds(
            letter in any::<char>(),
            count in 0..200_000_usize,
            reason in ".{0,400}",
        ) {
            let text: String = std::iter::repeat_n(letter, count / letter.len_utf8()).collect();
            let update = reported(&Report {
                end: End::Failed,
                reason: Some(reason),
                details: Some(json!({ "why": text })),
                result: Some(json!([text])),
            });
            prop_assert_eq!(check_bounds(&update), Ok(()));
        }
    }
}
