//! Nodes that sign how their commands ended, and a gateway that lies about it (SPEC P2).

use ed25519_dalek::SigningKey;
use ledger_protocol::attestation;
use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::NodeCertified;
use ledger_protocol::frame::{CommandUpdate, Frame, Update, UpdateState};
use ledger_protocol::id::NodeId;
use ledger_protocol::time::Timestamp;

use crate::world::World;

/// The key of a node, which its copy has as well.
fn key(node: NodeId) -> SigningKey {
    let mut seed = [0; 32];
    seed[..16].copy_from_slice(node.uuid().as_bytes());
    SigningKey::from_bytes(&seed)
}

/// A node's certificate.
pub(crate) fn certificate(
    node: NodeId,
    allowed_kinds: Option<Vec<String>>,
    at: Timestamp,
) -> NodeCertified {
    NodeCertified {
        renews: None,
        allowed_kinds,
        fingerprint: "ab".repeat(32),
        not_after: at.plus_seconds(100_000),
        not_before: at,
        public_key: PublicKey::of(&key(node)).as_bytes().to_vec(),
    }
}

impl World {
    /// Signs what a node is about to send. The agent signs every end; here those that nobody asks a
    /// signature for go without, for the sake of time.
    pub(crate) fn sign(&self, node: NodeId, frame: &mut Frame) {
        let Frame::CommandUpdate(CommandUpdate { updates }) = frame else {
            return;
        };
        for update in updates {
            let command = self.ledger.commands.get(&update.command_id);
            if command.is_some_and(|command| command.queued.attested) {
                let signature = attestation::sign(&key(node), node, update);
                update.node_sig = signature.ok().flatten().map(|bytes| bytes.to_vec());
            }
        }
    }

    /// Perhaps the gateway says something else than the node said; whether it did.
    pub(crate) fn lie(&mut self, g: usize, update: &mut Update) -> bool {
        let lies = self.faults_on && self.liar == Some(g) && self.chance.one_in(3);
        let is_attested = self
            .ledger
            .commands
            .get(&update.command_id)
            .is_some_and(|command| command.queued.attested);
        if !lies || !is_attested || update.node_sig.is_none() {
            return false;
        }
        match self.chance.below(4) {
            0 => update.reason = Some("gpu-busy".to_owned()),
            1 => update.result = Some(vec![0x80]),
            2 => update.node_sig = None,
            _ => {
                update.state = match update.state {
                    UpdateState::Succeeded => UpdateState::Failed,
                    _ => UpdateState::Succeeded,
                }
            }
        }
        self.tally.forged += 1;
        self.lied_of.insert(update.command_id);
        true
    }
}
