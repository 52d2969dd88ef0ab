//! What is signed, and who believes it (SPEC P1–P5): each vector put to the code that verifies. The
//! vectors were made by a program that shares no line with it.

use ed25519_dalek::SigningKey;
use ledger_protocol::batch::{BatchProof, Leaf, Statement};
use ledger_protocol::canonical;
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::frame::Command;
use ledger_protocol::merkle;
use ledger_protocol::time::Timestamp;
use ledger_protocol::trust::{Signed, SignedBundle, TrustBundle, intent};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::vectors::{list, read};

fn typed<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

fn keys(value: &Value) -> Vec<PublicKey> {
    list(value).iter().map(typed).collect()
}

/// Compares what the code says with the vector's `holds` and `why`.
fn judged<T, E: std::fmt::Display>(case: &Value, holds: &str, said: Result<T, E>) {
    let why = said.err().map(|error| error.to_string());
    assert_eq!(json!(why), case["why"], "{}", case["name"]);
    assert_eq!(json!(why.is_none()), case[holds], "{}", case["name"]);
}

fn purpose(name: &Value) -> Purpose {
    match name.as_str().unwrap() {
        "batch-approval" => Purpose::BatchApproval,
        "command" => Purpose::Command,
        "command-update" => Purpose::CommandUpdate,
        "desired-state" => Purpose::DesiredState,
        "trust-bundle" => Purpose::TrustBundle,
        "worker-key" => Purpose::WorkerKey,
        other => panic!("{other}"),
    }
}

#[test]
fn p1_every_purpose_signs_the_bytes_of_its_vector() {
    let vectors = read("trust");
    let mut encoded = std::collections::BTreeSet::new();
    for case in list(&vectors["purposes"]) {
        let (purpose, payload) = (purpose(&case["purpose"]), bytes(&case["payload"]));
        assert_eq!(purpose.payload_type(), case["payloadType"]);
        assert_eq!(purpose.encode(&payload), bytes(&case["encoded"]));
        let seed: [u8; 32] = bytes(&case["seed"]).try_into().unwrap();
        let signature = sign(&SigningKey::from_bytes(&seed), purpose, &payload);
        assert_eq!(signature.as_slice(), bytes(&case["signature"]));
        assert!(encoded.insert(bytes(&case["encoded"])));
    }
    assert_eq!(encoded.len(), 6);
}

#[test]
fn p1_a_bundle_is_believed_exactly_when_its_vector_says_so() {
    for case in list(&read("trust")["bundles"]) {
        let signed: SignedBundle = typed(&case["signed"]);
        let encoded = canonical::encode(&signed).unwrap();
        assert_eq!(encoded, bytes(&case["bytes"]), "{}", case["name"]);
        let read_back: SignedBundle = canonical::decode(&encoded).unwrap();
        assert_eq!(read_back, signed);
        let known = case["known"].as_u64().unwrap();
        let said = signed.believe(&keys(&case["trusted"]), known);
        if let Ok(bundle) = &said {
            assert_eq!(serde_json::to_value(bundle).unwrap(), case["body"]);
            assert_eq!(bundle.encode().unwrap(), signed.bundle);
        }
        judged(case, "believed", said);
    }
}

#[test]
fn p1_a_signed_bundle_with_any_bit_changed_or_cut_short_is_not_believed() {
    let vectors = read("trust");
    let case = &vectors["bundles"][1];
    let trusted = keys(&case["trusted"]);
    let whole = bytes(&case["bytes"]);
    let believed = |bytes: &[u8]| {
        canonical::decode::<SignedBundle>(bytes)
            .ok()
            .and_then(|signed| signed.believe(&trusted, 1).ok())
    };
    let bundle = believed(&whole);
    assert!(bundle.is_some());
    for length in 0..whole.len() {
        assert_eq!(believed(&whole[..length]), None, "{length} bytes");
    }
    for bit in 0..whole.len() * 8 {
        let mut changed = whole.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(believed(&changed), None, "bit {bit}");
    }
}

fn command(value: &Value) -> Command {
    let mut body = value.clone();
    body["payload"] = bytes(&value["payload"]).into();
    typed(&body)
}

