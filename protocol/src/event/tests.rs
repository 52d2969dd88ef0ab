//! Every event type has a vector that no test run makes anew (SPEC L2).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::batch::Inclusion;
use crate::dsse::PublicKey;
use crate::id::JournalId;
use crate::kind::{Lane, Role};

const AT: Timestamp = Timestamp::from_micros(1_764_490_000_123_456);

fn node() -> NodeId {
    NodeId::new(AT, [2; 10])
}

fn settled() -> CommandSettled {
    CommandSettled {
        details: Some(canonical::from_json(&json!({ "phase": "started" })).unwrap()),
        epoch: Some(3),
        kind: "diag.nvml".to_owned(),
        node_id: node(),
        node_sig: Some(vec![7; 64]),
        reason: Some("unhealthy".to_owned()),
        result: Some(canonical::from_json(&json!({ "checks": [], "ok": false })).unwrap()),
        result_truncated: Some(Truncated {
            bytes: 70_000,
            sha256: "ab".repeat(32),
        }),
        seq: 42,
        state: Outcome::Failed,
    }
}

/// One event of each type with every field, and some with the optional ones absent.
fn samples() -> Vec<(&'static str, Body)> {
    let kind = || "diag.nvml".to_owned();
    let queued = CommandQueued {
        signed: None,
        attested: true,
        batch_id: Some(BatchId::new(AT, [3; 10])),
        batch_inclusion: None,
        bundle_key: Some("support-bundles/n/k.bundle".to_owned()),
        destructive: true,
        held: true,
        idempotency_key: "api:00ff".to_owned(),
        kind: kind(),
        kind_version: 1,
        lane: Lane::Control,
        min_generation: Some(9),
        node_id: node(),
        not_after: AT.plus_seconds(600),
        not_before: Some(AT),
        payload: canonical::from_json(&json!({ "sections": ["cpu"] })).unwrap(),
        retry_safe: true,
        self_terminating: true,
        seq: 42,
        timeout_seconds: 300,
    };
    let batched = CommandQueued {
        batch_inclusion: Some(Inclusion::new(1, &[[0xa1; 32], [0xa2; 32]])),
        not_before: None,
        ..queued.clone()
    };
    let least = CommandQueued {
        attested: false,
        batch_id: None,
        bundle_key: None,
        destructive: false,
        held: false,
        min_generation: None,
        not_before: None,
        retry_safe: false,
        self_terminating: false,
        ..queued.clone()
    };
    let end = CommandSettled {
        details: None,
        epoch: None,
        node_sig: None,
        reason: None,
        result: None,
        result_truncated: None,
        state: Outcome::Cancelled,
        ..settled()
    };
    let proposed = BatchCreated {
        approvers: vec![Approver {
            key: key(),
            name: "grace".to_owned(),
        }],
        expires_at: AT.plus_seconds(86_400),
        idempotency_key: "api:00ff".to_owned(),
        leaf_count: 10_000,
        quorum: 1,
        reason: "the disks of rack r7 are to be returned".to_owned(),
        root: vec![0xa3; 32],
    };
    let recorded = BatchCreated {
        approvers: Vec::new(),
        quorum: 0,
        ..proposed.clone()
    };
    let (node_id, seq) = (node(), 42);
    vec![
        ("queued", queued.into()),
        ("queued, in a batch", batched.into()),
        ("queued, least", least.into()),
        (
            "released",
            CommandReleased {
                kind: kind(),
                node_id,
                not_before: AT,
                seq,
            }
            .into(),
        ),
        (
            "dispatched",
            CommandDispatched {
                attempt: 1,
                epoch: 3,
                kind: kind(),
                node_id,
                seq,
            }
            .into(),
        ),
        (
            "returned",
            CommandReturned {
                epoch: 3,
                kind: kind(),
                node_id,
                reason: "busy".to_owned(),
                retry_at: AT.plus_seconds(1),
                seq,
            }
            .into(),
        ),
        (
            "acked",
            CommandAcked {
                epoch: 3,
                kind: kind(),
                node_id,
                sent_epoch: None,
                seq,
            }
            .into(),
        ),
        (
            "acked, sent to a lost journal",
            CommandAcked {
                epoch: 3,
                kind: kind(),
                node_id,
                sent_epoch: Some(2),
                seq,
            }
            .into(),
        ),
        (
            "running",
            CommandRunning {
                epoch: 3,
                kind: kind(),
                node_id,
                sent_epoch: None,
                seq,
            }
            .into(),
        ),
        (
            "running, sent to a lost journal",
            CommandRunning {
                epoch: 3,
                kind: kind(),
                node_id,
                sent_epoch: Some(2),
                seq,
            }
            .into(),
        ),
        (
            "cancel requested",
            CommandCancelRequested {
                kind: kind(),
                node_id,
                seq,
            }
            .into(),
        ),
        ("settled", settled().into()),
        ("settled, least", end.into()),
        ("late result", CommandLateResult(settled()).into()),
        (
            "node registered",
            NodeRegistered {
                labels: BTreeMap::from([("rack".to_owned(), "r7".to_owned())]),
                name: "n1".to_owned(),
                role: Role::Node,
            }
            .into(),
        ),
        (
            "session opened",
            NodeSessionOpened {
                agent_version: "0.1.0".to_owned(),
                applied_generation: 9,
                boot_id: "b".to_owned(),
                epoch: 3,
                gateway: "g1".to_owned(),
                gateway_lease: None,
                journal_id: JournalId::new(AT, [4; 10]),
                journal_lost: None,
                role: Role::Ramdisk,
                seq_lifted: Some(50),
            }
            .into(),
        ),
        (
            "session opened, gateway with a lease",
            NodeSessionOpened {
                agent_version: "0.1.0".to_owned(),
                applied_generation: 9,
                boot_id: "b".to_owned(),
                epoch: 3,
                gateway: "g1".to_owned(),
                gateway_lease: Some("gateway:g1:00ff".to_owned()),
                journal_id: JournalId::new(AT, [4; 10]),
                journal_lost: None,
                role: Role::Ramdisk,
                seq_lifted: None,
            }
            .into(),
        ),
        (
            "session opened, journal lost",
            NodeSessionOpened {
                agent_version: "0.1.0".to_owned(),
                applied_generation: 9,
                boot_id: "b".to_owned(),
                epoch: 3,
                gateway: "g1".to_owned(),
                gateway_lease: None,
                journal_id: JournalId::new(AT, [4; 10]),
                journal_lost: Some(JournalLost::Replaced),
                role: Role::Ramdisk,
                seq_lifted: None,
            }
            .into(),
        ),
        (
            "session opened, older copy of a journal",
            NodeSessionOpened {
                agent_version: "0.1.0".to_owned(),
                applied_generation: 9,
                boot_id: "b".to_owned(),
                epoch: 3,
                gateway: "g1".to_owned(),
                gateway_lease: None,
                journal_id: JournalId::new(AT, [4; 10]),
                journal_lost: Some(JournalLost::Behind),
                role: Role::Ramdisk,
                seq_lifted: None,
            }
            .into(),
        ),
        (
            "session opened, after an older copy of a journal",
            NodeSessionOpened {
                agent_version: "0.1.0".to_owned(),
                applied_generation: 9,
                boot_id: "b".to_owned(),
                epoch: 3,
                gateway: "g1".to_owned(),
                gateway_lease: None,
                journal_id: JournalId::new(AT, [4; 10]),
                journal_lost: Some(JournalLost::Copied),
                role: Role::Ramdisk,
                seq_lifted: None,
            }
            .into(),
        ),
        (
            "session closed",
            NodeSessionClosed {
                epoch: 3,
                reason: "gone".to_owned(),
            }
            .into(),
        ),
        (
            "certified",
            NodeCertified {
                allowed_kinds: Some(vec!["inventory.refresh".to_owned()]),
                fingerprint: "cd".repeat(32),
                not_after: AT.plus_seconds(86_400),
                not_before: AT,
                public_key: vec![9; 32],
                renews: None,
            }
            .into(),
        ),
        (
            "certified, renewed",
            NodeCertified {
                allowed_kinds: None,
                fingerprint: "ef".repeat(32),
                not_after: AT.plus_seconds(86_400),
                not_before: AT,
                public_key: vec![9; 32],
                renews: Some("cd".repeat(32)),
            }
            .into(),
        ),
        (
            "certificate revoked",
            NodeCertificateRevoked {
                fingerprint: "ef".repeat(32),
                reason: "stolen".to_owned(),
            }
            .into(),
        ),
        (
            "spec set",
            NodeSpecSet {
                signed: None,
                generation: 9,
                spec: vec![0x80],
            }
            .into(),
        ),
        (
            "generation applied",
            NodeGenerationApplied {
                epoch: 3,
                generation: 9,
            }
            .into(),
        ),
        ("deleted", NodeDeleted {}.into()),
        ("batch created", proposed.into()),
        ("batch created, least", recorded.into()),
        (
            "batch approved",
            BatchApproved {
                approver: "grace".to_owned(),
                key: key(),
                signature: vec![8; 64],
            }
            .into(),
        ),
    ]
}

