//! A service that signs: roots, a worker key, bundles, commands, batches.

use ed25519_dalek::SigningKey;

use super::*;
use crate::batch::{BatchProof, Inclusion, Leaf, Signature, Statement};
use crate::dsse::{self, PublicKey, Purpose};
use crate::event::Approver;
use crate::frame::{Spec, Trust};
use crate::id::{BatchId, TenantId};
use crate::merkle::Tree;
use crate::trust::{RootSignature, Signed, WorkerCertificate, intent};

pub(super) const HOUR: i64 = 3_600 * SECOND;

/// The private key with this number; people, roots and workers have numbers of their own.
pub(super) fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

pub(super) fn public(number: u8) -> PublicKey {
    PublicKey::of(&key(number))
}

pub(super) const WORKER: u8 = 100;

/// Bundle 1 of root 1, with nobody who approves.
pub(super) fn bundle(version: u64, roots: &[u8]) -> TrustBundle {
    TrustBundle {
        approvers: Vec::new(),
        quorum: 0,
        roots: roots.iter().map(|root| public(*root)).collect(),
        unbatched_destructive_per_hour: 0,
        version,
    }
}

/// The same with Ada, Bob and Eve (whose second key counts as hers), two of whom must approve.
pub(super) fn approved_by_two(unbatched_destructive_per_hour: u32) -> TrustBundle {
    let approver = |(number, name): (u8, &str)| Approver {
        key: public(number),
        name: name.to_owned(),
    };
    TrustBundle {
        approvers: [(50, "Ada"), (51, "Bob"), (52, "Eve"), (53, "eve")]
            .map(approver)
            .to_vec(),
        quorum: 2,
        unbatched_destructive_per_hour,
        ..bundle(1, &[1])
    }
}

pub(super) fn sign_bundle(bundle: &TrustBundle, roots: &[u8]) -> SignedBundle {
    let bytes = bundle.encode().unwrap();
    let signature = |root: &u8| RootSignature {
        root: public(*root),
        signature: dsse::sign(&key(*root), Purpose::TrustBundle, &bytes).to_vec(),
    };
    SignedBundle {
        signatures: roots.iter().map(signature).collect(),
        bundle: bytes,
    }
}

pub(super) fn worker_of(root: u8, (from, until): (i64, i64)) -> WorkerCertificate {
    let lives = (server_at(from), server_at(until));
    let statement = WorkerCertificate::statement(public(WORKER), lives, public(root)).unwrap();
    WorkerCertificate {
        key: public(WORKER),
        not_after: lives.1,
        not_before: lives.0,
        root: public(root),
        signature: dsse::sign(&key(root), Purpose::WorkerKey, &statement).to_vec(),
    }
}

pub(super) fn worker(root: u8) -> WorkerCertificate {
    worker_of(root, (-300 * SECOND, 24 * HOUR))
}

/// The command, signed by a worker.
pub(super) fn signed_by(worker: &WorkerCertificate, command: frame::Command) -> frame::Command {
    let payload = intent::of_command(&command).unwrap();
    let signed = Signed::new(&key(WORKER), worker, Purpose::Command, &payload);
    frame::Command {
        signed: Some(Box::new(signed)),
        ..command
    }
}

/// A command of this kind, signed under root 1.
pub(super) fn signed(number: u64, kind: &str) -> frame::Command {
    signed_by(&worker(1), command(number, kind))
}

pub(super) fn spec(generation: u64, worker: &WorkerCertificate) -> Spec {
    let spec = vec![0x80];
    let payload = intent::of_spec(node_id(), generation, &spec).unwrap();
    let signed = Signed::new(&key(WORKER), worker, Purpose::DesiredState, &payload);
    Spec {
        generation,
        signed: Some(Box::new(signed)),
        spec,
    }
}

pub(super) fn trust(bundles: &[SignedBundle]) -> Trust {
    Trust {
        bundles: bundles.to_vec(),
    }
}

pub(super) fn batch_id() -> BatchId {
    BatchId::from_uuid(Uuid::from_u128(70))
}

/// A batch of these leaves with the proof for one of them, signed by these approvers.
pub(super) fn batch(leaves: &[Leaf], index: usize, approvers: &[u8]) -> BatchProof {
    let tree = Tree::new(leaves.iter().map(|leaf| leaf.hash().unwrap()).collect());
    let root = tree.root().to_vec();
    let path = tree.path(index).unwrap();
    let proof = BatchProof {
        approvals: Vec::new(),
        expires_at: server_at(HOUR),
        inclusion: Inclusion::new(index as u64, &path),
        leaf_count: leaves.len() as u64,
        reason: "the disks are worn".to_owned(),
        root,
        tenant_id: TenantId::from_uuid(Uuid::from_u128(71)),
    };
    approved(proof, approvers)
}

/// The proof with the signatures of these approvers over what it says.
pub(super) fn approved(proof: BatchProof, approvers: &[u8]) -> BatchProof {
    let statement = Statement {
        batch_id: batch_id(),
        expires_at: proof.expires_at,
        leaf_count: proof.leaf_count,
        reason: &proof.reason,
        root: &proof.root,
        tenant_id: proof.tenant_id,
    };
    let payload = statement.encode().unwrap();
    let signature = |number: &u8| Signature {
        key: public(*number),
        signature: dsse::sign(&key(*number), Purpose::BatchApproval, &payload).to_vec(),
    };
    let approvals = approvers.iter().map(signature).collect();
    BatchProof { approvals, ..proof }
}

impl Driver {
    /// A driver in an open session that has just been given these bundles.
    pub(super) fn trusting(bundles: &[SignedBundle]) -> Self {
        let mut driver = Self::new();
        driver.welcome_trust = bundles.to_vec();
        driver.connect();
        driver
    }

    /// One that trusts root 1.
    pub(super) fn trusting_root_1() -> Self {
        Self::trusting(&[sign_bundle(&bundle(1, &[1]), &[1])])
    }

    pub(super) fn why(&self, number: u64) -> String {
        self.details(number)["why"].as_str().unwrap().to_owned()
    }

    /// Whether the command is accepted; else the code of its refusal.
    pub(super) fn verdict(&mut self, command: frame::Command) -> String {
        let number = command.command_id.uuid().as_u128();
        let done = self.receive(command);
        let refused = format!("say rejected {number} ");
        let Some(last) = done.last() else {
            return "nothing".to_owned();
        };
        if let Some(code) = last.strip_prefix(&refused) {
            assert_eq!(done.len(), 2, "{done:?}");
            assert_eq!(done[0], format!("journal ended {number}"));
            return code.to_owned();
        }
        if last.contains("running") {
            assert!(self.starts[&command_id(number)] == 1);
            return "accepted".to_owned();
        }
        last.clone()
    }
}
