//! What this process has used so far, for reports of long work.

use rustix::time::{ClockId, clock_gettime};

/// Time on processors, of all threads, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "seconds, for people")]
    let seconds = spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9;
    (seconds * 1e3).round() / 1e3
}

/// The most memory that was resident at a time, in bytes; nothing where the system does not say.
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
