//! `protocol/vectors/refused.json`: bytes that a reader must refuse, and some that it must not.

use ledger_protocol::canonical;
use ledger_protocol::frame::{self, Frame, JoinRequest, JoinResponse};
use serde_json::Value;

use crate::vectors::{list, read};

/// The bytes of a case: `bytes`, then `fill` as often as it says.
fn bytes(case: &Value) -> Vec<u8> {
    let mut bytes = hex::decode(case["bytes"].as_str().unwrap()).unwrap();
    if let Some(fill) = case.get("fill") {
        let byte = hex::decode(fill["byte"].as_str().unwrap()).unwrap()[0];
        let times = usize::try_from(fill["times"].as_u64().unwrap()).unwrap();
        bytes.extend(std::iter::repeat_n(byte, times));
    }
    bytes
}

fn value_error(error: &canonical::Error) -> &'static str {
    match error {
        canonical::Error::Truncated { .. } => "Truncated",
        canonical::Error::Trailing { .. } => "Trailing",
        canonical::Error::TooDeep { .. } => "TooDeep",
        canonical::Error::NotCanonical { .. } => "NotCanonical",
        canonical::Error::Shape(_) => "Shape",
        canonical::Error::Encode(_) => "Encode",
    }
}

fn frame_error(error: &frame::Error) -> String {
    match error {
        frame::Error::TooLarge { .. } => "TooLarge".to_owned(),
        frame::Error::Envelope => "Envelope".to_owned(),
        frame::Error::UnknownType { .. } => "UnknownType".to_owned(),
        frame::Error::Body { source, .. } => format!("Body: {}", value_error(source)),
    }
}

#[test]
fn d1_what_no_reader_may_take_is_refused_by_the_name_of_its_vector() {
    let vectors = read("refused");
    for case in list(&vectors["frames"]) {
        let found = Frame::decode(&bytes(case)).map_or_else(
            |error| frame_error(&error),
            |frame| format!("read as {}", frame.name()),
        );
        assert_eq!(found, case["error"], "{}", case["name"]);
    }
    for case in list(&vectors["values"]) {
        let found = canonical::check(&bytes(case)).map_or_else(|e| value_error(&e), |()| "read");
        assert_eq!(found, case["error"], "{}", case["name"]);
    }
}

#[test]
fn d1_a_reader_of_frames_takes_any_form_and_reads_over_what_it_does_not_know() {
    let vectors = read("refused");
    for case in list(&vectors["read"]) {
        let frame = Frame::decode(&bytes(case));
        let frame = frame.unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
        assert_eq!(frame.name(), case["frame"], "{}", case["name"]);
        assert_eq!(frame.body_json(), case["body"], "{}", case["name"]);
    }
}

#[test]
fn d1_the_example_of_a_join_is_one() {
    let vectors = read("join");
    let request: JoinRequest = serde_json::from_value(vectors["request"].clone()).unwrap();
    assert_eq!(serde_json::to_value(request).unwrap(), vectors["request"]);
    let response: JoinResponse = serde_json::from_value(vectors["response"].clone()).unwrap();
    assert_eq!(serde_json::to_value(response).unwrap(), vectors["response"]);
    for refusal in list(&vectors["refusedRequests"]) {
        serde_json::from_value::<JoinRequest>(refusal.clone()).unwrap_err();
    }
}
