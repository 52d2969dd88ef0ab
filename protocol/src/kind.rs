//! The registry of command kinds (SPEC section 3), as data.
//!
//! To add a kind: one entry in `builtin`, its payload schema beside it, and an executor in
//! `agent/src/kinds/`. A module registers its own at start-up with [`Registry::register`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

mod builtin;

/// A lane bounds the work in flight per session (SPEC K3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// Quick work that an operator waits for.
    Control,
    /// Work that changes what a node is.
    Provision,
    /// Work that takes long.
    Bulk,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Self; 3] = [Self::Control, Self::Provision, Self::Bulk];

    /// The lane's name in the API, in events and in the tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Provision => "provision",
            Self::Bulk => "bulk",
        }
    }

    /// The lane with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.as_str() == name)
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an agent is: the part of the fleet that it speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A running machine.
    Node,
    /// A site's agent, which reaches management controllers and proxies.
    Site,
    /// A machine in its discovery or provisioning ramdisk.
    Ramdisk,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Node, Self::Site, Self::Ramdisk];

    /// The role's name in the API and in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Site => "site",
            Self::Ramdisk => "ramdisk",
        }
    }

    /// The role with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One kind of command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// The name that commands carry, such as `node.reboot`.
    pub name: Cow<'static, str>,
    /// Version of the kind: raised when its payload or meaning grows.
    pub version: u32,
    /// JSON Schema (2020-12) of the payload.
    pub payload_schema: Cow<'static, str>,
    /// The lane it runs in.
    pub lane: Lane,
    /// How long it may run past its `notAfter` before it counts as failed, in seconds.
    pub timeout_seconds: u32,
    /// The roles that may run it.
    pub roles: Cow<'static, [Role]>,
    /// May run again when the daemon died after accepting and before starting it (SPEC D7).
    pub retry_safe: bool,
    /// Its effect ends the daemon; it is completed by the rejoin (SPEC D9).
    pub self_terminating: bool,
    /// Its result is signed by the node (SPEC P2).
    pub attested: bool,
    /// It can do harm, so approvals guard it (SPEC P3).
    pub destructive: bool,
    /// `commands.run` accepts it.
    pub api: bool,
}

/// A kind that cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kind `{name}` is registered already; a module's kind needs a name of its own")]
pub struct DuplicateKind {
    /// The name that was given twice.
    pub name: String,
}

/// The kinds that this process knows.
#[derive(Debug, Clone)]
pub struct Registry {
    kinds: BTreeMap<Cow<'static, str>, Kind>,
}

impl Registry {
    /// The kinds of SPEC section 3.
    pub fn builtin() -> Self {
        let kinds = builtin::kinds().into_iter();
        Self {
            kinds: kinds.map(|kind| (kind.name.clone(), kind)).collect(),
        }
    }

    /// Adds a module's kind.
    pub fn register(&mut self, kind: Kind) -> Result<(), DuplicateKind> {
        if self.kinds.contains_key(&kind.name) {
            return Err(DuplicateKind {
                name: kind.name.into_owned(),
            });
        }
        self.kinds.insert(kind.name.clone(), kind);
        Ok(())
    }

    /// The kind with this name.
    pub fn get(&self, name: &str) -> Option<&Kind> {
        self.kinds.get(name)
    }

    /// Every kind, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_the_table_of_the_specification_is_the_registry() {
        let registry = Registry::builtin();
        let row = |kind: &Kind| {
            let flag = |set: bool| if set { "yes" } else { "-" };
            let roles: Vec<_> = kind.roles.iter().map(|role| role.as_str()).collect();
            format!(
                "{} {} {} {} {} {} {} {} {}",
                kind.name,
                flag(kind.api),
                kind.lane,
                flag(kind.retry_safe),
                flag(kind.self_terminating),
                flag(kind.attested),
                flag(kind.destructive),
                kind.timeout_seconds / 60,
                roles.join(",")
            )
        };
        let rows: Vec<_> = registry.iter().map(row).collect();
        let expected = [
            "bmc.power - control - - - yes 5 site",
            "boot.kexec - provision - yes - yes 15 ramdisk",
            "daemon.upgrade - provision - yes - - 15 node,site,ramdisk",
            "deploy.image - provision - - - yes 60 ramdisk",
            "diag.dcgm - provision - - yes - 60 node,ramdisk",
            "diag.nvml yes control yes - yes - 5 node,ramdisk",
            "disk.wipe - bulk - - yes yes 720 ramdisk",
            "gpu.reset - provision - - yes yes 10 node",
            "inventory.refresh yes control yes - - - 5 node,site,ramdisk",
            "logs.collect yes bulk yes - - - 15 node,site,ramdisk",
            "node.reboot yes control - yes - yes 15 node,ramdisk",
            "site.httpProxy - control - - - yes 5 site",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn k1_every_payload_schema_is_closed() {
        for kind in Registry::builtin().iter() {
            let schema: serde_json::Value = serde_json::from_str(&kind.payload_schema).unwrap();
            assert_eq!(schema["type"], "object", "{}", kind.name);
            assert_eq!(schema["additionalProperties"], false, "{}", kind.name);
        }
    }

    #[test]
    fn k_a_kind_is_registered_once() {
        let mut registry = Registry::builtin();
        let mut own = registry.get("diag.nvml").unwrap().clone();
        assert!(registry.register(own.clone()).is_err());
        own.name = "health.probe".into();
        registry.register(own).unwrap();
        assert!(registry.get("health.probe").is_some());
    }
}
