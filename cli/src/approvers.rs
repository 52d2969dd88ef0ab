//! Who may approve batches: the file that lists them (SPEC P3).

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledger_protocol::batch::create::Policy;
use ledger_protocol::dsse::PublicKey;
use ledger_protocol::event::Approver;
use serde::Deserialize;

use crate::exit::{Failure, Meaning};
use crate::key_file;
use crate::limits::APPROVERS_FILE_BYTES_MAX;

/// The file that `serve --approvers` reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Listed {
    quorum: u32,
    approvers: Vec<ListedApprover>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListedApprover {
    name: String,
    public_key: String,
}

/// Reads the list of approvers.
pub(crate) fn read_policy(path: &Path) -> Result<Policy, Failure> {
    let shown = path.display();
    let text = key_file::read(path, APPROVERS_FILE_BYTES_MAX)?;
    let listed: Listed = serde_json::from_str(&text).or_usage(format!(
        "{shown} must hold {{\"quorum\": N, \"approvers\": [{{\"name\", \"publicKey\"}}, …]}}"
    ))?;
    let mut approvers = Vec::with_capacity(listed.approvers.len());
    for approver in listed.approvers {
        let name = approver.name;
        let what = || format!("{shown}: publicKey of {name:?}");
        let bytes = STANDARD.decode(&approver.public_key);
        let bytes = bytes.or_usage(format!("{} is no base64", what()))?;
        let key = PublicKey::from_bytes(&bytes).or_usage(what())?;
        approvers.push(Approver { key, name });
    }
    Policy::new(approvers, listed.quorum).or_usage(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p3_a_list_of_approvers_is_read_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("approvers.json");
        let key = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
        let ada = format!(r#"{{"name":"ada","publicKey":"{key}"}}"#);
        let told = |text: String| {
            std::fs::write(&path, text).unwrap();
            read_policy(&path).map_err(|failure| failure.to_string())
        };
        let good = told(format!(r#"{{"quorum":1,"approvers":[{ada}]}}"#)).unwrap();
        assert_eq!((good.quorum, good.approvers.len()), (1, 1));
        for (text, part) in [
            ("{".to_owned(), "approvers.json must hold"),
            (format!(r#"{{"quorum":2,"approvers":[{ada}]}}"#), "quorum"),
            (
                format!(r#"{{"quorum":1,"approvers":[{ada},{ada}]}}"#),
                "twice",
            ),
            (
                format!(r#"{{"quorum":1,"approvers":[{ada}],"x":1}}"#),
                "`x`",
            ),
            (
                r#"{"quorum":1,"approvers":[{"name":"eve","publicKey":"AAAA"}]}"#.to_owned(),
                "publicKey of \"eve\"",
            ),
        ] {
            let told = told(text).unwrap_err();
            assert!(told.contains(part), "{told}");
        }
    }
}