#[test]
fn p1_a_command_is_the_services_exactly_when_its_vector_says_so() {
    let vectors = read("trust");
    let mut altered = 0;
    for case in list(&vectors["commands"]) {
        let (command, signed) = (command(&case["command"]), typed::<Signed>(&case["signed"]));
        let intent = intent::of_command(&command).unwrap();
        assert_eq!(intent, bytes(&case["intent"]), "{}", case["name"]);
        let times = (typed(&case["now"]), command.not_after.unwrap());
        let said = signed.verify(&keys(&case["trusted"]), times, Purpose::Command, &intent);
        altered += usize::from(case["name"].as_str().unwrap().starts_with("with another"));
        judged(case, "holds", said);
    }
    // Every field of a command but what shows that it is right.
    let fields = serde_json::to_value(command(&vectors["commands"][1]["command"])).unwrap();
    assert_eq!(altered, fields.as_object().unwrap().len());
}

#[test]
fn p5_a_desired_state_is_the_services_by_its_own_purpose() {
    for case in list(&read("trust")["specs"]) {
        let (node, generation) = (typed(&case["nodeId"]), typed(&case["generation"]));
        let intent = intent::of_spec(node, generation, &bytes(&case["spec"])).unwrap();
        assert_eq!(intent, bytes(&case["intent"]));
        let (signed, now) = (typed::<Signed>(&case["signed"]), typed(&case["now"]));
        let trusted = keys(&case["trusted"]);
        let said = |purpose| signed.verify(&trusted, (now, now), purpose, &intent);
        assert_eq!(said(Purpose::DesiredState), Ok(()));
        assert!(said(Purpose::Command).is_err());
    }
}

#[test]
fn p3_a_batch_has_the_root_and_the_statement_of_its_vector() {
    for case in list(&read("trust")["batches"]) {
        let leaves = list(&case["leaves"]).iter().map(bytes);
        let hashes = leaves.map(|leaf| merkle::leaf_hash(&leaf)).collect();
        let (root, said) = (merkle::Tree::new(hashes).root(), &case["statement"]);
        assert_eq!(hex::encode(root), said["root"]);
        let statement = Statement {
            batch_id: typed(&said["batchId"]),
            expires_at: typed(&said["expiresAt"]),
            leaf_count: typed(&said["leafCount"]),
            reason: said["reason"].as_str().unwrap(),
            root: &root,
            tenant_id: typed(&said["tenantId"]),
        };
        assert_eq!(statement.encode().unwrap(), bytes(&case["bytes"]));
    }
}

#[test]
fn p3_a_batch_proof_holds_exactly_when_its_vector_says_so() {
    for case in list(&read("trust")["proofs"]) {
        let bundle: TrustBundle = typed(&case["bundle"]);
        let proof: BatchProof = typed(&case["proof"]);
        let encoded = canonical::encode(&proof).unwrap();
        assert_eq!(encoded, bytes(&case["bytes"]), "{}", case["name"]);
        let kind = case["kind"].as_str().unwrap();
        let leaf = Leaf::of(typed(&case["node"]), kind, &bytes(&case["payload"]));
        assert_eq!(leaf.encode().unwrap(), bytes(&case["leaf"]));
        let until: Timestamp = typed(&case["until"]);
        let said = proof.approves(typed(&case["batchId"]), &leaf, until, &bundle);
        judged(case, "holds", said);
    }
}

/// C2SP's Wycheproof: 150 signatures, most of them made to be taken by a reader that is not strict.
#[test]
fn p_signatures_are_taken_exactly_as_wycheproof_says() {
    use wycheproof::{TestResult, eddsa};

    let set = eddsa::TestSet::load(eddsa::TestName::Ed25519).unwrap();
    let (mut valid, mut invalid) = (0, 0);
    for group in set.test_groups {
        let key = PublicKey::from_bytes(&group.key.pk).unwrap();
        for test in group.tests {
            let holds = key.has_signed(&[&test.msg], &test.sig);
            let expected = test.result == TestResult::Valid;
            assert_eq!(holds, expected, "{}: {}", test.tc_id, test.comment);
            *(if expected { &mut valid } else { &mut invalid }) += 1;
        }
    }
    assert!(
        valid > 50 && invalid > 50,
        "{valid} valid, {invalid} invalid"
    );
}
