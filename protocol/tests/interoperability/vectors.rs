//! Reading the vectors, and turning what they say into values of the protocol.

use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use ledger_protocol::canonical;
use ledger_protocol::daemon::{Daemon, Identity, Input, Monotonic, SupportedKinds};
use ledger_protocol::frame::{Command, Welcome};
use ledger_protocol::id::JournalId;
use ledger_protocol::kind::Registry;
use ledger_protocol::time::Timestamp;
use ledger_protocol::trust::SignedBundle;
use serde_json::Value;
use uuid::Uuid;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn text(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn read(name: &str) -> Value {
    serde_json::from_str(&text(&format!("protocol/vectors/{name}.json"))).unwrap()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The body `base` with the fields of `given` in place of its own; null takes a field out.
pub(crate) fn merged(base: &Value, given: &Value) -> Value {
    let mut body = base.clone();
    for (field, value) in given.as_object().into_iter().flatten() {
        if value.is_null() {
            body.as_object_mut().unwrap().remove(field);
        } else {
            body[field] = value.clone();
        }
    }
    body
}

/// A `Command` from its JSON form: a payload that is text is bytes in hex, any other the value.
pub(crate) fn command(body: &Value) -> Command {
    let mut body = body.clone();
    let payload = match &body["payload"] {
        Value::String(bytes) => hex::decode(bytes).unwrap(),
        value => canonical::from_json(value).unwrap(),
    };
    body["payload"] = payload.into();
    serde_json::from_value(body).unwrap()
}

/// The private key with this seed, in hex (RFC 8032).
pub(crate) fn signing_key(seed: &Value) -> SigningKey {
    let seed = hex::decode(seed.as_str().unwrap()).unwrap();
    SigningKey::from_bytes(&seed.try_into().unwrap())
}

/// Who the daemon of a vector is.
pub(crate) fn identity(daemon: &Value) -> Identity {
    Identity {
        agent_version: daemon["agentVersion"].as_str().unwrap().to_owned(),
        boot_id: daemon["bootId"].as_str().unwrap().to_owned(),
        node_id: daemon["nodeId"].as_str().unwrap().parse().unwrap(),
        role: serde_json::from_value(daemon["role"].clone()).unwrap(),
        kinds: std::sync::Arc::new(SupportedKinds::new(&Registry::builtin(), |_| true)),
        pins: None,
    }
}

pub(crate) fn journal_id() -> JournalId {
    JournalId::from_uuid(Uuid::from_u128(1))
}

/// Opens a session at the server's time `at`, the daemon's own clock standing at 0.
pub(crate) fn welcome(daemon: &mut Daemon, at: &Value, trust: Vec<SignedBundle>) {
    let now = Monotonic::from_micros(0);
    daemon.handle(Input::Connected, now);
    let welcome = Welcome {
        trust,
        epoch: 1,
        ping_seconds: 20,
        server_time: Timestamp::from_micros(at.as_i64().unwrap()),
    };
    daemon.handle(Input::Frame(welcome.into()), now);
}
