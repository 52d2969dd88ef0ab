//! `audit diff`: what changed between two points of the log.

use clap::Args;
use ledger_audit::{BatchFacts, Change, Changed, CommandFacts, Moment, NodeFacts};
use serde_json::{Value, json};

use super::source::Source;
use super::told;
use crate::exit::Failure;
use crate::output::{Output, printable};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The earlier point: a position, 0 for before the first event, or a time (RFC 3339)
    #[arg(value_name = "FROM")]
    from: Moment,
    /// The later point
    #[arg(value_name = "TO")]
    to: Moment,
    /// Print a line of JSON for each change
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

pub(super) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    let mut history = options.source.open().await?;
    let from = history.position(options.from).await.map_err(told)?;
    let to = history.position(options.to).await.map_err(told)?;
    // Two times may stand for one position.
    let is_reversed = match (options.from, options.to) {
        (Moment::Time(from), Moment::Time(to)) => from > to,
        _ => false,
    };
    if is_reversed || from > to {
        return Err(Failure::usage(format!(
            "FROM is position {from} and TO is position {to}; the earlier one comes first"
        )));
    }
    let changes = ledger_audit::diff(&mut history, from, to).await;
    for change in &changes.map_err(told)? {
        if options.json {
            output.json_line(&as_json(change))?;
        } else {
            output.line(&printable(&as_text(change)))?;
        }
    }
    Ok(())
}

fn as_text(change: &Change) -> String {
    let Change { position, at, .. } = change;
    let what = match &change.changed {
        Changed::Command(id, before, after) => {
            let kind = &after.kind;
            format!("{id} {kind}: {}", command(before.as_ref(), after))
        }
        Changed::Node(id, before, after) => {
            format!("{id} {}: {}", after.name, node(before.as_ref(), after))
        }
        Changed::Batch(id, before, after) => {
            format!("{id}: {}", batch(before.as_ref(), after))
        }
    };
    format!("{position} {at} {what}")
}

/// Facts as words, with those that changed: `name before → after`.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn say(&mut self, word: impl Into<String>) {
        self.0.push(word.into());
    }

    fn step<T: PartialEq + std::fmt::Display>(&mut self, name: &str, before: Option<T>, after: &T) {
        if let Some(before) = before.filter(|before| before != after) {
            self.say(format!("{name} {before} → {after}"));
        }
    }

    fn turned(&mut self, name: &str, before: bool, after: bool) {
        if after && !before {
            self.say(name);
        }
    }

    /// All of them; a change that came back to where it was says so.
    fn text(self) -> String {
        if self.0.is_empty() {
            return "as before".to_owned();
        }
        self.0.join(", ")
    }
}

fn command(before: Option<&CommandFacts>, after: &CommandFacts) -> String {
    let mut words = Words::default();
    let from = before.map_or("queued", |before| before.state.as_str());
    let to = after.state.as_str();
    if before.is_none_or(|before| before.state != after.state) {
        let reason = after.reason.as_ref();
        let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
        words.say(format!("{from} → {to}{reason}"));
    }
    let had = |holds: fn(&CommandFacts) -> bool| before.is_some_and(holds);
    words.turned("held by its batch", had(|one| one.held), after.held);
    words.turned(
        "released",
        !had(|one| one.held),
        had(|one| one.held) && !after.held,
    );
    words.step("attempts", before.map(|one| one.attempts), &after.attempts);
    let asked = had(|one| one.cancel_requested);
    words.turned("cancel requested", asked, after.cancel_requested);
    words.turned("late result", had(|one| one.late_result), after.late_result);
    words.text()
}

fn node(before: Option<&NodeFacts>, after: &NodeFacts) -> String {
    let mut words = Words::default();
    words.turned("registered", before.is_some(), true);
    words.step(
        "epoch",
        before.map(|one| one.epoch).or(Some(0)),
        &after.epoch,
    );
    let was_connected = before.is_some_and(|before| before.connected);
    words.turned("connected", was_connected, after.connected);
    words.turned(
        "disconnected",
        !was_connected,
        was_connected && !after.connected,
    );
    let generation = before.map(|one| one.generation).or(Some(0));
    words.step("generation", generation, &after.generation);
    let applied = before.map(|one| one.applied_generation).or(Some(0));
    words.step("applied generation", applied, &after.applied_generation);
    if let Some(held) = &after.certificate
        && before.is_none_or(|before| before.certificate.as_ref() != Some(held))
    {
        words.say(format!("certificate {held}"));
    }
    let revoked = before.is_some_and(|before| before.revoked);
    words.turned("revoked", revoked, after.revoked);
    let deleted = before.is_some_and(|before| before.deleted);
    words.turned("deleted", deleted, after.deleted);
    words.text()
}

fn batch(before: Option<&BatchFacts>, after: &BatchFacts) -> String {
    let mut words = Words::default();
    words.turned("proposed", before.is_some(), true);
    let known = before.map_or(0, |before| before.approvals.len());
    for (number, name) in after.approvals.iter().enumerate().skip(known) {
        words.say(format!(
            "approved by {name} ({} of {})",
            number + 1,
            after.quorum
        ));
    }
    words.text()
}

fn as_json(change: &Change) -> Value {
    let (what, id, before, after) = match &change.changed {
        Changed::Command(id, before, after) => {
            let before = before.as_ref().map(command_json);
            ("command", id.to_string(), before, command_json(after))
        }
        Changed::Node(id, before, after) => {
            let before = before.as_ref().map(node_json);
            ("node", id.to_string(), before, node_json(after))
        }
        Changed::Batch(id, before, after) => {
            let before = before.as_ref().map(batch_json);
            ("batch", id.to_string(), before, batch_json(after))
        }
    };
    json!({
        "position": change.position,
        "at": change.at.to_string(),
        "events": change.events,
        what: id,
        "before": before,
        "after": after,
    })
}

fn command_json(facts: &CommandFacts) -> Value {
    json!({
        "nodeId": facts.node,
        "kind": facts.kind,
        "state": facts.state.as_str(),
        "reason": facts.reason,
        "awaitingApproval": facts.held,
        "attempts": facts.attempts,
        "cancelRequested": facts.cancel_requested,
        "lateResult": facts.late_result,
    })
}

fn node_json(facts: &NodeFacts) -> Value {
    json!({
        "name": facts.name,
        "epoch": facts.epoch,
        "connected": facts.connected,
        "generation": facts.generation,
        "appliedGeneration": facts.applied_generation,
        "certificate": facts.certificate,
        "revoked": facts.revoked,
        "deleted": facts.deleted,
    })
}

fn batch_json(facts: &BatchFacts) -> Value {
    json!({
        "approvals": facts.approvals,
        "quorum": facts.quorum,
        "approved": facts.approved,
    })
}
