//! Why a server could not be found, started, asked or stopped.

use std::{io, path::PathBuf, process::ExitStatus};

use crate::tools::Version;

/// Why a server could not be found, started, asked or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No folder in the order of resolution holds the program.
    #[error(
        "no usable {program} {needed} or newer was found{passed_over}; run `make services`, \
         or name the folder that holds it in COMMAND_LEDGER_TOOLS"
    )]
    ToolMissing {
        /// The program's name.
        program: &'static str,
        /// The oldest version that would do, or the major version that the data needs.
        needed: Version,
        /// The ones that were found and why they would not do; empty if there were none.
        passed_over: String,
    },
    /// A folder that was named explicitly holds a program that is too old or of another major version.
    #[error(
        "{path} is version {found}, but {needed} is needed; run `make services` and leave the folder out"
    )]
    ToolVersion {
        /// The program.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The version that would do, in words.
        needed: String,
    },
    /// A folder that was named explicitly does not hold the program.
    #[error(
        "{folder} holds no {program}; name the folder with the programs in it, or leave it out"
    )]
    ToolFolder {
        /// The folder that was named.
        folder: PathBuf,
        /// The program that was looked for.
        program: &'static str,
    },
    /// A program does not run, or does not tell its version.
    #[error("{path} does not tell its version: {found}")]
    ToolUnreadable {
        /// The program.
        path: PathBuf,
        /// What happened instead.
        found: String,
    },
    /// Another process has started a server on the folder and still runs.
    #[error(
        "{folder} is in use by another running process; stop that one, or choose another folder"
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The data belongs to another account than the one that this process may use.
    #[error(
        "{folder} belongs to the account with id {owner}; start as root or as that account, or remove the folder"
    )]
    OtherOwner {
        /// The data folder.
        folder: PathBuf,
        /// The id of the account that owns it.
        owner: u32,
    },
    /// A server wrote its data with a version that can no longer be found.
    #[error(
        "{folder} was written by Postgres {found}, which is not here ({reason}); dump it with that version and load the dump into a \
         new folder, or remove the folder"
    )]
    OtherMajor {
        /// The data folder.
        folder: PathBuf,
        /// The major version that wrote it.
        found: u32,
        /// What was found instead.
        reason: String,
    },
    /// A file, folder or process could not be handled.
    #[error("could not {doing} {path}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The system gave no random bytes for the token.
    #[error("the system gives no random bytes")]
    Random(#[source] rand::rngs::SysError),
    /// `initdb` failed.
    #[error("initdb failed ({status}); it said:\n{output}")]
    Init {
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// The server ended before it answered.
    #[error("{server} ended ({status}) before it was ready; the end of its log:\n{log}")]
    Exited {
        /// Which server.
        server: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The server did not answer in time.
    #[error("{server} did not answer within {seconds} s ({reason}); the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        server: &'static str,
        /// The deadline, in seconds.
        seconds: u64,
        /// What the last attempt met.
        reason: String,
        /// The last lines of its log.
        log: String,
    },
    /// A process outlived even SIGKILL, which only a fault of the kernel or a disk explains.
    #[error("process {pid} of {server} is still there after SIGKILL")]
    NotStopped {
        /// Which server.
        server: &'static str,
        /// Its process id.
        pid: i32,
    },
    /// The server is not running: it was stopped, killed or died.
    #[error("{server} is not running; restart it first")]
    NotRunning {
        /// Which server.
        server: &'static str,
    },
    /// A database's name would need quoting.
    #[error(
        "{name:?} cannot name a database here: use a-z, 0-9 and _, at most 63, not starting with a digit"
    )]
    DatabaseName {
        /// The name that was given.
        name: String,
    },
    /// A server gave an answer that was not expected.
    #[error("{server} answered: {answer}")]
    Refused {
        /// Which server.
        server: &'static str,
        /// Its words.
        answer: String,
    },
}

impl Error {
    /// For `map_err` on operations of the file system.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io {
            doing,
            path,
            source,
        }
    }
}
