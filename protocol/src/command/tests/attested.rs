//! Ends that the node has to sign (SPEC P2).

use ed25519_dalek::SigningKey;

use super::*;
use crate::attestation::{self, Unproved};
use crate::dsse::PublicKey;
use crate::event::Truncated;

pub(super) fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

/// The node gets a certificate for this key.
pub(super) fn certify(node: Node, key: &SigningKey) -> Node {
    let certified = NodeCertified {
        renews: None,
        allowed_kinds: None,
        fingerprint: "f".to_owned(),
        not_after: later(10_000),
        not_before: NOW,
        public_key: PublicKey::of(key).as_bytes().to_vec(),
    };
    let stream = Stream::Node(node_id());
    let certified = event(stream, node.version + 1, NOW, certified.into());
    Node::evolve(Some(node), &certified).unwrap()
}

impl Life {
    fn attested() -> Self {
        Self::of("diag.nvml").dispatched()
    }
}

/// An end with every field.
fn said(state: UpdateState) -> Update {
    Update {
        details: canonical::from_json(&serde_json::json!({ "why": "so" })).ok(),
        reason: Some("ecc".to_owned()),
        result: canonical::from_json(&serde_json::json!({ "passed": false })).ok(),
        result_truncated: Some(Truncated {
            bytes: 50_000,
            sha256: "ab".repeat(32),
        }),
        ..Update::bare(command_id(), state)
    }
}

fn signed_by(key: &SigningKey, node: NodeId, update: Update) -> Update {
    let signature = attestation::sign(key, node, &update).unwrap();
    Update {
        node_sig: signature.map(|bytes| bytes.to_vec()),
        ..update
    }
}

pub(super) fn signed(update: Update) -> Update {
    signed_by(&key(1), node_id(), update)
}

const ENDS: [UpdateState; 4] = [
    UpdateState::Succeeded,
    UpdateState::Failed,
    UpdateState::Rejected,
    UpdateState::Cancelled,
];

#[track_caller]
fn assert_refused(update: &Update) {
    let mut life = Life::attested();
    let refused = Err(Refusal::BadAttestation(Unproved::NotSigned));
    assert_eq!(life.report_update(update), refused);
    assert_eq!(life.state(), "dispatched");
}

#[test]
fn p2_an_attested_end_needs_the_nodes_signature_and_keeps_it_as_it_came() {
    for state in ENDS {
        let mut life = Life::attested();
        let unattested = Refusal::Unattested {
            kind: "diag.nvml".to_owned(),
        };
        assert_eq!(life.report_update(&said(state)), Err(unattested));
        assert_eq!(life.state(), "dispatched");
        let update = signed(said(state));
        life.report_update(&update).unwrap();
        let State::Settled(settled) = &life.command.state else {
            panic!("not settled")
        };
        assert_eq!(settled.end.node_sig, update.node_sig);
        assert!(settled.end.node_sig.is_some());
    }
}

#[test]
fn p2_what_is_no_end_needs_no_signature() {
    let mut life = Life::attested();
    for state in [UpdateState::Acked, UpdateState::Running] {
        life.report(state).unwrap();
    }
    assert_eq!(life.state(), "running");
}

#[test]
fn p2_a_node_without_a_certificate_attests_nothing() {
    let mut life = Life::attested();
    life.node.certificate = None;
    let refused = Err(Refusal::BadAttestation(Unproved::NoCertificate));
    let update = signed(said(UpdateState::Succeeded));
    assert_eq!(life.report_update(&update), refused);
}

#[test]
fn p2_another_kind_needs_no_signature_but_one_that_is_there_must_hold() {
    let mut life = Life::of("inventory.refresh").dispatched();
    let forged = signed_by(&key(2), node_id(), said(UpdateState::Failed));
    let refused = Err(Refusal::BadAttestation(Unproved::NotSigned));
    assert_eq!(life.report_update(&forged), refused);
    life.report_update(&said(UpdateState::Failed)).unwrap();
    assert_eq!(life.end(), ("failed", Some("ecc")));
}

#[test]
fn p2_a_signature_of_another_key_node_command_or_state_is_worth_nothing() {
    let end = || said(UpdateState::Failed);
    assert_refused(&signed_by(&key(2), node_id(), end()));
    assert_refused(&signed_by(&key(1), NodeId::new(NOW, [9; 10]), end()));
    let other = Update {
        command_id: CommandId::new(NOW, [9; 10]),
        ..end()
    };
    let replayed = Update {
        node_sig: signed(other).node_sig,
        ..end()
    };
    assert_refused(&replayed);
    for state in ENDS {
        let replayed = Update {
            state,
            ..signed(end())
        };
        if state != UpdateState::Failed {
            assert_refused(&replayed);
        }
    }
}

