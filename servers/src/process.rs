//! A server as a child process: its log, its pid file, its end, and what a crashed launcher left.

use std::{
    fmt, fs, io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::{
    Error, ProcessGroup,
    account::Account,
    files,
    limits::{DROP_WITHIN, KILLED_WITHIN, POLL_EVERY},
};

/// How a server is asked to end: each signal in turn with the time it gets, SIGKILL after the last.
pub(crate) type StopSteps = &'static [(Signal, Duration)];

/// What is the same for every start of one server.
#[derive(Debug)]
pub(crate) struct Place {
    /// The server's name in errors.
    pub(crate) server: &'static str,
    /// Where its output goes.
    pub(crate) log: PathBuf,
    /// `<pid> <start time in ticks since boot>`.
    pub(crate) pid_file: PathBuf,
    /// An argument of its command line that no other process has: a path below its folder.
    pub(crate) marker: PathBuf,
    pub(crate) stop_steps: StopSteps,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid: Pid,
    server: &'static str,
    pid_file: PathBuf,
    drop_signal: Signal,
    ended: bool,
}

impl Process {
    /// Starts a server and notes who it is.
    pub(crate) fn spawn(
        place: &Place,
        mut command: Command,
        account: Option<Account>,
        group: ProcessGroup,
    ) -> Result<Process, Error> {
        let log = files::open_log(&place.log)?;
        let errors = log.try_clone().map_err(Error::io("open", &place.log))?;
        run_as(&mut command, account);
        if group == ProcessGroup::Own {
            command.process_group(0);
        }
        command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .kill_on_drop(true);
        let program = PathBuf::from(command.as_std().get_program());
        let child = command.spawn().map_err(Error::io("run", &program))?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let Some(pid) = pid else {
            return Err(Error::NotRunning {
                server: place.server,
            });
        };
        let process = Process {
            child,
            pid,
            server: place.server,
            pid_file: place.pid_file.clone(),
            drop_signal: place
                .stop_steps
                .last()
                .map_or(Signal::KILL, |(signal, _)| *signal),
            ended: false,
        };
        if let Some(started) = start_ticks(pid) {
            let line = format!("{} {started}\n", pid.as_raw_nonzero());
            files::write_private(&place.pid_file, &line)?;
        }
        Ok(process)
    }

    /// Waits until the server answers to what it is asked. On every other way out, dropping the
    /// process ends it.
    pub(crate) async fn ready<Answer, Failure>(
        mut self,
        place: &Place,
        within: Duration,
        ask: impl Fn() -> Answer,
    ) -> Result<Process, Error>
    where
        Answer: Future<Output = Result<(), Failure>>,
        Failure: fmt::Display,
    {
        let deadline = Instant::now() + within;
        loop {
            let Err(failure) = ask().await else {
                return Ok(self);
            };
            if let Some(status) = self.ended()? {
                return Err(Error::Exited {
                    server: self.server,
                    status,
                    log: files::tail(&place.log),
                });
            }
            if Instant::now() >= deadline {
                return Err(Error::NotReady {
                    server: self.server,
                    seconds: within.as_secs(),
                    reason: failure.to_string(),
                    log: files::tail(&place.log),
                });
            }
            sleep(POLL_EVERY).await;
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child
            .try_wait()
            .map_err(Error::io("wait for", self.server))
    }

    /// Waits until it ends by itself. May be dropped and called again.
    pub(crate) async fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.child
            .wait()
            .await
            .map_err(Error::io("wait for", self.server))
    }

    /// Asks it to end, step by step, and waits until it has.
    pub(crate) async fn stop(mut self, steps: StopSteps) -> Result<ExitStatus, Error> {
        for (signal, within) in steps {
            self.signal(*signal);
            if let Ok(status) = timeout(*within, self.wait()).await {
                return self.gone(status);
            }
            tracing::warn!(server = self.server, ?signal, "did not stop in time");
        }
        self.signal(Signal::KILL);
        match timeout(KILLED_WITHIN, self.wait()).await {
            Ok(status) => self.gone(status),
            Err(_) => Err(Error::NotStopped {
                server: self.server,
                pid: self.pid(),
            }),
        }
    }

    fn gone(&mut self, status: Result<ExitStatus, Error>) -> Result<ExitStatus, Error> {
        self.ended = true;
        files::remove_if_there(&self.pid_file)?;
        status
    }

    /// Sends a signal. The child has not been waited for, so its pid cannot be another's yet.
    fn signal(&mut self, signal: Signal) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // It can only fail because the process has just ended, which is what was wanted.
            let _ = send(self.pid, signal);
        }
    }

    /// Leaves the server running as a launcher that is killed leaves it.
    #[cfg(test)]
    pub(crate) fn abandon(mut self) {
        self.ended = true;
        // The handle would kill on drop: that of another child takes its place.
        let other = Command::new("true").spawn().unwrap();
        std::mem::forget(std::mem::replace(&mut self.child, other));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // A dropped handle cannot wait for long: the quick way down first, then the hard one.
        let last = [(self.drop_signal, DROP_WITHIN), (Signal::KILL, DROP_WITHIN)];
        for (signal, within) in last {
            self.signal(signal);
            let deadline = std::time::Instant::now() + within;
            while std::time::Instant::now() < deadline {
                if !matches!(self.child.try_wait(), Ok(None)) && !has_group(self.pid) {
                    let _ = files::remove_if_there(&self.pid_file);
                    return;
                }
                std::thread::sleep(POLL_EVERY);
            }
        }
    }
}

