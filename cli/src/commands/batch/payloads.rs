//! The payloads that a batch's leaves bind, as whoever approves has them: the batch itself holds
//! hashes alone, so what is shown beside a leaf never comes from the service (SPEC P3).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use ledger_protocol::batch::Leaf;
use ledger_protocol::canonical;
use ledger_protocol::id::BatchId;
use serde_json::Value;

use super::scope;
use crate::exit::{Failure, Meaning};
use crate::key_file;
use crate::limits::PAYLOAD_FILE_BYTES_MAX;
use crate::output::escape_controls_in_json;

/// Where the payloads stand.
#[derive(Debug, Args)]
pub(super) struct PayloadOptions {
    /// File with a payload as JSON, to be shown beside each command that is bound to it; may be
    /// repeated
    #[arg(long, value_name = "FILE")]
    payload: Vec<PathBuf>,
    /// File of commands as `propose --scope` takes it: their payloads are shown, and each must be
    /// one that the batch allows; may be repeated
    #[arg(long, value_name = "FILE")]
    scope: Vec<PathBuf>,
}

/// A payload that some leaf binds.
struct Payload {
    value: Value,
    text: String,
}

/// The payloads that are known, by the hash that a leaf holds.
#[derive(Default)]
pub(super) struct Payloads(BTreeMap<Vec<u8>, Payload>);

impl PayloadOptions {
    /// Reads the payloads. One that no leaf binds is not what this batch is about.
    pub(super) fn read(&self, batch: BatchId, leaves: &[Leaf]) -> Result<Payloads, Failure> {
        let mut known = Payloads::default();
        let bound: BTreeSet<_> = leaves.iter().map(|leaf| &leaf.payload_sha256).collect();
        for path in &self.payload {
            let shown = path.display();
            let text = key_file::read(path, PAYLOAD_FILE_BYTES_MAX)?;
            let payload: Value = serde_json::from_str(&text).or_usage(format!(
                "{shown} must hold a payload, which is a JSON object"
            ))?;
            let payload = scope::encode(&payload)
                .map_err(|problem| Failure::usage(format!("{shown} {problem}")))?;
            let hash = Leaf::bound_sha256(&payload);
            if !bound.contains(&hash) {
                let hash = hash.map_or_else(|| "empty".to_owned(), hex::encode);
                return Err(Failure::usage(format!(
                    "{shown}: no command of batch {batch} has this payload (SHA-256 {hash})"
                )));
            }
            known.add(hash, &payload)?;
        }
        let allowed: BTreeSet<_> = leaves.iter().collect();
        for path in &self.scope {
            for (number, command) in scope::read(path)?.into_iter().enumerate() {
                let leaf = command.leaf;
                if !allowed.contains(&leaf) {
                    let (shown, kind) = (path.display(), &leaf.kind);
                    let subject = &leaf.subject;
                    return Err(Failure::usage(format!(
                        "{shown}: [{number}] batch {batch} allows no {kind} of {subject} with this \
                         payload"
                    )));
                }
                known.add(leaf.payload_sha256, &command.payload)?;
            }
        }
        Ok(known)
    }
}

impl Payloads {
    /// Keeps a payload as it was hashed, which may differ from how its file spells it.
    fn add(&mut self, hash: Option<Vec<u8>>, payload: &[u8]) -> Result<(), Failure> {
        let Some(hash) = hash else { return Ok(()) };
        if let Entry::Vacant(new) = self.0.entry(hash) {
            let value = canonical::to_json(payload)?;
            let text = escape_controls_in_json(&value.to_string());
            new.insert(Payload { value, text });
        }
        Ok(())
    }

    /// The payload that a leaf binds, if it is known.
    pub(super) fn of(&self, leaf: &Leaf) -> Option<&Value> {
        let known = self.0.get(leaf.payload_sha256.as_ref()?)?;
        Some(&known.value)
    }

    /// What people are shown of the payload that a leaf binds.
    pub(super) fn text(&self, leaf: &Leaf) -> String {
        let Some(hash) = &leaf.payload_sha256 else {
            return "{}".to_owned();
        };
        match self.0.get(hash) {
            Some(known) => known.text.clone(),
            None => format!("payload not shown: SHA-256 {}", hex::encode(hash)),
        }
    }

