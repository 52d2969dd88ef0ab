//! Byte strings in events and frames: MessagePack `bin`; in JSON, where a byte string holds
//! MessagePack of its own, that value, else lower-case hex.

use serde::{Deserializer, Serialize, Serializer};

fn as_json(bytes: &[u8]) -> serde_json::Value {
    crate::canonical::to_json(bytes)
        .ok()
        .filter(|value| value.is_object() || value.is_array())
        .unwrap_or_else(|| serde_json::Value::String(hex::encode(bytes)))
}

/// Writes the bytes.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        as_json(bytes).serialize(serializer)
    } else {
        serializer.serialize_bytes(bytes)
    }
}

/// Reads the bytes.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    serde_bytes::deserialize(deserializer)
}

/// The same for bytes that may be absent.
pub mod optional {
    use serde::{Deserializer, Serializer};

    /// Writes the bytes.
    pub fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => super::serialize(bytes, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads the bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        serde_bytes::deserialize(deserializer)
    }
}
