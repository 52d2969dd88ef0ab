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

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use kept::Kept;

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
}

/// Collects sections, one inventory at a time.
#[derive(Debug)]
pub(crate) struct Collector {
    host: Arc<Host>,
    /// What is kept of the inventories before.
    pub(crate) kept: Kept,
    /// Sections whose collection hangs; each holds a thread, and must not hold a second.
    hanging: Arc<Mutex<Vec<Section>>>,
    section_timeout: Duration,
}

impl Collector {
    pub(crate) fn new(host: Arc<Host>) -> Self {
        Self {
            kept: Kept::new(&host.state_dir),
            host,
            hanging: Arc::default(),
            section_timeout: Duration::from_secs(limits::SECTION_SECONDS_MAX),
        }
    }

    /// Collects one section. `known_gpus` is the section `gpus` of the kept inventory, or nothing for a fresh start.
    pub(super) async fn collect(
        &self,
        section: Section,
        known_gpus: Option<&Value>,
        cancel: &CancellationToken,
    ) -> Value {
        match section {
            Section::Gpus => gpus::collect(&self.host, known_gpus, cancel).await,
            Section::Bmc => bmc::collect(&self.host, cancel).await,
            Section::System => self.on_a_thread(section, system::collect).await,
            Section::Cpu => self.on_a_thread(section, cpu::collect).await,
            Section::Memory => self.on_a_thread(section, memory::collect).await,
            Section::Disks => self.on_a_thread(section, disks::collect).await,
            Section::Nics => self.on_a_thread(section, nics::collect).await,
            Section::Os => self.on_a_thread(section, os::collect).await,
        }
    }

    /// A dying disk can hold a reader of `/sys` for minutes; it holds its thread then, not the inventory.
    async fn on_a_thread(&self, section: Section, collect: fn(&Host) -> Value) -> Value {
        let name = section.name();
        {
            let mut hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
            if hanging.contains(&section) {
                return absent(format!("an earlier collection of {name} still hangs"));
            }
            hanging.push(section);
        }
        let host = Arc::clone(&self.host);
        let hanging = Arc::clone(&self.hanging);
        let work = tokio::task::spawn_blocking(move || {
            let _done = NoLongerHanging { hanging, section };
            collect(&host)
        });
        match tokio::time::timeout(self.section_timeout, work).await {
            Ok(Ok(section)) => section,
            Ok(Err(_)) => absent(format!("the collection of {name} broke off")),
            Err(_) => absent(format!(
                "the machine did not answer within {} s",
                self.section_timeout.as_secs_f64()
            )),
        }
    }
}

struct NoLongerHanging {
    hanging: Arc<Mutex<Vec<Section>>>,
    section: Section,
}

impl Drop for NoLongerHanging {
    fn drop(&mut self) {
        let mut hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
        hanging.retain(|section| *section != self.section);
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
    use crate::fake_machine::{FakeMachine, wait_until};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_section_that_hangs_holds_one_thread_and_not_the_inventory() {
        let machine = FakeMachine::new();
        let meminfo = machine.path("proc/meminfo");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&meminfo)
                .status()
                .unwrap()
                .success()
        );
        let mut collector = Collector::new(Arc::new(machine.host()));
        collector.section_timeout = Duration::from_millis(200);
        let cancel = CancellationToken::new();
        let why = async || collector.collect(Section::Memory, None, &cancel).await["why"].take();
        assert_eq!(why().await, "the machine did not answer within 0.2 s");
        assert_eq!(why().await, "an earlier collection of memory still hangs");
        std::fs::write(&meminfo, "MemTotal: 1 kB\n").unwrap();
        wait_until("it hangs no more", || {
            collector.hanging.lock().unwrap().is_empty()
        })
        .await;
    }

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
