//! Section `gpus`: NVIDIA GPUs, from the management interface, the PCI bus and the memory of the last inventory.
//!
//! `diag.nvml` judges the same [`View`], so that both speak of the same GPUs.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{absent, list, without_nulls};
use crate::{
    error::Error,
    host::Host,
    limits,
    nvidia_smi::{self, Gpu, pci_address},
    sysfs,
};

/// Everything that is known about this machine's GPUs.
#[derive(Debug)]
pub(crate) struct View {
    /// What the management interface sees, or why it does not answer.
    pub(crate) managed: Result<Vec<Gpu>, Error>,
    /// GPUs on the PCI bus that the management interface does not name.
    pub(crate) unmanaged: Vec<Unmanaged>,
    /// GPUs that the last inventory had and that are nowhere now.
    pub(crate) missing: Vec<Missing>,
}

/// A GPU that only the kernel knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unmanaged {
    pub(crate) pci_address: String,
    /// The kernel driver that holds it.
    pub(crate) driver: Option<String>,
    /// From NVIDIA's kernel driver.
    pub(crate) uuid: Option<String>,
    /// From NVIDIA's kernel driver.
    pub(crate) name: Option<String>,
}

impl Unmanaged {
    /// A GPU that was handed to a virtual machine is rightly invisible to the management interface.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.driver
            .as_deref()
            .is_some_and(|driver| driver == "vfio-pci" || driver.ends_with("vgpu_vfio"))
    }
}

/// A GPU that was there when the inventory was collected the last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) uuid: Option<String>,
    pub(crate) pci_address: Option<String>,
    pub(crate) name: Option<String>,
}

impl View {
    /// Looks at the machine. `known` is the section of the kept inventory, or nothing for a fresh start.
    pub(crate) async fn take(
        host: &Host,
        known: Option<&Value>,
        cancel: &CancellationToken,
    ) -> Self {
        let managed = nvidia_smi::gpus(host, cancel).await;
        let seen = managed.as_deref().unwrap_or_default();
        let unmanaged: Vec<Unmanaged> = on_the_bus(host)
            .into_iter()
            .filter(|gpu| {
                !seen
                    .iter()
                    .any(|managed| managed.pci_address == gpu.pci_address)
            })
            .collect();
        let missing = known_gpus(known)
            .into_iter()
            .filter(|known| {
                // A board that was swapped sits in the same place, one that moved keeps its UUID: neither is missing.
                let is = |uuid: Option<&str>, pci_address: &str| {
                    known.pci_address.as_deref() == Some(pci_address)
                        || (uuid.is_some() && known.uuid.as_deref() == uuid)
                };
                !seen.iter().any(|gpu| is(Some(&gpu.uuid), &gpu.pci_address))
                    && !unmanaged
                        .iter()
                        .any(|gpu| is(gpu.uuid.as_deref(), &gpu.pci_address))
            })
            .collect();
        Self {
            managed,
            unmanaged,
            missing,
        }
    }

    /// How many GPUs the management interface should name: those it does, those on the bus that it does not, and those
    /// that were here before; without the ones that a virtual machine has.
    pub(crate) fn expected(&self) -> usize {
        self.managed.as_ref().map_or(0, Vec::len)
            + self
                .unmanaged
                .iter()
                .filter(|gpu| !gpu.is_handed_over())
                .count()
            + self.missing.len()
    }

    fn why_absent(&self) -> String {
        let interface = match &self.managed {
            Ok(_) => "nvidia-smi sees no GPU".to_owned(),
            Err(error) => error.chain(),
        };
        format!("{interface} and no NVIDIA device under /sys/bus/pci")
    }
}

pub(super) async fn collect(
    host: &Host,
    known: Option<&Value>,
    cancel: &CancellationToken,
) -> Value {
    section(&View::take(host, known, cancel).await)
}

fn section(view: &View) -> Value {
    let managed = view.managed.as_deref().unwrap_or_default();
    let gpus: Vec<Value> = managed
        .iter()
        .map(managed_item)
        .chain(view.unmanaged.iter().map(unmanaged_item))
        .collect();
    let mut section = if gpus.is_empty() {
        absent(view.why_absent())
    } else {
        let mut section = list(gpus);
        section["present"] = json!(true);
        section["managementInterface"] = match &view.managed {
            Ok(gpus) => without_nulls(json!({
                "present": true,
                "driverVersion": gpus.first().and_then(|gpu| gpu.driver_version.as_ref()),
            })),
            Err(error) => absent(error.chain()),
        };
        section
    };
    if !view.missing.is_empty() {
        section["missing"] = list(
            view.missing
                .iter()
                .map(|gpu| {
                    without_nulls(json!({ "uuid": gpu.uuid, "pciAddress": gpu.pci_address, "name": gpu.name }))
                })
                .collect(),
        );
    }
    section
}

fn managed_item(gpu: &Gpu) -> Value {
    without_nulls(json!({
        "managed": true,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pciAddress": gpu.pci_address,
        "serial": gpu.serial,
        "memoryBytes": gpu.memory_mib.map(|mib| mib.saturating_mul(1024 * 1024)),
        "vbios": gpu.vbios,
        "eccMode": gpu.ecc_mode,
        "eccUncorrectable": gpu.ecc_uncorrectable.value(),
        "eccUncorrectableLifetime": gpu.ecc_uncorrectable_lifetime,
        "remappedRows": gpu.remapped_rows,
        "migMode": gpu.mig_mode,
        "linkWidth": gpu.link_width.value(),
        "linkWidthMax": gpu.link_width_max.value(),
    }))
}

