//! Every frame has a vector that no test run makes anew (SPEC D1).

use ed25519_dalek::SigningKey;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::batch::{Inclusion, Signature};
use crate::dsse::{PublicKey, SIGNATURE_BYTES};
use crate::id::TenantId;
use crate::trust::{RootSignature, WorkerCertificate};

const AT: Timestamp = Timestamp::from_micros(1_764_490_000_123_456);

fn command_id() -> CommandId {
    CommandId::new(AT, [1; 10])
}

fn node_id() -> NodeId {
    NodeId::new(AT, [2; 10])
}

fn samples() -> Vec<(&'static str, Frame)> {
    let update = Update {
        details: Some(canonical::from_json(&json!({ "why": "two checks failed" })).unwrap()),
        node_sig: Some(vec![7; 64]),
        reason: Some("unhealthy".to_owned()),
        result: Some(canonical::from_json(&json!({ "ok": false })).unwrap()),
        result_truncated: Some(Truncated {
            bytes: 70_000,
            sha256: "ab".repeat(32),
        }),
        ..Update::bare(command_id(), UpdateState::Failed)
    };
    let command = Command {
        batch: None,
        batch_id: None,
        signed: None,
        attested: false,
        command_id: command_id(),
        destructive: false,
        kind: "inventory.refresh".to_owned(),
        kind_version: 1,
        lane: Lane::Control,
        min_generation: Some(9),
        node_id: node_id(),
        not_after: Some(AT.plus_seconds(600)),
        payload: canonical::from_json(&json!({ "sections": ["cpu"] })).unwrap(),
        retry_safe: true,
        self_terminating: false,
        seq: 42,
        timeout_seconds: 300,
    };
    let hello = Hello {
        trust_version: 0,
        agent_version: "0.1.0".to_owned(),
        applied_generation: 9,
        boot_id: "6f0c1a34-6f0c-4d8e-9f43-0d2f6f0c1a34".to_owned(),
        entries: vec![JournalEntry {
            command_id: command_id(),
            seq: 41,
            state: EntryState::Started,
        }],
        highest_seq: 41,
        journal_id: JournalId::new(AT, [3; 10]),
        node_id: node_id(),
        role: Role::Node,
    };
    let minimal_hello = Hello {
        applied_generation: 0,
        entries: Vec::new(),
        highest_seq: 0,
        ..hello.clone()
    };
    let minimal_command = Command {
        min_generation: None,
        not_after: None,
        payload: canonical::from_json(&json!({})).unwrap(),
        ..command.clone()
    };
    let ping = Ping {
        nonce: 7,
        reply: false,
        server_time: Some(AT),
    };
    vec![
        ("Hello", hello.clone().into()),
        (
            "Welcome",
            Welcome {
                trust: Vec::new(),
                epoch: 3,
                ping_seconds: 20,
                server_time: AT,
            }
            .into(),
        ),
        ("Command", command.clone().into()),
        (
            "Cancel",
            Cancel {
                command_id: command_id(),
            }
            .into(),
        ),
        (
            "CommandUpdate",
            CommandUpdate {
                updates: vec![Update::bare(command_id(), UpdateState::Acked), update],
            }
            .into(),
        ),
        (
            "UpdateAck",
            UpdateAck {
                updates: vec![Acknowledgement {
                    code: None,
                    command_id: command_id(),
                    refused: Some("command was never dispatched".to_owned()),
                    state: UpdateState::Acked,
                }],
            }
            .into(),
        ),
        (
            "Status",
            Status {
                trust_version: 0,
                wants_trust: false,
                applied_generation: 9,
                wants_spec: true,
            }
            .into(),
        ),
        (
            "Spec",
            Spec {
                signed: None,
                generation: 10,
                spec: canonical::from_json(&json!({ "hostname": "n1" })).unwrap(),
            }
            .into(),
        ),
        ("Ping", ping.clone().into()),
        (
            "UpdateAck, refused with a code",
            UpdateAck {
                updates: vec![Acknowledgement {
                    code: Some("NEVER_SENT".to_owned()),
                    command_id: command_id(),
                    refused: Some("command was never dispatched".to_owned()),
                    state: UpdateState::Acked,
                }],
            }
            .into(),
        ),
        ("Hello, minimal", minimal_hello.into()),
        ("Command, minimal", minimal_command.into()),
        (
            "CommandUpdate, minimal",
            CommandUpdate {
                updates: vec![Update::bare(command_id(), UpdateState::Busy)],
            }
            .into(),
        ),
        (
            "UpdateAck, minimal",
            UpdateAck {
                updates: vec![Acknowledgement {
                    code: None,
                    command_id: command_id(),
                    refused: None,
                    state: UpdateState::Succeeded,
                }],
            }
            .into(),
        ),
        (
            "Status, minimal",
            Status {
                trust_version: 0,
                wants_trust: false,
                applied_generation: 0,
                wants_spec: false,
            }
            .into(),
        ),
        (
            "Spec, minimal",
            Spec {
                signed: None,
                generation: 1,
                spec: canonical::from_json(&json!({})).unwrap(),
            }
            .into(),
        ),
        (
            "Ping, the reply of a daemon",
            Ping {
                reply: true,
                server_time: None,
                ..ping
            }
            .into(),
        ),
    ]
    .into_iter()
    .chain(trusting(hello, command))
    .collect()
}

