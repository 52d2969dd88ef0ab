//! Other programs: each with a time limit, a bound on what it may write, nothing on its standard input, a process group
//! of its own, and killed and reaped when it is no longer wanted.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
};
use tokio_util::sync::CancellationToken;

use crate::{error::Error, limits, sysfs};

/// The variables that a program inherits; the agent's own may hold tokens, which are nobody else's business.
const INHERITED_VARIABLES: [&str; 4] = ["PATH", "LD_LIBRARY_PATH", "DBUS_SYSTEM_BUS_ADDRESS", "TZ"];

/// Children that were killed and did not die: they hang inside a driver. While one of them is there its program is not
/// started again, or each diagnosis of a node with a hanging driver would leave one more process that nobody can end.
static UNKILLABLE: Mutex<Vec<(PathBuf, Child)>> = Mutex::new(Vec::new());

/// How the watch over a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It ended by itself.
    Exited(ExitStatus),
    /// The reader had enough; it was killed.
    Stopped,
    /// It took too long; it was killed.
    TimedOut,
    /// The command was cancelled; it was killed.
    Cancelled,
}

/// The end of a program and the beginning of what it wrote to standard error.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) stderr: Vec<u8>,
}

/// What a program that was asked a question said, whatever its exit status.
#[derive(Debug)]
pub(crate) struct Answer {
    program: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// The standard output, if the program says that it succeeded.
    pub(crate) fn success(self) -> Result<String, Error> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        Err(Error::ProgramFailed {
            said: said(if self.stderr.trim().is_empty() {
                &self.stdout
            } else {
                &self.stderr
            }),
            status: status_text(self.status),
            program: self.program,
        })
    }
}

/// Runs a program to its end and hands over what it said.
pub(crate) async fn ask(
    path: &Path,
    arguments: &[&str],
    timeout: Duration,
    cancel: &CancellationToken,
) -> Result<Answer, Error> {
    let mut stdout = Vec::new();
    let mut too_much = false;
    let ended = watch(path, arguments, timeout, cancel, &mut |chunk| {
        if stdout.len() + chunk.len() > limits::PROGRAM_OUTPUT_BYTES_MAX {
            too_much = true;
            return ControlFlow::Break(());
        }
        stdout.extend_from_slice(chunk);
        ControlFlow::Continue(())
    })
    .await?;
    let program = name(path);
    match ended.end {
        _ if too_much => Err(Error::ProgramSaidTooMuch {
            program,
            bytes_max: limits::PROGRAM_OUTPUT_BYTES_MAX,
        }),
        End::Exited(status) => Ok(Answer {
            program,
            status,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
        }),
        End::TimedOut => Err(Error::ProgramTimedOut {
            program,
            seconds: timeout.as_secs_f64(),
        }),
        End::Cancelled | End::Stopped => Err(Error::Cancelled),
    }
}

/// What [`lines`] saw.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) end: End,
    pub(crate) stderr: String,
    /// Lines that were longer than [`limits::PROGRAM_LINE_BYTES_MAX`] and therefore left out.
    pub(crate) overlong: u64,
}

/// Runs a program and hands over each line of its output, without the newline, until the reader has enough.
pub(crate) async fn lines(
    path: &Path,
    arguments: &[&str],
    timeout: Duration,
    cancel: &CancellationToken,
    on_line: &mut (dyn FnMut(&[u8]) -> ControlFlow<()> + Send),
) -> Result<Lines, Error> {
    let mut splitter = Splitter::default();
    let ended = watch(path, arguments, timeout, cancel, &mut |chunk| {
        splitter.push(chunk, on_line)
    })
    .await?;
    if matches!(ended.end, End::Exited(_)) && !splitter.overlong_line && !splitter.line.is_empty() {
        let _ = on_line(&splitter.line);
    }
    Ok(Lines {
        end: ended.end,
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
        overlong: splitter.overlong,
    })
}

#[derive(Default)]
struct Splitter {
    line: Vec<u8>,
    overlong_line: bool,
    overlong: u64,
}

impl Splitter {
    fn push(
        &mut self,
        chunk: &[u8],
        on_line: &mut (dyn FnMut(&[u8]) -> ControlFlow<()> + Send),
    ) -> ControlFlow<()> {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match piece {
                [text @ .., b'\n'] => (text, true),
                text => (text, false),
            };
            if self.line.len() + text.len() > limits::PROGRAM_LINE_BYTES_MAX {
                self.overlong_line = true;
                self.line.clear();
            }
            if !self.overlong_line {
                self.line.extend_from_slice(text);
            }
            if ends {
                if self.overlong_line {
                    self.overlong += 1;
                    self.overlong_line = false;
                } else {
                    on_line(&self.line)?;
                }
                self.line.clear();
            }
        }
        ControlFlow::Continue(())
    }
}