/// The public key of RFC 8032, section 7.1, test 1.
fn key() -> PublicKey {
    let hex = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    PublicKey::from_bytes(&hex::decode(hex).unwrap()).unwrap()
}

fn event(body: Body) -> Event {
    let name = body.type_name();
    let stream = if name.starts_with("command.") {
        Stream::Command(CommandId::new(AT, [1; 10]))
    } else if name.starts_with("batch.") {
        Stream::Batch(BatchId::new(AT, [3; 10]))
    } else {
        Stream::Node(node())
    };
    Event {
        id: EventId::new(AT, [5; 10]),
        stream,
        version: 7,
        at: AT,
        actor: Actor::gateway("g1"),
        tenant: TenantId::new(AT, [6; 10]),
        body,
    }
}

#[test]
fn l2_every_event_has_the_bytes_of_its_vector() {
    let vectors: Vec<Value> =
        serde_json::from_str(include_str!("../../vectors/events.json")).unwrap();
    let made: Vec<Value> = samples()
        .into_iter()
        .map(|(name, body)| {
            let event = event(body);
            let bytes = event.encode().unwrap();
            json!({
                "name": name,
                "type": event.body.type_name(),
                "body": event.body.to_json(),
                "bytes": hex::encode(bytes),
            })
        })
        .collect();
    let shown = serde_json::to_string_pretty(&made).unwrap();
    assert!(
        vectors == made,
        "protocol/vectors/events.json should hold:\n{shown}"
    );
}

