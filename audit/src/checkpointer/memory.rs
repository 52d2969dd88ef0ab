//! What the log's signer must never forget (SPEC L11, U1): the last checkpoint that it signed.
//!
//! It stands in a file and not in the database, because the database is what may be put back to an
//! older state: whoever then signed on would sign two histories. The file holds the signed note
//! itself, so its own signature shows whether it is whole, and a lost one can be filled again with
//! the newest checkpoint that anybody has.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ledger_protocol::tlog::{Checkpoint, Note, TreeHead, VerifierKey};

use crate::durable;
use crate::limits::MEMORY_BYTES_MAX;

/// A memory that cannot be relied upon.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    /// The file, or its folder, cannot be read or written.
    #[error("{} cannot be used", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is not what was written.
    #[error(
        "{} is damaged ({problem}): put into it the newest checkpoint of this log that anybody has, \
         as it was served",
        path.display()
    )]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Another process signs with it at this moment, or signed since it was read.
    #[error("another process signs with {}", path.display())]
    Taken {
        /// Its path.
        path: PathBuf,
    },
}

/// A checkpoint that was signed with the log's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) head: TreeHead,
    pub(super) note: String,
}

impl Signed {
    /// Reads a note that must be this key's.
    pub(super) fn read(note: &str, key: &VerifierKey) -> Result<Self, String> {
        let parsed = Note::parse(note.as_bytes()).map_err(|error| error.to_string())?;
        let verified = parsed.verify(std::slice::from_ref(key));
        verified.map_err(|error| error.to_string())?;
        let checkpoint = Checkpoint::parse(parsed.text()).map_err(|error| error.to_string())?;
        if checkpoint.origin() != key.name().as_str() {
            return Err("is of another log".to_owned());
        }
        Ok(Self {
            head: *checkpoint.head(),
            note: note.to_owned(),
        })
    }
}

/// The file with the last signed checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    path: PathBuf,
    key: VerifierKey,
}

impl Memory {
    pub(super) const fn new(path: PathBuf, key: VerifierKey) -> Self {
        Self { path, key }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What was signed last; none when there is no file.
    pub(super) fn read(&self) -> Result<Option<Signed>, MemoryError> {
        let mut text = String::new();
        let read = File::open(&self.path)
            .and_then(|file| file.take(MEMORY_BYTES_MAX).read_to_string(&mut text));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(self.damaged("it is no text".to_owned()));
            }
            Err(error) => return Err(self.io(error)),
        }
        let signed = Signed::read(&text, &self.key);
        signed
            .map(Some)
            .map_err(|problem| self.damaged(format!("it {problem}")))
    }

    /// Remembers a checkpoint in place of the one before, whole or not at all, and durably. Refused
    /// when another process remembered one meanwhile.
    pub(super) fn replace(&self, before: Option<&Signed>, note: &str) -> Result<(), MemoryError> {
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let folder = File::open(folder).map_err(|error| self.io(error))?;
        match folder.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(self.taken()),
            Err(TryLockError::Error(error)) => return Err(self.io(error)),
        }
        if self.read()?.as_ref() != before {
            return Err(self.taken());
        }
        durable::replace(&folder, &self.path, note).map_err(|error| self.io(error))
    }

    fn io(&self, source: io::Error) -> MemoryError {
        let path = self.path.clone();
        MemoryError::Io { path, source }
    }

    fn damaged(&self, problem: String) -> MemoryError {
        let path = self.path.clone();
        MemoryError::Damaged { path, problem }
    }

    fn taken(&self) -> MemoryError {
        let path = self.path.clone();
        MemoryError::Taken { path }
    }
}
