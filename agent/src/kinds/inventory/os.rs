//! Section `os`: the operating system. The kernel's command line is left out: it may hold secrets.

use serde_json::{Value, json};

use super::{absent, without_nulls};
use crate::{host::Host, limits, sysfs};

pub(super) fn collect(host: &Host) -> Value {
    let kernel = host.paths.proc.join("sys/kernel");
    let release = sysfs::text(&kernel.join("osrelease"));
    let path = host.paths.etc.join("os-release");
    let os_release = sysfs::document(&path);
    if release.is_none() && os_release.is_none() {
        return absent(format!(
            "neither {} nor {} can be read",
            path.display(),
            kernel.display()
        ));
    }
    let field = |key: &str| os_release.as_deref().and_then(|text| assigned(text, key));
    without_nulls(json!({
        "present": true,
        "name": field("NAME"),
        "prettyName": field("PRETTY_NAME"),
        "id": field("ID"),
        "idLike": field("ID_LIKE"),
        "versionId": field("VERSION_ID"),
        "imageVersion": field("IMAGE_VERSION"),
        "kernelName": sysfs::text(&kernel.join("ostype")),
        "kernelRelease": release,
        "kernelVersion": sysfs::text(&kernel.join("version")),
        "architecture": std::env::consts::ARCH,
        "init": sysfs::text(&host.paths.proc.join("1/comm")),
        "machineId": sysfs::text(&host.paths.etc.join("machine-id")),
    }))
}

/// The value of `KEY=value`, `KEY="value"` or `KEY='value'`.
fn assigned(text: &str, key: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?
        .trim();
    let value = ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .map_or_else(|| value.to_owned(), |quoted| quoted.replace('\\', ""));
    let value = sysfs::clean(&value, limits::VALUE_CHARS_MAX);
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    #[test]
    fn the_distribution_and_the_kernel_are_told() {
        let machine = FakeMachine::new();
        machine.file(
            "etc/os-release",
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID='12'\nNAME=\n",
        );
        machine.file("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
        let os = collect(&machine.host());
        assert_eq!(os["prettyName"], "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(
            (&os["id"], &os["versionId"]),
            (&json!("debian"), &json!("12"))
        );
        assert_eq!(os["kernelRelease"], "6.1.0-18-amd64");
        assert_eq!(os.get("name"), None);
    }
}
