//! A child process whose output is kept, and which never outlives its test.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::binary;
use crate::wait::{found, in_time};

/// What a failed test shows of a process's output, in bytes.
const TAIL_BYTES: usize = 4_000;

/// The program under test, running.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    folder: TempDir,
}

impl Process {
    /// Starts `command-ledger` with these arguments and nothing of the test's own settings.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// Starts `command-ledger` with these arguments and variables.
    pub fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(arguments, variables, "")
    }

    /// Starts `command-ledger` with these arguments and this text on its stdin.
    pub fn start_reading(arguments: &[&str], input: &str) -> Self {
        Self::spawn(arguments, &[], input)
    }

    fn spawn(arguments: &[&str], variables: &[(&str, &str)], input: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("stdin"), input).unwrap();
        let file = |name: &str| File::create(folder.path().join(name)).unwrap();
        let child = Command::new(binary::command_ledger())
            .args(arguments)
            .env_remove("DATABASE_URL")
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(File::open(folder.path().join("stdin")).unwrap())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        Self { child, pid, folder }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What it has written to stdout.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.path("stdout")).unwrap()
    }

    /// What it has written to stderr.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.path("stderr")).unwrap()
    }

    /// Waits until a whole line of its output makes something of it.
    pub async fn line<T>(
        &mut self,
        what: &str,
        output: impl Fn(&Self) -> String,
        read: impl Fn(&str) -> Option<T>,
    ) -> T {
        found(what, async || {
            let text = output(self);
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let line = whole.lines().find_map(&read);
            if line.is_none()
                && let Some(status) = self.child.try_wait().unwrap()
            {
                panic!("{what}: it ended with {status}: {}", self.tail());
            }
            line
        })
        .await
    }

    /// The end of stderr.
    pub fn tail(&self) -> String {
        let text = self.stderr();
        let from = text.len().saturating_sub(TAIL_BYTES);
        text[text.ceil_char_boundary(from)..].to_owned()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends a signal, if it still runs.
    pub fn signal(&mut self, signal: Signal) {
        // The child has not been waited for, so its pid cannot be another's.
        if self.runs() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Ends it as `kill -9` does, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// Runs it to its end, which must be a good one; what it has written to stdout.
    pub async fn output(arguments: &[&str]) -> String {
        let mut process = Self::start(arguments);
        let status = process.ended().await;
        assert!(
            status.success(),
            "{arguments:?}: {status}: {}",
            process.tail()
        );
        process.stdout()
    }

    /// Waits until it ends.
    pub async fn ended(&mut self) -> ExitStatus {
        in_time("the process ends", self.child.wait())
            .await
            .unwrap()
    }
}