/// Kills the whole group when it is dropped before the leader was reaped, so that a future that is dropped (a timeout
/// around the executor) leaves no grandchild behind. Until the leader is reaped its number cannot belong to another.
struct Group(Option<Pid>);

impl Group {
    fn kill(&self) {
        if let Some(leader) = self.0 {
            // It may have ended in this very moment; then there is nothing to kill.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a program and watches over it until it ends, is stopped by the reader, times out or is cancelled.
pub(crate) async fn watch(
    path: &Path,
    arguments: &[&str],
    timeout: Duration,
    cancel: &CancellationToken,
    on_stdout: &mut (dyn FnMut(&[u8]) -> ControlFlow<()> + Send),
) -> Result<Ended, Error> {
    let mut child = start(path, arguments)?;
    let leader = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw);
    let mut group = Group(leader);
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    let mut stdout_chunk = vec![0; 64 * 1024];
    let mut stderr_chunk = vec![0; 4 * 1024];
    let mut said = Vec::new();
    let deadline = tokio::time::sleep(timeout);
    tokio::pin!(deadline);
    let end = loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break End::Cancelled,
            () = &mut deadline => break End::TimedOut,
            read = read_some(&mut stdout, &mut stdout_chunk), if stdout.is_some() => match read {
                0 => stdout = None,
                bytes => if on_stdout(&stdout_chunk[..bytes]).is_break() { break End::Stopped },
            },
            read = read_some(&mut stderr, &mut stderr_chunk), if stderr.is_some() => match read {
                0 => stderr = None,
                bytes => {
                    let room = limits::PROGRAM_STDERR_BYTES_MAX - said.len();
                    said.extend_from_slice(&stderr_chunk[..bytes.min(room)]);
                }
            },
            // Both pipes are read to their end before the exit status is asked for: a leader that is not yet reaped
            // keeps its number, so killing the group can only ever reach what this program started.
            status = child.wait(), if stdout.is_none() && stderr.is_none() => {
                group.0 = None;
                let status = status.map_err(|source| Error::ProgramNotStarted { program: name(path), source })?;
                break End::Exited(status);
            }
        }
    };
    if !matches!(end, End::Exited(_)) {
        group.kill();
        let reap = Duration::from_secs(limits::PROGRAM_REAP_SECONDS_MAX);
        if let Ok(Ok(_)) = tokio::time::timeout(reap, child.wait()).await {
            group.0 = None;
        } else {
            set_aside(path, child);
        }
    }
    Ok(Ended { end, stderr: said })
}

fn set_aside(path: &Path, child: Child) {
    let mut unkillable = UNKILLABLE.lock().unwrap_or_else(PoisonError::into_inner);
    unkillable.push((path.to_path_buf(), child));
}

/// The process of an earlier run that still hangs, if there is one.
fn still_hanging(path: &Path) -> Option<u32> {
    let mut unkillable = UNKILLABLE.lock().unwrap_or_else(PoisonError::into_inner);
    unkillable.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
    let (_, child) = unkillable.iter().find(|(program, _)| program == path)?;
    child.id()
}

fn start(path: &Path, arguments: &[&str]) -> Result<Child, Error> {
    if let Some(process_id) = still_hanging(path) {
        return Err(Error::ProgramHangs {
            program: name(path),
            process_id,
        });
    }
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    for variable in INHERITED_VARIABLES {
        if let Some(value) = std::env::var_os(variable) {
            command.env(variable, value);
        }
    }
    command.spawn().map_err(|source| Error::ProgramNotStarted {
        program: name(path),
        source,
    })
}

/// A pipe that fails is as good as one that ended.
async fn read_some(pipe: &mut Option<impl AsyncRead + Unpin>, chunk: &mut [u8]) -> usize {
    match pipe {
        Some(pipe) => pipe.read(chunk).await.unwrap_or(0),
        None => 0,
    }
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// An exit status in words that fit into a sentence.
pub(crate) fn status_text(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// The beginning of what a program said, on one line and without control characters.
pub(crate) fn said(text: &str) -> String {
    let line = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let line = sysfs::clean(&line, limits::SAID_CHARS_MAX);
    if line.is_empty() {
        "it said nothing".to_owned()
    } else {
        line
    }
}

#[cfg(test)]
mod tests;