#[test]
fn p2_nothing_that_an_end_says_can_be_changed_or_left_out_under_its_signature() {
    type Change = fn(&mut Update);
    let changes: [Change; 9] = [
        |update| update.details = None,
        |update| update.details = Some(vec![0x80]),
        |update| update.reason = None,
        |update| update.reason = Some("gpu-busy".to_owned()),
        |update| update.result = None,
        |update| update.result = Some(vec![0x80]),
        |update| update.result_truncated = None,
        |update| {
            update.result_truncated = Some(Truncated {
                bytes: 50_001,
                sha256: "ab".repeat(32),
            });
        },
        // What one field said may not be said by another.
        |update| std::mem::swap(&mut update.details, &mut update.result),
    ];
    for change in changes {
        let mut update = signed(said(UpdateState::Failed));
        change(&mut update);
        assert_refused(&update);
    }
    let bare = signed(Update::bare(command_id(), UpdateState::Failed));
    let filled = Update {
        node_sig: bare.node_sig,
        ..said(UpdateState::Failed)
    };
    assert_refused(&filled);
}

#[test]
fn p2_a_forged_word_after_the_end_is_no_late_result() {
    let mut life = Life::attested();
    life.report_update(&signed(said(UpdateState::Failed)))
        .unwrap();
    let mut forged = signed(said(UpdateState::Failed));
    forged.state = UpdateState::Succeeded;
    assert!(life.report_update(&forged).is_err());
    assert!(life.report_update(&said(UpdateState::Succeeded)).is_err());
    let late = signed(said(UpdateState::Succeeded));
    life.report_update(&late).unwrap();
    let State::Settled(settled) = &life.command.state else {
        panic!("not settled")
    };
    let word = settled.late.as_ref().map(|late| &late.word);
    assert_eq!(
        word.and_then(|word| word.node_sig.clone()),
        Some(late.node_sig.unwrap())
    );
}

#[test]
fn p2_an_end_that_is_said_again_under_a_new_key_is_no_news() {
    let mut life = Life::attested();
    life.report_update(&signed(said(UpdateState::Failed)))
        .unwrap();
    life.node = certify(life.node, &key(2));
    let again = signed_by(&key(2), node_id(), said(UpdateState::Failed));
    assert_ne!(again.node_sig, signed(said(UpdateState::Failed)).node_sig);
    let version = life.command.version;
    life.report_update(&again).unwrap();
    assert_eq!(life.command.version, version);
    // The key of the certificate before is no longer the node's.
    let old = signed(said(UpdateState::Failed));
    assert!(life.report_update(&old).is_err());
}

#[test]
fn p2_a_forged_end_leaves_the_command_to_its_timeout() {
    let mut life = Life::attested();
    assert!(life.report_update(&said(UpdateState::Succeeded)).is_err());
    life.now = later(601 + 300);
    let timeout = life.command.queued.timeout_seconds;
    let end = expire::decide(&life.command, timeout, life.now).unwrap();
    life.happen([end]);
    assert_eq!(life.end(), ("failed", Some("timeout")));
}

proptest! {
    #[test]
    fn p2_one_bit_of_the_signature_or_of_what_is_signed_is_enough(
        state in 0_usize..4,
        reason in "[a-z-]{1,40}",
        result in "[ -~]{0,200}",
        details in "[ -~]{0,200}",
        field in 0_u8..4,
        place in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let text = |text: &str| canonical::from_json(&serde_json::json!({ "text": text })).ok();
        let update = signed(Update {
            details: text(&details),
            reason: Some(reason.clone()),
            result: text(&result),
            ..Update::bare(command_id(), ENDS[state])
        });
        let mut life = Life::attested();
        let statement = |update: &Update| {
            let signature = update.node_sig.clone().unwrap();
            attestation::Statement::of_update(node_id(), update)
                .unwrap()
                .verify(life.node.certificate.as_ref(), &signature)
        };
        prop_assert_eq!(statement(&update), Ok(()));
        let mut changed = update.clone();
        let bytes = match field {
            0 => changed.node_sig.as_mut(),
            1 => changed.result.as_mut(),
            2 => changed.details.as_mut(),
            _ => None,
        };
        match bytes {
            Some(bytes) => {
                let place = place.index(bytes.len());
                bytes[place] ^= 1 << bit;
            }
            None => changed.reason = Some(format!("{reason}x")),
        }
        prop_assert_eq!(statement(&changed), Err(Unproved::NotSigned));
        prop_assert!(life.report_update(&changed).is_err());
        prop_assert_eq!(life.state(), "dispatched");
        life.report_update(&update).unwrap();
    }
}
