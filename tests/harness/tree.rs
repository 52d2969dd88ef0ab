//! What the system knows of processes: who descends from whom, and who is still there.

use std::collections::BTreeSet;
use std::fs;

/// A process, told from a later one with its number by when it started.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known {
    /// Its process id.
    pub pid: i32,
    /// Its parent's process id.
    parent: i32,
    /// When it started, in ticks since the machine's start.
    started: u64,
    /// Its command line, for people.
    pub command: String,
}

/// Every process but those that have ended and were not waited for.
pub fn all() -> BTreeSet<Known> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(known).collect()
}

fn known(pid: i32) -> Option<Known> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold spaces and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(Known {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        command: String::from_utf8_lossy(&command).replace('\0', " "),
    })
}

/// The process and all that descends from it.
pub fn descendants(root: i32) -> BTreeSet<Known> {
    let all = all();
    let mut found: BTreeSet<Known> = all.iter().filter(|one| one.pid == root).cloned().collect();
    loop {
        let before = found.len();
        let parents: BTreeSet<i32> = found.iter().map(|one| one.pid).collect();
        let children = all.iter().filter(|one| parents.contains(&one.parent));
        found.extend(children.cloned());
        if found.len() == before {
            return found;
        }
    }
}

/// Those of them that are still there.
pub fn left(of: &BTreeSet<Known>) -> Vec<Known> {
    let again = |one: &&Known| known(one.pid).is_some_and(|now| now.started == one.started);
    of.iter().filter(again).cloned().collect()
}

/// Those that name this text on their command lines.
pub fn naming(text: &str) -> Vec<Known> {
    let own = std::process::id().cast_signed();
    let names = |one: &Known| one.pid != own && one.command.contains(text);
    all().into_iter().filter(names).collect()
}

/// How many files and sockets a process has open.
pub fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// The most memory that a process has had, in KiB.
pub fn memory_peak_kib(pid: i32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().strip_suffix(" kB").unwrap();
    peak.parse().unwrap()
}

/// Unix sockets whose paths start like this and that somebody still holds.
pub fn sockets_below(path: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let paths = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7));
    paths
        .filter(|own| own.starts_with(path))
        .map(str::to_owned)
        .collect()
}