/// Sends a signal. The last one, which nobody can put right after, reaches all that the process has
/// started in a group of its own: `initdb` runs shells, which would outlive it.
fn send(pid: Pid, signal: Signal) -> Result<(), rustix::io::Errno> {
    if signal == Signal::KILL && getpgid(Some(pid)) == Ok(pid) {
        kill_process_group(pid, signal)
    } else {
        kill_process(pid, signal)
    }
}

/// Whether any process of the group that `leader` leads, or led, still runs.
fn has_group(leader: Pid) -> bool {
    processes().any(|pid| stat(pid).is_some_and(|stat| stat.group == leader.as_raw_nonzero().get()))
}

/// Runs a command under an account; std also drops the supplementary groups of root.
pub(crate) fn run_as(command: &mut Command, account: Option<Account>) {
    if let Some(account) = account {
        command.uid(account.uid).gid(account.gid);
    }
}

/// Stops the server that an earlier launcher left running on this folder, if there is one. The
/// caller holds the folder's lock, so that launcher is gone.
pub(crate) async fn stop_leftover(place: &Place) -> Result<(), Error> {
    let Some(line) = files::read_if_there(&place.pid_file)? else {
        return Ok(());
    };
    if let Some(leftover) = Leftover::parse(&line, &place.marker) {
        tracing::warn!(
            server = place.server,
            pid = leftover.pid.as_raw_nonzero(),
            "stops a server that an earlier run left behind"
        );
        leftover.stop(place).await?;
    }
    files::remove_if_there(&place.pid_file)
}

/// A process that is no child of this one.
struct Leftover {
    pid: Pid,
    started: u64,
}

impl Leftover {
    /// Only a process with the same pid, the same start time and our path in its command line is
    /// the one that was noted.
    fn parse(line: &str, marker: &Path) -> Option<Leftover> {
        let (pid, started) = line.trim().split_once(' ')?;
        let leftover = Leftover {
            pid: parse_pid(pid)?,
            started: started.parse().ok()?,
        };
        let command = fs::read(proc_path(leftover.pid, "cmdline")).ok()?;
        let marker = marker.as_os_str().as_encoded_bytes();
        let ours = command
            .split(|byte| *byte == 0)
            .any(|argument| argument == marker);
        (ours && leftover.runs()).then_some(leftover)
    }

    fn runs(&self) -> bool {
        start_ticks(self.pid) == Some(self.started)
    }

