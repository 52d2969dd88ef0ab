//! `batch`: commands that need the approval of others (SPEC P3).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use ledger_protocol::batch::{Leaf, Statement};
use ledger_protocol::canonical;
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::id::{BatchId, NodeId, TenantId};
use ledger_protocol::limits::{BATCH_EXPIRES_SECONDS_MAX, BATCH_EXPIRES_SECONDS_MIN};
use ledger_protocol::merkle::Tree;
use ledger_protocol::time::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Client, TenantOptions};
use crate::exit::{Failure, Meaning};
use crate::key_file;
use crate::limits::{PAGE_ITEMS, SCOPE_FILE_BYTES_MAX};
use crate::output::Output;

/// Propose commands that need the approval of others, and approve them.
///
/// What is approved is computed here from the batch's own leaves; the private key stays on this
/// machine.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make an approver's private key, and print its public key for the list of approvers
    Keygen {
        /// File to make
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Propose commands for approval
    Propose {
        /// Why they are to run
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// A command to allow, NODE:KIND or NODE:KIND:PAYLOAD with the payload as JSON; may be
        /// repeated
        #[arg(long, value_name = "COMMAND", value_parser = command, required_unless_present = "scope")]
        command: Vec<Leaf>,
        /// File with more of them, a JSON list of {"subject": NODE, "kind": KIND, "payload"?: …}
        #[arg(long, value_name = "FILE")]
        scope: Option<PathBuf>,
        /// Key under which a retry finds the same batch
        #[arg(long, value_name = "KEY")]
        idempotency_key: String,
        /// How long it may be approved and used, from 60s to 7d [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Duration>,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Show what a batch allows, who has approved it, and whether its leaves make its root
    Show {
        /// The batch
        batch: BatchId,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Approve a batch: check what it allows, print it, sign it, and send the signature
    Approve {
        /// The batch
        #[arg(long, value_name = "BATCH")]
        batch: BatchId,
        /// The approver's private key, Ed25519 in PEM
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Check the signatures of a batch's approvals; the exit code is 1 unless they are enough
    Verify {
        /// The batch
        #[arg(long, value_name = "BATCH")]
        batch: BatchId,
        /// File with the public key of an approver whom you trust; may be repeated [default: the
        /// approvers that the batch names]
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
        /// How many good approvals you ask for [default: as many as the batch names]
        #[arg(long, value_name = "APPROVALS", value_parser = clap::value_parser!(u64).range(1..))]
        quorum: Option<u64>,
        #[command(flatten)]
        common: TenantOptions,
    },
}

/// Does what the verb says.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    match options.verb {
        Verb::Keygen { out } => output.line(&key_file::base64(&key_file::generate(&out)?)),
        Verb::Propose {
            reason,
            command,
            scope,
            idempotency_key,
            expires,
            common,
        } => {
            let mut leaves = command;
            if let Some(path) = scope {
                leaves.extend(read_scope(&path)?);
            }
            let mut input = json!({
                "tenantId": common.tenant,
                "reason": reason,
                "scope": grouped(&leaves),
                "idempotencyKey": idempotency_key,
            });
            if let Some(expires) = expires {
                input["expiresInSeconds"] = json!(expires.as_secs());
            }
            let batch = common.call("create", &input).await?;
            if common.json {
                return output.json(&batch);
            }
            if batch["state"] == "recorded" {
                tracing::warn!(
                    "this service has no approvers, so the batch holds nothing and is \
                     recorded for audit only"
                );
            }
            output.line(batch["id"].as_str().unwrap_or_default())
        }
        Verb::Show { batch, common } => {
            let shown = Shown::fetch(batch, &common).await?;
            if common.json {
                let mut batch = shown.batch;
                batch["scope"] = json!(shown.leaves);
                return output.json(&batch);
            }
            shown.print(output)
        }
        Verb::Approve { batch, key, common } => {
            let key = key_file::private_key(&key)?;
            let shown = Shown::fetch(batch, &common).await?;
            if !common.json {
                shown.print(output)?;
            }
            let signature = sign(&key, Purpose::BatchApproval, &shown.statement()?);
            let input = json!({
                "tenantId": common.tenant,
                "batchId": batch,
                "publicKey": key_file::base64(&PublicKey::of(&key)),
                "signature": STANDARD.encode(signature),
            });
            let approved = common.call("approve", &input).await?;
            if common.json {
                return output.json(&approved);
            }
            let given = approved["approvals"].as_array().map_or(0, Vec::len);
            let (quorum, state) = (&approved["quorum"], &approved["state"]);
            let state = state.as_str().unwrap_or_default();
            output.line(&format!("\nsigned: {given} of {quorum} approvals, {state}"))
        }
        Verb::Verify {
            batch,
            key,
            quorum,
            common,
        } => {
            let trusted = key.iter().map(|path| key_file::public_key(path));
            let trusted = trusted.collect::<Result<BTreeSet<_>, Failure>>()?;
            let shown = Shown::fetch(batch, &common).await?;
            shown.verify(&trusted, quorum, common.json, output)
        }
    }
}

impl TenantOptions {
    async fn call(&self, method: &str, input: &Value) -> Result<Value, Failure> {
        let client = Client::new(&self.api)?;
        client.call("commandBatches", method, input).await
    }
}

/// A batch with all its leaves, which make its root.
struct Shown {
    batch: Value,
    leaves: Vec<Value>,
    id: BatchId,
    tenant: TenantId,
    root: [u8; 32],
}

/// A leaf as the API shows it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ApiLeaf {
    subject: String,
    kind: String,
    payload_sha256: Option<String>,
}

