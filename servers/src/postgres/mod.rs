//! A Postgres cluster under one folder, reached through a Unix socket only.

mod home;
mod init;
mod socket;
mod wire;

use std::{
    fmt::Write as _,
    fs::File,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use rustix::process::Signal;
use tokio::process::Command;

use crate::{
    Durability, Error, ProcessGroup,
    account::Account,
    files,
    limits::{
        DATABASE_NAME_BYTES_MAX, KILLED_WITHIN, POSTGRES_FAST_STOP_WITHIN,
        POSTGRES_IMMEDIATE_STOP_WITHIN, READY_WITHIN, STATEMENT_WITHIN,
    },
    process::{self, Place, Process, StopSteps},
    tools::{self, Tool},
};
use home::Home;
use socket::SocketFolder;

/// The superuser of every cluster, let in through the socket without a password.
pub const ADMIN: &str = "ledger_admin";

const SERVER: &str = "Postgres";
/// Fast shutdown, then immediate shutdown.
const STOP_STEPS: StopSteps = &[
    (Signal::INT, POSTGRES_FAST_STOP_WITHIN),
    (Signal::QUIT, POSTGRES_IMMEDIATE_STOP_WITHIN),
];

/// What a cluster is to be like.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The folder with everything the cluster has; made if it is not there.
    pub folder: PathBuf,
    /// A folder with `postgres` and `initdb` to use instead of the order of resolution.
    pub tools: Option<PathBuf>,
    /// `max_connections`; 200 unless set.
    pub max_connections: u32,
    /// Whether a commit is forced to disk.
    pub durability: Durability,
    /// Whose signals the server gets.
    pub process_group: ProcessGroup,
    /// The deadline from start to the first answer.
    pub ready_within: Duration,
}

impl PostgresOptions {
    /// A durable cluster with 200 connections, shielded from the terminal's Ctrl-C.
    pub fn new(folder: impl Into<PathBuf>) -> PostgresOptions {
        PostgresOptions {
            folder: folder.into(),
            tools: None,
            max_connections: 200,
            durability: Durability::Durable,
            process_group: ProcessGroup::Own,
            ready_within: READY_WITHIN,
        }
    }

    /// For tests: nothing is forced to disk, and what kills the test's process group kills the server.
    #[must_use]
    pub fn throwaway(mut self) -> PostgresOptions {
        self.durability = Durability::Throwaway;
        self.process_group = ProcessGroup::Callers;
        self
    }
}

/// A cluster that this process started. Dropping it shuts it down without a checkpoint.
#[derive(Debug)]
pub struct Postgres {
    // Dropped first: the server ends before its socket's folder and its lock go.
    process: Option<Process>,
    socket: SocketFolder,
    options: PostgresOptions,
    tool: Tool,
    account: Option<Account>,
    home: Home,
    place: Place,
    _lock: File,
}

impl Postgres {
    /// Starts the cluster in the folder, initialising an empty one, and waits until it answers. A
    /// server that an earlier run left behind on the folder is stopped first.
    pub async fn start(options: PostgresOptions) -> Result<Postgres, Error> {
        let (folder, lock) = files::claim(&options.folder).await?;
        let (home, account) = Home::choose(&folder, options.durability)?;
        let place = place(&home);
        end_leftover(&home, &place).await?;
        let tool = init::tool(&options, &home, account).await?;
        init::init_if_empty(&tool, &home, account, &options).await?;
        let socket = SocketFolder::choose(&folder, &home, account)?;
        tracing::info!(version = %tool.version, tools = %tool.folder.display(), folder = %folder.display(), "starts Postgres");
        let mut postgres = Postgres {
            process: None,
            socket,
            options,
            tool,
            account,
            home,
            place,
            _lock: lock,
        };
        postgres.launch().await?;
        Ok(postgres)
    }

    /// The URL of a database for an account, `postgres://user@localhost/db?host=…`.
    pub fn url(&self, database: &str, user: &str) -> String {
        let host = percent_encode(&self.socket.path().to_string_lossy());
        let (user, database) = (percent_encode(user), percent_encode(database));
        format!("postgres://{user}@localhost/{database}?host={host}")
    }

    /// Makes a database owned by [`ADMIN`]; one that exists already is fine. The name is not quoted
    /// anywhere, so it is limited to a-z, 0-9 and _.
    pub async fn create_database(&self, name: &str) -> Result<(), Error> {
        if self.process.is_none() {
            return Err(Error::NotRunning { server: SERVER });
        }
        let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        let plain = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !starts_well || !plain || name.len() > DATABASE_NAME_BYTES_MAX {
            return Err(Error::DatabaseName { name: name.into() });
        }
        let create = format!("CREATE DATABASE {name}");
        match wire::run(
            &self.socket.file(),
            ADMIN,
            "postgres",
            &create,
            STATEMENT_WITHIN,
        )
        .await
        {
            Err(wire::Failure::Server { code, .. }) if code == wire::DUPLICATE_DATABASE => Ok(()),
            Err(failure) => Err(Error::Refused {
                server: SERVER,
                answer: format!("{create}: {failure}"),
            }),
            Ok(()) => Ok(()),
        }
    }

    /// The version of the server's programs.
    pub fn version(&self) -> tools::Version {
        self.tool.version
    }

    /// The folder of the server's programs.
    pub fn tools(&self) -> &Path {
        &self.tool.folder
    }

    /// The folder that holds the socket. It may lie outside the cluster's folder.
    pub fn socket_folder(&self) -> &Path {
        self.socket.path()
    }

