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

/// Byte strings that hold no MessagePack, such as hashes, keys and signatures: in JSON always
/// lower-case hex, although some of them could be read as a map by chance.
pub mod opaque {
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes the bytes.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&hex::encode(bytes))
        } else {
            serializer.serialize_bytes(bytes)
        }
    }

    /// Reads the bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        if !deserializer.is_human_readable() {
            return serde_bytes::deserialize(deserializer);
        }
        let text = String::deserialize(deserializer)?;
        hex::decode(text).map_err(serde::de::Error::custom)
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
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    #[derive(Serialize)]
    struct Both {
        #[serde(with = "super")]
        packed: Vec<u8>,
        #[serde(with = "super::opaque")]
        opaque: Vec<u8>,
    }

    #[test]
    fn l2_a_hash_that_could_be_read_as_a_map_is_shown_as_hex() {
        let bytes = vec![0x81, 0xa1, b'a', 1];
        let both = Both {
            packed: bytes.clone(),
            opaque: bytes,
        };
        let json = serde_json::to_value(&both).unwrap();
        assert_eq!(json["packed"], serde_json::json!({ "a": 1 }));
        assert_eq!(json["opaque"], "81a16101");
    }
}
