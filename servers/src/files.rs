//! Folders, locks and logs.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tokio::time::{Instant, sleep};

use crate::{
    Error,
    limits::{LOCK_WITHIN, LOG_BYTES_MAX, LOG_TAIL_BYTES_MAX, LOG_TAIL_LINES_MAX, POLL_EVERY},
};

/// Makes a server's folder and takes its lock, which lasts as long as the returned file. The path
/// comes back absolute, without links.
pub(crate) async fn claim(folder: &Path) -> Result<(PathBuf, File), Error> {
    fs::create_dir_all(folder).map_err(Error::io("make the folder", folder))?;
    let folder = folder
        .canonicalize()
        .map_err(Error::io("resolve the folder", folder))?;
    let path = folder.join("lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    let deadline = Instant::now() + LOCK_WITHIN;
    // The lock belongs to this process and goes with it, however it ends. A child that another
    // thread has just started holds it too until its program is loaded: hence more than one try.
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok((folder, lock)),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(POLL_EVERY).await,
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder }),
            Err(TryLockError::Error(source)) => {
                return Err(Error::Io {
                    doing: "lock",
                    path,
                    source,
                });
            }
        }
    }
}

/// Reads a small file of our own; one that is not there is none.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io {
            doing: "read",
            path: path.into(),
            source,
        }),
    }
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_if_there(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Io {
            doing: "remove",
            path: path.into(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Removes a folder and all that is in it; one that is not there is fine.
pub(crate) fn remove_folder_if_there(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Io {
            doing: "remove",
            path: path.into(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Writes a file that only this account may read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    // A new file takes the old one's place, so that no reader sees half of it.
    let new = path.with_extension("new");
    remove_if_there(&new)?;
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options
        .create_new(true)
        .write(true)
        .open(&new)
        .map_err(Error::io("write", &new))?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(Error::io("write", &new))?;
    fs::rename(&new, path).map_err(Error::io("write", path))
}

/// Sets the permissions of a file or folder.
pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::io("set the permissions of", path))
}

/// Copies a folder with its permissions, for an account that cannot reach the original.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    set_folder_open(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

fn set_folder_open(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Opens a server's log for appending; a long one is put aside first.
pub(crate) fn open_log(path: &Path) -> Result<File, Error> {
    if fs::metadata(path).is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.1")).map_err(Error::io("put aside", path))?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(Error::io("open", path))
}

/// The last lines of a log, for an error. A log that cannot be read says so instead.
pub(crate) fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        file.seek(SeekFrom::Start(bytes.saturating_sub(LOG_TAIL_BYTES_MAX)))?;
        let mut end = Vec::new();
        file.take(LOG_TAIL_BYTES_MAX).read_to_end(&mut end)?;
        Ok(end)
    };
    match read() {
        Ok(end) => last_lines(&String::from_utf8_lossy(&end)),
        Err(error) => format!("({} cannot be read: {error})", path.display()),
    }
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LOG_TAIL_LINES_MAX);
    lines.get(from..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_is_claimed_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let (_, lock) = claim(folder.path()).await.unwrap();
        assert!(matches!(
            claim(folder.path()).await,
            Err(Error::InUse { .. })
        ));
        drop(lock);
        claim(folder.path()).await.unwrap();
    }

    #[test]
    fn the_tail_of_a_log_is_its_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("server.log");
        let lines: Vec<String> = (0..10_000).map(|line| format!("line {line}")).collect();
        fs::write(&log, lines.join("\n")).unwrap();
        let tail = tail(&log);
        assert_eq!(tail.lines().count(), LOG_TAIL_LINES_MAX);
        assert!(tail.ends_with("line 9999"), "{tail}");
        assert!(super::tail(&folder.path().join("none")).contains("cannot be read"));
    }

    #[test]
    fn a_private_file_is_replaced_whole_and_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write_private(&path, "a long first text").unwrap();
        write_private(&path, "second").unwrap();
        assert_eq!(read_if_there(&path).unwrap().as_deref(), Some("second"));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
