//! Section `memory`: memory, swap, NUMA nodes and memory errors.

use serde_json::{Value, json};

use super::{absent, list, without_nulls};
use crate::{host::Host, limits, sysfs};

pub(super) fn collect(host: &Host) -> Value {
    let path = host.paths.proc.join("meminfo");
    let Some(meminfo) = sysfs::document(&path) else {
        return absent(format!("{} cannot be read", path.display()));
    };
    let pages = |key: &str| sysfs::field(&meminfo, key).and_then(|count| count.parse::<u64>().ok());
    without_nulls(json!({
        "present": true,
        "totalBytes": bytes(&meminfo, "MemTotal"),
        "availableBytes": bytes(&meminfo, "MemAvailable"),
        "swapTotalBytes": bytes(&meminfo, "SwapTotal"),
        "swapFreeBytes": bytes(&meminfo, "SwapFree"),
        "hugePageBytes": bytes(&meminfo, "Hugepagesize"),
        "hugePagesTotal": pages("HugePages_Total"),
        "hugePagesFree": pages("HugePages_Free"),
        // Pages that the kernel took out of use because they were bad.
        "corruptedBytes": bytes(&meminfo, "HardwareCorrupted"),
        "numaNodes": numa_nodes(host),
        "errors": errors(host),
    }))
}

fn bytes(meminfo: &str, key: &str) -> Option<u64> {
    let kib: u64 = sysfs::field(meminfo, key)?
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()?;
    kib.checked_mul(1024)
}

fn numa_nodes(host: &Host) -> Value {
    let folder = host.paths.sys.join("devices/system/node");
    let nodes: Vec<Value> = sysfs::names(&folder)
        .into_iter()
        .filter_map(|name| {
            let number: u64 = name.strip_prefix("node")?.parse().ok()?;
            let meminfo = sysfs::document(&folder.join(&name).join("meminfo"))?;
            let total = meminfo
                .lines()
                .find_map(|line| bytes(line.split_once(&format!("Node {number} "))?.1, "MemTotal"));
            Some(without_nulls(json!({
                "node": number,
                "totalBytes": total,
                "cpus": sysfs::text(&folder.join(&name).join("cpulist")),
            })))
        })
        .collect();
    if nodes.is_empty() {
        absent("the kernel shows no NUMA nodes (no /sys/devices/system/node)")
    } else {
        list(nodes)
    }
}

/// What the memory controllers have counted since the machine started.
fn errors(host: &Host) -> Value {
    let folder = host.paths.sys.join("devices/system/edac/mc");
    let mut dimms = Vec::new();
    let mut controllers = 0;
    for name in sysfs::names(&folder)
        .into_iter()
        .filter(|name| name.starts_with("mc"))
    {
        let controller = folder.join(&name);
        let (Some(correctable), Some(uncorrectable)) = (
            sysfs::count(&controller.join("ce_count")),
            sysfs::count(&controller.join("ue_count")),
        ) else {
            continue;
        };
        controllers += 1;
        let before = dimms.len();
        for dimm in sysfs::names(&controller)
            .into_iter()
            .filter(|name| name.starts_with("dimm"))
        {
            let dimm = controller.join(dimm);
            dimms.push(without_nulls(json!({
                "label": sysfs::text(&dimm.join("dimm_label")),
                "sizeBytes": sysfs::count(&dimm.join("size")).map(|mib| mib * 1024 * 1024),
                "type": sysfs::text(&dimm.join("dimm_mem_type")),
                "correctable": sysfs::count(&dimm.join("dimm_ce_count")),
                "uncorrectable": sysfs::count(&dimm.join("dimm_ue_count")),
            })));
        }
        if dimms.len() == before {
            dimms.push(json!({ "label": name, "correctable": correctable, "uncorrectable": uncorrectable }));
        }
        if dimms.len() > limits::INVENTORY_LIST_ITEMS_MAX {
            break;
        }
    }
    if controllers == 0 {
        return absent(
            "the kernel watches no memory controller (no EDAC driver, or a virtual machine)",
        );
    }
    let mut errors = list(dimms);
    errors["present"] = json!(true);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    #[test]
    fn totals_nodes_and_errors_are_told() {
        let machine = FakeMachine::new();
        machine.file(
            "proc/meminfo",
            "MemTotal:  2048 kB\nMemAvailable: 1024 kB\nHugePages_Total:  3\nSwapTotal: 0 kB\n",
        );
        machine.file(
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:   1024 kB\nNode 1 MemFree: 3 kB\n",
        );
        machine.file("sys/devices/system/node/node1/cpulist", "4-7\n");
        machine.file("sys/devices/system/edac/mc/mc0/ce_count", "5\n");
        machine.file("sys/devices/system/edac/mc/mc0/ue_count", "0\n");
        machine.file(
            "sys/devices/system/edac/mc/mc0/dimm3/dimm_label",
            "CPU0_DIMM_A1\n",
        );
        machine.file("sys/devices/system/edac/mc/mc0/dimm3/dimm_ce_count", "5\n");
        let memory = collect(&machine.host());
        assert_eq!(memory["totalBytes"], 2 * 1024 * 1024);
        assert_eq!(memory["swapTotalBytes"], 0);
        assert_eq!(memory["hugePagesTotal"], 3);
        assert_eq!(
            memory["numaNodes"]["items"],
            json!([{ "node": 1, "totalBytes": 1024 * 1024, "cpus": "4-7" }])
        );
        assert_eq!(
            memory["errors"]["items"],
            json!([{ "label": "CPU0_DIMM_A1", "correctable": 5 }])
        );
    }
}
