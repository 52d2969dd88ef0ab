//! The node's word on a command (SPEC section 2, S1–S4, D13, P2).
//!
//! Reports may come late, twice, out of order or not at all: what is already known is no event,
//! and the first end stands.

use serde_json::json;

use crate::attestation::Statement;
use crate::canonical;
use crate::event::{
    Body, CommandAcked, CommandLateResult, CommandReturned, CommandRunning, Ending, Outcome,
};
use crate::frame::{Update, UpdateState};
use crate::limits;
use crate::node::Node;
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;

use super::{Command, State};

/// The events that a report makes (none when it says nothing new), or why it is refused.
/// `retry_at` is when a busy node is asked again.
pub fn decide(
    command: &Command,
    node: &Node,
    epoch: u64,
    update: &Update,
    retry_at: Timestamp,
) -> Result<Option<Body>, Refusal> {
    node.check_epoch(epoch)?;
    if command.attempts == 0 {
        return Err(Refusal::NeverDispatched);
    }
    check_bounds(update)?;
    let kind = command.queued.kind.clone();
    let (node_id, seq) = (command.queued.node_id, command.queued.seq);
    let outcome = match update.state {
        UpdateState::Busy => {
            // What a lost journal may have taken on does not wait again as if nobody had it: a
            // cancel or its deadline would then say that it never ran.
            let is_back = matches!(command.state, State::Dispatched { .. })
                && epoch_of_a_lost_journal(command, node).is_none();
            let returned = is_back.then(|| {
                let reason = "busy".to_owned();
                Body::CommandReturned(CommandReturned {
                    epoch,
                    kind,
                    node_id,
                    reason,
                    retry_at,
                    seq,
                })
            });
            return Ok(returned);
        }
        UpdateState::Acked => {
            let news = matches!(
                command.state,
                State::Pending { .. } | State::Dispatched { .. }
            );
            let acked = CommandAcked {
                epoch,
                kind,
                node_id,
                sent_epoch: epoch_of_a_lost_journal(command, node),
                seq,
            };
            return Ok(news.then_some(Body::CommandAcked(acked)));
        }
        UpdateState::Running => {
            let news = matches!(
                command.state,
                State::Pending { .. } | State::Dispatched { .. } | State::Acked { .. }
            );
            let running = CommandRunning {
                epoch,
                kind,
                node_id,
                sent_epoch: epoch_of_a_lost_journal(command, node),
                seq,
            };
            return Ok(news.then_some(Body::CommandRunning(running)));
        }
        UpdateState::Succeeded => Outcome::Succeeded,
        UpdateState::Failed => Outcome::Failed,
        UpdateState::Rejected => Outcome::Rejected,
        UpdateState::Cancelled => Outcome::Cancelled,
    };
    check_attestation(command, node, update)?;
    let ending = Ending {
        outcome,
        reason: update.reason.clone(),
        details: update.details.clone(),
        result: update.result.clone(),
        result_truncated: update.result_truncated.clone(),
        node_sig: update.node_sig.clone(),
    };
    match &command.state {
        State::Settled(settled) => {
            let by_node = settled.end.epoch.is_some();
            let end = settled.end.ending();
            let said = [&ending, &without_knowledge(&ending)];
            let known = by_node && said.iter().any(|said| end.says_the_same(said));
            let news = !known && settled.late.is_none();
            let word = command.end(ending, Some(epoch));
            Ok(news.then_some(Body::CommandLateResult(CommandLateResult(word))))
        }
        State::Pending { .. }
        | State::Dispatched { .. }
        | State::Acked { .. }
        | State::Running { .. } => {
            let ending = if says_what_it_cannot_know(command, node, ending.outcome) {
                without_knowledge(&ending)
            } else {
                ending
            };
            Ok(Some(command.settled(ending, Some(epoch))))
        }
    }
}

/// Refuses an end that is not shown to be the node's word (SPEC P2): one of an attested kind without
/// a signature, and any with a signature that does not hold.
fn check_attestation(command: &Command, node: &Node, update: &Update) -> Result<(), Refusal> {
    let Some(statement) = Statement::of_update(node.id, update) else {
        return Ok(());
    };
    match &update.node_sig {
        Some(signature) => statement
            .verify(node.certificate.as_ref(), signature)
            .map_err(Refusal::BadAttestation),
        None if command.queued.attested => Err(Refusal::Unattested {
            kind: command.queued.kind.clone(),
        }),
        None => Ok(()),
    }
}

/// Epoch of the session that sent the command to a journal before the one that the node has.
fn epoch_of_a_lost_journal(command: &Command, node: &Node) -> Option<u64> {
    match command.state {
        State::Dispatched { epoch } | State::Acked { epoch } | State::Running { epoch } => {
            Some(epoch).filter(|epoch| *epoch < node.journal_since)
        }
        State::Pending { .. } | State::Settled(_) => None,
    }
}

/// Whether a node that says "this had no effect" says more than it can know (SPEC D8): its journal
/// is not the one that the command was sent to, which may have run it.
fn says_what_it_cannot_know(command: &Command, node: &Node, outcome: Outcome) -> bool {
    match outcome {
        Outcome::Cancelled | Outcome::Rejected => epoch_of_a_lost_journal(command, node).is_some(),
        Outcome::Succeeded | Outcome::Failed | Outcome::Expired => false,
    }
}

/// The end of a command of which the journal that took it on is gone; what the node says instead
/// stands in the details.
fn without_knowledge(said: &Ending) -> Ending {
    let mut word = json!({ "state": said.outcome.as_str() });
    if let Some(reason) = &said.reason {
        word["reason"] = reason.as_str().into();
    }
    Ending {
        details: canonical::from_json(&word).ok(),
        ..Ending::because(Outcome::Failed, "journal-lost")
    }
}

/// Bounds of what a node may say; checked before the ledger takes its word.
pub fn check_bounds(update: &Update) -> Result<(), Refusal> {
    let invalid = |field, problem: String| Err(Refusal::Invalid { field, problem });
    if update
        .reason
        .as_ref()
        .is_some_and(|reason| !reason.chars().all(text::is_printable))
    {
        return invalid("reason", "must have printable characters only".to_owned());
    }
    if update
        .reason
        .as_ref()
        .is_some_and(|reason| reason.len() > limits::REASON_BYTES_MAX)
    {
        return invalid(
            "reason",
            format!("must have at most {} bytes", limits::REASON_BYTES_MAX),
        );
    }
    for (field, bytes, max) in [
        ("result", &update.result, limits::RESULT_BYTES_MAX),
        ("details", &update.details, limits::DETAILS_BYTES_MAX),
    ] {
        let Some(bytes) = bytes else { continue };
        if bytes.len() > max {
            return invalid(
                field,
                format!("has {} bytes; the limit is {max}", bytes.len()),
            );
        }
        if let Err(error) = canonical::check(bytes) {
            return invalid(field, format!("must be canonical MessagePack: {error}"));
        }
    }
    if update
        .node_sig
        .as_ref()
        .is_some_and(|signature| signature.len() != 64)
    {
        return invalid("nodeSig", "must have 64 bytes".to_owned());
    }
    if update
        .result_truncated
        .as_ref()
        .is_some_and(|cut| !is_lower_hex(&cut.sha256, 64) || cut.bytes > limits::COUNT_MAX)
    {
        let max = limits::COUNT_MAX;
        let problem = format!("must name at most {max} bytes and a SHA-256 in lower-case hex");
        return invalid("resultTruncated", problem);
    }
    Ok(())
}

fn is_lower_hex(text: &str, letters: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == letters && text.bytes().all(is_digit)
}
