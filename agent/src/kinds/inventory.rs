//! The machine's inventory: one file per section, and the inventory that is kept between commands.
//!
//! To add a section: write `inventory/<section>.rs` with a `collect`, and add it to [`Section`]. What the machine lacks
//! is [`absent`] with the reason, never left out.

mod bmc;
mod cpu;
mod disks;
pub(crate) mod gpus;
mod kept;
mod memory;
mod nics;
mod os;
mod system;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) use kept::Kept;

use crate::{host::Host, limits};

/// One part of the inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// Who made the machine, what it is called, since when it runs.
    System,
    /// Processors.
    Cpu,
    /// Memory, swap, NUMA nodes and memory errors.
    Memory,
    /// Disks and the file systems on them.
    Disks,
    /// Network interfaces.
    Nics,
    /// NVIDIA GPUs.
    Gpus,
    /// The baseboard management controller.
    Bmc,
    /// The operating system.
    Os,
}

impl Section {
    /// Every section, in the order in which they are collected.
    pub const ALL: [Self; 8] = [
        Self::System,
        Self::Cpu,
        Self::Memory,
        Self::Disks,
        Self::Nics,
        Self::Gpus,
        Self::Bmc,
        Self::Os,
    ];

    /// The section's name in payloads and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disks => "disks",
            Self::Nics => "nics",
            Self::Gpus => "gpus",
            Self::Bmc => "bmc",
            Self::Os => "os",
        }
    }

    /// Collects the section. `known_gpus` is the section `gpus` of the kept inventory, or nothing for a fresh start.
    pub(super) async fn collect(
        self,
        host: &Arc<Host>,
        known_gpus: Option<&Value>,
        cancel: &CancellationToken,
    ) -> Value {
        let collect: fn(&Host) -> Value = match self {
            Self::Gpus => return gpus::collect(host, known_gpus, cancel).await,
            Self::Bmc => return bmc::collect(host, cancel).await,
            Self::System => system::collect,
            Self::Cpu => cpu::collect,
            Self::Memory => memory::collect,
            Self::Disks => disks::collect,
            Self::Nics => nics::collect,
            Self::Os => os::collect,
        };
        let host = Arc::clone(host);
        let limit = Duration::from_secs(limits::SECTION_SECONDS_MAX);
        // A dying disk can hold a reader of `/sys` for minutes; it holds its thread then, not the inventory.
        match tokio::time::timeout(limit, tokio::task::spawn_blocking(move || collect(&host))).await
        {
            Ok(Ok(section)) => section,
            Ok(Err(_)) => absent("the collection of this section broke off"),
            Err(_) => absent(format!(
                "the machine did not answer within {} s",
                limit.as_secs()
            )),
        }
    }
}

/// What stands where the machine has nothing, or nothing that could be read.
pub(crate) fn absent(why: impl Into<String>) -> Value {
    json!({ "present": false, "why": why.into() })
}

/// A list that says how long it is and how much of it was left out.
pub(crate) fn list(mut items: Vec<Value>) -> Value {
    let count = items.len();
    items.truncate(limits::INVENTORY_LIST_ITEMS_MAX);
    json!({ "count": count, "omitted": count - items.len(), "items": items })
}

/// Drops what is null: absence is told by [`absent`] where it matters, and by nothing where it does not.
pub(crate) fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

/// Shortens the longest lists until the whole is small enough; each shortened list says how many it left out.
pub(crate) fn fit(value: &mut Value, bytes_max: usize) {
    while size(value) > bytes_max {
        let mut longest = None;
        find_longest(value, &mut String::new(), &mut longest);
        let Some((_, pointer)) = longest else { return };
        let Some(list) = value.pointer_mut(&pointer) else {
            return;
        };
        let count = list.get("count").and_then(Value::as_u64).unwrap_or(0);
        let Some(items) = list.get_mut("items").and_then(Value::as_array_mut) else {
            return;
        };
        items.truncate(items.len() - items.len().div_ceil(8));
        let left = items.len() as u64;
        if let Value::Object(fields) = list {
            fields.insert("omitted".to_owned(), json!(count.saturating_sub(left)));
        }
    }
}

fn size(value: &Value) -> usize {
    serde_json::to_vec(value).map_or(0, |bytes| bytes.len())
}

fn find_longest(value: &Value, pointer: &mut String, longest: &mut Option<(usize, String)>) {
    let Value::Object(fields) = value else { return };
    if let Some(items @ Value::Array(array)) = fields.get("items")
        && !array.is_empty()
    {
        let bytes = size(items);
        if longest.as_ref().is_none_or(|(most, _)| bytes > *most) {
            *longest = Some((bytes, pointer.clone()));
        }
    }
    for (name, field) in fields {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(name);
        find_longest(field, pointer, longest);
        pointer.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_inventory_is_cut_where_it_is_longest_and_says_so() {
        let disks: Vec<Value> = (0..900)
            .map(|number| json!({ "name": format!("sd{number}") }))
            .collect();
        let nics: Vec<Value> = (0..3)
            .map(|number| json!({ "name": format!("eth{number}") }))
            .collect();
        let mut value = json!({ "sections": { "disks": list(disks), "nics": list(nics) } });
        fit(&mut value, 4096);
        assert!(size(&value) <= 4096);
        let disks = &value["sections"]["disks"];
        let left = disks["items"].as_array().unwrap().len();
        assert!(left > 100);
        assert_eq!(disks["count"], 900);
        assert_eq!(disks["omitted"], 900 - left);
        assert_eq!(value["sections"]["nics"]["omitted"], 0);
    }
}
