//! What `nvidia-smi` says about the GPUs.
//!
//! The CSV queries are used and not the XML of `-q -x`: the names of the queried fields have been stable for a decade,
//! while the XML moves its elements between driver releases. A field that this `nvidia-smi` does not know is dropped
//! and asked for no more. To read one more value: add a row to [`FIELDS`] and read it in [`Gpu::from_row`].

use std::{collections::BTreeMap, path::Path};

use tokio_util::sync::CancellationToken;

use crate::{error::Error, host::Host, limits, program, sysfs};

/// The queried fields, and whether `nvidia-smi` may lack them. The name stands last: it alone is free text, so that a
/// comma inside it does no harm.
const FIELDS: [(&str, bool); 14] = [
    ("index", true),
    ("uuid", true),
    ("pci.bus_id", true),
    ("serial", false),
    ("memory.total", false),
    ("vbios_version", false),
    ("driver_version", false),
    ("ecc.mode.current", false),
    ("ecc.errors.uncorrected.volatile.total", false),
    ("ecc.errors.uncorrected.aggregate.total", false),
    ("pcie.link.width.current", false),
    ("pcie.link.width.max", false),
    ("mig.mode.current", false),
    ("name", true),
];

const REMAP_QUERY: &str = "--query-remapped-rows=gpu_uuid,remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure";

/// One value of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reading<T> {
    /// The value.
    Is(T),
    /// This GPU or this driver has no such value, and why.
    Lacking(String),
    /// The GPU should have it and did not give it (`[GPU requires reset]`, `[Unknown Error]`).
    Refused(String),
}

impl<T> Reading<T> {
    pub(crate) fn value(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Lacking(_) | Self::Refused(_) => None,
        }
    }

    fn map<U>(self, convert: impl FnOnce(T) -> Result<U, String>) -> Reading<U> {
        match self {
            Self::Is(value) => match convert(value) {
                Ok(value) => Reading::Is(value),
                Err(found) => Reading::Refused(format!("nvidia-smi answered {found:?}")),
            },
            Self::Lacking(why) => Reading::Lacking(why),
            Self::Refused(why) => Reading::Refused(why),
        }
    }
}

/// One GPU, as the management interface names it.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub(crate) index: u64,
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// `0000:3b:00.0`
    pub(crate) pci_address: String,
    pub(crate) serial: Option<String>,
    pub(crate) memory_mib: Option<u64>,
    pub(crate) vbios: Option<String>,
    pub(crate) driver_version: Option<String>,
    pub(crate) ecc_mode: Option<String>,
    pub(crate) mig_mode: Option<String>,
    /// Since the driver was loaded.
    pub(crate) ecc_uncorrectable: Reading<u64>,
    /// Over the GPU's life.
    pub(crate) ecc_uncorrectable_lifetime: Option<u64>,
    pub(crate) link_width: Reading<u64>,
    pub(crate) link_width_max: Reading<u64>,
    pub(crate) remap_pending: Reading<bool>,
    pub(crate) remap_failure: Reading<bool>,
    pub(crate) remapped_rows: Option<u64>,
}

/// Asks for every GPU. An empty list means that the management interface answered and sees none.
pub(crate) async fn gpus(host: &Host, cancel: &CancellationToken) -> Result<Vec<Gpu>, Error> {
    let path = host.program("nvidia-smi")?;
    let mut fields: Vec<(&str, bool)> = FIELDS.to_vec();
    let rows = loop {
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let query = format!("--query-gpu={}", names.join(","));
        let answer = program::ask(
            &path,
            &[&query, "--format=csv,noheader,nounits"],
            host.program_timeout,
            cancel,
        )
        .await?;
        // It has no GPU to speak of: some releases call that a failure (exit status 6), some do not.
        if answer.stdout.contains("No devices were found")
            || answer.stderr.contains("No devices were found")
        {
            return Ok(Vec::new());
        }
        let unknown = unknown_field(&answer.stdout).or_else(|| unknown_field(&answer.stderr));
        let dropped = unknown.and_then(|name| {
            fields
                .iter()
                .position(|(field, needed)| *field == name && !needed)
        });
        if let (false, Some(position)) = (answer.status.success(), dropped) {
            fields.remove(position);
            continue;
        }
        break answer.success()?;
    };
    let fields: Vec<&str> = fields.into_iter().map(|(name, _)| name).collect();
    let mut gpus = Vec::new();
    for line in rows.lines().map(str::trim).filter(|line| !line.is_empty()) {
        gpus.push(Gpu::from_row(&row(&fields, line)?)?);
    }
    if gpus.is_empty() {
        return Err(unreadable("it wrote nothing"));
    }
    gpus.sort_by_key(|gpu| gpu.index);
    read_remaps(&path, host, cancel, &mut gpus).await?;
    Ok(gpus)
}

