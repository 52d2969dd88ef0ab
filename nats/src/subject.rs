//! Names on NATS (SPEC section 9).
//!
//! An event has a bare name, such as `node.command.queued`, and a subject in the stream, which is
//! that name, the tenant and the node. The stream's patterns ask for exactly those two tokens, so
//! that it never captures a copy on the bare name.

use std::fmt::Write as _;

use ledger_protocol::event::{Body, Event};
use ledger_protocol::id::NodeId;

/// The stream that holds the log of the one shard.
pub const STREAM: &str = "LEDGER";

/// Every bare name, with the event type that it stands for. To add one: a line here when the
/// protocol has a new event; a test compares the two lists.
const NAMES: &[(&str, &str)] = &[
    ("command.queued", "node.command.queued"),
    ("command.released", "node.command.released"),
    ("command.dispatched", "node.command.dispatched"),
    ("command.returned", "node.command.returned"),
    ("command.acked", "node.command.acked"),
    ("command.running", "node.command.running"),
    ("command.cancel-requested", "node.command.cancel-requested"),
    ("command.settled", "command.settled"),
    ("command.late-result", "node.command.late-result"),
    ("node.registered", "node.registered"),
    ("node.session-opened", "node.session-opened"),
    ("node.session-closed", "node.session-closed"),
    ("node.certified", "node.certified"),
    ("node.certificate-revoked", "node.certificate-revoked"),
    ("node.spec-set", "node.spec-set"),
    ("node.generation-applied", "node.generation-applied"),
    ("node.deleted", "node.deleted"),
    ("batch.created", "batch.created"),
    ("batch.approved", "batch.approved"),
];

/// The bare name of an event: its `ce-type`, and the subject of its copy.
pub(crate) fn bare_name(body: &Body) -> &'static str {
    let event_type = body.type_name();
    NAMES
        .iter()
        .find(|(own, _)| *own == event_type)
        .map_or(event_type, |(_, bare)| bare)
}

/// The event's subject in the stream.
pub(crate) fn subject(event: &Event) -> String {
    let mut subject = format!("{}.{}", bare_name(&event.body), event.tenant);
    if let Some(node) = event.node_id() {
        // Writing to a string cannot fail.
        let _ = write!(subject, ".{node}");
    }
    subject
}

/// The stream's patterns: each name with tenant and node. Those of a batch have no node.
pub(crate) fn patterns() -> Vec<String> {
    let names = NAMES.iter().map(|(_, bare)| {
        let node = if bare.starts_with("batch.") { "" } else { ".*" };
        format!("{bare}.*{node}")
    });
    names.collect()
}

/// All nodes' wakes.
pub(crate) const WAKE_NODES: &str = "wake.node.*";

/// What wakes a node's controller (SPEC T4).
pub(crate) fn wake_node(node: NodeId) -> String {
    format!("wake.node.{node}")
}

/// What wakes a workflow (SPEC T4).
pub(crate) fn wake_workflow(workflow: &str) -> String {
    let mut subject = "wake.workflow.".to_owned();
    for byte in workflow.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            subject.push(char::from(byte));
        } else {
            // A token of a subject may have no space, dot or wildcard.
            let _ = write!(subject, "%{byte:02X}");
        }
    }
    subject
}

/// The workflow that a key `wf:<workflow>:<step>` names.
pub(crate) fn workflow_of(key: &str) -> Option<&str> {
    let (workflow, _step) = key.strip_prefix("wf:")?.split_once(':')?;
    (!workflow.is_empty()).then_some(workflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_every_event_type_has_a_name_and_a_pattern() {
        assert!(patterns().contains(&"batch.created.*".to_owned()));
        let known: Vec<_> = NAMES.iter().map(|(own, _)| *own).collect();
        assert_eq!(known, Body::TYPES, "a new event type needs a line in NAMES");
        assert!(patterns().contains(&"command.settled.*.*".to_owned()));
        assert!(patterns().contains(&"node.command.cancel-requested.*.*".to_owned()));
    }

    #[test]
    fn n_no_pattern_captures_a_bare_name() {
        let matches = |pattern: &str, subject: &str| {
            let (pattern, subject): (Vec<_>, Vec<_>) =
                (pattern.split('.').collect(), subject.split('.').collect());
            pattern.len() == subject.len()
                && pattern
                    .iter()
                    .zip(&subject)
                    .all(|(p, s)| *p == "*" || p == s)
        };
        for (_, bare) in NAMES {
            assert!(
                !patterns().iter().any(|pattern| matches(pattern, bare)),
                "{bare}"
            );
        }
    }

    #[test]
    fn t4_a_workflow_key_names_its_workflow() {
        assert_eq!(workflow_of("wf:roll-out-7:reboot"), Some("roll-out-7"));
        assert_eq!(workflow_of("wf:a:b:c"), Some("a"));
        for key in [
            "api:0123",
            "wf:alone",
            "wf::step",
            "acceptance:x",
            "",
            "wf:",
        ] {
            assert_eq!(workflow_of(key), None, "{key}");
        }
        assert_eq!(wake_workflow("roll-out_7"), "wake.workflow.roll-out_7");
        assert_eq!(wake_workflow("a.*> b"), "wake.workflow.a%2E%2A%3E%20b");
    }
}
