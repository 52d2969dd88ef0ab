//! What a witness must never forget: of each log, the checkpoint that it cosigned last.
//!
//! One file for each log, with the note as the log signed it, so its signature shows whether it is
//! whole. The folder is one process's at a time: it holds a lock that ends with the process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ledger_protocol::tlog::{Checkpoint, Note, TreeHead, VerifierKey};
use sha2::{Digest as _, Sha256};

use crate::durable;
use crate::limits::ADD_CHECKPOINT_BYTES_MAX;

const LOCK: &str = "lock";
/// Bytes of an origin's hash that name its file.
const NAME_BYTES: usize = 16;

/// Why a witness cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Unopened {
    /// A key of another kind.
    #[error("the key of the log `{origin}` makes no checkpoints; its type must be 0x01")]
    NoLogKey {
        /// The log.
        origin: String,
    },
    /// A witness that is its own log would prove nothing.
    #[error("the log `{origin}` has the witness's own key; each must have its own")]
    OwnKey {
        /// The log.
        origin: String,
    },
    /// Another process has the folder.
    #[error("another process uses {}", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// The folder cannot be read or written.
    #[error("{} cannot be used", path.display())]
    Io {
        /// What of it.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what was written.
    #[error(
        "{} is no checkpoint of the log `{origin}` by a key that is known ({problem}): put into it the \
         newest checkpoint that this witness cosigned, and do not begin without it",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The log.
        origin: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The folder, while it is this process's.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// For flushing what is renamed in it.
    handle: File,
    /// Held until it is dropped.
    _lock: File,
}

/// The file of one log.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder unless it is there, and takes it.
    pub(super) fn claim(path: &Path) -> Result<Self, Unopened> {
        let io = |source| Unopened::Io {
            path: path.to_owned(),
            source,
        };
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(io)?;
        if is_new && let Some(above) = path.canonicalize().map_err(io)?.parent() {
            // A folder that a crash takes back would take what is in it, too.
            File::open(above)
                .and_then(|above| above.sync_all())
                .map_err(io)?;
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK))
            .map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.to_owned();
                return Err(Unopened::Taken { path });
            }
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        Ok(Self {
            path: path.to_owned(),
            handle: File::open(path).map_err(io)?,
            _lock: lock,
        })
    }

    /// The file of the log with this origin, which may be any text.
    pub(super) fn of(&self, origin: &str) -> Kept {
        let hash: [u8; 32] = Sha256::digest(origin).into();
        let name = hex::encode(hash.get(..NAME_BYTES).unwrap_or(&hash));
        let path = self.path.join(format!("{name}.checkpoint"));
        Kept { path }
    }

    /// Keeps a checkpoint in place of the one before, durably.
    pub(super) fn keep(&self, kept: &Kept, note: &str) -> io::Result<()> {
        durable::replace(&self.handle, &kept.path, note)
    }
}

impl Kept {
    /// Where it is.
    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What was kept; none when there is no file.
    pub(super) fn read(
        &self,
        origin: &str,
        keys: &[VerifierKey],
    ) -> Result<Option<TreeHead>, Unopened> {
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|file| {
            file.take(ADD_CHECKPOINT_BYTES_MAX as u64 + 1)
                .read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                let path = self.path.clone();
                return Err(Unopened::Io { path, source });
            }
        }
        let head = head(&bytes, origin, keys).map_err(|problem| Unopened::Damaged {
            path: self.path.clone(),
            origin: origin.to_owned(),
            problem,
        })?;
        Ok(Some(head))
    }
}

fn head(bytes: &[u8], origin: &str, keys: &[VerifierKey]) -> Result<TreeHead, String> {
    let note = Note::parse(bytes).map_err(|error| format!("it {error}"))?;
    note.verify(keys).map_err(|error| format!("it {error}"))?;
    let checkpoint = Checkpoint::parse(note.text()).map_err(|error| format!("it {error}"))?;
    if checkpoint.origin() != origin {
        return Err("it is of another log".to_owned());
    }
    Ok(*checkpoint.head())
}
