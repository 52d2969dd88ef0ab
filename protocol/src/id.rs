//! Ids: UUIDv7 inside, TypeID text (`cmd_…`) outside.
//!
//! To add an id: one line in the list at the end of the macro calls. A prefix is never changed,
//! because it stands in stored bytes. Order in the ledger is position, never an id.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::time::Timestamp;

/// The 32 letters of TypeID's base 32 (Crockford, lower case).
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Letters of the suffix: 128 bits, five each, the first letter at most `7`.
const SUFFIX_LETTERS: usize = 26;

/// Text that is not an id of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be `{prefix}_` and 26 letters of TypeID base 32")]
pub struct InvalidId {
    /// The prefix that was expected.
    pub prefix: &'static str,
}

/// Makes a UUIDv7 (RFC 9562) from a time and ten random bytes.
pub fn uuid_v7(at: Timestamp, random: [u8; 10]) -> Uuid {
    uuid::Builder::from_unix_timestamp_millis(at.unix_millis(), &random).into_uuid()
}

fn encode_suffix(uuid: Uuid) -> [u8; SUFFIX_LETTERS] {
    let mut rest = uuid.as_u128();
    let mut letters = [b'0'; SUFFIX_LETTERS];
    for letter in letters.iter_mut().rev() {
        *letter = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    letters
}

fn decode_suffix(text: &str) -> Option<Uuid> {
    let letters = text.as_bytes();
    if letters.len() != SUFFIX_LETTERS || letters[0] > b'7' {
        return None;
    }
    let mut value = 0_u128;
    for letter in letters {
        let digit = ALPHABET.iter().position(|known| known == letter)?;
        value = (value << 5) | digit as u128;
    }
    Some(Uuid::from_u128(value))
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// What stands before the underscore in the text form.
            pub const PREFIX: &'static str = $prefix;

            /// The id with this UUID.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// A new id from a time and ten random bytes (UUIDv7).
            pub fn new(at: Timestamp, random: [u8; 10]) -> Self {
                Self(uuid_v7(at, random))
            }

            /// The UUID, as Postgres stores it.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let letters = encode_suffix(self.0);
                // The alphabet is ASCII, so this text is never empty.
                write!(f, "{}_{}", $prefix, str::from_utf8(&letters).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(decode_suffix)
                    .map(Self)
                    .ok_or(InvalidId { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// A command.
    CommandId = "cmd";
    /// A node of the fleet.
    NodeId = "node";
    /// A tenant, the owner of nodes and commands.
    TenantId = "tenant";
    /// A batch of destructive commands under approval.
    BatchId = "batch";
    /// An event of the ledger.
    EventId = "evt";
    /// One life of a daemon's journal; a lost journal comes back under a new one (SPEC D8).
    JournalId = "journal";
    /// An API token.
    TokenId = "token";
    /// A join token.
    JoinTokenId = "join";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a7_ids_follow_the_typeid_vectors() {
        // From the `valid` list of the TypeID specification 0.3.
        for (uuid, suffix) in [
            (
                "00000000-0000-0000-0000-000000000000",
                "00000000000000000000000000",
            ),
            (
                "00000000-0000-0000-0000-000000000001",
                "00000000000000000000000001",
            ),
            (
                "00000000-0000-0000-0000-00000000000a",
                "0000000000000000000000000a",
            ),
            (
                "00000000-0000-0000-0000-000000000020",
                "00000000000000000000000010",
            ),
            (
                "ffffffff-ffff-ffff-ffff-ffffffffffff",
                "7zzzzzzzzzzzzzzzzzzzzzzzzz",
            ),
            (
                "0110c853-1d09-52d8-d73e-1194e95b5f19",
                "0123456789abcdefghjkmnpqrs",
            ),
            (
                "01890a5d-ac96-774b-bcce-b302099a8057",
                "01h455vb4pex5vsknk084sn02q",
            ),
        ] {
            let uuid: Uuid = uuid.parse().unwrap();
            let text = format!("cmd_{suffix}");
            assert_eq!(CommandId::from_uuid(uuid).to_string(), text);
            assert_eq!(text.parse::<CommandId>(), Ok(CommandId::from_uuid(uuid)));
        }
    }

    #[test]
    fn a7_text_that_is_no_id_is_refused() {
        for text in [
            "",
            "cmd",
            "cmd_",
            "node_01h455vb4pex5vsknk084sn02q",
            "cmd_8zzzzzzzzzzzzzzzzzzzzzzzzz",
            "cmd_01H455VB4PEX5VSKNK084SN02Q",
            "cmd_01h455vb4pex5vsknk084sn02",
            "cmd_01h455vb4pex5vsknk084sn02qq",
            "cmd_01h455vb4pex5vsknk084sn0u\u{e9}",
            "cmd_01h455vb4pex5vsknk084sn02\0",
        ] {
            assert!(
                text.parse::<CommandId>().is_err(),
                "{text:?} was read as an id"
            );
        }
    }

    #[test]
    fn l1_new_ids_are_uuid_version_7() {
        let id = EventId::new(Timestamp::from_micros(1_764_490_000_123_456), [0xff; 10]);
        assert_eq!(id.uuid().get_version_num(), 7);
        assert_eq!(id.uuid().as_u128() >> 80, 1_764_490_000_123);
    }
}
