//! `diag.nvml` (K5): whether the GPUs of this node can be trusted with work.
//!
//! The command fails with `unhealthy` when a check fails; its result holds every check either way. A check that has
//! nothing to look at is skipped and says so; a skip alone makes nobody unhealthy.
//!
//! To add a check: name it in [`GPU_CHECKS`] or beside `nvml.init` in [`judge`], and give it its arm in [`judge_gpu`].

use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Finished, Job, Outcome,
    inventory::{Collector, Section, gpus::View, without_nulls},
    payload,
};
use crate::{
    host::Host,
    kernel_log::{self, KernelLog},
    limits,
    nvidia_smi::{Gpu, Reading},
    program,
    xid::{self, Xids},
};

/// The kind's name.
pub const KIND: &str = "diag.nvml";

/// The checks that every GPU has of its own.
const GPU_CHECKS: [&str; 5] = [
    "ecc.uncorrectable",
    "row-remap.pending",
    "row-remap.failure",
    "pcie.link",
    "xid.recent",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Pass,
    Fail,
    Skipped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    name: &'static str,
    gpu: Option<String>,
    status: Status,
    why: Option<String>,
}

impl Check {
    fn value(&self) -> Value {
        let status = match self.status {
            Status::Pass => "pass",
            Status::Fail => "fail",
            Status::Skipped => "skipped",
        };
        without_nulls(
            json!({ "name": self.name, "gpu": self.gpu, "status": status, "why": self.why }),
        )
    }
}

pub(super) async fn run(
    host: &Host,
    collector: &Collector,
    job: &Job,
    cancel: &CancellationToken,
) -> Finished {
    if let Err(refused) = payload::<Payload>(job) {
        return refused;
    }
    let known = collector.kept.section(Section::Gpus.name());
    let view = View::take(host, known.as_ref(), cancel).await;
    if cancel.is_cancelled() {
        return Finished::cancelled();
    }
    let log = kernel_log::lines_with(host, xid::MARK, cancel).await;
    if cancel.is_cancelled() {
        return Finished::cancelled();
    }
    let checks = judge(&view, &log);
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    let failing = checks
        .iter()
        .filter(|check| check.status == Status::Fail)
        .count();
    let result = result(ok, &checks);
    if ok {
        return Finished::succeeded(result);
    }
    Finished {
        outcome: Outcome::Failed,
        reason: Some("unhealthy".to_owned()),
        details: Some(json!({ "failedChecks": failing })),
        result: Some(result),
    }
}

/// Everything, unless it is too long; then the checks that passed give way, and the result says how many.
fn result(ok: bool, checks: &[Check]) -> Value {
    let with = |checks: Vec<Value>| json!({ "ok": ok, "checks": checks });
    let whole = with(checks.iter().map(Check::value).collect());
    if whole.to_string().len() <= limits::RESULT_BYTES_MAX {
        return whole;
    }
    let mut kept: Vec<Value> = checks
        .iter()
        .filter(|check| check.status == Status::Fail || check.gpu.is_none())
        .map(Check::value)
        .collect();
    loop {
        let mut result = with(kept.clone());
        result["checksOmitted"] = json!(checks.len() - kept.len());
        if kept.is_empty() || result.to_string().len() <= limits::RESULT_BYTES_MAX {
            return result;
        }
        kept.truncate(kept.len() - kept.len().div_ceil(8));
    }
}

fn judge(view: &View, log: &Result<KernelLog, String>) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |name, gpu: Option<String>, status, why: Option<String>| {
        checks.push(Check {
            name,
            gpu,
            status,
            why,
        });
    };
    let gpus = match &view.managed {
        Ok(gpus) => {
            add("nvml.init", None, Status::Pass, None);
            gpus.as_slice()
        }
        Err(error) => {
            let seen = match view.unmanaged.len() {
                0 => " (and no NVIDIA device is on the PCI bus)".to_owned(),
                count => format!(" (the kernel sees {count} on the PCI bus, which is not enough)"),
            };
            add("nvml.init", None, Status::Fail, Some(error.chain() + &seen));
            &[]
        }
    };
    let (status, why) = visible(view, gpus.len());
    add("gpus.visible", None, status, why);
    let xids = log.as_ref().map(|log| (log, Xids::read(log)));
    for gpu in gpus {
        for name in GPU_CHECKS {
            let (status, why) = judge_gpu(name, gpu, &xids);
            add(name, Some(gpu.uuid.clone()), status, why);
        }
    }
    if gpus.is_empty() {
        for name in GPU_CHECKS {
            add(
                name,
                None,
                Status::Skipped,
                Some("no GPU can be asked".to_owned()),
            );
        }
    }
    // An error of a GPU that is not there any more: the reason why it is not, most often.
    if let Ok((_, xids)) = &xids {
        for (address, seen) in
            xids.elsewhere(|address| gpus.iter().any(|gpu| gpu.pci_address == address))
        {
            if let Some(faults) = seen.faults() {
                add(
                    "xid.recent",
                    Some(address.clone()),
                    Status::Fail,
                    Some(format!("this boot: {faults}")),
                );
            }
        }
    }
    checks
}

