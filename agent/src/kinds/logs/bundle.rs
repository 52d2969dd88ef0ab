//! A bundle: a gzip-compressed tar archive, hashed while it is written.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// One file inside a bundle.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) content: Box<dyn Read + Send>,
}

impl Member {
    pub(crate) fn text(name: &str, text: impl Into<Vec<u8>>) -> Self {
        let text = text.into();
        Self {
            name: name.to_owned(),
            bytes: text.len() as u64,
            content: Box::new(io::Cursor::new(text)),
        }
    }
}

/// A bundle that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// Writes the members, in their order, into a new file that only the owner reads, and syncs it.
pub(crate) fn write(
    path: &Path,
    modified_seconds: u64,
    members: Vec<Member>,
    cancel: &CancellationToken,
) -> Result<Written, Error> {
    let failed = |source: io::Error| {
        if cancel.is_cancelled() {
            Error::Cancelled
        } else {
            Error::file("write", path)(source)
        }
    };
    let file = File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::file("create", path))?;
    let hashing = Hashing {
        inner: BufWriter::with_capacity(256 * 1024, file),
        hash: Sha256::new(),
        bytes: 0,
    };
    let mut archive = tar::Builder::new(GzEncoder::new(hashing, Compression::fast()));
    for member in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(member.bytes);
        header.set_mode(0o600);
        header.set_mtime(modified_seconds);
        header.set_entry_type(tar::EntryType::Regular);
        let content = Stoppable {
            inner: member.content.take(member.bytes),
            cancel,
        };
        archive
            .append_data(&mut header, &member.name, content)
            .map_err(failed)?;
    }
    let mut hashing = archive
        .into_inner()
        .and_then(GzEncoder::finish)
        .map_err(failed)?;
    hashing.flush().map_err(failed)?;
    let Hashing { inner, hash, bytes } = hashing;
    let file = inner
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    Ok(Written {
        bytes,
        sha256: hex::encode(hash.finalize()),
    })
}

struct Hashing {
    inner: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Compressing 256 MiB takes seconds; a cancelled command does not wait for them.
struct Stoppable<'a, R> {
    inner: R,
    cancel: &'a CancellationToken,
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.inner.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_an_archive_whose_hash_and_length_are_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b");
        let members = vec![
            Member::text("one.txt", "1"),
            Member::text("units/two.ndjson", "22\n"),
        ];
        let written = write(&path, 7, members, &CancellationToken::new()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(written.bytes, bytes.len() as u64);
        assert_eq!(written.sha256, hex::encode(Sha256::digest(&bytes)));
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().into_owned())
            .collect();
        assert_eq!(names, [Path::new("one.txt"), Path::new("units/two.ndjson")]);
    }

    #[test]
    fn a_cancelled_bundle_stops() {
        let folder = tempfile::tempdir().unwrap();
        let cancel = CancellationToken::new();
        cancel.cancel();
        let error = write(
            &folder.path().join("b"),
            7,
            vec![Member::text("one", "1")],
            &cancel,
        )
        .unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error:?}");
    }
}
