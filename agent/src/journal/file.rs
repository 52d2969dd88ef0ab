//! The journal as a file.
//!
//! A header: magic, the journal's id, a checksum. Then records: the length of the body, a
//! checksum of the body, a checksum of these two, the body. Lengths and checksums are 32 bits,
//! big-endian; a body is one `Record` as canonical MessagePack.
//!
//! What a crash can leave behind is told from what only damage can: a process that dies, or a
//! machine that loses power, leaves a last record that ends early, or zeros. That tail was never
//! durable, so nothing was done or said because of it, and it is cut. Anything else means that
//! records which were acted upon may be missing or altered: the journal is lost, is put aside for
//! people to look at, and a new one begins under a new id.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ledger_protocol::daemon::Record;
use ledger_protocol::id::JournalId;
use rustix::io::Errno;
use tracing::{error, warn};

use super::{JournalStore, Opened};
use crate::error::Error;
use crate::limits::{JOURNAL_BYTES_MAX, JOURNAL_RECORD_BYTES_MAX, LOST_JOURNALS_MAX};
use crate::state_dir::{StateDir, replace, sync_folder};

#[cfg(test)]
mod tests;

const NAME: &str = "journal";
const MAGIC: [u8; 8] = *b"CLJRNL1\n";
const HEADER_BYTES: usize = 8 + 16 + 4;
const RECORD_HEADER_BYTES: usize = 12;

/// A journal file that is open for more records.
#[derive(Debug)]
pub struct FileJournal {
    folder: PathBuf,
    /// A write goes on when whoever asked for it is dropped, and nobody else may open the journal
    /// before it is done.
    lock: Option<Arc<StateDir>>,
    journal_id: JournalId,
    file: File,
    /// Where the last whole record ends, in bytes.
    bytes: u64,
    /// A write failed, so that it is not known what the disk holds; only a rewrite helps.
    broken: bool,
}

/// What reading found.
enum Found {
    Whole,
    /// The last record ends early; the file is good up to this length.
    Torn {
        good_bytes: usize,
    },
}

/// Not what this journal wrote.
struct Damage {
    at: usize,
    what: &'static str,
}