impl Shown {
    /// Fetches a batch and refuses one whose leaves do not make the root that it names: what would
    /// be signed is not what is shown.
    async fn fetch(id: BatchId, common: &TenantOptions) -> Result<Self, Failure> {
        let client = Client::new(&common.api)?;
        let (service, tenant) = ("commandBatches", common.tenant);
        let mut asked = json!({"tenantId": tenant, "batchId": id});
        let batch = client.call(service, "get", &asked).await?;
        asked["limit"] = json!(PAGE_ITEMS);
        let leaves = client.every_item(service, "scope", asked).await?;
        let mut hashes = Vec::with_capacity(leaves.len());
        for leaf in &leaves {
            let leaf = ApiLeaf::deserialize(leaf)?;
            let hash = leaf.payload_sha256.map(hex::decode).transpose()?;
            let leaf = Leaf {
                kind: leaf.kind,
                payload_sha256: hash,
                subject: leaf.subject,
            };
            hashes.push(leaf.hash()?);
        }
        let root = Tree::new(hashes).root();
        let named = batch["root"].as_str().unwrap_or_default();
        let count = batch["leafCount"].as_u64();
        if named != hex::encode(root) || count != Some(leaves.len() as u64) {
            return Err(Failure::failed(format!(
                "batch {id} names the root {named} of {} leaves, and its {} leaves make {}: it is \
                 not what it says",
                batch["leafCount"],
                leaves.len(),
                hex::encode(root),
            )));
        }
        Ok(Self {
            batch,
            leaves,
            id,
            tenant,
            root,
        })
    }

    fn text(&self, field: &str) -> &str {
        self.batch[field].as_str().unwrap_or_default()
    }

    /// What an approver of this batch signs.
    fn statement(&self) -> Result<Vec<u8>, Failure> {
        let expires_at = Timestamp::parse_rfc3339(self.text("expiresAt"));
        let expires_at = expires_at.ok_or_else(|| Failure::failed("expiresAt is no time"))?;
        let statement = Statement {
            batch_id: self.id,
            expires_at,
            leaf_count: self.leaves.len() as u64,
            reason: self.text("reason"),
            root: &self.root,
            tenant_id: self.tenant,
        };
        Ok(statement.encode()?)
    }

    fn print(&self, output: &mut Output) -> Result<(), Failure> {
        let list = |field: &str| self.batch[field].as_array().cloned().unwrap_or_default();
        let names = |items: &[Value], field: &str| {
            let names: Vec<_> = items
                .iter()
                .map(|item| item[field].as_str().unwrap_or_default().to_owned())
                .collect();
            if names.is_empty() {
                "-".to_owned()
            } else {
                names.join(", ")
            }
        };
        let (approvals, approvers) = (list("approvals"), list("approvers"));
        let row = |field: &str, value: String| vec![field.to_owned(), value];
        let approved = format!(
            "{} of {}: {}",
            approvals.len(),
            self.batch["quorum"],
            names(&approvals, "approver")
        );
        output.table(
            &["BATCH", &self.id.to_string()],
            &[
                row("tenant", self.tenant.to_string()),
                row("state", self.text("state").to_owned()),
                row("reason", self.text("reason").to_owned()),
                row("proposed by", self.text("createdBy").to_owned()),
                row("expires at", self.text("expiresAt").to_owned()),
                row(
                    "commands",
                    format!(
                        "{}, each as often as it is run until then",
                        self.leaves.len()
                    ),
                ),
                row("root", hex::encode(self.root)),
                row("approvals", approved),
                row("approvers", names(&approvers, "name")),
            ],
        )?;
        output.line("")?;
        let rows: Vec<_> = self
            .leaves
            .iter()
            .map(|leaf| {
                let text = |field: &str| leaf[field].as_str().unwrap_or_default().to_owned();
                let payload = match leaf["payloadSha256"].as_str() {
                    Some(hash) => format!("sha256 {hash}"),
                    None => "{}".to_owned(),
                };
                vec![text("subject"), text("kind"), payload]
            })
            .collect();
        output.table(&["NODE", "KIND", "PAYLOAD"], &rows)
    }