/// The frames of a service that signs.
fn trusting(hello: Hello, command: Command) -> Vec<(&'static str, Frame)> {
    let key = |number| PublicKey::of(&SigningKey::from_bytes(&[number; 32]));
    let signed = Box::new(Signed {
        signature: vec![7; SIGNATURE_BYTES],
        worker: WorkerCertificate {
            key: key(11),
            not_after: AT.plus_seconds(86_100),
            not_before: AT,
            root: key(1),
            signature: vec![8; SIGNATURE_BYTES],
        },
    });
    let batch = BatchProof {
        approvals: vec![Signature {
            key: key(21),
            signature: vec![9; SIGNATURE_BYTES],
        }],
        expires_at: AT.plus_seconds(3_600),
        inclusion: Inclusion::new(1, &[[0xa1; 32], [0xa2; 32]]),
        leaf_count: 3,
        reason: "firmware of rack 7".to_owned(),
        root: vec![0xa3; 32],
        tenant_id: TenantId::new(AT, [4; 10]),
    };
    let bundle = SignedBundle {
        bundle: vec![0x80],
        signatures: vec![RootSignature {
            root: key(1),
            signature: vec![6; SIGNATURE_BYTES],
        }],
    };
    let hello = Hello {
        trust_version: 2,
        ..hello
    };
    let welcome = Welcome {
        epoch: 3,
        ping_seconds: 20,
        server_time: AT,
        trust: vec![bundle.clone()],
    };
    let command = Command {
        batch: Some(Box::new(batch)),
        batch_id: Some(BatchId::new(AT, [3; 10])),
        signed: Some(signed.clone()),
        ..command
    };
    let status = Status {
        applied_generation: 9,
        trust_version: 2,
        wants_spec: false,
        wants_trust: true,
    };
    let spec = Spec {
        generation: 10,
        signed: Some(signed.clone()),
        spec: canonical::from_json(&json!({ "hostname": "n1" })).unwrap(),
    };
    let trust = Trust {
        bundles: vec![bundle],
    };
    vec![
        ("Hello, with trust", hello.into()),
        ("Welcome, with trust", welcome.into()),
        ("Command, signed and approved", command.into()),
        ("Status, asking for trust", status.into()),
        ("Spec, signed", spec.into()),
        ("Trust", trust.into()),
    ]
    .into_iter()
    .chain(secrets(signed))
    .collect()
}

/// The frames about a secret.
fn secrets(signed: Box<Signed>) -> Vec<(&'static str, Frame)> {
    let request = SecretRequest {
        command_id: command_id(),
        key: OneTimeKey::from_bytes([0xb1; 32]),
        node_sig: Some(vec![5; SIGNATURE_BYTES]),
        secret_ref: "site-7/bmc".to_owned(),
    };
    let secret = Secret {
        command_id: command_id(),
        key: request.key,
        refused: None,
        sealed: Some(Sealed {
            ciphertext: vec![0xb2; 20],
            encapsulated_key: vec![0xb3; 32],
        }),
        signed: Some(signed),
    };
    let refused = Secret {
        refused: Some("NOT_ALLOWED".to_owned()),
        sealed: None,
        signed: None,
        ..secret.clone()
    };
    vec![
        ("SecretRequest", request.clone().into()),
        (
            "SecretRequest, not signed",
            SecretRequest {
                node_sig: None,
                ..request
            }
            .into(),
        ),
        ("Secret", secret.into()),
        ("Secret, refused", refused.into()),
    ]
}

#[test]
fn d1_every_frame_has_the_bytes_of_its_vector() {
    let vectors: Vec<Value> =
        serde_json::from_str(include_str!("../../vectors/frames.json")).unwrap();
    let made: Vec<Value> = samples()
        .into_iter()
        .map(|(name, frame)| {
            let bytes = frame.encode().unwrap();
            json!({
                "name": name,
                "frame": frame.name(),
                "body": frame.body_json(),
                "bytes": hex::encode(bytes),
            })
        })
        .collect();
    let shown = serde_json::to_string_pretty(&made).unwrap();
    assert!(
        vectors == made,
        "protocol/vectors/frames.json should hold:\n{shown}"
    );
}

#[test]
fn d1_every_frame_reads_back_and_its_body_is_canonical() {
    for (name, frame) in samples() {
        let bytes = frame.encode().unwrap();
        canonical::check(&bytes[2..]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(Frame::decode(&bytes).unwrap(), frame, "{name}");
        for end in 0..bytes.len() {
            assert!(Frame::decode(&bytes[..end]).is_err(), "{name} cut at {end}");
        }
    }
}

#[test]
fn d13_a_frame_above_the_limit_is_refused_by_name() {
    let refused = Frame::decode(&vec![0x92; FRAME_BYTES_MAX + 1]).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { bytes } if bytes == FRAME_BYTES_MAX + 1));
}

proptest! {
    #[test]
    fn d1_no_bytes_make_the_decoder_panic(
        code in 0_u8..16,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = Frame::decode(&bytes);
        let mut framed = vec![0x92, code];
        framed.extend(bytes);
        let _ = Frame::decode(&framed);
    }
}
