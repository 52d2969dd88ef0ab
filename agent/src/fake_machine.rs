//! A machine made of folders and shell scripts, for tests.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use time::macros::datetime;

use crate::host::{Host, Paths, Reboot};

pub(crate) struct FakeMachine {
    root: tempfile::TempDir,
}

impl FakeMachine {
    pub(crate) fn new() -> Self {
        let machine = Self {
            root: tempfile::tempdir().unwrap(),
        };
        for folder in ["proc", "sys", "etc", "dev", "bin", "state"] {
            std::fs::create_dir(machine.path(folder)).unwrap();
        }
        machine
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// A host that sees nothing of the real machine; a reboot panics the test.
    pub(crate) fn host(&self) -> Host {
        Host {
            paths: Paths {
                proc: self.path("proc"),
                sys: self.path("sys"),
                etc: self.path("etc"),
                dev: self.path("dev"),
            },
            program_folders: vec![self.path("bin")],
            program_timeout: Duration::from_secs(30),
            state_dir: self.path("state"),
            reboot: Reboot::Injected(Arc::new(|_| panic!("nothing here may reboot"))),
            clock: Arc::new(|| datetime!(2026-11-30 12:00 UTC)),
            site_ca: Arc::new(rustls::RootCertStore::empty()),
        }
    }

    pub(crate) fn file(&self, path: &str, content: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// A link to a folder, which is made.
    pub(crate) fn link(&self, path: &str, target: &Path) {
        let path = self.path(path);
        std::fs::create_dir_all(target).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// A program of the machine. The script is written by another process: were this one to hold it open for writing
    /// while a parallel test forks, running it would fail with "text file busy".
    pub(crate) fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.path("bin").join(name);
        let mut writer = Command::new("/bin/sh")
            .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        write!(writer.stdin.take().unwrap(), "#!/bin/sh\n{script}\n").unwrap();
        assert!(writer.wait().unwrap().success());
        path
    }
}

pub(crate) fn is_running(pid: &str) -> bool {
    // A zombie no longer runs; whoever inherited it reaps it when it likes.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("").starts_with('Z'))
}

pub(crate) async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
