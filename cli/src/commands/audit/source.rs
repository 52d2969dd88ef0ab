//! Where `audit replay --at` and `audit diff` read the log: in the database, or in an export.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use clap::Args;
use ledger_audit::{Error, History, Look, Trusted};

use super::progress::Progress;
use crate::archive::ArchiveOption;
use crate::exit::{Failure, Meaning};
use crate::limits::{CONNECTIONS_OF_ONE_CALL, EXPORT_READ_BYTES};
use crate::log::named_key;
use crate::postgres;
use crate::secret::Secret;

#[derive(Debug, Args)]
pub(super) struct Source {
    /// Read an export and no database. It is believed as it is: give --key, or verify it before
    #[arg(long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Verify the export first, as `audit verify` does, with this verifier key of the log or the one in
    /// this file
    #[arg(long, value_name = "KEY", requires = "file")]
    key: Option<String>,
    /// URL of Postgres 15 or newer, `postgres://USER:PASSWORD@HOST/DATABASE`
    #[arg(
        long,
        env = "COMMAND_LEDGER_POSTGRES",
        value_name = "URL",
        hide_env_values = true,
        required_unless_present = "file"
    )]
    postgres: Option<Secret>,
    #[command(flatten)]
    pub(super) archive: ArchiveOption,
}

impl Source {
    /// The database, which was asked for as the only source.
    pub(super) fn database(&self) -> Result<&Secret, Failure> {
        let postgres = self.postgres.as_ref();
        postgres.ok_or_else(|| Failure::usage("give --postgres, or --file with an export"))
    }

    /// The log, to be read as often as is needed.
    pub(super) async fn open(&self) -> Result<History, Failure> {
        let Some(file) = &self.file else {
            let pool = postgres::connect(self.database()?, CONNECTIONS_OF_ONE_CALL).await?;
            let archive = self.archive.archive.clone();
            let history = History::of_database(&pool, archive).await;
            return history.map_err(super::told);
        };
        if let Some(key) = &self.key {
            verify(file, key)?;
        }
        Ok(History::File(file.clone()))
    }
}

/// Nothing else happens in this process, so nothing waits for it.
fn verify(path: &Path, key: &str) -> Result<(), Failure> {
    let trusted = Trusted::new(named_key("--key", key)?, Vec::new(), 0);
    let trusted = trusted.or_usage("--key says nothing about a log")?;
    let file = File::open(path).map_err(Error::File).map_err(super::told)?;
    let file = BufReader::with_capacity(EXPORT_READ_BYTES, file);
    let mut progress = Progress::of("verified");
    let told = &mut |done, all| progress.tell(done, all);
    let verified = ledger_audit::verify(file, &trusted, Look::Everything, told);
    let verified = verified.map_err(Error::File).map_err(super::told)?;
    match verified.problems.first() {
        None => Ok(()),
        Some(first) => Err(Failure::failed(format!(
            "{} is not what the log's key vouches for ({} problems), the first: {first}",
            path.display(),
            verified.problems_total
        ))),
    }
}
