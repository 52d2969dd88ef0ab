//! The folder of the Unix socket, whose path has to be short.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::home::Home;
use crate::{Error, account::Account, files, limits::SOCKET_FOLDER_BYTES_MAX};

/// Where a folder goes when the cluster's own path is too long.
const SHORT_PARENT: &str = "/tmp";
const SHORT_PREFIX: &str = "ledger-pg-";
/// Remembers such a folder in the cluster's folder, so that the URL stays the same.
const NOTE: &str = "socket-folder";

/// The folder that holds the socket; only its owner, and root, may enter it.
#[derive(Debug)]
pub(super) struct SocketFolder {
    path: PathBuf,
    /// Whether it lies outside the cluster and goes when the server stops.
    short: bool,
    note: PathBuf,
}

impl SocketFolder {
    /// `run` beside the data if its path fits, else a folder under `/tmp`: the one of the last run if
    /// it can be had.
    pub(super) fn choose(
        folder: &Path,
        home: &Home,
        account: Option<Account>,
    ) -> Result<SocketFolder, Error> {
        let note = folder.join(NOTE);
        let beside = home.path().join("run");
        if fits(&beside) {
            return Ok(SocketFolder {
                path: beside,
                short: false,
                note,
            });
        }
        let noted = files::read_if_there(&note)?.map(|text| PathBuf::from(text.trim()));
        let path = match noted.filter(|path| is_short(path)) {
            Some(path) if !path.exists() || belongs_to(&path, account) => path,
            _ => fresh()?,
        };
        files::write_private(&note, &format!("{}\n", path.display()))?;
        Ok(SocketFolder {
            path,
            short: true,
            note,
        })
    }

    /// Makes the folder, before each start of the server.
    pub(super) fn make(&mut self, account: Option<Account>) -> Result<(), Error> {
        let mut made = fs::DirBuilder::new().mode(0o700).create(&self.path);
        if made.is_err() && self.short && !belongs_to(&self.path, account) {
            // Somebody else took the name while the server was stopped.
            self.path = fresh()?;
            files::write_private(&self.note, &format!("{}\n", self.path.display()))?;
            made = fs::DirBuilder::new().mode(0o700).create(&self.path);
        }
        match (made, account) {
            (Ok(()), Some(account)) => account.own(&self.path),
            (Err(_), _) if belongs_to(&self.path, account) => Ok(()),
            (made, _) => made.map_err(Error::io("make the folder", &self.path)),
        }
    }

    /// Removes the folder of a run that was killed.
    pub(super) fn remove_noted(folder: &Path) -> Result<(), Error> {
        let note = folder.join(NOTE);
        let noted = files::read_if_there(&note)?.map(|text| PathBuf::from(text.trim()));
        match noted.filter(|path| is_short(path)) {
            Some(path) => SocketFolder {
                path,
                short: true,
                note,
            }
            .remove(),
            None => Ok(()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The socket itself.
    pub(super) fn file(&self) -> PathBuf {
        self.path.join(".s.PGSQL.5432")
    }

    /// Removes a folder outside the cluster; the note stays, for the next start.
    pub(super) fn remove(&self) -> Result<(), Error> {
        if !self.short || !self.path.exists() {
            return Ok(());
        }
        for file in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"] {
            files::remove_if_there(&self.path.join(file))?;
        }
        fs::remove_dir(&self.path).map_err(Error::io("remove", &self.path))
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Short enough, and free of what Postgres' list of folders would split or quote.
fn fits(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(byte);
    bytes.len() < SOCKET_FOLDER_BYTES_MAX && bytes.iter().all(plain)
}

/// Whether a noted path is one that [`fresh`] could have made: nothing else is ever removed.
fn is_short(path: &Path) -> bool {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    path.parent() == Some(Path::new(SHORT_PARENT))
        && name.is_some_and(|name| name.starts_with(SHORT_PREFIX))
        && fits(path)
}

/// Whether a folder is there and is the account's alone.
fn belongs_to(path: &Path, account: Option<Account>) -> bool {
    let owner = account.map_or_else(
        || rustix::process::geteuid().as_raw(),
        |account| account.uid,
    );
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == owner && found.mode() & 0o777 == 0o700)
}

/// A name that nobody has, by making the folder and removing it again.
fn fresh() -> Result<PathBuf, Error> {
    let made = tempfile::Builder::new()
        .prefix(SHORT_PREFIX)
        .tempdir_in(SHORT_PARENT)
        .map_err(Error::io("make a folder in", SHORT_PARENT))?;
    Ok(made.path().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_and_plain_paths_fit_a_socket() {
        assert!(fits(Path::new("/srv/.ledger/postgres/run")));
        assert!(!fits(Path::new(&format!(
            "/{}",
            "a".repeat(SOCKET_FOLDER_BYTES_MAX)
        ))));
        assert!(!fits(Path::new("/srv/a,b/run")));
        assert!(!fits(Path::new("/srv/a b/run")));
    }

    #[test]
    fn a_note_can_only_name_a_folder_of_ours() {
        assert!(is_short(Path::new("/tmp/ledger-pg-x1y2z3")));
        for other in [
            "/tmp",
            "/tmp/other",
            "/etc/ledger-pg-a",
            "/tmp/ledger-pg-a/../b",
            "",
        ] {
            assert!(!is_short(Path::new(other)), "{other}");
        }
    }
}