    fn verify(
        &self,
        trusted: &BTreeSet<PublicKey>,
        quorum: Option<u64>,
        json: bool,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let payload = self.statement()?;
        let decode = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).ok();
        let named = self.batch["approvers"].as_array().into_iter().flatten();
        let named = named.filter_map(|approver| decode(&approver["publicKey"]));
        let named: BTreeSet<Vec<u8>> = named.collect();
        let mut good = BTreeSet::new();
        let mut approvals = Vec::new();
        for approval in self.batch["approvals"].as_array().into_iter().flatten() {
            let key = decode(&approval["publicKey"]).unwrap_or_default();
            let signature = decode(&approval["signature"]).unwrap_or_default();
            let known = PublicKey::from_bytes(&key).ok().filter(|known| {
                if trusted.is_empty() {
                    named.contains(&key)
                } else {
                    trusted.contains(known)
                }
            });
            let verdict = match known {
                None => "no key that is trusted",
                Some(key) if !key.verifies(Purpose::BatchApproval, &payload, &signature) => {
                    "the signature is not that key's"
                }
                Some(key) => {
                    good.insert(key);
                    "good"
                }
            };
            let name = approval["approver"].as_str().unwrap_or_default();
            approvals.push((name.to_owned(), verdict));
        }
        let named = || self.batch["quorum"].as_u64().unwrap_or(u64::MAX);
        let quorum = quorum.unwrap_or_else(named);
        let enough = quorum > 0 && good.len() as u64 >= quorum;
        if json {
            let approvals = approvals
                .iter()
                .map(|(name, verdict)| json!({"approver": name, "verdict": verdict}));
            output.json(&json!({
                "batchId": self.id,
                "quorum": quorum,
                "good": good.len(),
                "approved": enough,
                "approvals": approvals.collect::<Vec<_>>(),
            }))?;
        } else {
            let rows: Vec<_> = approvals
                .into_iter()
                .map(|(name, verdict)| vec![name, verdict.to_owned()])
                .collect();
            output.table(&["APPROVER", "SIGNATURE"], &rows)?;
        }
        if enough {
            return Ok(());
        }
        let good = good.len();
        if quorum == 0 {
            return Err(Failure::failed(format!(
                "batch {} is recorded for audit only: there were no approvers when it was proposed",
                self.id
            )));
        }
        Err(Failure::failed(format!(
            "batch {} has {good} good approvals of the {quorum} that it needs",
            self.id
        )))
    }
}

/// Reads NODE:KIND or NODE:KIND:PAYLOAD.
fn command(text: &str) -> Result<Leaf, String> {
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
    leaf(node, kind, &payload)
}

fn leaf(node: NodeId, kind: &str, payload: &Value) -> Result<Leaf, String> {
    if !payload.is_object() {
        return Err("has a payload that is no object".to_owned());
    }
    let payload = canonical::from_json(payload).map_err(|error| error.to_string())?;
    Ok(Leaf::of(node, kind, &payload))
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

fn read_scope(path: &Path) -> Result<Vec<Leaf>, Failure> {
    let shown = path.display();
    let size = std::fs::metadata(path).or_usage(format!("{shown} cannot be read"))?;
    if size.len() > SCOPE_FILE_BYTES_MAX {
        let most = SCOPE_FILE_BYTES_MAX;
        return Err(Failure::usage(format!(
            "{shown} has more than {most} bytes"
        )));
    }
    let text = std::fs::read_to_string(path).or_usage(format!("{shown} cannot be read"))?;
    let list: Vec<FileLeaf> = serde_json::from_str(&text).or_usage(format!(
        "{shown} must hold a JSON list of {{\"subject\", \"kind\", \"payload\"?}}"
    ))?;
    let mut leaves = Vec::with_capacity(list.len());
    for (number, item) in list.into_iter().enumerate() {
        let payload = item.payload.unwrap_or_else(|| json!({}));
        let leaf = leaf(item.subject, &item.kind, &payload);
        let leaf = leaf.map_err(|problem| Failure::usage(format!("{shown}: [{number}] {problem}")));
        leaves.push(leaf?);
    }
    Ok(leaves)
}

/// The leaves as the API takes most of them: one item for each kind and payload.
fn grouped(leaves: &[Leaf]) -> Vec<Value> {
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

/// Reads how long a batch may be approved.
fn expiry(text: &str) -> Result<Duration, String> {
    let seconds = u64::from(BATCH_EXPIRES_SECONDS_MIN)..=u64::from(BATCH_EXPIRES_SECONDS_MAX);
    let time = crate::duration::parse(text);
    time.ok()
        .filter(|time| seconds.contains(&time.as_secs()))
        .ok_or_else(|| "--expires must be 60s to 7d".to_owned())
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
            read_scope(&path).map_err(|failure| failure.to_string())
        };
        let reboot = format!(r#"{{"subject":"{NODE}","kind":"node.reboot"}}"#);
        assert_eq!(told(format!("[{reboot},{reboot}]")).unwrap().len(), 2);
        let bad = format!(r#"[{reboot},{{"subject":"{NODE}","kind":"a","payload":1}}]"#);
        assert!(told(bad).unwrap_err().contains("scope.json: [1]"));
        assert!(told("{}".to_owned()).unwrap_err().contains("must hold"));
    }
}
