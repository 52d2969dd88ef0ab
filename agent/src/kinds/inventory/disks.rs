//! Section `disks`: disks and the file systems on them.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{absent, list, without_nulls};
use crate::{host::Host, limits, sysfs};

/// Block devices that no disk stands behind: layers over others, or memory.
const LAYERS: [&str; 8] = ["loop", "ram", "zram", "dm-", "md", "nbd", "drbd", "zd"];

pub(super) fn collect(host: &Host) -> Value {
    let folder = host.paths.sys.join("block");
    let disks: Vec<Value> = sysfs::names(&folder)
        .into_iter()
        .filter(|name| !LAYERS.iter().any(|layer| name.starts_with(layer)))
        .filter_map(|name| disk(&folder.join(&name), &name))
        .collect();
    let filesystems = filesystems(host);
    if disks.is_empty() {
        let mut section = absent(format!("no disk under {}", folder.display()));
        section["filesystems"] = filesystems;
        return section;
    }
    let mut section = list(disks);
    section["present"] = json!(true);
    section["filesystems"] = filesystems;
    section
}

fn disk(folder: &Path, name: &str) -> Option<Value> {
    // The paths of a multipath NVMe namespace are hidden behind the namespace itself.
    if sysfs::number(&folder.join("hidden")) == Some(1) {
        return None;
    }
    // An empty drive has no size.
    let sectors = sysfs::count(&folder.join("size")).filter(|sectors| *sectors > 0)?;
    let device = folder.join("device");
    let flag = |name: &str| sysfs::number(&folder.join(name)).map(|value| value != 0);
    let first = |names: [&str; 3]| {
        names
            .iter()
            .find_map(|name| sysfs::text(&folder.join(name)))
    };
    let partitions = sysfs::names(folder)
        .into_iter()
        .filter(|child| folder.join(child).join("partition").exists())
        .count();
    Some(without_nulls(json!({
        "name": name,
        // The kernel counts in sectors of 512 bytes whatever the disk's own are.
        "sizeBytes": sectors.saturating_mul(512),
        "model": sysfs::text(&device.join("model")),
        "vendor": sysfs::text(&device.join("vendor")).filter(|vendor| !vendor.starts_with("0x") && vendor != "ATA"),
        "serial": first(["serial", "device/serial", "none"]).or_else(|| serial_page(&device)),
        "wwid": first(["wwid", "device/wwid", "none"]),
        "firmware": first(["device/firmware_rev", "device/rev", "none"]),
        "transport": transport(folder),
        "rotational": flag("queue/rotational"),
        "removable": flag("removable"),
        "readOnly": flag("ro"),
        "logicalBlockBytes": sysfs::count(&folder.join("queue/logical_block_size")),
        "partitionCount": partitions,
    })))
}

/// SCSI's page 0x80: four bytes of header, then the serial number.
fn serial_page(device: &Path) -> Option<String> {
    let mut page = Vec::new();
    fs::File::open(device.join("vpd_pg80"))
        .ok()?
        .take(512)
        .read_to_end(&mut page)
        .ok()?;
    let serial = sysfs::clean(
        &String::from_utf8_lossy(page.get(4..)?),
        limits::VALUE_CHARS_MAX,
    );
    (!serial.is_empty()).then_some(serial)
}

/// How the disk is attached, from the place of its device among the others.
fn transport(folder: &Path) -> Option<&'static str> {
    let place = fs::read_link(folder).ok()?.to_string_lossy().into_owned();
    [
        ("/usb", "usb"),
        ("/nvme", "nvme"),
        ("/virtio", "virtio"),
        ("/ata", "sata"),
        ("/end_device-", "sas"),
        ("/session", "iscsi"),
        ("/rport-", "fibre-channel"),
        ("/mmc", "mmc"),
        ("/vmbus", "hyper-v"),
        ("/xen", "xen"),
    ]
    .into_iter()
    .find_map(|(mark, transport)| place.contains(mark).then_some(transport))
}