impl FileJournal {
    pub(super) fn open(
        folder: &Path,
        lock: Option<Arc<StateDir>>,
        new_id: JournalId,
    ) -> Result<Opened, Error> {
        let path = folder.join(NAME);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Self::create(folder, lock, new_id);
            }
            // A disk that has lost the file's blocks has lost the journal.
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Vec::new(),
            Err(source) => return Err(Error::file("read", &path)(source)),
        };
        let mut records = Vec::new();
        let found = match scan(&bytes, &mut records) {
            Ok((journal_id, found)) => Ok((journal_id, found)),
            Err(damage) => {
                error!(at = damage.at, what = damage.what, "the journal is damaged");
                Err(())
            }
        };
        let Ok((journal_id, found)) = found else {
            set_aside(folder)?;
            return Self::create(folder, lock, new_id);
        };
        let file = File::options()
            .append(true)
            .open(&path)
            .map_err(Error::file("open", &path))?;
        let mut good_bytes = bytes.len();
        if let Found::Torn { good_bytes: good } = found {
            let cut = bytes.len() - good;
            warn!(
                cut_bytes = cut,
                good_bytes = good,
                "the journal's last record was not written whole; it was never acted upon, and is cut"
            );
            file.set_len(good as u64)
                .and_then(|()| file.sync_all())
                .map_err(Error::file("cut", &path))?;
            good_bytes = good;
        }
        // What was read may not be durable yet, when it was written right before a crash of the
        // process: it is, before anything is done because of it.
        file.sync_all().map_err(Error::file("sync", &path))?;
        sync_folder(folder)?;
        let store = JournalStore::File(Self {
            folder: folder.to_path_buf(),
            lock,
            journal_id,
            file,
            bytes: good_bytes as u64,
            broken: false,
        });
        Ok(Opened {
            store,
            journal_id,
            records,
        })
    }

    fn create(
        folder: &Path,
        lock: Option<Arc<StateDir>>,
        journal_id: JournalId,
    ) -> Result<Opened, Error> {
        let bytes = header(journal_id);
        let file = replace(folder, NAME, &bytes)?;
        let store = JournalStore::File(Self {
            folder: folder.to_path_buf(),
            lock,
            journal_id,
            file,
            bytes: bytes.len() as u64,
            broken: false,
        });
        Ok(Opened {
            store,
            journal_id,
            records: Vec::new(),
        })
    }

    /// Puts this journal aside, because what it holds makes no sense, and begins a new one.
    pub(crate) fn lose(self, new_id: JournalId) -> Result<Opened, Error> {
        set_aside(&self.folder)?;
        Self::create(&self.folder, self.lock, new_id)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    pub(super) fn append<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record>,
    ) -> Result<(), Error> {
        if self.broken {
            return Err(Error::JournalBroken { path: self.path() });
        }
        let mut bytes = Vec::new();
        let mut urgent = false;
        for record in records {
            urgent |= record.is_urgent();
            put(record, &mut bytes)?;
        }
        let written = self.file.write_all(&bytes).and_then(|()| {
            if urgent {
                self.file.sync_data()
            } else {
                Ok(())
            }
        });
        if let Err(source) = written {
            // The kernel may have dropped what it could not write and call the next sync a
            // success, so nothing is appended to this file any more.
            self.broken = true;
            let _ = self.file.set_len(self.bytes);
            return Err(Error::file("write", &self.path())(source));
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn rewrite(&mut self, records: &[Record]) -> Result<(), Error> {
        let mut bytes = header(self.journal_id);
        for record in records {
            put(record, &mut bytes)?;
        }
        // Whatever fails from here on, it is not known which of the two files a crash would find.
        self.broken = true;
        self.file = replace(&self.folder, NAME, &bytes)?;
        self.bytes = bytes.len() as u64;
        self.broken = false;
        Ok(())
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let length = std::fs::metadata(path)?.len();
    if length > JOURNAL_BYTES_MAX {
        // Read no further: the scan takes it for damage.
        return Ok(Vec::new());
    }
    std::fs::read(path)
}

fn header(journal_id: JournalId) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(journal_id.uuid().into_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    bytes
}

fn put(record: &Record, bytes: &mut Vec<u8>) -> Result<(), Error> {
    let body = record.encode().map_err(|source| Error::Record { source })?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= JOURNAL_RECORD_BYTES_MAX);
    let length = length.ok_or(Error::RecordTooLarge { bytes: body.len() })?;
    let from = bytes.len();
    bytes.extend(length.to_be_bytes());
    bytes.extend(crc32fast::hash(&body).to_be_bytes());
    bytes.extend(crc32fast::hash(&bytes[from..]).to_be_bytes());
    bytes.extend(body);
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    bytes.try_into().ok().map(u32::from_be_bytes)
}

fn scan(bytes: &[u8], records: &mut Vec<Record>) -> Result<(JournalId, Found), Damage> {
    let damage = |at, what| Damage { at, what };
    let header = bytes.get(..HEADER_BYTES);
    let header = header.ok_or(damage(0, "the header is not whole"))?;
    let sum = number(header, HEADER_BYTES - 4);
    if header[..8] != MAGIC || sum != Some(crc32fast::hash(&header[..HEADER_BYTES - 4])) {
        return Err(damage(0, "the header is not one of this version"));
    }
    let mut id = [0; 16];
    id.copy_from_slice(&header[8..24]);
    let journal_id = JournalId::from_uuid(uuid::Uuid::from_bytes(id));

    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let torn = Ok((journal_id, Found::Torn { good_bytes: at }));
        if rest.len() < RECORD_HEADER_BYTES || rest.iter().all(|byte| *byte == 0) {
            return torn;
        }
        if number(rest, 8) != Some(crc32fast::hash(&rest[..8])) {
            return Err(damage(at, "the header of a record"));
        }
        let length = number(rest, 0).unwrap_or(u32::MAX) as usize;
        if length > JOURNAL_RECORD_BYTES_MAX {
            return Err(damage(at, "the length of a record"));
        }
        let end = RECORD_HEADER_BYTES + length;
        let Some(body) = rest.get(RECORD_HEADER_BYTES..end) else {
            return torn;
        };
        if number(rest, 4) != Some(crc32fast::hash(body)) {
            return Err(damage(at, "the body of a record"));
        }
        let record = Record::decode(body);
        records.push(record.map_err(|_| damage(at, "a record that this version cannot read"))?);
        at += end;
    }
    Ok((journal_id, Found::Whole))
}

/// Removes the journal, if there is one.
pub(super) fn remove(folder: &Path) -> Result<(), Error> {
    let path = folder.join(NAME);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::file("remove", &path)(error))
        }
        Ok(()) | Err(_) => sync_folder(folder),
    }
}

/// Keeps a lost journal beside the new one, the newest few.
fn set_aside(folder: &Path) -> Result<(), Error> {
    let aside = |number: u64| folder.join(format!("{NAME}.lost-{number}"));
    let mut numbers: Vec<u64> = std::fs::read_dir(folder)
        .map_err(Error::file("list", folder))?
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let number = name.to_str()?.strip_prefix(NAME)?.strip_prefix(".lost-")?;
            number.parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    let next = numbers.last().map_or(1, |newest| newest.saturating_add(1));
    let surplus = (numbers.len() + 1).saturating_sub(LOST_JOURNALS_MAX);
    for number in numbers.into_iter().take(surplus) {
        let path = aside(number);
        std::fs::remove_file(&path).map_err(Error::file("remove", &path))?;
    }
    let path = folder.join(NAME);
    std::fs::rename(&path, aside(next)).map_err(Error::file("put aside", &path))?;
    sync_folder(folder)?;
    error!(
        kept = %aside(next).display(),
        "the journal is lost; a new one begins, and what was in flight will not be run again (D8)"
    );
    Ok(())
}
