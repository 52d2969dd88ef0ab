//! An archive in a folder.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::NamedTempFile;

use super::ArchiveError;

/// Whoever serves the folder reads its files.
const FILE_MODE: u32 = 0o644;

#[derive(Debug, Clone)]
pub(super) struct Folder {
    root: Arc<PathBuf>,
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.display().fmt(f)
    }
}

impl Folder {
    pub(super) fn new(root: PathBuf) -> Self {
        Self {
            root: Arc::new(root),
        }
    }

    pub(super) async fn read(
        &self,
        file: String,
        most: usize,
    ) -> Result<Option<Vec<u8>>, ArchiveError> {
        let path = self.root.join(&file);
        let bytes = on_thread(file.clone(), move || read(&path, most)).await?;
        if bytes.as_ref().is_some_and(|bytes| bytes.len() > most) {
            return Err(ArchiveError::TooLong { file, most });
        }
        Ok(bytes)
    }

    /// Writes a file, whole or not at all.
    pub(super) async fn replace(&self, file: String, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        let path = self.root.join(&file);
        on_thread(file, move || replace(&path, &bytes)).await
    }

    /// Everything that was written, at once: a flush for each of a million files would take hours.
    pub(super) async fn flush(&self) -> Result<(), ArchiveError> {
        let root = Arc::clone(&self.root);
        on_thread(".".to_owned(), move || {
            let root = File::open(root.as_path())?;
            Ok(rustix::fs::syncfs(&root)?)
        })
        .await
    }

    /// Removes a folder with all that is in it.
    pub(super) async fn remove(&self, folder: String) -> Result<(), ArchiveError> {
        let path = self.root.join(&folder);
        on_thread(folder, move || match fs::remove_dir_all(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        })
        .await
    }
}

async fn on_thread<T: Send + 'static>(
    file: String,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ArchiveError> {
    let done = tokio::task::spawn_blocking(work).await?;
    done.map_err(|source| ArchiveError::File { file, source })
}

/// A file, and one byte more than `most` of one that is longer.
fn read(path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    let readable = fs::Permissions::from_mode(FILE_MODE);
    file.as_file().set_permissions(readable)?;
    file.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}
