//! Section `nics`: network interfaces. Those with hardware behind them come first, so that on a machine with hundreds
//! of container interfaces the bound cuts those off.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sysinfo::Networks;

use super::{absent, list, without_nulls};
use crate::{host::Host, limits, sysfs};

pub(super) fn collect(host: &Host) -> Value {
    let folder = host.paths.sys.join("class/net");
    let names = sysfs::names(&folder);
    let addresses = addresses();
    let mut nics: Vec<(bool, Value)> = names
        .into_iter()
        .filter(|name| name != "lo" && folder.join(name).join("address").exists())
        .map(|name| nic(host, &name, &addresses))
        .collect();
    if nics.is_empty() {
        return absent(format!(
            "no network interface but the loopback under {}",
            folder.display()
        ));
    }
    nics.sort_by_key(|(is_virtual, _)| *is_virtual);
    let mut section = list(nics.into_iter().map(|(_, nic)| nic).collect());
    section["present"] = json!(true);
    section
}

fn nic(host: &Host, name: &str, addresses: &Addresses) -> (bool, Value) {
    let folder = host.paths.sys.join("class/net").join(name);
    let device = folder.join("device");
    let is_virtual = !device.exists();
    let mac = sysfs::text(&folder.join("address"));
    let addresses = mac
        .as_ref()
        .and_then(|mac| addresses.get(&(name.to_owned(), mac.clone())));
    let kind = sysfs::number(&folder.join("type")).map(|number| match number {
        1 => "ethernet".to_owned(),
        32 => "infiniband".to_owned(),
        other => format!("arp-type-{other}"),
    });
    let nic = without_nulls(json!({
        "name": name,
        "mac": mac,
        "type": kind,
        "virtual": is_virtual,
        "state": sysfs::text(&folder.join("operstate")),
        "carrier": sysfs::number(&folder.join("carrier")).map(|value| value == 1),
        // -1 where there is no link, or where the driver does not know.
        "speedMbps": sysfs::number(&folder.join("speed")).filter(|speed| *speed > 0),
        "duplex": sysfs::text(&folder.join("duplex")).filter(|duplex| duplex != "unknown"),
        "mtu": sysfs::count(&folder.join("mtu")),
        "driver": sysfs::link_name(&device.join("driver")),
        "busAddress": sysfs::link_name(&device),
        "numaNode": sysfs::number(&device.join("numa_node")).filter(|node| *node >= 0),
        "bond": sysfs::link_name(&folder.join("master")),
        "addresses": addresses,
    }));
    (is_virtual, nic)
}

/// By name and hardware address.
type Addresses = BTreeMap<(String, String), Vec<String>>;

fn addresses() -> Addresses {
    // Where they cannot be had the interfaces are told without them.
    let Ok(networks) = Networks::new_with_refreshed_list() else {
        return Addresses::new();
    };
    networks
        .iter()
        .map(|(name, network)| {
            let mut addresses: Vec<String> = network
                .ip_networks()
                .iter()
                .map(|network| format!("{}/{}", network.addr, network.prefix))
                .collect();
            addresses.sort();
            addresses.truncate(limits::NIC_ADDRESSES_MAX);
            let name = name.to_string_lossy().into_owned();
            ((name, network.mac_address().to_string()), addresses)
        })
        .filter(|(_, addresses)| !addresses.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    #[test]
    fn hardware_comes_before_virtual_interfaces() {
        let machine = FakeMachine::new();
        machine.file("sys/class/net/lo/address", "00:00:00:00:00:00\n");
        machine.file("sys/class/net/bonding_masters", "bond0\n");
        machine.file("sys/class/net/cali1/address", "ee:ee:ee:ee:ee:ee\n");
        machine.file("sys/class/net/ib0/address", "00:01\n");
        machine.file("sys/class/net/ib0/type", "32\n");
        machine.file("sys/class/net/ib0/speed", "400000\n");
        machine.file("sys/class/net/ib0/carrier", "1\n");
        machine.file("sys/devices/0000:17:00.0/numa_node", "-1\n");
        machine.link(
            "sys/class/net/ib0/device",
            &machine.path("sys/devices/0000:17:00.0"),
        );
        machine.link(
            "sys/devices/0000:17:00.0/driver",
            &machine.path("sys/bus/pci/drivers/mlx5_core"),
        );
        let nics = collect(&machine.host());
        assert_eq!(
            nics["items"],
            json!([
                { "name": "ib0", "mac": "00:01", "type": "infiniband", "virtual": false, "carrier": true,
                  "speedMbps": 400_000, "driver": "mlx5_core", "busAddress": "0000:17:00.0" },
                { "name": "cali1", "mac": "ee:ee:ee:ee:ee:ee", "virtual": true },
            ])
        );
    }
}
