//! `node`: the fleet's books, through the API.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use ledger_api::limits::{JOIN_EXPIRES_SECONDS_MAX, JOIN_EXPIRES_SECONDS_MIN};
use ledger_protocol::id::NodeId;
use ledger_protocol::kind::Role;
use serde_json::{Map, Value, json};

use crate::client::{Client, TenantOptions};
use crate::exit::Failure;
use crate::limits::PAGE_ITEMS;
use crate::output::Output;

/// List, register, look at and remove nodes; let one join.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Every node of the tenant
    List {
        /// Also nodes that have left the fleet
        #[arg(long)]
        deleted: bool,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// One node
    Get {
        /// The node
        node: NodeId,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Enter a new node in the books; its daemon joins with a join token
    Register {
        /// Name that people know it by
        name: String,
        /// What its daemon is: node, site or ramdisk
        #[arg(long, value_name = "ROLE", default_value = "node", value_parser = role)]
        role: Role,
        /// Label to select it by; may be repeated
        #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Take a node out of the fleet: its pending commands are cancelled, its session is closed, its
    /// history stays
    Delete {
        /// The node
        node: NodeId,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Lock a machine out that is not to be trusted any more: its certificates are revoked, its session
    /// is closed; a new join token lets the node in again, with a new key
    Revoke {
        /// The node
        node: NodeId,
        /// Why, for those who look at the node and its log
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Make the token that a node's daemon joins with, once; it is shown only now
    JoinToken {
        /// The node
        node: NodeId,
        /// How long it may be used, from 60s to 7d [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Duration>,
        /// Kind that the node will accept, and no others; may be repeated [default: every kind]
        #[arg(long, value_name = "KIND")]
        allow: Vec<String>,
        #[command(flatten)]
        common: TenantOptions,
    },
}

/// Does what the verb says.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    match options.verb {
        Verb::List { deleted, common } => list(deleted, common, output).await,
        Verb::Get { node, common } => one("get", json!({"nodeId": node}), common, output).await,
        Verb::Register {
            name,
            role,
            label,
            common,
        } => {
            let labels: BTreeMap<String, String> = label.into_iter().collect();
            let input = json!({"name": name, "role": role.as_str(), "labels": labels});
            one("register", input, common, output).await
        }
        Verb::Delete { node, common } => {
            one("delete", json!({"nodeId": node}), common, output).await
        }
        Verb::Revoke {
            node,
            reason,
            common,
        } => {
            let input = json!({"nodeId": node, "reason": reason});
            one("revokeCertificate", input, common, output).await
        }
        Verb::JoinToken {
            node,
            expires,
            allow,
            common,
        } => join_token(node, expires, &allow, common, output).await,
    }
}

/// Reads a role.
pub(crate) fn role(name: &str) -> Result<Role, String> {
    Role::parse(name).ok_or_else(|| {
        let known: Vec<_> = Role::ALL.iter().map(|role| role.as_str()).collect();
        format!("must be one of {}", known.join(", "))
    })
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("must be key=value".to_owned()),
    }
}

/// Reads how long a join token may be used.
fn expiry(text: &str) -> Result<Duration, String> {
    let seconds = u64::from(JOIN_EXPIRES_SECONDS_MIN)..=u64::from(JOIN_EXPIRES_SECONDS_MAX);
    let time = crate::duration::parse(text);
    time.ok()
        .filter(|time| seconds.contains(&time.as_secs()))
        .ok_or_else(|| "--expires must be 60s to 7d".to_owned())
}

async fn list(deleted: bool, common: TenantOptions, output: &mut Output) -> Result<(), Failure> {
    let client = Client::new(&common.api)?;
    let input = json!({
        "tenantId": common.tenant, "limit": PAGE_ITEMS, "includeDeleted": deleted,
    });
    let nodes = client.every_item("nodes", "list", input).await?;
    if common.json {
        return output.json(&json!({ "items": nodes }));
    }
    let rows: Vec<_> = nodes.iter().map(row).collect();
    output.table(
        &["NODE", "NAME", "ROLE", "SESSION", "SINCE", "LABELS"],
        &rows,
    )
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn row(node: &Value) -> Vec<String> {
    let session = match (&node["deletedAt"], &node["session"], &node["connected"]) {
        (Value::String(_), _, _) => "deleted".to_owned(),
        (_, _, Value::Bool(true)) => "connected".to_owned(),
        (_, Value::Null, _) => "never".to_owned(),
        (_, session, _) => format!("closed ({})", text(&session["reason"])),
    };
    let since = match &node["deletedAt"] {
        Value::Null => &node["session"]["since"],
        deleted => deleted,
    };
    let labels = node["labels"].as_object().into_iter().flatten();
    let labels: Vec<_> = labels
        .map(|(key, value)| format!("{key}={}", text(value)))
        .collect();
    let [id, name, role] = ["id", "name", "role"].map(|field| text(&node[field]));
    vec![id, name, role, session, text(since), labels.join(",")]
}

async fn one(
    method: &str,
    mut input: Value,
    common: TenantOptions,
    output: &mut Output,
) -> Result<(), Failure> {
    input["tenantId"] = json!(common.tenant);
    let node = Client::new(&common.api)?
        .call("nodes", method, &input)
        .await?;
    if common.json {
        return output.json(&node);
    }
    output.table(&["FIELD", "VALUE"], &fields(&node))
}

/// The fields of an object as rows, objects inside it as dotted names.
fn fields(object: &Value) -> Vec<Vec<String>> {
    fn add(prefix: &str, fields: &Map<String, Value>, rows: &mut Vec<Vec<String>>) {
        for (name, value) in fields {
            let name = format!("{prefix}{name}");
            match value {
                Value::Object(inner) if !inner.is_empty() => add(&format!("{name}."), inner, rows),
                Value::Object(_) => rows.push(vec![name, "-".to_owned()]),
                value => rows.push(vec![name, text(value)]),
            }
        }
    }
    let mut rows = Vec::new();
    if let Value::Object(fields) = object {
        add("", fields, &mut rows);
    }
    rows
}

async fn join_token(
    node: NodeId,
    expires: Option<Duration>,
    allow: &[String],
    common: TenantOptions,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut input = json!({"tenantId": common.tenant, "nodeId": node});
    if let Some(expires) = expires {
        input["expiresInSeconds"] = json!(expires.as_secs());
    }
    if !allow.is_empty() {
        input["allowedKinds"] = json!(allow);
    }
    let made = Client::new(&common.api)?
        .call("nodes", "createJoinToken", &input)
        .await?;
    if common.json {
        return output.json(&made);
    }
    // The token alone, so that a shell can take it.
    output.line(made["token"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_a_node_is_one_row_that_says_whether_it_is_there() {
        let connected = json!({
            "id": "node_1", "name": "vm", "role": "node", "labels": {"rack": "7", "row": "b"},
            "connected": true, "session": {"since": "T1", "gateway": "g"},
        });
        assert_eq!(
            row(&connected),
            ["node_1", "vm", "node", "connected", "T1", "rack=7,row=b"]
        );
        let never = json!({"id": "node_1", "name": "vm", "role": "node", "connected": false});
        assert_eq!(row(&never), ["node_1", "vm", "node", "never", "-", ""]);
        let closed = json!({
            "id": "node_1", "name": "vm", "role": "node", "connected": false,
            "session": {"since": "T2", "reason": "silent"},
        });
        assert_eq!(row(&closed)[3..5], ["closed (silent)", "T2"]);
        let deleted = json!({
            "id": "node_1", "name": "vm", "role": "node", "connected": false, "deletedAt": "T3",
            "session": {"since": "T2", "reason": "node-deleted"},
        });
        assert_eq!(row(&deleted)[3..5], ["deleted", "T3"]);
    }

    #[test]
    fn h2_fields_of_objects_inside_are_dotted() {
        let node = json!({"id": "node_1", "labels": {}, "session": {"gateway": "g"}, "epoch": 3});
        assert_eq!(
            fields(&node),
            [
                ["epoch", "3"],
                ["id", "node_1"],
                ["labels", "-"],
                ["session.gateway", "g"]
            ]
        );
    }

    #[test]
    fn h2_a_join_token_lives_for_a_minute_to_a_week() {
        for text in ["60s", "1h", "7d"] {
            assert!(expiry(text).is_ok(), "{text}");
        }
        for text in ["5s", "59999ms", "8d", "soon"] {
            let told = expiry(text).unwrap_err();
            assert!(told.contains("--expires must be 60s to 7d"), "{told}");
        }
    }

    #[test]
    fn h2_labels_and_roles_are_checked_before_anything_is_sent() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("alone").is_err());
        assert!(label("=b").is_err());
        assert_eq!(role("site"), Ok(Role::Site));
        assert!(role("Node").is_err());
    }
}