fn unmanaged_item(gpu: &Unmanaged) -> Value {
    without_nulls(json!({
        "managed": false,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pciAddress": gpu.pci_address,
        "driver": gpu.driver,
    }))
}

/// The section's own form, read back.
fn known_gpus(known: Option<&Value>) -> Vec<Missing> {
    let items = |value: Option<&Value>| -> Vec<Value> {
        value
            .and_then(|list| list.get("items"))
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let text =
        |item: &Value, field: &str| item.get(field).and_then(Value::as_str).map(str::to_owned);
    items(known)
        .into_iter()
        .chain(items(known.and_then(|section| section.get("missing"))))
        .map(|item| Missing {
            uuid: text(&item, "uuid"),
            pci_address: text(&item, "pciAddress"),
            name: text(&item, "name"),
        })
        .filter(|gpu| gpu.uuid.is_some() || gpu.pci_address.is_some())
        .take(limits::INVENTORY_LIST_ITEMS_MAX)
        .collect()
}

/// NVIDIA's display and compute controllers on the PCI bus. Their audio and bridge functions are other classes.
fn on_the_bus(host: &Host) -> Vec<Unmanaged> {
    let folder = host.paths.sys.join("bus/pci/devices");
    sysfs::names(&folder)
        .into_iter()
        .filter_map(|name| {
            let device = folder.join(&name);
            let class = sysfs::text(&device.join("class"))?;
            let is_gpu = sysfs::text(&device.join("vendor"))? == "0x10de"
                && (class.starts_with("0x0300") || class.starts_with("0x0302"));
            let pci_address = is_gpu.then(|| pci_address(&name)).flatten()?;
            let information = sysfs::document(
                &host
                    .paths
                    .proc
                    .join("driver/nvidia/gpus")
                    .join(&name)
                    .join("information"),
            )
            .unwrap_or_default();
            let field = |key: &str| {
                sysfs::field(&information, key)
                    .map(|value| sysfs::clean(value, limits::VALUE_CHARS_MAX))
                    .filter(|value| !value.is_empty())
            };
            Some(Unmanaged {
                pci_address,
                driver: sysfs::link_name(&device.join("driver")),
                // A GPU that the driver has not yet initialised shows question marks.
                uuid: field("GPU UUID").filter(|uuid| !uuid.contains('?')),
                name: field("Model"),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake_machine::FakeMachine,
        nvidia_smi::fake::{HEALTHY, on_the_bus, uuid, working},
    };

    async fn gpus(machine: &FakeMachine, known: Option<&Value>) -> Value {
        collect(&machine.host(), known, &CancellationToken::new()).await
    }

    #[tokio::test]
    async fn gpus_that_only_the_kernel_knows_are_listed_as_not_managed() {
        let machine = FakeMachine::new();
        on_the_bus(&machine, 0, "nvidia");
        on_the_bus(&machine, 1, "vfio-pci");
        machine.file("sys/bus/pci/devices/0000:10:00.1/vendor", "0x10de\n");
        machine.file("sys/bus/pci/devices/0000:10:00.1/class", "0x040300\n");
        machine.file(
            "proc/driver/nvidia/gpus/0000:10:00.0/information",
            "Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-1\n",
        );
        let section = gpus(&machine, None).await;
        assert_eq!(section["count"], 2);
        assert_eq!(
            section["items"][0],
            json!({ "managed": false, "uuid": "GPU-1", "name": "NVIDIA L4", "pciAddress": "0000:10:00.0",
                    "driver": "nvidia" })
        );
        assert_eq!(
            section["managementInterface"],
            json!({ "present": false, "why": "nvidia-smi not found" })
        );
        let view = View::take(&machine.host(), None, &CancellationToken::new()).await;
        assert_eq!(view.expected(), 1);
    }

    #[tokio::test]
    async fn a_swapped_or_moved_gpu_is_not_missing_and_a_lost_one_is() {
        let machine = FakeMachine::new();
        working(&machine, &[HEALTHY, HEALTHY]);
        let known = json!({ "items": [
            { "uuid": "GPU-old", "pciAddress": "0000:10:00.0" },
            { "uuid": uuid(1), "pciAddress": "0000:99:00.0" },
            { "uuid": "GPU-lost", "pciAddress": "0000:55:00.0" },
        ] });
        let section = gpus(&machine, Some(&known)).await;
        assert_eq!(section["count"], 2);
        assert_eq!(
            section["missing"]["items"],
            json!([{ "uuid": "GPU-lost", "pciAddress": "0000:55:00.0" }])
        );
    }

    #[tokio::test]
    async fn a_machine_that_lost_all_its_gpus_remembers_them() {
        let machine = FakeMachine::new();
        let known = json!({ "items": [{ "uuid": "GPU-1", "pciAddress": "0000:10:00.0" }] });
        let section = gpus(&machine, Some(&known)).await;
        assert_eq!(section["present"], false);
        assert_eq!(section["missing"]["count"], 1);
        assert_eq!(gpus(&machine, Some(&section)).await["missing"]["count"], 1);
    }
}
