//! What a batch is to allow, as people write it: NODE:KIND:PAYLOAD, or a file of them.

use std::collections::BTreeMap;
use std::path::Path;

use ledger_protocol::batch::Leaf;
use ledger_protocol::canonical;
use ledger_protocol::id::NodeId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::exit::{Failure, Meaning};
use crate::key_file;
use crate::limits::SCOPE_FILE_BYTES_MAX;

/// A command that a batch is to allow.
pub(super) struct Allowed {
    /// What the batch holds of it.
    pub(super) leaf: Leaf,
    /// Its payload, as canonical MessagePack.
    pub(super) payload: Vec<u8>,
}

/// Reads NODE:KIND or NODE:KIND:PAYLOAD.
pub(super) fn command(text: &str) -> Result<Leaf, String> {
    let mut parts = text.splitn(3, ':');
    let node = parts.next().and_then(|node| node.parse::<NodeId>().ok());
    let kind = parts.next().filter(|kind| !kind.is_empty());
    let (Some(node), Some(kind)) = (node, kind) else {
        return Err("must be NODE:KIND or NODE:KIND:PAYLOAD".to_owned());
    };
    let payload = match parts.next() {
        None => json!({}),
        Some(payload) => serde_json::from_str(payload)
            .map_err(|error| format!("has a payload that is no JSON: {error}"))?,
    };
    Ok(Leaf::of(node, kind, &encode(&payload)?))
}

/// A payload's canonical bytes, or what is wrong with it.
pub(super) fn encode(payload: &Value) -> Result<Vec<u8>, String> {
    if !payload.is_object() {
        return Err("has a payload that is no object".to_owned());
    }
    canonical::from_json(payload).map_err(|error| error.to_string())
}

/// A command in a file of them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileLeaf {
    subject: NodeId,
    kind: String,
    #[serde(default)]
    payload: Option<Value>,
}

/// Reads a file of commands.
pub(super) fn read(path: &Path) -> Result<Vec<Allowed>, Failure> {
    let shown = path.display();
    let text = key_file::read(path, SCOPE_FILE_BYTES_MAX)?;
    let list: Vec<FileLeaf> = serde_json::from_str(&text).or_usage(format!(
        "{shown} must hold a JSON list of {{\"subject\", \"kind\", \"payload\"?}}"
    ))?;
    let mut allowed = Vec::with_capacity(list.len());
    for (number, item) in list.into_iter().enumerate() {
        let payload = encode(&item.payload.unwrap_or_else(|| json!({})));
        let payload =
            payload.map_err(|problem| Failure::usage(format!("{shown}: [{number}] {problem}")))?;
        let leaf = Leaf::of(item.subject, &item.kind, &payload);
        allowed.push(Allowed { leaf, payload });
    }
    Ok(allowed)
}

/// The leaves as the API takes most of them: one item for each kind and payload.
pub(super) fn grouped(leaves: &[Leaf]) -> Vec<Value> {
    let mut groups: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for leaf in leaves {
        let allowed = (&leaf.kind, &leaf.payload_sha256);
        groups.entry(allowed).or_default().push(&leaf.subject);
    }
    let items = groups.into_iter().map(|((kind, payload), subjects)| {
        let mut item = json!({"kind": kind, "subjects": subjects});
        if let Some(payload) = payload {
            item["payloadSha256"] = hex::encode(payload).into();
        }
        item
    });
    items.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "node_01h455vb4pex5vsknk084sn02q";

    #[test]
    fn p3_a_command_of_a_batch_binds_its_payload() {
        let bare = command(&format!("{NODE}:node.reboot")).unwrap();
        assert_eq!((bare.subject.as_str(), bare.payload_sha256), (NODE, None));
        let empty = command(&format!("{NODE}:node.reboot:{{}}")).unwrap();
        assert_eq!(empty.payload_sha256, None);
        let wipe = format!(r#"{NODE}:disk.wipe:{{"devices":["/dev/sdb"],"method":"discard"}}"#);
        assert!(command(&wipe).unwrap().payload_sha256.is_some());
        for bad in [
            "",
            NODE,
            "node_1:node.reboot",
            &format!("{NODE}:"),
            &format!("{NODE}:disk.wipe:["),
            &format!("{NODE}:disk.wipe:[]"),
        ] {
            assert!(command(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn p3_a_file_of_commands_is_read_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scope.json");
        let told = |text: String| {
            std::fs::write(&path, text).unwrap();
            read(&path).map_err(|failure| failure.to_string())
        };
        let reboot = format!(r#"{{"subject":"{NODE}","kind":"node.reboot"}}"#);
        assert_eq!(told(format!("[{reboot},{reboot}]")).unwrap().len(), 2);
        let bad = format!(r#"[{reboot},{{"subject":"{NODE}","kind":"a","payload":1}}]"#);
        let told_of = |text| told(text).err().unwrap();
        assert!(told_of(bad).contains("scope.json: [1]"));
        assert!(told_of("{}".to_owned()).contains("must hold"));
    }
}