#[test]
fn l2_every_event_is_canonical_and_reads_back() {
    let mut types: Vec<_> = Vec::new();
    for (name, body) in samples() {
        types.push(body.type_name());
        let event = event(body);
        let bytes = event.encode().unwrap();
        canonical::check(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(Event::decode(&bytes).unwrap(), event, "{name}");
    }
    types.dedup();
    assert_eq!(types, Body::TYPES, "an event type has no sample");
}

#[test]
fn l1_a_field_that_a_later_version_adds_is_read_over() {
    let bytes = event(NodeDeleted {}.into()).encode().unwrap();
    let mut value: rmp_serde_value::Value = rmp_serde_value::read(&bytes);
    value.set("body", "zone", "z1");
    let event = Event::decode(&value.write()).unwrap();
    assert_eq!(event.body, Body::NodeDeleted(NodeDeleted {}));
}

#[test]
fn l2_bytes_that_are_no_event_are_named() {
    let good = event(NodeDeleted {}.into()).encode().unwrap();
    for end in 0..good.len() {
        assert!(Event::decode(&good[..end]).is_err());
    }
    let text = canonical::from_json(&json!({ "type": "x" })).unwrap();
    assert!(Event::decode(&text).is_err());
    let mut unknown = good.clone();
    let at = unknown
        .windows(12)
        .position(|window| window == b"node.deleted")
        .unwrap();
    unknown[at] = b'm';
    assert!(matches!(
        Event::decode(&unknown),
        Err(Error::UnknownType { .. })
    ));
}

#[test]
fn k1_the_largest_command_batch_and_result_fit_a_leaf() {
    let most = vec![0xff; crate::limits::PAYLOAD_BYTES_MAX];
    let Some((_, Body::CommandQueued(mut queued))) = samples().into_iter().next() else {
        panic!("the first sample is a queued command")
    };
    queued.payload = most.clone();
    queued.idempotency_key = "k".repeat(crate::limits::LEDGER_KEY_BYTES_MAX);
    // 10,000 leaves make a path of 14 hashes.
    queued.batch_inclusion = Some(Inclusion::new(9_999, &[[0xff; 32]; 14]));
    assert!(event(queued.into()).encode().is_ok());
    let approvers = (0..crate::limits::APPROVERS_MAX).map(|number| Approver {
        key: key(),
        name: format!("{number:0width$}", width = crate::limits::NAME_BYTES_MAX),
    });
    let batch = BatchCreated {
        approvers: approvers.collect(),
        expires_at: AT,
        idempotency_key: "k".repeat(crate::limits::LEDGER_KEY_BYTES_MAX),
        leaf_count: u64::MAX,
        quorum: u32::MAX,
        reason: "\u{10348}".repeat(crate::limits::BATCH_REASON_CHARS_MAX),
        root: vec![0xff; 32],
    };
    assert!(event(batch.into()).encode().is_ok());
    let end = CommandSettled {
        result: Some(most),
        details: Some(vec![0xff; crate::limits::DETAILS_BYTES_MAX]),
        reason: Some("r".repeat(crate::limits::REASON_BYTES_MAX)),
        ..settled()
    };
    assert!(event(end.into()).encode().is_ok());
}

/// A MessagePack map that can be changed, for the test of added fields.
mod rmp_serde_value {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    pub(super) enum Value {
        Number(i64),
        Text(String),
        Map(BTreeMap<String, Value>),
    }

    pub(super) fn read(bytes: &[u8]) -> Value {
        rmp_serde::from_slice(bytes).unwrap()
    }

    impl Value {
        pub(super) fn set(&mut self, outer: &str, key: &str, text: &str) {
            let Self::Map(fields) = self else {
                panic!("not a map")
            };
            let Some(Self::Map(inner)) = fields.get_mut(outer) else {
                panic!("no {outer}")
            };
            inner.insert(key.to_owned(), Self::Text(text.to_owned()));
        }

        pub(super) fn write(&self) -> Vec<u8> {
            rmp_serde::to_vec_named(self).unwrap()
        }
    }
}
