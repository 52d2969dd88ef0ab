//! `protocol/vectors/attestation.json`: what a node signs of an end, and what is no such signature
//! (SPEC P2).

use std::collections::BTreeMap;

use ledger_protocol::attestation::{Statement, Unproved, sign};
use ledger_protocol::canonical;
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::event::NodeCertified;
use ledger_protocol::frame::Update;
use ledger_protocol::id::NodeId;
use ledger_protocol::time::Timestamp;
use serde_json::{Value, json};

use crate::vectors::{list, read, signing_key};

/// An update from its JSON form.
fn update(body: &Value) -> Update {
    let mut body = body.clone();
    for field in ["details", "result"] {
        if let Some(value) = body.get_mut(field) {
            *value = canonical::from_json(value).unwrap().into();
        }
    }
    if let Some(signature) = body.get_mut("nodeSig") {
        *signature = hex::decode(signature.as_str().unwrap()).unwrap().into();
    }
    serde_json::from_value(body).unwrap()
}

fn certificate(key: &PublicKey) -> NodeCertified {
    NodeCertified {
        renews: None,
        allowed_kinds: None,
        fingerprint: String::new(),
        not_after: Timestamp::MAX,
        not_before: Timestamp::from_micros(0),
        public_key: key.as_bytes().to_vec(),
    }
}

#[test]
fn p2_an_end_is_signed_as_its_vector_says() {
    let vectors = read("attestation");
    let key = signing_key(&vectors["keySeed"]);
    let public = PublicKey::of(&key);
    let node: NodeId = vectors["nodeId"].as_str().unwrap().parse().unwrap();
    let mut made = vectors.clone();
    made["publicKey"] = public.to_string().into();
    for vector in list(&vectors["signed"]) {
        let update = update(&vector["update"]);
        let statement = Statement::of_update(node, &update).unwrap();
        let bytes = statement.encode().unwrap();
        let signature = sign(&key, node, &update).unwrap().unwrap();
        let place = list(&made["signed"])
            .iter()
            .position(|made| made["name"] == vector["name"]);
        let made = &mut made["signed"][place.unwrap()];
        made["statement"] = canonical::to_json(&bytes).unwrap();
        made["bytes"] = hex::encode(&bytes).into();
        made["encoded"] = hex::encode(Purpose::CommandUpdate.encode(&bytes)).into();
        made["signature"] = hex::encode(signature).into();
        let held = certificate(&public);
        assert_eq!(statement.verify(Some(&held), &signature), Ok(()));
    }
    let shown = serde_json::to_string_pretty(&made).unwrap();
    assert!(made == vectors, "the vectors should be:\n{shown}");
    assert!(list(&vectors["signed"]).len() >= 5);
}

#[test]
fn p2_what_does_not_prove_an_end_is_refused_by_the_code_of_its_vector() {
    let vectors = read("attestation");
    let public = PublicKey::of(&signing_key(&vectors["keySeed"]));
    let node: NodeId = vectors["nodeId"].as_str().unwrap().parse().unwrap();
    let held = certificate(&public);
    let mut codes = BTreeMap::new();
    for vector in list(&vectors["refused"]) {
        let name = &vector["name"];
        let update = update(&vector["update"]);
        let statement = Statement::of_update(node, &update).unwrap();
        let code = match &update.node_sig {
            None => "UNATTESTED",
            Some(signature) => match statement.verify(Some(&held), signature) {
                Err(Unproved::NotSigned) => "BAD_ATTESTATION",
                other => panic!("{name}: {other:?}"),
            },
        };
        assert_eq!(vector["code"], json!(code), "{name}");
        *codes.entry(code).or_insert(0) += 1;
    }
    assert!(codes["BAD_ATTESTATION"] >= 8 && codes["UNATTESTED"] >= 1);
}
