//! The folder in which an agent keeps what must outlive it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// Owner only: the folder holds a private key, and payloads.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// A state directory that no other agent uses while this value lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
    /// Held while a file is changed by what it holds.
    changing: Mutex<()>,
}

impl StateDir {
    /// Makes the folder if there is none, and takes it for this process; an agent that has it
    /// already makes this fail.
    pub fn open(path: &Path) -> Result<Self, Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(path)
            .map_err(Error::file("make", path))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(&lock_path)
            .map_err(Error::file("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_path_buf(),
                _lock: lock,
                changing: Mutex::new(()),
            }),
            Err(TryLockError::WouldBlock) => Err(Error::StateDirTaken {
                path: path.to_path_buf(),
            }),
            Err(TryLockError::Error(source)) => Err(Error::file("lock", &lock_path)(source)),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a file of the folder holds; `None` when there is no such file.
    pub(crate) fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(Error::file("read", &path))?;
        if bytes.len() as u64 > bytes_max {
            return Err(Error::FileTooLarge { path, bytes_max });
        }
        Ok(Some(bytes))
    }

    /// Changes a file by what it holds, at once or not at all, and durably. Changes wait for each
    /// other, so that none is lost.
    pub(crate) fn change(
        &self,
        name: &str,
        bytes_max: u64,
        change: impl FnOnce(Option<Vec<u8>>) -> Result<Vec<u8>, Error>,
    ) -> Result<(), Error> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(self.read(name, bytes_max)?)?;
        self.write(name, &changed)
    }

    /// Puts a file into the folder, at once or not at all, and durably.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        replace(&self.path, name, bytes).map(|_| ())
    }
}

/// Writes a new file beside the old one, makes it durable and takes the old one's place with it.
/// Answers the open file, at its end.
pub(crate) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> Result<File, Error> {
    let new_path = folder.join(format!("{name}.new"));
    let written = write_new(&new_path, bytes).and_then(|file| {
        let path = folder.join(name);
        std::fs::rename(&new_path, &path).map_err(Error::file("replace", &path))?;
        Ok(file)
    });
    match written {
        Ok(file) => sync_folder(folder).map(|()| file),
        Err(error) => {
            // On a full disk its blocks are needed. That it stays is no harm otherwise.
            let _ = std::fs::remove_file(&new_path);
            Err(error)
        }
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<File, Error> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(FILE_MODE)
        .open(path)
        .map_err(Error::file("make", path))?;
    file.write_all(bytes).map_err(Error::file("write", path))?;
    file.sync_all().map_err(Error::file("sync", path))?;
    Ok(file)
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::file("sync", folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn d5_two_agents_cannot_share_a_state_directory() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let first = StateDir::open(&path).unwrap();
        let second = StateDir::open(&path);
        assert!(matches!(second, Err(Error::StateDirTaken { .. })));
        drop(first);
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn p7_files_are_for_their_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("state");
        let dir = StateDir::open(&path).unwrap();
        dir.write("key", b"secret").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("key"))), (0o700, 0o600));
        assert_eq!(dir.read("key", 6).unwrap().unwrap(), b"secret");
        assert!(matches!(
            dir.read("key", 5),
            Err(Error::FileTooLarge { .. })
        ));
        assert_eq!(dir.read("other", 5).unwrap(), None);
    }
}