fn unknown_field(said: &str) -> Option<&str> {
    let (before, _) = said.split_once("\" is not a valid field to query")?;
    Some(before.rsplit('"').next().unwrap_or(before))
}

fn row<'a>(fields: &[&'a str], line: &'a str) -> Result<BTreeMap<&'a str, &'a str>, Error> {
    let values: Vec<&str> = line.splitn(fields.len(), ',').map(str::trim).collect();
    if values.len() != fields.len() {
        return Err(unreadable(line));
    }
    Ok(fields.iter().copied().zip(values).collect())
}

fn unreadable(found: &str) -> Error {
    Error::ProgramUnreadable {
        program: "nvidia-smi".to_owned(),
        found: program::said(found),
    }
}

fn reading(row: &BTreeMap<&str, &str>, field: &str) -> Reading<String> {
    let Some(value) = row.get(field) else {
        return Reading::Lacking(format!("this nvidia-smi does not know {field}"));
    };
    let value = sysfs::clean(value, limits::VALUE_CHARS_MAX);
    let bare = value.trim_start_matches('[').trim_end_matches(']');
    if value.is_empty()
        || ["N/A", "Not Supported", "Not Available"]
            .iter()
            .any(|word| bare.eq_ignore_ascii_case(word))
    {
        return Reading::Lacking(format!(
            "nvidia-smi gives no {field} for this GPU ({value})"
        ));
    }
    if value.starts_with('[') {
        return Reading::Refused(format!("nvidia-smi answered {value} for {field}"));
    }
    Reading::Is(value)
}

fn number(value: String) -> Result<u64, String> {
    value.parse().map_err(|_| value)
}

/// Yes and no in `-q`, ones and zeros in some releases of the CSV.
fn flag(value: String) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => number(value).map(|count| count > 0),
    }
}

impl Gpu {
    fn from_row(row: &BTreeMap<&str, &str>) -> Result<Self, Error> {
        let text = |field: &str| reading(row, field).value().cloned();
        let count = |field: &str| reading(row, field).map(number).value().copied();
        let bad = || unreadable(&row.values().copied().collect::<Vec<_>>().join(", "));
        let uuid = text("uuid")
            .filter(|uuid| uuid.starts_with("GPU-"))
            .ok_or_else(bad)?;
        Ok(Self {
            index: count("index").ok_or_else(bad)?,
            uuid,
            name: text("name").unwrap_or_default(),
            pci_address: text("pci.bus_id")
                .as_deref()
                .and_then(pci_address)
                .ok_or_else(bad)?,
            // Boards without a serial number answer 0.
            serial: text("serial").filter(|serial| serial != "0"),
            memory_mib: count("memory.total"),
            vbios: text("vbios_version"),
            driver_version: text("driver_version"),
            ecc_mode: text("ecc.mode.current"),
            mig_mode: text("mig.mode.current"),
            ecc_uncorrectable: reading(row, "ecc.errors.uncorrected.volatile.total").map(number),
            ecc_uncorrectable_lifetime: count("ecc.errors.uncorrected.aggregate.total"),
            link_width: reading(row, "pcie.link.width.current").map(number),
            link_width_max: reading(row, "pcie.link.width.max").map(number),
            remap_pending: Reading::Lacking(
                "nvidia-smi lists no remapped rows for this GPU".to_owned(),
            ),
            remap_failure: Reading::Lacking(
                "nvidia-smi lists no remapped rows for this GPU".to_owned(),
            ),
            remapped_rows: None,
        })
    }
}