    /// The folder that Postgres knows as its data directory. It may lie outside the cluster's folder.
    pub fn data_folder(&self) -> PathBuf {
        self.home.data()
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

    /// Shuts the server down, at first politely, within 13 s. Stopping twice is fine.
    pub async fn stop(&mut self) -> Result<(), Error> {
        if let Some(process) = self.process.take() {
            let status = process.stop(STOP_STEPS).await?;
            tracing::info!(status = process::describe(status), "stopped Postgres");
        }
        process::wait_until_deserted(&self.home.data(), SERVER, KILLED_WITHIN).await?;
        self.socket.remove()
    }

    /// Kills the server as a crash would, and waits until all its processes are gone.
    pub async fn kill(&mut self) -> Result<(), Error> {
        if let Some(process) = self.process.take() {
            process.stop(&[]).await?;
        }
        process::wait_until_deserted(&self.home.data(), SERVER, KILLED_WITHIN).await
    }

    /// Stops the server if it runs, and starts it again under the same URL.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await?;
        self.launch().await
    }

    /// Stops the server and removes everything it had.
    pub async fn destroy(mut self) -> Result<(), Error> {
        self.stop().await?;
        self.home.remove()?;
        files::remove_folder_if_there(&self.home.folder)
    }

    /// Removes a cluster that nobody uses, and stops its server if a launcher that was killed left it
    /// running.
    pub async fn clear(folder: impl AsRef<Path>) -> Result<(), Error> {
        let (folder, _lock) = files::claim(folder.as_ref()).await?;
        let home = Home::existing(&folder, Durability::Durable);
        end_leftover(&home, &place(&home)).await?;
        SocketFolder::remove_noted(&folder)?;
        home.remove()?;
        files::remove_folder_if_there(&folder)
    }

    async fn launch(&mut self) -> Result<(), Error> {
        self.socket.make(self.account)?;
        let process = Process::spawn(
            &self.place,
            self.command(),
            self.account,
            self.options.process_group,
        )?;
        let (socket, within) = (self.socket.file(), self.options.ready_within);
        let ask = || wire::run(&socket, ADMIN, "postgres", "", within);
        self.process = Some(process.ready(&self.place, within, ask).await?);
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = init::command(&self.tool, "postgres", &self.home);
        command.arg("-D").arg(self.home.data());
        let socket = self.socket.path().display();
        let mut settings = vec![
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={socket}"),
            "port=5432".to_owned(),
            format!("max_connections={}", self.options.max_connections),
            "timezone=UTC".to_owned(),
            "log_timezone=UTC".to_owned(),
        ];
        settings.extend(
            durability(self.options.durability)
                .iter()
                .map(|set| (*set).to_owned()),
        );
        for setting in settings {
            command.arg("-c").arg(setting);
        }
        command
    }
}

fn place(home: &Home) -> Place {
    Place {
        server: SERVER,
        log: home.folder.join("postgres.log"),
        pid_file: home.folder.join("postgres.pid"),
        marker: home.data(),
        stop_steps: STOP_STEPS,
    }
}

async fn end_leftover(home: &Home, place: &Place) -> Result<(), Error> {
    process::stop_leftover(place).await?;
    process::wait_until_deserted(&home.data(), SERVER, KILLED_WITHIN).await
}

/// Said on the command line, so that neither the configuration file nor an earlier run decides it.
fn durability(durability: Durability) -> &'static [&'static str] {
    match durability {
        Durability::Durable => &["fsync=on", "synchronous_commit=on", "full_page_writes=on"],
        Durability::Throwaway => &[
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
            "max_wal_size=4GB",
            "checkpoint_timeout=1h",
        ],
    }
}

/// Everything but unreserved characters, as RFC 3986 wants it in any part of a URL.
fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_percent_encoded() {
        assert_eq!(percent_encode("/tmp/a b/ö"), "%2Ftmp%2Fa%20b%2F%C3%B6");
        assert_eq!(percent_encode("ledger_admin-1.~"), "ledger_admin-1.~");
    }

    #[tokio::test]
    async fn a_server_whose_launcher_was_killed_is_stopped_by_the_next_start() {
        let base = tempfile::tempdir().unwrap();
        files::set_mode(base.path(), 0o711).unwrap();
        let options = || PostgresOptions::new(base.path().join("postgres")).throwaway();
        let mut first = Postgres::start(options()).await.unwrap();
        first.create_database("kept").await.unwrap();
        let pid = first.pid().unwrap();
        first.process.take().unwrap().abandon();
        drop(first);
        assert!(
            Path::new(&format!("/proc/{pid}/stat")).exists(),
            "the server still runs"
        );

        let second = Postgres::start(options()).await.unwrap();
        assert_ne!(second.pid(), Some(pid));
        let answer = wire::run(
            &second.socket.file(),
            ADMIN,
            "kept",
            "SELECT 1",
            STATEMENT_WITHIN,
        )
        .await;
        answer.expect("the database is still there");
        second.destroy().await.unwrap();
    }

    #[tokio::test]
    async fn settings_of_durability_reach_the_server() {
        let base = tempfile::tempdir().unwrap();
        for (options, fsync) in [
            (PostgresOptions::new(base.path().join("durable")), "on"),
            (
                PostgresOptions::new(base.path().join("throwaway")).throwaway(),
                "off",
            ),
        ] {
            let postgres = Postgres::start(options).await.unwrap();
            // A division by zero is an answer that a client without results can see.
            let ask = format!("SELECT 1/(current_setting('fsync') <> '{fsync}')::int");
            let answer = wire::run(
                &postgres.socket.file(),
                ADMIN,
                "postgres",
                &ask,
                STATEMENT_WITHIN,
            )
            .await;
            assert!(
                matches!(&answer, Err(wire::Failure::Server { code, .. }) if code == "22012"),
                "{answer:?}"
            );
            postgres.destroy().await.unwrap();
        }
    }
}