    async fn stop(&self, place: &Place) -> Result<(), Error> {
        for (signal, within) in place
            .stop_steps
            .iter()
            .chain(&[(Signal::KILL, KILLED_WITHIN)])
        {
            match send(self.pid, *signal) {
                Err(error) if error != rustix::io::Errno::SRCH => {
                    let source = io::Error::from(error);
                    return Err(Error::io("stop the server of", &place.pid_file)(source));
                }
                _ => {}
            }
            let deadline = Instant::now() + *within;
            while Instant::now() < deadline {
                let in_group = *signal == Signal::KILL && has_group(self.pid);
                if !self.runs() && !in_group {
                    return Ok(());
                }
                sleep(POLL_EVERY).await;
            }
        }
        Err(Error::NotStopped {
            server: place.server,
            pid: self.pid.as_raw_nonzero().get(),
        })
    }
}

/// When a process started, in ticks since boot; none if it has ended.
fn start_ticks(pid: Pid) -> Option<u64> {
    stat(pid).map(|stat| stat.started)
}

struct Stat {
    /// The id of its process group.
    group: i32,
    /// When it started, in ticks since boot.
    started: u64,
}

/// What the system knows of a process; none if it has ended, also if nobody has waited for it yet.
fn stat(pid: Pid) -> Option<Stat> {
    let stat = fs::read_to_string(proc_path(pid, "stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    Some(Stat {
        group: fields.nth(1)?.parse().ok()?,
        started: fields.nth(16)?.parse().ok()?,
    })
}

/// The ids of all processes.
fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| parse_pid(entry.file_name().to_str()?))
}

/// A pid in text. Zero and negative numbers would mean groups of processes.
fn parse_pid(text: &str) -> Option<Pid> {
    text.parse()
        .ok()
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
}

fn proc_path(pid: Pid, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{file}", pid.as_raw_nonzero()))
}

/// Waits until no process has `folder` as its working folder, as every process of a Postgres
/// cluster has; after the deadline the rest are killed.
///
/// A postmaster that is killed takes its children with it, but not at once, and the next one
/// refuses to start while any is there.
pub(crate) async fn wait_until_deserted(
    folder: &Path,
    server: &'static str,
    within: Duration,
) -> Result<(), Error> {
    let deadline = Instant::now() + within;
    while !working_in(folder).is_empty() {
        if Instant::now() >= deadline {
            return kill_all_in(folder, server).await;
        }
        sleep(POLL_EVERY).await;
    }
    Ok(())
}

async fn kill_all_in(folder: &Path, server: &'static str) -> Result<(), Error> {
    let deadline = Instant::now() + KILLED_WITHIN;
    loop {
        let left = working_in(folder);
        let Some(first) = left.first() else {
            return Ok(());
        };
        if Instant::now() >= deadline {
            return Err(Error::NotStopped {
                server,
                pid: first.as_raw_nonzero().get(),
            });
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(POLL_EVERY).await;
    }
}

/// The Postgres processes whose working folder is `folder`.
fn working_in(folder: &Path) -> Vec<Pid> {
    processes()
        .filter(|pid| {
            let works_here = fs::read_link(proc_path(*pid, "cwd")).is_ok_and(|cwd| cwd == folder);
            works_here
                && fs::read_link(proc_path(*pid, "exe")).is_ok_and(|program| {
                    // The link of a program that was replaced ends in " (deleted)".
                    let name = program
                        .file_name()
                        .map(|name| name.to_string_lossy().into_owned());
                    name.is_some_and(|name| name.starts_with("postgres"))
                })
        })
        .collect()
}

/// An exit status for people: the code or the signal.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_pid_start_time_and_command_line() {
        let own = rustix::process::getpid();
        let started = start_ticks(own).unwrap();
        let program = std::env::args_os().next().map(PathBuf::from).unwrap();
        let line = |pid: i32, started: u64| format!("{pid} {started}\n");
        let pid = own.as_raw_nonzero().get();
        assert!(Leftover::parse(&line(pid, started), &program).is_some());
        assert!(
            Leftover::parse(&line(pid, started + 1), &program).is_none(),
            "a reused pid"
        );
        assert!(Leftover::parse(&line(pid, started), Path::new("/another")).is_none());
        for broken in ["", "1", "x y", "0 0", "-5 1", "99999999999 1"] {
            assert!(Leftover::parse(broken, &program).is_none(), "{broken:?}");
        }
    }
}
