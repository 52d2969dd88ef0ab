//! CloudEvents 1.0 in the binary mode of the NATS binding: attributes are headers, the data is
//! the message.

use std::fmt::Write as _;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use ledger_protocol::event::Event;
use ledger_protocol::time::Timestamp;

use crate::subject;

/// What is said of anything that happened.
pub(crate) struct Attributes<'a> {
    pub(crate) id: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) source: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) time: Timestamp,
    pub(crate) sequence: u64,
}

/// The headers of an event, in the stream and on its bare name alike.
pub(crate) fn headers(event: &Event, position: u64, source: &str) -> HeaderMap {
    attributes(&Attributes {
        id: &event.id.to_string(),
        kind: subject::bare_name(&event.body),
        source,
        subject: &event.stream.to_string(),
        time: event.at,
        sequence: position,
    })
}

/// The headers with these attributes, for data in JSON.
pub(crate) fn attributes(of: &Attributes<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, percent_encoded(of.id));
    headers.insert("content-type", "application/json");
    headers.insert("ce-specversion", "1.0");
    for (name, value) in [
        ("ce-id", of.id),
        ("ce-type", of.kind),
        ("ce-source", of.source),
        ("ce-subject", of.subject),
        ("ce-time", &of.time.to_string()),
        ("ce-sequence", &of.sequence.to_string()),
    ] {
        headers.insert(name, percent_encoded(value));
    }
    headers
}

/// As the binding asks: a space, a double quote, a percent sign and everything outside of
/// printable ASCII are percent-encoded as UTF-8.
fn percent_encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_graphic() && byte != b'"' && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn n_attributes_are_headers() {
        let event = testing::queued("wf:7:a");
        let headers = headers(&event, 12, "/ledger/Zürich \"one\" 100%");
        let header = |name: &str| headers.get(name).map(ToString::to_string);
        assert_eq!(header("ce-specversion").as_deref(), Some("1.0"));
        assert_eq!(header("ce-id"), Some(event.id.to_string()));
        assert_eq!(header("Nats-Msg-Id"), Some(event.id.to_string()));
        assert_eq!(header("ce-type").as_deref(), Some("node.command.queued"));
        assert_eq!(
            header("ce-subject"),
            event.command_id().map(|id| id.to_string())
        );
        assert_eq!(
            header("ce-time").as_deref(),
            Some("2025-11-30T08:06:40.123456Z")
        );
        assert_eq!(header("ce-sequence").as_deref(), Some("12"));
        assert_eq!(header("content-type").as_deref(), Some("application/json"));
        assert_eq!(
            header("ce-source").as_deref(),
            Some("/ledger/Z%C3%BCrich%20%22one%22%20100%25")
        );
    }
}
