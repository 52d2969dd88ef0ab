//! `protocol/vectors/secret.json`: a node's question for a secret, the service's answer, and what is no
//! answer to it (SPEC P6). The vectors were made by a program that shares no line with the code.

use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::frame::Secret;
use ledger_protocol::id::NodeId;
use ledger_protocol::secret::{Exchange, INFO, PrivateKey, Sealed};
use ledger_protocol::time::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::vectors::{list, read, signing_key};

fn typed<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn one_time_key(vectors: &Value) -> PrivateKey {
    let seed: Vec<u8> = hex::decode(vectors["oneTimeSeed"].as_str().unwrap()).unwrap();
    PrivateKey::derive(&<[u8; 32]>::try_from(seed).unwrap().into())
}

fn exchange<'a>(vectors: &'a Value, key: &PrivateKey) -> Exchange<'a> {
    Exchange {
        command_id: typed(&vectors["commandId"]),
        key: key.public(),
        node_id: typed::<NodeId>(&vectors["nodeId"]),
        secret_ref: vectors["secretRef"].as_str().unwrap(),
    }
}

#[test]
fn p6_a_question_and_its_answer_are_those_of_the_vector() {
    let vectors = read("secret");
    let key = one_time_key(&vectors);
    let exchange = exchange(&vectors, &key);
    let node = signing_key(&vectors["nodeSeed"]);
    let secret: Secret = typed(&vectors["secret"]);
    let sealed = secret.sealed.unwrap();
    let question = ledger_protocol::canonical::encode(&exchange).unwrap();
    let value = key.open(&exchange, &sealed).unwrap();
    assert_eq!(hex::encode(INFO), vectors["info"]);
    assert_eq!(hex::encode(key.public().as_bytes()), vectors["oneTimeKey"]);
    assert_eq!(hex::encode(question), vectors["question"]);
    assert_eq!(
        hex::encode(exchange.sign(&node).unwrap()),
        vectors["questionSignature"]
    );
    assert_eq!(
        hex::encode(exchange.statement(&sealed).unwrap()),
        vectors["statement"]
    );
    assert_eq!(
        json!(std::str::from_utf8(value.reveal()).unwrap()),
        vectors["value"]
    );
}

#[test]
fn p6_what_was_sealed_for_anything_else_is_not_opened() {
    let vectors = read("secret");
    let key = one_time_key(&vectors);
    let exchange = exchange(&vectors, &key);
    for vector in list(&vectors["notOpened"]) {
        let sealed: Sealed = typed(&vector["sealed"]);
        assert!(key.open(&exchange, &sealed).is_err(), "{}", vector["name"]);
    }
    assert!(list(&vectors["notOpened"]).len() >= 9);
}

#[test]
fn p6_an_answer_is_believed_as_its_vector_says() {
    let vectors = read("secret");
    let key = one_time_key(&vectors);
    let exchange = exchange(&vectors, &key);
    let roots: [PublicKey; 1] = [typed(&vectors["trustedRoot"])];
    let now: Timestamp = typed(&vectors["now"]);
    let verdict = |secret: Secret| {
        let Some(signed) = secret.signed else {
            return "is not signed".to_owned();
        };
        let statement = exchange.statement(&secret.sealed.unwrap()).unwrap();
        let verified = signed.verify(&roots, (now, now), Purpose::Secret, &statement);
        verified.map_or_else(|error| error.to_string(), |()| "holds".to_owned())
    };
    assert_eq!(verdict(typed(&vectors["secret"])), "holds");
    for vector in list(&vectors["notBelieved"]) {
        let said = verdict(typed(&vector["secret"]));
        assert_eq!(json!(said), vector["why"], "{}", vector["name"]);
    }
    assert!(list(&vectors["notBelieved"]).len() >= 9);
}
