//! Grants: a permission on a resource pattern, optionally for some kinds only (SPEC A13).
//!
//! To add a permission: a line in [`Permission::ALL`] and its name. A permission implies no other.

use std::fmt;

use ledger_protocol::id::NodeId;
use ledger_protocol::kind::Registry;
use ledger_protocol::text::flaw;
use serde_json::{Map, Value, json};

use crate::error::quoted;
use crate::limits::{GRANT_KINDS_MAX, KIND_BYTES_MAX};

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permission {
    /// See nodes and their commands.
    NodesRead,
    /// Queue and cancel commands.
    NodesExec,
    /// Register and delete nodes, and make tokens.
    NodesAdmin,
    /// Propose batches.
    BatchesCreate,
    /// Approve batches.
    BatchesApprove,
    /// Put, list and delete secrets.
    SecretsAdmin,
    /// Read the ledger as an auditor.
    LedgerAudit,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Self; 7] = [
        Self::NodesRead,
        Self::NodesExec,
        Self::NodesAdmin,
        Self::BatchesCreate,
        Self::BatchesApprove,
        Self::SecretsAdmin,
        Self::LedgerAudit,
    ];

    /// The name in grants and errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodesRead => "compute:nodes:read",
            Self::NodesExec => "compute:nodes:exec",
            Self::NodesAdmin => "compute:nodes:admin",
            Self::BatchesCreate => "compute:batches:create",
            Self::BatchesApprove => "compute:batches:approve",
            Self::SecretsAdmin => "compute:secrets:admin",
            Self::LedgerAudit => "compute:ledger:audit",
        }
    }

    /// The permission with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a permission is granted on, or asked for on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    /// `*`: everything of the tenant.
    Everything,
    /// `compute-node/*`: every node of the tenant, also those to come.
    EveryNode,
    /// `compute-node/node_…`: one node.
    Node(NodeId),
}

impl Resource {
    /// Reads a pattern.
    pub fn parse(pattern: &str) -> Option<Self> {
        match pattern {
            "*" => Some(Self::Everything),
            "compute-node/*" => Some(Self::EveryNode),
            pattern => {
                let id = pattern.strip_prefix("compute-node/")?;
                id.parse().ok().map(Self::Node)
            }
        }
    }

    fn covers(self, asked: Self) -> bool {
        match (self, asked) {
            (Self::Everything, _) | (Self::EveryNode, Self::EveryNode | Self::Node(_)) => true,
            (Self::Node(granted), Self::Node(asked)) => granted == asked,
            (Self::EveryNode | Self::Node(_), Self::Everything)
            | (Self::Node(_), Self::EveryNode) => false,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => f.write_str("*"),
            Self::EveryNode => f.write_str("compute-node/*"),
            Self::Node(node) => write!(f, "compute-node/{node}"),
        }
    }
}

/// One grant of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// What is allowed.
    pub permission: Permission,
    /// On what.
    pub resource: Resource,
    /// For which kinds only; `compute:nodes:exec` alone can be limited so.
    pub kinds: Option<Vec<String>>,
}

impl Grant {
    /// Every permission on everything, as the first token of a tenant has.
    pub fn all() -> Vec<Self> {
        let grant = |permission| Self {
            permission,
            resource: Resource::Everything,
            kinds: None,
        };
        Permission::ALL.map(grant).to_vec()
    }

    /// Whether it covers the permission on the resource, for this kind; with no kind, for every
    /// kind.
    pub(crate) fn covers(
        &self,
        permission: Permission,
        resource: Resource,
        kind: Option<&str>,
    ) -> bool {
        self.permission == permission
            && self.resource.covers(resource)
            && match (&self.kinds, kind) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(granted), Some(asked)) => granted.iter().any(|kind| kind == asked),
            }
    }

    /// Reads a grant from JSON, or says what is wrong with it.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let Value::Object(fields) = value else {
            return Err("must be objects {permission, resource, kinds?}".to_owned());
        };
        if let Some(field) = fields
            .keys()
            .find(|field| !matches!(field.as_str(), "permission" | "resource" | "kinds"))
        {
            let field = quoted(field);
            return Err(format!("have no field `{field}`"));
        }
        let permission = text(fields, "permission").and_then(Permission::parse);
        let permission = permission.ok_or_else(|| {
            let known = Permission::ALL.map(Permission::as_str).join(", ");
            format!("must have a `permission`, one of {known}")
        })?;
        let resource = text(fields, "resource").and_then(Resource::parse);
        let resource = resource
            .ok_or("must have a `resource`, one of *, compute-node/* and compute-node/{nodeId}")?;
        let kinds = fields.get("kinds").map(kinds).transpose()?;
        if kinds.is_some() && permission != Permission::NodesExec {
            let only = Permission::NodesExec;
            return Err(format!("may have `kinds` with the permission {only} only"));
        }
        Ok(Self {
            permission,
            resource,
            kinds,
        })
    }

    /// Refuses kinds that nobody has registered: such a grant would never cover what was meant.
    pub fn check_kinds(&self, registry: &Registry) -> Result<(), String> {
        let mut kinds = self.kinds.iter().flatten();
        let Some(unknown) = kinds.find(|kind| registry.get(kind).is_none()) else {
            return Ok(());
        };
        let known: Vec<_> = registry.iter().map(|kind| kind.name.as_ref()).collect();
        let (unknown, known) = (quoted(unknown), known.join(", "));
        Err(format!(
            "name the kind `{unknown}`, which there is not; there are {known}"
        ))
    }

    /// The grant as JSON.
    pub fn to_json(&self) -> Value {
        let mut grant = json!({
            "permission": self.permission.as_str(),
            "resource": self.resource.to_string(),
        });
        if let Some(kinds) = &self.kinds {
            grant["kinds"] = json!(kinds);
        }
        grant
    }
}

