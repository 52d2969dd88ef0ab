//! `commandBatches.create`: propose commands to those who may approve them (SPEC P3).

use std::sync::Arc;

use ledger::Propose;
use ledger_projections::nodes;
use ledger_protocol::batch::Leaf;
use ledger_protocol::id::NodeId;
use ledger_protocol::limits::{
    BATCH_EXPIRES_SECONDS_DEFAULT, BATCH_EXPIRES_SECONDS_MAX, BATCH_EXPIRES_SECONDS_MIN,
    BATCH_REASON_CHARS_MAX, IDEMPOTENCY_KEY_CHARS_MAX, SCOPE_LEAVES_MAX,
};
use ledger_protocol::merkle::HASH_BYTES;
use serde_json::Value;

use super::view::BatchView;
use crate::Api;
use crate::auth::{Caller, Permission, Resource};
use crate::commands::idempotency::derived_key;
use crate::error::{Error, quoted};
use crate::input::Input;
use crate::limits::KIND_BYTES_MAX;
use crate::methods::{Answer, render};

pub(crate) async fn call(api: Api, caller: Arc<Caller>, mut input: Input) -> Answer {
    let tenant = input.id("tenantId")?;
    let reason = input.printable("reason", 1..=BATCH_REASON_CHARS_MAX)?;
    let scope = input.list("scope", 1..=SCOPE_LEAVES_MAX)?;
    let key = input.printable("idempotencyKey", 1..=IDEMPOTENCY_KEY_CHARS_MAX)?;
    let life = BATCH_EXPIRES_SECONDS_MIN..=BATCH_EXPIRES_SECONDS_MAX;
    let life = input.optional_u32("expiresInSeconds", life)?;
    input.finish()?;
    let (mut subjects, mut leaves) = (Vec::new(), Vec::new());
    for (number, item) in scope.iter().enumerate() {
        let (nodes, allowed) = item_of(item).map_err(|(field, problem)| {
            Error::invalid("scope", format!("[{number}]{field} {problem}"))
        })?;
        leaves.extend(nodes.iter().map(|node| allowed.leaf(*node)));
        subjects.extend(nodes);
        if leaves.len() > SCOPE_LEAVES_MAX {
            let problem = format!("must have at most {SCOPE_LEAVES_MAX} leaves");
            return Err(Error::invalid("scope", problem));
        }
    }

    caller.check_tenant(tenant)?;
    caller.require(Permission::BatchesCreate, Resource::Everything)?;
    let missing = nodes::not_in_tenant(&mut *api.connection().await?, tenant, &subjects).await?;
    if let Some(node) = missing {
        return Err(Error::not_found(format!("node {node}")));
    }
    let propose = Propose {
        tenant,
        reason,
        scope: leaves,
        idempotency_key: derived_key(tenant, &caller.identity, &key),
        expires_in_seconds: life.unwrap_or(BATCH_EXPIRES_SECONDS_DEFAULT),
    };
    let proposed = api.ledger().propose_batch(&caller.actor, propose).await?;
    let mut view = BatchView::of(&proposed.batch, api.ledger().now());
    view.replayed = proposed.replayed;
    render(&view)
}

/// What an item of the scope allows on each of its subjects.
struct Allowed {
    kind: String,
    payload_sha256: Option<Vec<u8>>,
}

impl Allowed {
    fn leaf(&self, node: NodeId) -> Leaf {
        Leaf {
            kind: self.kind.clone(),
            payload_sha256: self.payload_sha256.clone(),
            subject: node.to_string(),
        }
    }
}

/// One item of the scope, or its field and what is wrong with it. A full scope whose payloads are
/// bound fits a request only if an item may name many subjects.
fn item_of(item: &Value) -> Result<(Vec<NodeId>, Allowed), (String, String)> {
    let wrong = |field: &str, problem: String| Err((format!(".{field}"), problem));
    let Value::Object(fields) = item else {
        let problem = "must be an object {subject or subjects, kind, payloadSha256?}";
        return Err((String::new(), problem.to_owned()));
    };
    let known = ["subject", "subjects", "kind", "payloadSha256"];
    if let Some(field) = fields.keys().find(|field| !known.contains(&field.as_str())) {
        let problem = format!("is not a field of a leaf, which has: {}", known.join(", "));
        return wrong(&quoted(field), problem);
    }
    let node = |value: &Value| value.as_str().and_then(|text| text.parse::<NodeId>().ok());
    let nodes = match (fields.get("subject"), fields.get("subjects")) {
        (Some(subject), None) => node(subject).map(|node| vec![node]),
        (None, Some(Value::Array(subjects))) if !subjects.is_empty() => {
            subjects.iter().map(node).collect()
        }
        (None, Some(_)) => None,
        (None, None) | (Some(_), Some(_)) => {
            let problem = "must have one of both, subject or subjects";
            return Err((String::new(), problem.to_owned()));
        }
    };
    let Some(nodes) = nodes else {
        let (field, what) = match fields.get("subject") {
            Some(_) => ("subject", "the id of a node, node_…"),
            None => ("subjects", "a list of ids of nodes, node_…"),
        };
        return wrong(field, format!("must be {what}"));
    };
    let kind = fields.get("kind").and_then(Value::as_str);
    let Some(kind) = kind.filter(|kind| (1..=KIND_BYTES_MAX).contains(&kind.len())) else {
        return wrong(
            "kind",
            format!("must be text of 1 to {KIND_BYTES_MAX} bytes"),
        );
    };
    let payload_sha256 = match fields.get("payloadSha256") {
        None => None,
        Some(value) => {
            let digits = value.as_str().filter(|text| text.len() == 2 * HASH_BYTES);
            let Some(hash) = digits.and_then(|text| hex::decode(text).ok()) else {
                let problem = "must be the payload's SHA-256 as 64 hex digits";
                return wrong("payloadSha256", problem.to_owned());
            };
            Some(hash)
        }
    };
    let kind = kind.to_owned();
    Ok((
        nodes,
        Allowed {
            kind,
            payload_sha256,
        },
    ))
}
