//! A batch as it is shown, signed and verified: what the service says of it counts as far as its
//! leaves make the root (SPEC P3).

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledger_protocol::batch::{Leaf, Statement};
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::id::{BatchId, TenantId};
use ledger_protocol::merkle::Tree;
use ledger_protocol::time::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::payloads::Payloads;
use crate::client::{Client, TenantOptions};
use crate::exit::Failure;
use crate::limits::PAGE_ITEMS;
use crate::output::Output;

/// A batch with all its leaves, which make its root.
pub(super) struct Shown {
    batch: Value,
    pub(super) leaves: Vec<Leaf>,
    pub(super) id: BatchId,
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
    pub(super) async fn fetch(id: BatchId, common: &TenantOptions) -> Result<Self, Failure> {
        let client = Client::new(&common.api)?;
        let (service, tenant) = ("commandBatches", common.tenant);
        let mut asked = json!({"tenantId": tenant, "batchId": id});
        let batch = client.call(service, "get", &asked).await?;
        asked["limit"] = json!(PAGE_ITEMS);
        let items = client.every_item(service, "scope", asked).await?;
        let mut leaves = Vec::with_capacity(items.len());
        let mut hashes = Vec::with_capacity(items.len());
        for item in &items {
            let leaf = ApiLeaf::deserialize(item)?;
            let hash = leaf.payload_sha256.map(hex::decode).transpose()?;
            let leaf = Leaf {
                kind: leaf.kind,
                payload_sha256: hash,
                subject: leaf.subject,
            };
            hashes.push(leaf.hash()?);
            leaves.push(leaf);
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
    pub(super) fn statement(&self) -> Result<Vec<u8>, Failure> {
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

    /// The batch as the API gives it, with its scope and the payloads that are known.
    pub(super) fn json(&self, payloads: &Payloads) -> Value {
        let mut batch = self.batch.clone();
        let scope = self.leaves.iter().map(|leaf| {
            let mut item = json!({"kind": leaf.kind, "subject": leaf.subject});
            if let Some(hash) = &leaf.payload_sha256 {
                item["payloadSha256"] = hex::encode(hash).into();
            }
            if let Some(payload) = payloads.of(leaf) {
                item["payload"] = payload.clone();
            }
            item
        });
        batch["scope"] = scope.collect();
        batch
    }

    /// Prints what the batch allows, and what is known of its payloads.
    pub(super) fn print(&self, payloads: &Payloads, output: &mut Output) -> Result<(), Failure> {
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
        let mut rows = vec![
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
        ];
        rows.extend(
            payloads
                .told(&self.leaves)
                .map(|told| row("payloads", told)),
        );
        rows.extend([
            row("root", hex::encode(self.root)),
            row("approvals", approved),
            row("approvers", names(&approvers, "name")),
        ]);
        output.table(&["BATCH", &self.id.to_string()], &rows)?;
        output.line("")?;
        let rows = self.leaves.iter().map(|leaf| {
            let (subject, kind) = (leaf.subject.clone(), leaf.kind.clone());
            vec![subject, kind, payloads.text(leaf)]
        });
        output.table_of(&["NODE", "KIND", "PAYLOAD"], rows)
    }

    /// Whether those who are trusted have signed in numbers; prints the verdict on each approval.
    pub(super) fn verify(
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