/// File systems that lie on a disk of this machine. Those of other machines are left alone: asking one that is away
/// would hang.
fn filesystems(host: &Host) -> Value {
    let path = host.paths.proc.join("self/mountinfo");
    let Some(mountinfo) = sysfs::document(&path) else {
        return absent(format!("{} cannot be read", path.display()));
    };
    let mut seen = BTreeSet::new();
    let mut filesystems = Vec::new();
    for line in mountinfo.lines() {
        let Some(mount) = Mount::parse(line) else {
            continue;
        };
        let local = mount.source.starts_with("/dev/")
            || mount.kind == "zfs"
            || mount.point == Path::new("/");
        // A bind mount shows the same device again.
        if !local || !seen.insert(mount.device.to_owned()) {
            continue;
        }
        let mut filesystem = json!({
            "mountPoint": sysfs::clean(&mount.point.to_string_lossy(), limits::VALUE_CHARS_MAX),
            "source": sysfs::clean(mount.source, limits::VALUE_CHARS_MAX),
            "type": mount.kind,
            "readOnly": mount.read_only,
        });
        if let Ok(space) = rustix::fs::statvfs(&mount.point) {
            filesystem["totalBytes"] = json!(space.f_blocks.saturating_mul(space.f_frsize));
            filesystem["availableBytes"] = json!(space.f_bavail.saturating_mul(space.f_frsize));
        }
        filesystems.push(filesystem);
    }
    list(filesystems)
}

struct Mount<'a> {
    device: &'a str,
    point: PathBuf,
    read_only: bool,
    kind: &'a str,
    source: &'a str,
}

impl<'a> Mount<'a> {
    /// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext3 /dev/root rw`
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let (device, _root, point, options) =
            (mount.next()?, mount.next()?, mount.next()?, mount.next()?);
        let mut filesystem = filesystem.split(' ');
        Some(Self {
            device,
            point: unescape(point),
            read_only: options.split(',').any(|option| option == "ro"),
            kind: filesystem.next()?,
            source: filesystem.next()?,
        })
    }
}

/// The kernel writes a space as `\040`.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let (b'\\', Some(escaped)) = (byte, escaped) {
            bytes.push(escaped);
            rest = tail.get(3..).unwrap_or_default();
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    #[test]
    fn disks_are_told_and_layers_over_them_are_not() {
        let machine = FakeMachine::new();
        let disk = |name: &str, place: &str| {
            machine.link(
                &format!("sys/block/{name}"),
                &machine.path(&format!("sys/devices/{place}/{name}")),
            );
            machine.file(&format!("sys/devices/{place}/{name}/size"), "2000\n");
        };
        disk("nvme0n1", "virtual/nvme-subsystem/nvme-subsys0");
        disk("nvme0c0n1", "pci0000:00/nvme/nvme0");
        disk("sda", "pci0000:00/ata1/host0");
        disk("loop0", "virtual/block");
        disk("sr0", "pci0000:00/ata2/host1");
        machine.file("sys/block/nvme0c0n1/hidden", "1\n");
        machine.file("sys/block/sr0/size", "0\n");
        machine.file("sys/block/nvme0n1/queue/rotational", "0\n");
        machine.file("sys/block/nvme0n1/nvme0n1p1/partition", "1\n");
        machine.file("sys/block/sda/device/model", "SAMSUNG MZ7\n");
        machine.file("sys/block/sda/device/vendor", "ATA     \n");
        machine.file("sys/block/sda/device/vpd_pg80", "\0\u{1}\0\u{8} S5Y1\n");
        let disks = collect(&machine.host());
        assert_eq!(disks["count"], 2);
        assert_eq!(
            disks["items"],
            json!([
                { "name": "nvme0n1", "sizeBytes": 1_024_000, "transport": "nvme", "rotational": false, "partitionCount": 1 },
                { "name": "sda", "sizeBytes": 1_024_000, "transport": "sata", "model": "SAMSUNG MZ7", "serial": "S5Y1",
                  "partitionCount": 0 },
            ])
        );
        assert_eq!(disks["filesystems"]["present"], false);
    }

    #[test]
    fn local_file_systems_are_told_once() {
        let machine = FakeMachine::new();
        machine.file(
            "proc/self/mountinfo",
            "27 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n28 27 8:1 /x /bind rw - ext4 /dev/sda1 rw\n29 27 0:40 / \
             /mnt/net rw - nfs4 server:/x rw\n30 27 8:2 / /no\\040such\\040place ro shared:1 - xfs /dev/sdb rw\ngarbage\n",
        );
        let filesystems = filesystems(&machine.host());
        assert_eq!(filesystems["count"], 2);
        assert_eq!(filesystems["items"][0]["mountPoint"], "/");
        assert!(filesystems["items"][0]["totalBytes"].as_u64().unwrap() > 0);
        assert_eq!(
            filesystems["items"][1],
            json!({ "mountPoint": "/no such place", "source": "/dev/sdb", "type": "xfs", "readOnly": true })
        );
    }
}