    /// How many of the leaves that bind a payload are shown with it, and of how many; nothing where
    /// all payloads are empty.
    pub(super) fn told(&self, leaves: &[Leaf]) -> Option<String> {
        let bound = leaves.iter().filter(|leaf| leaf.payload_sha256.is_some());
        let (bound, known) = (
            bound.clone().count(),
            bound.filter(|leaf| self.of(leaf).is_some()).count(),
        );
        match (bound, known) {
            (0, _) => None,
            (bound, known) if bound == known => Some(format!("{known} of {bound} shown")),
            (bound, known) => Some(format!(
                "{known} of {bound} shown; --scope FILE or --payload FILE shows more"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ledger_protocol::time::Timestamp;

    use super::*;

    const NODE: &str = "node_01h455vb4pex5vsknk084sn02q";
    const OTHER: &str = "node_01h455vb4pex5vsknk084sn02r";

    fn leaf(command: &str) -> Leaf {
        scope::command(command).unwrap()
    }

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn read(payload: &[&PathBuf], scope: &[&PathBuf], leaves: &[Leaf]) -> Result<Payloads, String> {
        let owned = |paths: &[&PathBuf]| paths.iter().map(|path| (*path).clone()).collect();
        let options = PayloadOptions {
            payload: owned(payload),
            scope: owned(scope),
        };
        let batch = BatchId::new(Timestamp::from_micros(0), [0; 10]);
        options.read(batch, leaves).map_err(|failure| {
            assert_eq!(failure.code, crate::exit::Code::Usage);
            failure.to_string()
        })
    }

    #[test]
    fn p3_a_payload_is_shown_beside_every_leaf_that_binds_it_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let leaves = [
            leaf(&format!(r#"{NODE}:logs.collect:{{"sinceSeconds":60}}"#)),
            leaf(&format!(r#"{OTHER}:logs.collect:{{"sinceSeconds":60}}"#)),
            leaf(&format!(
                r#"{NODE}:inventory.refresh:{{"sections":["cpu"]}}"#
            )),
            leaf(&format!("{NODE}:node.reboot")),
        ];
        // However it is written, it is the same payload.
        let logs = write(folder.path(), "logs.json", " {\"sinceSeconds\":\n 60.0}\n");
        let known = read(&[&logs], &[], &leaves).unwrap();
        assert_eq!(known.text(&leaves[0]), r#"{"sinceSeconds":60}"#);
        assert_eq!(known.text(&leaves[1]), r#"{"sinceSeconds":60}"#);
        let hidden = known.text(&leaves[2]);
        let hash = hex::encode(leaves[2].payload_sha256.as_ref().unwrap());
        assert_eq!(hidden, format!("payload not shown: SHA-256 {hash}"));
        assert_eq!(known.text(&leaves[3]), "{}");
        let told = known.told(&leaves).unwrap();
        assert!(told.starts_with("2 of 3 shown; --scope"), "{told}");
        assert_eq!(known.told(&leaves[3..]), None);

        let foreign = write(folder.path(), "foreign.json", r#"{"sinceSeconds":61}"#);
        let told = read(&[&logs, &foreign], &[], &leaves).err().unwrap();
        assert!(told.contains("foreign.json: no command of"), "{told}");
        let empty = write(folder.path(), "empty.json", "{}");
        read(&[&empty], &[], &leaves).unwrap();
        let told = read(&[&empty], &[], &leaves[..3]).err().unwrap();
        assert!(told.contains("empty.json: no command of"), "{told}");
        for (text, part) in [("[]", "no object"), ("{", "must hold")] {
            let bad = write(folder.path(), "bad.json", text);
            let told = read(&[&bad], &[], &leaves).err().unwrap();
            assert!(told.contains("bad.json"), "{told}");
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn p3_the_proposers_file_shows_all_payloads_and_must_be_what_the_batch_allows() {
        let folder = tempfile::tempdir().unwrap();
        let item = |node: &str| {
            format!(r#"{{"subject":"{node}","kind":"logs.collect","payload":{{"units":["a"]}}}}"#)
        };
        let leaves = [leaf(&format!(r#"{NODE}:logs.collect:{{"units":["a"]}}"#))];
        let good = write(folder.path(), "good.json", &format!("[{}]", item(NODE)));
        let known = read(&[], &[&good], &leaves).unwrap();
        assert_eq!(
            known.of(&leaves[0]),
            Some(&serde_json::json!({"units": ["a"]}))
        );
        let told = known.told(&leaves);
        assert_eq!(told.as_deref(), Some("1 of 1 shown"));
        // The payload is bound, but for another node.
        let more = format!("[{},{}]", item(NODE), item(OTHER));
        let more = write(folder.path(), "more.json", &more);
        let told = read(&[], &[&more], &leaves).err().unwrap();
        assert!(told.contains("more.json: [1]"), "{told}");
    }

    #[test]
    fn p3_a_payload_cannot_pretend_to_be_another() {
        let folder = tempfile::tempdir().unwrap();
        let text = "{\"units\":[\"a\u{202e}b\u{9b}2K\\u001b[A\"]}";
        let leaves = [leaf(&format!("{NODE}:logs.collect:{text}"))];
        let path = write(folder.path(), "p.json", text);
        let shown = read(&[&path], &[], &leaves).unwrap().text(&leaves[0]);
        assert_eq!(shown, r#"{"units":["a\u202eb\u009b2K\u001b[A"]}"#);
        // What is shown is what the hash is over, not what its file begins with.
        let twice = r#"{"units":["a"],"units":["b"]}"#;
        let leaves = [leaf(&format!(r#"{NODE}:logs.collect:{{"units":["b"]}}"#))];
        let path = write(folder.path(), "twice.json", twice);
        let shown = read(&[&path], &[], &leaves).unwrap().text(&leaves[0]);
        assert_eq!(shown, r#"{"units":["b"]}"#);
    }
}