fn text<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    fields.get(field).and_then(Value::as_str)
}

fn kinds(value: &Value) -> Result<Vec<String>, String> {
    let wanted = || {
        format!(
            "must have as `kinds` a list of 1 to {GRANT_KINDS_MAX} names of at most \
             {KIND_BYTES_MAX} bytes"
        )
    };
    let list = value.as_array().ok_or_else(wanted)?;
    if list.is_empty() || list.len() > GRANT_KINDS_MAX {
        return Err(wanted());
    }
    let name = |item: &Value| {
        let name = item.as_str()?;
        let fits = !name.is_empty() && name.len() <= KIND_BYTES_MAX;
        (fits && flaw(name).is_none()).then(|| name.to_owned())
    };
    list.iter()
        .map(|item| name(item).ok_or_else(wanted))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a13_a_grant_covers_what_its_pattern_says() {
        let one: NodeId = "node_01h455vb4pex5vsknk084sn02q".parse().unwrap();
        let other: NodeId = "node_01h455vb4pex5vsknk084sn02r".parse().unwrap();
        let asked = [
            Resource::Everything,
            Resource::EveryNode,
            Resource::Node(one),
            Resource::Node(other),
        ];
        for (pattern, expected) in [
            ("*", [true, true, true, true]),
            ("compute-node/*", [false, true, true, true]),
            (
                "compute-node/node_01h455vb4pex5vsknk084sn02q",
                [false, false, true, false],
            ),
        ] {
            let grant = json!({"permission": "compute:nodes:read", "resource": pattern});
            let grant = Grant::from_json(&grant).unwrap();
            let covered = asked.map(|asked| grant.covers(Permission::NodesRead, asked, None));
            assert_eq!(covered, expected, "{pattern}");
            assert!(!grant.covers(Permission::NodesAdmin, Resource::Node(one), None));
        }
    }

    #[test]
    fn a13_a_grant_for_some_kinds_covers_no_other() {
        let grant = json!({
            "permission": "compute:nodes:exec", "resource": "*", "kinds": ["diag.nvml"],
        });
        let grant = Grant::from_json(&grant).unwrap();
        let covers = |kind| grant.covers(Permission::NodesExec, Resource::EveryNode, kind);
        assert!(covers(Some("diag.nvml")));
        assert!(!covers(Some("node.reboot")));
        assert!(!covers(None));
    }

    #[test]
    fn a13_what_is_no_grant_is_refused() {
        for bad in [
            json!(null),
            json!({}),
            json!({"permission": "compute:nodes:read"}),
            json!({"permission": "compute:nodes:*", "resource": "*"}),
            json!({"permission": "compute:nodes:read", "resource": "compute-node/"}),
            json!({"permission": "compute:nodes:read", "resource": "compute-node/n*"}),
            json!({"permission": "compute:nodes:read", "resource": "*", "kinds": ["a"]}),
            json!({"permission": "compute:nodes:exec", "resource": "*", "kinds": []}),
            json!({"permission": "compute:nodes:exec", "resource": "*", "kinds": [""]}),
            json!({"permission": "compute:nodes:exec", "resource": "*", "kinds": "a"}),
            json!({"permission": "compute:nodes:exec", "resource": "*", "more": 1}),
        ] {
            assert!(Grant::from_json(&bad).is_err(), "{bad} was taken");
        }
        for grant in Grant::all() {
            assert_eq!(Grant::from_json(&grant.to_json()), Ok(grant));
        }
    }
}
