//! Where the log is kept besides its database.

use clap::Args;
use ledger_audit::Archive;

/// An archive that is read from.
#[derive(Debug, Args)]
pub(crate) struct ArchiveOption {
    /// The archive with the events that have left the database (`retention`), as `serve --log-archive`
    /// has it
    #[arg(long, value_name = "FOLDER", value_parser = parse)]
    pub(crate) archive: Option<Archive>,
}

/// Reads where an archive is.
pub(crate) fn parse(text: &str) -> Result<Archive, String> {
    if text.is_empty() {
        return Err("names no folder".to_owned());
    }
    Ok(Archive::folder(text))
}
