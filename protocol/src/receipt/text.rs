//! A receipt's file: JSON, byte strings in base64 (RFC 4648, section 4).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::{Entry, FORMAT, RECEIPT_BYTES_MAX, RECEIPT_ENTRIES_MAX, Receipt, Unreadable};
use crate::limits::EVENT_BYTES_MAX;
use crate::merkle::Hash;
use crate::tlog::limits::PROOF_HASHES_MAX;
use crate::tlog::{InclusionProof, Note};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    checkpoint: String,
    entries: Vec<Written>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    index: u64,
    event: String,
    inclusion: Vec<String>,
}

impl Receipt {
    /// The file's content.
    pub fn to_json(&self) -> serde_json::Value {
        let entries = self.entries.iter().map(|entry| Written {
            index: entry.index,
            event: STANDARD.encode(&entry.event),
            inclusion: entry
                .inclusion
                .hashes
                .iter()
                .map(|hash| STANDARD.encode(hash))
                .collect(),
        });
        let file = File {
            format: FORMAT.to_owned(),
            checkpoint: self.checkpoint.to_string(),
            entries: entries.collect(),
        };
        // Texts and numbers alone, which always can be written.
        serde_json::to_value(file).unwrap_or_default()
    }

    /// Reads a file. Whether it proves anything is for [`Self::verify`] to say.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.len() > RECEIPT_BYTES_MAX {
            let bytes = bytes.len();
            return Err(Unreadable::TooLong { bytes });
        }
        let file: File = serde_json::from_slice(bytes).map_err(Unreadable::Json)?;
        if file.format != FORMAT {
            return Err(Unreadable::Format);
        }
        let given = file.entries.len();
        if given > RECEIPT_ENTRIES_MAX {
            return Err(Unreadable::Entries { given });
        }
        let checkpoint = Note::parse(file.checkpoint.as_bytes()).map_err(Unreadable::Checkpoint)?;
        let entries = (1..).zip(file.entries).map(|(number, written)| {
            written
                .entry()
                .map_err(|(field, problem)| Unreadable::Entry {
                    number,
                    field,
                    problem,
                })
        });
        Ok(Self {
            checkpoint,
            entries: entries.collect::<Result<_, _>>()?,
        })
    }
}

impl Written {
    fn entry(self) -> Result<Entry, (&'static str, &'static str)> {
        let event = STANDARD.decode(self.event);
        let event = event.map_err(|_| ("event", "must be base64"))?;
        if event.len() > EVENT_BYTES_MAX {
            return Err(("event", "must have at most 65535 bytes"));
        }
        if self.inclusion.len() > PROOF_HASHES_MAX {
            return Err(("inclusion", "must have at most 63 hashes"));
        }
        let hash = |text: &String| -> Option<Hash> { STANDARD.decode(text).ok()?.try_into().ok() };
        let hashes = self.inclusion.iter().map(hash).collect::<Option<_>>();
        let hashes = hashes.ok_or(("inclusion", "must be hashes of 32 bytes in base64"))?;
        Ok(Entry {
            event,
            inclusion: InclusionProof { hashes },
            index: self.index,
        })
    }
}
