//! GPU errors in the kernel's log: `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, …`.

use std::collections::BTreeMap;

use crate::{kernel_log::KernelLog, nvidia_smi::pci_address};

/// What marks a line about a GPU error.
pub(crate) const MARK: &str = "NVRM: Xid";

/// Errors that a program causes by its own mistakes (a wild access, a killed context). They name the program, not the
/// GPU: NVIDIA's guide lists them as application errors.
const APPLICATION_CODES: [u32; 5] = [13, 31, 43, 45, 69];

/// How many different errors of one GPU are named.
const CODES_NAMED_MAX: usize = 8;

/// The errors of a log, by the PCI address of the GPU.
#[derive(Debug, Default)]
pub(crate) struct Xids(BTreeMap<String, Seen>);

/// How often one GPU had each error.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<u32, u64>);

impl Xids {
    pub(crate) fn read(log: &KernelLog) -> Self {
        let mut xids = Self::default();
        for (address, code) in log.lines.iter().filter_map(|line| parse(line)) {
            *xids
                .0
                .entry(address)
                .or_default()
                .0
                .entry(code)
                .or_default() += 1;
        }
        xids
    }

    pub(crate) fn of(&self, pci_address: &str) -> Option<&Seen> {
        self.0.get(pci_address)
    }

    /// Those at which `is_gpu` knows no GPU.
    pub(crate) fn elsewhere(
        &self,
        is_gpu: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (&String, &Seen)> {
        self.0.iter().filter(move |(address, _)| !is_gpu(address))
    }
}

impl Seen {
    /// The errors that speak against the GPU, in words.
    pub(crate) fn faults(&self) -> Option<String> {
        self.named(|code| !APPLICATION_CODES.contains(code))
    }

    /// The errors that speak against a program, in words.
    pub(crate) fn application_errors(&self) -> Option<String> {
        self.named(|code| APPLICATION_CODES.contains(code))
    }

    fn named(&self, wanted: impl Fn(&u32) -> bool) -> Option<String> {
        let names: Vec<String> = self
            .0
            .iter()
            .filter(|(code, _)| wanted(code))
            .take(CODES_NAMED_MAX)
            .map(|(code, times)| match times {
                1 => format!("Xid {code}"),
                _ => format!("Xid {code} ({times} times)"),
            })
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

fn parse(line: &str) -> Option<(String, u32)> {
    let (_, rest) = line.split_once(MARK)?;
    let (place, rest) = rest.split_once('(')?.1.split_once(')')?;
    let code: String = rest
        .trim_start_matches([':', ' '])
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    Some((pci_address(place)?, code.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_gpu_and_nonsense_is_passed_over() {
        let lines = [
            "[ 10.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.",
            "kernel: NVRM: Xid (PCI:0000:3B:00.0): 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python",
            "NVRM: Xid (0000:af:00): 45, Ch 00000001",
            "NVRM: Xid",
            "NVRM: Xid (PCI:0000:3b:00",
            "NVRM: Xid (PCI:0000:3b:00): many",
            "NVRM: Xid (PCI:0000:3b:00): 99999999999999999999",
        ];
        let log = KernelLog {
            lines: lines.map(str::to_owned).to_vec(),
            ..KernelLog::default()
        };
        let xids = Xids::read(&log);
        let seen = xids.of("0000:3b:00.0").unwrap();
        assert_eq!(seen.faults().as_deref(), Some("Xid 79 (2 times)"));
        assert_eq!(seen.application_errors().as_deref(), Some("Xid 31"));
        let elsewhere: Vec<_> = xids
            .elsewhere(|address| address == "0000:3b:00.0")
            .collect();
        assert_eq!(elsewhere.len(), 1);
        assert_eq!(elsewhere[0].1.faults(), None);
    }
}