/// Row remapping came with Ampere; an older `nvidia-smi` or GPU has no answer, which is told and is no failure.
async fn read_remaps(
    path: &Path,
    host: &Host,
    cancel: &CancellationToken,
    gpus: &mut [Gpu],
) -> Result<(), Error> {
    const FIELDS: [&str; 5] = ["uuid", "correctable", "uncorrectable", "pending", "failure"];
    let answer = program::ask(
        path,
        &[REMAP_QUERY, "--format=csv,noheader,nounits"],
        host.program_timeout,
        cancel,
    )
    .await;
    let rows = match answer.and_then(program::Answer::success) {
        Ok(rows) => rows,
        Err(Error::Cancelled) => return Err(Error::Cancelled),
        Err(error @ Error::ProgramTimedOut { .. }) => {
            for gpu in gpus {
                gpu.remap_pending = Reading::Refused(error.to_string());
                gpu.remap_failure = Reading::Refused(error.to_string());
            }
            return Ok(());
        }
        Err(error) => {
            for gpu in gpus {
                gpu.remap_pending = Reading::Lacking(error.chain());
                gpu.remap_failure = Reading::Lacking(error.chain());
            }
            return Ok(());
        }
    };
    for row in rows.lines().filter_map(|line| row(&FIELDS, line).ok()) {
        let Some(gpu) = gpus
            .iter_mut()
            .find(|gpu| Some(&gpu.uuid.as_str()) == row.get("uuid"))
        else {
            continue;
        };
        gpu.remap_pending = reading(&row, "pending").map(flag);
        gpu.remap_failure = reading(&row, "failure").map(flag);
        let rows = |field| reading(&row, field).map(number).value().copied();
        gpu.remapped_rows = rows("correctable")
            .zip(rows("uncorrectable"))
            .map(|(one, other)| one.saturating_add(other));
    }
    Ok(())
}

