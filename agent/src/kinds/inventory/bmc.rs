//! Section `bmc`: the baseboard management controller, asked over the machine's own interface to it.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{absent, without_nulls};
use crate::{error::Error, host::Host, limits, program, sysfs};

const DEVICES: [&str; 3] = ["ipmi0", "ipmi/0", "ipmidev/0"];

pub(super) async fn collect(host: &Host, cancel: &CancellationToken) -> Value {
    let Some(device) = DEVICES
        .iter()
        .find(|device| host.paths.dev.join(device).exists())
    else {
        let hint = if host.paths.sys.join("class/ipmi").is_dir()
            || host.paths.sys.join("bus/ipmi").is_dir()
        {
            "the kernel knows IPMI; is the module ipmi_devintf loaded?"
        } else {
            "no IPMI driver is loaded, or the machine has no controller"
        };
        return absent(format!(
            "no /dev/ipmi0, /dev/ipmi/0 or /dev/ipmidev/0 ({hint})"
        ));
    };
    let controller = match ask(host, &["mc", "info"], cancel).await {
        Ok(said) => {
            let field = |key: &str| {
                sysfs::field(&said, key).map(|text| sysfs::clean(text, limits::VALUE_CHARS_MAX))
            };
            without_nulls(json!({
                "present": true,
                "manufacturer": field("Manufacturer Name"),
                "manufacturerId": field("Manufacturer ID"),
                "product": field("Product Name"),
                "productId": field("Product ID"),
                "firmwareRevision": field("Firmware Revision"),
                "ipmiVersion": field("IPMI Version"),
            }))
        }
        Err(error) => absent(error.chain()),
    };
    // The same answer holds the SNMP community, which is a password of a kind: only what is named here is taken.
    let network = match ask(host, &["lan", "print"], cancel).await {
        Ok(said) => {
            let field = |key: &str| {
                sysfs::field(&said, key).map(|text| sysfs::clean(text, limits::VALUE_CHARS_MAX))
            };
            without_nulls(json!({
                "present": true,
                "address": field("IP Address"),
                "addressSource": field("IP Address Source"),
                "subnetMask": field("Subnet Mask"),
                "gateway": field("Default Gateway IP"),
                "mac": field("MAC Address"),
                "vlan": field("802.1q VLAN ID"),
            }))
        }
        Err(error) => absent(error.chain()),
    };
    json!({ "present": true, "device": format!("/dev/{device}"), "controller": controller, "network": network })
}

async fn ask(host: &Host, arguments: &[&str], cancel: &CancellationToken) -> Result<String, Error> {
    let path = host.program("ipmitool")?;
    program::ask(&path, arguments, host.program_timeout, cancel)
        .await?
        .success()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    async fn bmc(machine: &FakeMachine) -> Value {
        collect(&machine.host(), &CancellationToken::new()).await
    }

    #[tokio::test]
    async fn a_controller_is_asked_and_its_secrets_stay() {
        let machine = FakeMachine::new();
        machine.file("dev/ipmi0", "");
        machine.program(
            "ipmitool",
            "case \"$*\" in 'mc info') printf 'Firmware Revision         : 1.74\\nManufacturer Name : Supermicro\\n';; \
             'lan print') printf 'IP Address Source       : DHCP Address\\nIP Address              : 10.0.0.7\\n\
             MAC Address : 3c:ec:ef:00:00:01\\nSNMP Community String   : hunter2\\n';; *) exit 1;; esac",
        );
        let bmc = bmc(&machine).await;
        assert_eq!(bmc["controller"]["firmwareRevision"], "1.74");
        assert_eq!(bmc["network"]["address"], "10.0.0.7");
        assert_eq!(bmc["network"]["mac"], "3c:ec:ef:00:00:01");
        assert!(!bmc.to_string().contains("hunter2"));
    }

    #[tokio::test]
    async fn what_is_missing_to_ask_it_is_named() {
        let machine = FakeMachine::new();
        assert!(
            bmc(&machine).await["why"]
                .as_str()
                .unwrap()
                .starts_with("no /dev/ipmi0")
        );
        machine.file("dev/ipmi0", "");
        let silent = bmc(&machine).await;
        assert_eq!(silent["present"], true);
        assert_eq!(
            silent["controller"],
            json!({ "present": false, "why": "ipmitool not found" })
        );
    }
}
