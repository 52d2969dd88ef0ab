//! Files that must be there, whole, after any crash.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Anybody may read them: they hold what was published, or is about to be.
const MODE: u32 = 0o644;

/// Writes a file in place of the one before, whole or not at all, and durably: when this returns, file
/// and folder are flushed. `folder` is that of the file; one caller writes at a time.
pub(crate) fn replace(folder: &File, path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(MODE)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    folder.sync_all()
}
