//! The file as records. Lengths in it are believed up to what their kind allows, and memory is
//! taken as bytes come.

use std::io::{self, Read};

use ledger_protocol::export::{FRAME_BYTES, Frame, Kind, MAGIC};
use sha2::{Digest as _, Sha256};

use super::problem::Defect;

/// Why there is no next record.
pub(super) enum Stop {
    /// The reader failed.
    Io(io::Error),
    /// The bytes, from this offset on.
    At(u64, Defect),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A record, and where it begins.
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) offset: u64,
    pub(super) payload: Vec<u8>,
    /// The digest over what stands before it.
    pub(super) digest: Option<[u8; 32]>,
}

pub(super) struct Records<R> {
    file: R,
    offset: u64,
    digest: Sha256,
}

impl<R: Read> Records<R> {
    pub(super) fn new(file: R) -> Self {
        Self {
            file,
            offset: 0,
            digest: Sha256::new(),
        }
    }

    /// Bytes that were read.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads so many bytes, or fewer where the file ends.
    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut taken = Vec::new();
        let read = (&mut self.file)
            .take(bytes as u64)
            .read_to_end(&mut taken)?;
        self.offset += read as u64;
        Ok(taken)
    }

    /// Reads what every export begins with.
    pub(super) fn begin(&mut self) -> Result<(), Stop> {
        let magic = self.take(MAGIC.len())?;
        if magic != MAGIC {
            return Err(Stop::At(0, Defect::Foreign));
        }
        self.digest.update(magic);
        Ok(())
    }

    /// Reads a record; `expected` is what must come.
    pub(super) fn next(&mut self, expected: &'static str) -> Result<Record, Stop> {
        let offset = self.offset;
        let frame = self.take(FRAME_BYTES)?;
        let Ok(frame) = <[u8; FRAME_BYTES]>::try_from(frame) else {
            return Err(Stop::At(self.offset, Defect::Truncated { expected }));
        };
        let Frame { kind, length } =
            Frame::decode(frame).map_err(|bad| Stop::At(offset, Defect::Frame(bad)))?;
        let digest = (kind == Kind::End).then(|| self.digest.clone().finalize().into());
        self.digest.update(frame);
        let payload = self.take(length)?;
        if payload.len() < length {
            let expected = "the rest of a record";
            return Err(Stop::At(self.offset, Defect::Truncated { expected }));
        }
        if kind != Kind::Entries {
            self.digest.update(&payload);
        }
        Ok(Record {
            kind,
            offset,
            payload,
            digest,
        })
    }

    /// Makes sure that the file ends here.
    pub(super) fn end(&mut self) -> Result<(), Stop> {
        let offset = self.offset;
        if !self.take(1)?.is_empty() {
            return Err(Stop::At(offset, Defect::Trailing));
        }
        Ok(())
    }
}
