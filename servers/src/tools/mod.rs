//! Where the servers' programs come from.
//!
//! The order of resolution is the same for both servers: a folder given by the caller, the folders
//! in `COMMAND_LEDGER_TOOLS` (separated like those in `PATH`), `.dev/tools` in or above the current
//! folder or that of the executable, `PATH`, and for Postgres `/usr/lib/postgresql/*/bin`, the newest
//! first. A program in a folder that was named must do, or it is an error; elsewhere one that is too
//! old is passed over. A folder in `COMMAND_LEDGER_TOOLS` may hold just one of the two servers.

mod search;
mod version;

use std::path::{Path, PathBuf};

pub use version::Version;

use crate::{Error, account::Account};
pub(crate) use search::SHARED_STATE;
use search::{Candidate, Search};

/// The environment variable that names folders with the servers' programs.
pub const TOOLS_VARIABLE: &str = "COMMAND_LEDGER_TOOLS";

/// Older ones accept what the ledger asks of them and silently do something else.
pub const NATS_VERSION_MIN: Version = Version {
    major: 2,
    minor: 10,
    patch: 0,
};

/// The SQL stays within this version.
pub const POSTGRES_VERSION_MIN: Version = Version {
    major: 15,
    minor: 0,
    patch: 0,
};

/// A server's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tool {
    /// The folder that holds them.
    pub folder: PathBuf,
    /// Their version.
    pub version: Version,
}

impl Tool {
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Finds `postgres` and `initdb` of version 15 or newer. `folder` is one that the user named.
pub async fn postgres(folder: Option<&Path>) -> Result<Tool, Error> {
    let account = Account::for_postgres(Path::new("/nonexistent"))?;
    postgres_for(folder, None, account).await
}

/// Finds `nats-server` of version 2.10 or newer. `folder` is one that the user named.
pub async fn nats(folder: Option<&Path>) -> Result<Tool, Error> {
    let want = Want {
        program: "nats-server",
        also: None,
        min: NATS_VERSION_MIN,
        major: None,
        account: None,
    };
    choose(&want, Search::from_environment(folder).nats()?).await
}

/// Like [`postgres`], of just the major version that existing data needs, run under `account`.
pub(crate) async fn postgres_for(
    folder: Option<&Path>,
    major: Option<u32>,
    account: Option<Account>,
) -> Result<Tool, Error> {
    let want = Want {
        program: "postgres",
        also: Some("initdb"),
        min: POSTGRES_VERSION_MIN,
        major,
        account,
    };
    choose(&want, Search::from_environment(folder).postgres()?).await
}

/// What a program must be.
struct Want {
    program: &'static str,
    /// Another program that must lie beside it.
    also: Option<&'static str>,
    min: Version,
    major: Option<u32>,
    account: Option<Account>,
}

impl Want {
    /// Why a version will not do.
    fn objection(&self, found: Version) -> Option<String> {
        if found < self.min {
            return Some(format!("{} or newer", self.min));
        }
        self.major
            .filter(|major| *major != found.major)
            .map(|major| format!("version {major}, which wrote the data,"))
    }
}

/// The first candidate that will do.
async fn choose(want: &Want, candidates: Vec<Candidate>) -> Result<Tool, Error> {
    let mut passed_over = Vec::new();
    for candidate in candidates {
        let Some(folder) = holds(&candidate.folder, want) else {
            continue;
        };
        let path = folder.join(want.program);
        let found = match version::ask(&path, want.account).await {
            Ok(Some(version)) => Ok((folder, version)),
            Ok(None) => search::copy_within_reach(&folder, want.account)
                .await
                .map_err(|error| Error::ToolUnreadable {
                    path: path.clone(),
                    found: error.to_string(),
                }),
            Err(error) => Err(error),
        };
        match found {
            Ok((folder, version)) => match want.objection(version) {
                None => {
                    tracing::debug!(program = want.program, folder = %folder.display(), %version, "found");
                    return Ok(Tool { folder, version });
                }
                Some(needed) if candidate.named => {
                    return Err(Error::ToolVersion {
                        path,
                        found: version,
                        needed,
                    });
                }
                Some(_) => passed_over.push(format!("{} is {version}", path.display())),
            },
            Err(error) if candidate.named => return Err(error),
            Err(error) => passed_over.push(error.to_string()),
        }
    }
    Err(Error::ToolMissing {
        program: want.program,
        needed: want.major.map_or(want.min, |major| Version {
            major,
            minor: 0,
            patch: 0,
        }),
        passed_over: if passed_over.is_empty() {
            String::new()
        } else {
            format!(" ({})", passed_over.join("; "))
        },
    })
}

/// The folder that really holds the programs, links resolved, if this one has them.
fn holds(folder: &Path, want: &Want) -> Option<PathBuf> {
    let program = folder.join(want.program).canonicalize().ok()?;
    let real = program.parent()?;
    let complete = program.is_file() && want.also.is_none_or(|also| real.join(also).is_file());
    complete.then(|| real.to_owned())
}
