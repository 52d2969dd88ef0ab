//! Section `cpu`: processors.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{absent, without_nulls};
use crate::{host::Host, sysfs};

/// The features that decide where a workload can run; the whole list is hundreds of words.
const FEATURES: [&str; 14] = [
    "aes",
    "avx",
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_tile",
    "vmx",
    "svm",
    "sve",
    "sve2",
    "asimd",
    "sha_ni",
    "bf16",
];

pub(super) fn collect(host: &Host) -> Value {
    let path = host.paths.proc.join("cpuinfo");
    let Some(cpuinfo) = sysfs::document(&path) else {
        return absent(format!("{} cannot be read", path.display()));
    };
    let folder = host.paths.sys.join("devices/system/cpu");
    let listed =
        |name: &str| sysfs::text(&folder.join(name)).and_then(|list| sysfs::list_length(&list));
    let processors = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count() as u64;
    let logical = listed("online").unwrap_or(processors);
    let (sockets, cores) = sockets_and_cores(&cpuinfo);
    let features = sysfs::field(&cpuinfo, "flags").or_else(|| sysfs::field(&cpuinfo, "Features"));
    let features: Option<Vec<&str>> = features.map(|all| {
        all.split(' ')
            .filter(|feature| FEATURES.contains(feature))
            .collect()
    });
    let text = |key: &str| {
        sysfs::field(&cpuinfo, key).map(|value| sysfs::clean(value, crate::limits::VALUE_CHARS_MAX))
    };
    without_nulls(json!({
        "present": true,
        "architecture": std::env::consts::ARCH,
        // ARM names its processors by number.
        "model": text("model name").or_else(|| text("CPU part")),
        "vendor": text("vendor_id").or_else(|| text("CPU implementer")),
        "microcode": text("microcode"),
        "logicalCount": logical,
        // What the agent itself may use: less than the machine has under an affinity mask or a quota.
        "availableCount": std::thread::available_parallelism().ok().map(usize::from),
        "presentCount": listed("present"),
        "socketCount": sockets,
        "coreCount": cores,
        "numaNodeCount": sysfs::text(&host.paths.sys.join("devices/system/node/online"))
            .and_then(|list| sysfs::list_length(&list)),
        "simultaneousMultithreading": sysfs::text(&folder.join("smt/control")),
        "frequencyMaxMhz": sysfs::count(&folder.join("cpu0/cpufreq/cpuinfo_max_freq")).map(|khz| khz / 1000),
        "features": features,
    }))
}

/// Counted from `/proc/cpuinfo`, which x86 fills in; elsewhere nothing is claimed.
fn sockets_and_cores(cpuinfo: &str) -> (Option<usize>, Option<usize>) {
    let mut sockets = BTreeSet::new();
    let mut cores = BTreeSet::new();
    for processor in cpuinfo.split("\n\n") {
        if let Some(socket) = sysfs::field(processor, "physical id") {
            sockets.insert(socket);
            if let Some(core) = sysfs::field(processor, "core id") {
                cores.insert((socket, core));
            }
        }
    }
    let some = |count: usize| (count > 0).then_some(count);
    (some(sockets.len()), some(cores.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    #[test]
    fn sockets_cores_and_threads_are_counted() {
        use std::fmt::Write;
        let machine = FakeMachine::new();
        let mut cpuinfo = String::new();
        for processor in 0..8 {
            writeln!(
                cpuinfo,
                "processor\t: {processor}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654\nphysical id\t: {}\n\
                 core id\t\t: {}\nflags\t\t: fpu avx2 svm\n",
                processor % 2,
                processor / 4
            )
            .unwrap();
        }
        machine.file("proc/cpuinfo", &cpuinfo);
        machine.file("sys/devices/system/cpu/online", "0-6\n");
        machine.file("sys/devices/system/cpu/present", "0-7\n");
        let cpu = collect(&machine.host());
        assert_eq!(cpu["model"], "AMD EPYC 9654");
        assert_eq!(
            (&cpu["socketCount"], &cpu["coreCount"]),
            (&json!(2), &json!(4))
        );
        assert_eq!(
            (&cpu["logicalCount"], &cpu["presentCount"]),
            (&json!(7), &json!(8))
        );
        assert_eq!(cpu["features"], json!(["avx2", "svm"]));
    }
}