/// `00000000:3B:00.0`, `0000:3b:00` and `PCI:0000:3b:00` name one device: `0000:3b:00.0`.
pub(crate) fn pci_address(text: &str) -> Option<String> {
    let text = text.trim().trim_start_matches("PCI:");
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts = place
        .split(':')
        .map(|part| u32::from_str_radix(part, 16).ok());
    let (Some(Some(domain)), Some(Some(bus)), Some(Some(device)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let function = u32::from_str_radix(function, 16).ok()?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
pub(crate) mod fake {
    //! `nvidia-smi` as a script, for the tests of whatever asks it.

    use std::fmt::Write;

    use crate::fake_machine::FakeMachine;

    /// One GPU of the script; fields as they stand in the CSV.
    #[derive(Clone)]
    pub(crate) struct FakeGpu {
        pub(crate) ecc: &'static str,
        pub(crate) width: &'static str,
        pub(crate) pending: &'static str,
        pub(crate) failure: &'static str,
    }

    pub(crate) const HEALTHY: FakeGpu = FakeGpu {
        ecc: "0",
        width: "16",
        pending: "No",
        failure: "No",
    };

    pub(crate) fn uuid(index: usize) -> String {
        format!("GPU-00000000-0000-4000-8000-00000000000{index}")
    }

    /// A driver that works.
    pub(crate) fn working(machine: &FakeMachine, gpus: &[FakeGpu]) {
        let (mut rows, mut remaps) = (String::new(), String::new());
        for (index, gpu) in gpus.iter().enumerate() {
            let FakeGpu {
                ecc,
                width,
                pending,
                failure,
            } = gpu;
            let uuid = uuid(index);
            writeln!(
                rows,
                "{index}, {uuid}, 00000000:{:02X}:00.0, 165042000000{index}, 81559, 96.00.74.00.01, 550.127.05, \
                 Enabled, {ecc}, {ecc}, {width}, 16, Disabled, NVIDIA H100 80GB HBM3",
                0x10 + index
            )
            .unwrap();
            writeln!(remaps, "{uuid}, 0, 0, {pending}, {failure}").unwrap();
        }
        machine.program(
            "nvidia-smi",
            &format!(
                "case \"$1\" in\n--query-gpu=*) cat <<'END'\n{rows}END\n;;\n--query-remapped-rows=*) cat \
                 <<'END'\n{remaps}END\n;;\n*) echo \"unexpected $*\" >&2; exit 2;;\nesac"
            ),
        );
    }

    /// A GPU on the PCI bus, as the kernel shows it.
    pub(crate) fn on_the_bus(machine: &FakeMachine, index: usize, driver: &str) {
        let address = format!("0000:{:02x}:00.0", 0x10 + index);
        machine.file(&format!("sys/bus/pci/devices/{address}/vendor"), "0x10de\n");
        machine.file(
            &format!("sys/bus/pci/devices/{address}/class"),
            "0x030200\n",
        );
        let driver = machine.path("sys/bus/pci/drivers").join(driver);
        machine.link(&format!("sys/bus/pci/devices/{address}/driver"), &driver);
    }
}

#[cfg(test)]
mod tests {
    use super::{fake::HEALTHY, *};
    use crate::fake_machine::FakeMachine;

    async fn ask(machine: &FakeMachine) -> Result<Vec<Gpu>, Error> {
        gpus(&machine.host(), &CancellationToken::new()).await
    }

    #[tokio::test]
    async fn eight_gpus_are_read_with_every_value() {
        let machine = FakeMachine::new();
        fake::working(&machine, &vec![HEALTHY; 8]);
        let gpus = ask(&machine).await.unwrap();
        assert_eq!(gpus.len(), 8);
        let gpu = &gpus[7];
        assert_eq!((gpu.index, gpu.pci_address.as_str()), (7, "0000:17:00.0"));
        assert_eq!(gpu.name, "NVIDIA H100 80GB HBM3");
        assert_eq!(gpu.memory_mib, Some(81559));
        assert_eq!(gpu.ecc_uncorrectable, Reading::Is(0));
        assert_eq!(gpu.link_width, Reading::Is(16));
        assert_eq!(gpu.remap_pending, Reading::Is(false));
        assert_eq!(gpu.remapped_rows, Some(0));
    }

    #[tokio::test]
    async fn a_field_that_this_release_does_not_know_is_dropped_and_told() {
        let machine = FakeMachine::new();
        machine.program(
            "nvidia-smi",
            "case \"$1\" in\n*mig.mode.current*) echo 'Field \"mig.mode.current\" is not a valid field to query.'; \
             exit 2;;\n*vbios_version*) echo 'Field \"vbios_version\" is not a valid field to query.' >&2; exit 2;;\n\
             --query-gpu=*) echo '0, GPU-1, 00000000:3B:00.0, 0, 15360, 460.32, Enabled, 0, 0, 8, 16, Tesla T4, \
             odd';;\n*) echo 'Invalid combination of input arguments.'; exit 1;;\nesac",
        );
        let gpus = ask(&machine).await.unwrap();
        assert_eq!(gpus[0].name, "Tesla T4, odd");
        assert_eq!(gpus[0].serial, None);
        assert_eq!(gpus[0].vbios, None);
        assert_eq!(gpus[0].link_width, Reading::Is(8));
        let Reading::Lacking(why) = &gpus[0].remap_pending else {
            panic!("{:?}", gpus[0])
        };
        assert_eq!(
            why,
            "nvidia-smi ended with exit status 1: Invalid combination of input arguments."
        );
    }

    #[tokio::test]
    async fn lacking_and_refused_values_are_told_apart() {
        let machine = FakeMachine::new();
        machine.program(
            "nvidia-smi",
            "case \"$1\" in --query-gpu=*) echo '0, GPU-1, 00000000:3B:00.0, [N/A], [N/A], v, 550, [N/A], [N/A], \
             [N/A], [GPU requires reset], many, [Not Supported], NVIDIA L4';; *) echo 'GPU-1, 0, 0, 1, 0';; esac",
        );
        let gpu = ask(&machine).await.unwrap().remove(0);
        assert!(matches!(&gpu.ecc_uncorrectable, Reading::Lacking(why) if why.contains("[N/A]")));
        assert!(
            matches!(&gpu.link_width, Reading::Refused(why) if why.contains("[GPU requires reset]"))
        );
        assert!(matches!(&gpu.link_width_max, Reading::Refused(why) if why.contains("many")));
        assert_eq!(gpu.mig_mode, None);
        assert_eq!(
            (gpu.remap_pending, gpu.remap_failure),
            (Reading::Is(true), Reading::Is(false))
        );
    }

    #[tokio::test]
    async fn no_devices_is_an_answer_and_garbage_is_not() {
        for exit_status in [0, 6] {
            let machine = FakeMachine::new();
            machine.program(
                "nvidia-smi",
                &format!("echo 'No devices were found'; exit {exit_status}"),
            );
            assert_eq!(ask(&machine).await.unwrap().len(), 0);
        }
        for garbage in [
            "echo '<html>502</html>'",
            "head -c 400 /dev/urandom",
            "true",
            "echo 'a,b,c,d,e,f,g,h,i,j,k,l,m,n'",
        ] {
            let machine = FakeMachine::new();
            machine.program("nvidia-smi", garbage);
            let error = ask(&machine).await.unwrap_err();
            assert!(
                matches!(error, Error::ProgramUnreadable { .. }),
                "{garbage}: {error:?}"
            );
        }
    }

    #[test]
    fn every_way_to_write_a_pci_address_is_one() {
        for text in [
            "00000000:3B:00.0",
            "0000:3b:00",
            "PCI:0000:3b:00.0",
            "0:3b:0",
        ] {
            assert_eq!(pci_address(text).as_deref(), Some("0000:3b:00.0"), "{text}");
        }
        assert_eq!(
            pci_address("00010000:01:1F.7").as_deref(),
            Some("10000:01:1f.7")
        );
        assert_eq!(pci_address("3b:00.0"), None);
        assert_eq!(pci_address("x:y:z"), None);
    }
}
