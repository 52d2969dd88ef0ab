//! Whose word an end is (SPEC P2).

use super::{Checker, Rule};
use crate::attestation::Statement;
use crate::event::{Body, CommandSettled, Event, Outcome};
use crate::id::CommandId;

impl Checker {
    /// An end, or a late word, by the certificate that the node has at this position.
    pub(super) fn check_attestation(&mut self, id: CommandId, end: &CommandSettled, event: &Event) {
        let Some(command) = self.commands.get(&id) else {
            return;
        };
        let node = self.nodes.get(&command.node);
        let certificate = node.and_then(|node| node.certificate.as_ref());
        let rule = match &end.node_sig {
            Some(signature) => Statement::of_end(id, end)
                .verify(certificate, signature)
                .err()
                .map(Rule::BadAttestation),
            None => (command.attested && is_the_nodes(end, event)).then_some(Rule::Unattested),
        };
        if let Some(rule) = rule {
            self.broken(event, rule);
        }
    }
}

/// Whether an end can only be the node's own word. What time decides names no session; a lost
/// journal is the ledger's finding, from what a `Hello` showed.
fn is_the_nodes(end: &CommandSettled, event: &Event) -> bool {
    let is_late = matches!(event.body, Body::CommandLateResult(_));
    let is_lost = end.state == Outcome::Failed && end.reason.as_deref() == Some("journal-lost");
    is_late || (end.epoch.is_some() && !is_lost)
}