fn visible(view: &View, seen: usize) -> (Status, Option<String>) {
    let expected = view.expected();
    if seen > 0 && seen == expected {
        return (Status::Pass, Some(format!("{seen} of {expected}")));
    }
    if seen == 0 && expected == 0 {
        let interface = match &view.managed {
            Ok(_) => "nvidia-smi names no GPU",
            Err(_) => "the management interface does not answer",
        };
        let why = format!("{interface}, no GPU is on the PCI bus and no inventory had one");
        return (Status::Fail, Some(why));
    }
    let mut lost: Vec<String> = Vec::new();
    for gpu in view.unmanaged.iter().filter(|gpu| !gpu.is_handed_over()) {
        lost.push(format!("{} is on the PCI bus only", gpu.pci_address));
    }
    for gpu in &view.missing {
        let name = gpu
            .uuid
            .as_deref()
            .or(gpu.pci_address.as_deref())
            .unwrap_or("one");
        lost.push(format!("{name} was in the last inventory"));
    }
    let lost = program::said(&lost.join(", "));
    (
        Status::Fail,
        Some(format!(
            "nvidia-smi names {seen} of {expected} GPUs: {lost}"
        )),
    )
}

fn judge_gpu(
    name: &str,
    gpu: &Gpu,
    xids: &Result<(&KernelLog, Xids), &String>,
) -> (Status, Option<String>) {
    match name {
        "ecc.uncorrectable" => judged(&gpu.ecc_uncorrectable, |count| {
            (*count > 0)
                .then(|| format!("{count} uncorrectable memory errors since the driver was loaded"))
        }),
        "row-remap.pending" => judged(&gpu.remap_pending, |pending| {
            pending.then(|| "memory rows wait to be remapped: the GPU needs a reset".to_owned())
        }),
        "row-remap.failure" => judged(&gpu.remap_failure, |failed| {
            failed.then(|| {
                "memory rows could not be remapped: the GPU needs to be replaced".to_owned()
            })
        }),
        "pcie.link" => match (&gpu.link_width, &gpu.link_width_max) {
            (Reading::Is(width), max) => judged(max, |max| {
                (width < max).then(|| format!("the link is x{width} and could be x{max}"))
            }),
            (lacking, _) => judged(lacking, |_| None),
        },
        "xid.recent" => match xids {
            Err(why) => (
                Status::Skipped,
                Some(format!("the kernel's log cannot be read: {why}")),
            ),
            Ok((log, xids)) => xid_recent(log, xids.of(&gpu.pci_address)),
        },
        // Unreachable while GPU_CHECKS and this match name the same checks; a test holds them together.
        other => (Status::Skipped, Some(format!("no such check: {other}"))),
    }
}

fn xid_recent(log: &KernelLog, seen: Option<&xid::Seen>) -> (Status, Option<String>) {
    if let Some(faults) = seen.and_then(xid::Seen::faults) {
        return (Status::Fail, Some(format!("this boot: {faults}")));
    }
    if let Some(errors) = seen.and_then(xid::Seen::application_errors) {
        return (
            Status::Pass,
            Some(format!("only errors that programs cause: {errors}")),
        );
    }
    let source = log.source;
    let cut = log
        .cut
        .then(|| format!("none in the newest part of the kernel's log, as {source} gave it"));
    (Status::Pass, cut)
}

fn judged<T>(
    reading: &Reading<T>,
    bad: impl FnOnce(&T) -> Option<String>,
) -> (Status, Option<String>) {
    match reading {
        Reading::Is(value) => match bad(value) {
            Some(why) => (Status::Fail, Some(why)),
            None => (Status::Pass, None),
        },
        Reading::Lacking(why) => (Status::Skipped, Some(why.clone())),
        Reading::Refused(why) => (Status::Fail, Some(why.clone())),
    }
}

#[cfg(test)]
mod tests;
