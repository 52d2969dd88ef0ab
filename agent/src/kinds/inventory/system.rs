//! Section `system`: who made the machine, what it is called, since when it runs.

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{absent, without_nulls};
use crate::{
    host::{Host, instant_text},
    sysfs,
};

/// What vendors leave in fields that they did not fill.
const PLACEHOLDERS: [&str; 9] = [
    "to be filled by o.e.m.",
    "default string",
    "not specified",
    "not applicable",
    "system manufacturer",
    "system product name",
    "system serial number",
    "none",
    "unknown",
];

pub(super) fn collect(host: &Host) -> Value {
    let proc = &host.paths.proc;
    let hostname = sysfs::text(&proc.join("sys/kernel/hostname"));
    let boot_id = sysfs::text(&proc.join("sys/kernel/random/boot_id"));
    let dmi = dmi(host);
    if hostname.is_none() && boot_id.is_none() && dmi["present"] == false {
        return absent(format!(
            "neither {}/sys/kernel nor the firmware's tables can be read",
            proc.display()
        ));
    }
    without_nulls(json!({
        "present": true,
        "hostname": hostname,
        "bootId": boot_id,
        "bootedAt": booted_at(host),
        "uptimeSeconds": uptime_seconds(host),
        "virtualMachine": virtual_machine(host),
        "hypervisor": sysfs::text(&host.paths.sys.join("hypervisor/type")),
        "model": sysfs::text(&proc.join("device-tree/model")),
        "dmi": dmi,
    }))
}

fn dmi(host: &Host) -> Value {
    let folder = host.paths.sys.join("class/dmi/id");
    let field = |name: &str| {
        sysfs::text(&folder.join(name))
            .filter(|value| !PLACEHOLDERS.contains(&value.to_ascii_lowercase().as_str()))
    };
    if !folder.is_dir() {
        return absent("the kernel shows no firmware tables (no /sys/class/dmi/id)");
    }
    without_nulls(json!({
        "present": true,
        "vendor": field("sys_vendor"),
        "product": field("product_name"),
        "version": field("product_version"),
        // Serial numbers and the UUID are readable by root alone.
        "serial": field("product_serial"),
        "uuid": field("product_uuid"),
        "boardVendor": field("board_vendor"),
        "board": field("board_name"),
        "boardSerial": field("board_serial"),
        "chassisSerial": field("chassis_serial"),
        "assetTag": field("chassis_asset_tag"),
        "biosVendor": field("bios_vendor"),
        "biosVersion": field("bios_version"),
        "biosDate": field("bios_date"),
    }))
}

fn booted_at(host: &Host) -> Option<String> {
    let stat = sysfs::document(&host.paths.proc.join("stat"))?;
    let seconds = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .map(instant_text)
}

fn uptime_seconds(host: &Host) -> Option<u64> {
    let uptime = sysfs::text(&host.paths.proc.join("uptime"))?;
    uptime.split(['.', ' ']).next()?.parse().ok()
}

/// The processor tells its guests that there is a hypervisor. Only x86 has the flag; elsewhere nothing is claimed.
fn virtual_machine(host: &Host) -> Option<bool> {
    let cpuinfo = sysfs::document(&host.paths.proc.join("cpuinfo"))?;
    let flags = sysfs::field(&cpuinfo, "flags")?;
    Some(flags.split(' ').any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    #[test]
    fn what_the_firmware_filled_in_is_told_and_placeholders_are_not() {
        let machine = FakeMachine::new();
        machine.file("proc/sys/kernel/hostname", "gpu-17\n");
        machine.file("proc/stat", "cpu 1 2\nbtime 1796026349\n");
        machine.file("proc/uptime", "3600.25 7000.00\n");
        machine.file(
            "proc/cpuinfo",
            "processor\t: 0\nflags\t\t: fpu sse hypervisor\n",
        );
        machine.file("sys/class/dmi/id/sys_vendor", "Supermicro\n");
        machine.file("sys/class/dmi/id/product_serial", "S123 \u{0}\n");
        machine.file("sys/class/dmi/id/board_serial", "To be filled by O.E.M.\n");
        let system = collect(&machine.host());
        assert_eq!(
            system,
            json!({
                "present": true, "hostname": "gpu-17", "bootedAt": "2026-11-30T08:12:29Z", "uptimeSeconds": 3600,
                "virtualMachine": true, "dmi": { "present": true, "vendor": "Supermicro", "serial": "S123" },
            })
        );
    }
}
