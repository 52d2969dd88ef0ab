//! A NATS server with JetStream under one folder, on a loopback port, with a token.

mod config;
mod wire;

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use rustix::process::Signal;
use tokio::process::Command;

use crate::{
    Durability, Error, ProcessGroup, files,
    limits::{NATS_PORT_ATTEMPTS_MAX, NATS_STOP_WITHIN, READY_WITHIN},
    process::{self, Place, Process, StopSteps},
    tools::{self, Tool},
};
use config::Config;

const SERVER: &str = "NATS";
const STOP_STEPS: StopSteps = &[(Signal::INT, NATS_STOP_WITHIN)];

/// What a server is to be like.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// The folder with everything the server has; made if it is not there.
    pub folder: PathBuf,
    /// A folder with `nats-server` to use instead of the order of resolution.
    pub tools: Option<PathBuf>,
    /// What JetStream may keep on disk, in bytes; 8 GiB unless set.
    pub store_bytes_max: u64,
    /// What one message may hold, in bytes; 1 MiB unless set.
    pub payload_bytes_max: u32,
    /// Whether a stored message is forced to disk before it is acknowledged.
    pub durability: Durability,
    /// Whose signals the server gets.
    pub process_group: ProcessGroup,
    /// The deadline from start to the first answer.
    pub ready_within: Duration,
}

impl NatsOptions {
    /// A durable server with 8 GiB of disk and messages of 1 MiB, shielded from the terminal's Ctrl-C.
    pub fn new(folder: impl Into<PathBuf>) -> NatsOptions {
        NatsOptions {
            folder: folder.into(),
            tools: None,
            store_bytes_max: 8 << 30,
            payload_bytes_max: 1 << 20,
            durability: Durability::Durable,
            process_group: ProcessGroup::Own,
            ready_within: READY_WITHIN,
        }
    }

    /// For tests: nothing is forced to disk, and what kills the test's process group kills the server.
    #[must_use]
    pub fn throwaway(mut self) -> NatsOptions {
        self.durability = Durability::Throwaway;
        self.process_group = ProcessGroup::Callers;
        self
    }
}

/// A server that this process started. Dropping it ends it.
#[derive(Debug)]
pub struct Nats {
    // Dropped first: the server ends before its lock goes.
    process: Option<Process>,
    options: NatsOptions,
    tool: Tool,
    config: Config,
    place: Place,
    _lock: File,
}

impl Nats {
    /// Starts the server in the folder and waits until it answers. It has the port and the token of
    /// the last run there, if the port is still free. A server that an earlier run left behind on
    /// the folder is stopped first.
    pub async fn start(options: NatsOptions) -> Result<Nats, Error> {
        let (folder, lock) = files::claim(&options.folder).await?;
        let tool = tools::nats(options.tools.as_deref()).await?;
        let place = Place {
            server: SERVER,
            log: folder.join("nats.log"),
            pid_file: folder.join("nats.pid"),
            marker: Config::file(&folder),
            stop_steps: STOP_STEPS,
        };
        process::stop_leftover(&place).await?;
        let config = Config::load_or_make(&folder)?;
        tracing::info!(version = %tool.version, tools = %tool.folder.display(), folder = %folder.display(), "starts NATS");
        let mut nats = Nats {
            process: None,
            options,
            tool,
            config,
            place,
            _lock: lock,
        };
        nats.launch().await?;
        Ok(nats)
    }

    /// `nats://TOKEN@127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!(
            "nats://{}@127.0.0.1:{}",
            self.config.token, self.config.port
        )
    }

    /// The port on the loopback address.
    pub fn port(&self) -> u16 {
        self.config.port
    }

    /// The folder that JetStream keeps its streams in: removing it while the server is stopped is
    /// what a lost disk looks like.
    pub fn store_folder(&self) -> PathBuf {
        self.config.store_folder()
    }

    /// The version of the server's program.
    pub fn version(&self) -> tools::Version {
        self.tool.version
    }

    /// The folder of the server's program.
    pub fn tools(&self) -> &Path {
        &self.tool.folder
    }

    /// The log, which stderr goes to.
    pub fn log(&self) -> &Path {
        &self.place.log
    }

    /// The last lines of the log, to show with an error.
    pub fn log_tail(&self) -> String {
        files::tail(&self.place.log)
    }

    /// The process id, unless it was stopped or killed.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Waits until the server ends by itself, which it should not. May be dropped and called again.
    pub async fn exited(&mut self) -> Result<ExitStatus, Error> {
        match &mut self.process {
            Some(process) => process.wait().await,
            None => Err(Error::NotRunning { server: SERVER }),
        }
    }

    /// Shuts the server down, at first politely, within 11 s. Stopping twice is fine.
    pub async fn stop(&mut self) -> Result<(), Error> {
        if let Some(process) = self.process.take() {
            let status = process.stop(STOP_STEPS).await?;
            tracing::info!(status = process::describe(status), "stopped NATS");
        }
        Ok(())
    }

    /// Kills the server as a crash would.
    pub async fn kill(&mut self) -> Result<(), Error> {
        if let Some(process) = self.process.take() {
            process.stop(&[]).await?;
        }
        Ok(())
    }

    /// Stops the server if it runs, and starts it again. The URL stays the same unless another
    /// process has taken the port meanwhile.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await?;
        self.launch().await
    }

    /// Stops the server and removes everything it had.
    pub async fn destroy(mut self) -> Result<(), Error> {
        self.stop().await?;
        files::remove_folder_if_there(&self.config.folder)
    }

    async fn launch(&mut self) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            self.config.choose_port()?;
            self.config.write(&self.options)?;
            match self.launch_on_port().await {
                Ok(process) => {
                    self.process = Some(process);
                    return Ok(());
                }
                // Another process took the port between choosing and listening.
                Err(Error::Exited { log, .. })
                    if log.contains("address already in use")
                        && attempt < NATS_PORT_ATTEMPTS_MAX =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn launch_on_port(&self) -> Result<Process, Error> {
        let mut command = Command::new(self.tool.program("nats-server"));
        command
            .arg("-c")
            .arg(&self.place.marker)
            .current_dir(&self.config.folder);
        let group = self.options.process_group;
        let process = Process::spawn(&self.place, command, None, group)?;
        let ask = || wire::ask(&self.config);
        process
            .ready(&self.place, self.options.ready_within, ask)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_whose_launcher_was_killed_is_stopped_by_the_next_start() {
        let base = tempfile::tempdir().unwrap();
        let options = || NatsOptions::new(base.path().join("nats")).throwaway();
        let mut first = Nats::start(options()).await.unwrap();
        let (pid, url) = (first.pid().unwrap(), first.url());
        first.process.take().unwrap().abandon();
        drop(first);
        assert!(
            Path::new(&format!("/proc/{pid}/stat")).exists(),
            "the server still runs"
        );

        let mut second = Nats::start(options()).await.unwrap();
        assert_ne!(second.pid(), Some(pid));
        assert_eq!(second.url(), url, "port and token are kept");
        second.stop().await.unwrap();
    }
}
