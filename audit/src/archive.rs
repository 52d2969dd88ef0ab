//! An archive: the log as a folder or a bucket of files, laid out as C2SP tlog-tiles serves it, so
//! that any web server or bucket is a mirror of the log (SPEC U1).
//!
//! Nothing that is in an archive is believed: whoever reads events of it holds them against the tree. A
//! file of it, once written, is never replaced by another one; the checkpoint alone is.

mod bucket;
mod folder;
pub(crate) mod streams;

use std::fmt;
use std::path::PathBuf;

use bucket::Bucket;
pub use bucket::{BucketAt, InvalidBucket};
use folder::Folder;
use ledger_protocol::limits::EVENT_BYTES_MAX;
use ledger_protocol::merkle::HASH_BYTES;
use ledger_protocol::tlog::limits::NOTE_BYTES_MAX;
use ledger_protocol::tlog::{BundleIndex, EntryBundle, Resource, TILE_WIDTH, Tile, TileIndex};

/// Why an archive does not give, or does not take, what it should.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file or folder.
    #[error("{file} in the archive cannot be used")]
    File {
        /// Its path in the archive.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Longer than it can be.
    #[error("{file} in the archive is longer than {most} bytes")]
    TooLong {
        /// Its path in the archive.
        file: String,
        /// How long it may be.
        most: usize,
    },
    /// It holds something else than it was to get.
    #[error("{file} in the archive is not what the log has: it is of another log, or was changed")]
    Differs {
        /// Its path in the archive.
        file: String,
    },
    /// It has not got what it should have.
    #[error("{file} is missing in the archive")]
    Missing {
        /// Its path in the archive.
        file: String,
    },
    /// The bucket does not answer.
    #[error("the bucket does not answer as it should about {file}")]
    Bucket {
        /// The object's key, without the prefix.
        file: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The bucket refuses.
    #[error("the bucket refuses {file} with status {status}")]
    Refused {
        /// The object's key, without the prefix.
        file: String,
        /// HTTP status.
        status: u16,
    },
    /// What a bucket says that it has cannot be read.
    #[error("the bucket's list of what is below {file} is not readable")]
    Listing {
        /// The key, without the prefix.
        file: String,
    },
    /// The thread that reads and writes.
    #[error("the thread that reads and writes the archive ended")]
    Thread(#[from] tokio::task::JoinError),
}

/// Where the log is kept besides its database.
#[derive(Debug, Clone)]
pub struct Archive {
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Folder(Folder),
    Bucket(Bucket),
}

impl fmt::Display for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Folder(folder) => folder.fmt(f),
            Place::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

impl Archive {
    /// An archive in a folder, which is made when something is first written.
    pub fn folder(path: impl Into<PathBuf>) -> Self {
        let place = Place::Folder(Folder::new(path.into()));
        Self { place }
    }

    /// An archive in a bucket, which is there.
    pub fn bucket(at: BucketAt) -> Result<Self, InvalidBucket> {
        let place = Place::Bucket(Bucket::new(at)?);
        Ok(Self { place })
    }

    /// What the archive has there.
    pub(crate) async fn read(&self, resource: Resource) -> Result<Option<Vec<u8>>, ArchiveError> {
        self.read_file(resource.to_string(), bytes_max(resource))
            .await
    }

    async fn read_file(&self, file: String, most: usize) -> Result<Option<Vec<u8>>, ArchiveError> {
        match &self.place {
            Place::Folder(folder) => folder.read(file, most).await,
            Place::Bucket(bucket) => bucket.read(file, most).await,
        }
    }

    /// Writes what never changes; it is there for good after the next [`Self::flush`].
    pub(crate) async fn write(
        &self,
        resource: Resource,
        bytes: Vec<u8>,
    ) -> Result<(), ArchiveError> {
        self.write_file(resource.to_string(), bytes, bytes_max(resource))
            .await
    }

    async fn write_file(
        &self,
        file: String,
        bytes: Vec<u8>,
        most: usize,
    ) -> Result<(), ArchiveError> {
        match self.read_file(file.clone(), most).await? {
            Some(there) if there == bytes => Ok(()),
            Some(_) => Err(ArchiveError::Differs { file }),
            None => self.replace(file, bytes).await,
        }
    }

    async fn replace(&self, file: String, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        match &self.place {
            Place::Folder(folder) => folder.replace(file, bytes).await,
            Place::Bucket(bucket) => bucket.replace(file, bytes).await,
        }
    }

    /// Makes sure that what was written outlives the machine's power.
    pub(crate) async fn flush(&self) -> Result<(), ArchiveError> {
        match &self.place {
            Place::Folder(folder) => folder.flush().await,
            // An object is there for good once it was taken.
            Place::Bucket(_) => Ok(()),
        }
    }

    /// Replaces the checkpoint, once all that it covers is there.
    pub(crate) async fn set_checkpoint(&self, note: String) -> Result<(), ArchiveError> {
        self.flush().await?;
        let file = Resource::Checkpoint.to_string();
        self.replace(file, note.into_bytes()).await?;
        self.flush().await
    }

    /// Removes the partial ones of a tile, and of its bundle, that the full one has made useless
    /// (C2SP tlog-tiles, "Partial Tiles").
    pub(crate) async fn remove_partials(&self, full: TileIndex) -> Result<(), ArchiveError> {
        let mut whole = vec![Resource::Tile(full)];
        if full.level() == 0
            && let Ok(bundle) = BundleIndex::new(full.index(), TILE_WIDTH)
        {
            whole.push(Resource::Entries(bundle));
        }
        for whole in whole {
            let partials = format!("{whole}.p");
            match &self.place {
                Place::Folder(folder) => folder.remove(partials).await?,
                Place::Bucket(bucket) => bucket.remove(partials).await?,
            }
        }
        Ok(())
    }

    /// A bundle of events, held against a tile of its hashes. Where the archive has the full bundle,
    /// its first events are those of a partial one.
    pub(crate) async fn entries(
        &self,
        bundle: BundleIndex,
        tile: &Tile,
    ) -> Result<Vec<u8>, ArchiveError> {
        let mut file = Resource::Entries(bundle);
        let mut bytes = None;
        if let Ok(full) = BundleIndex::new(bundle.index(), TILE_WIDTH) {
            bytes = self.read(Resource::Entries(full)).await?;
            if bytes.is_some() {
                file = Resource::Entries(full);
            }
        }
        if bytes.is_none() {
            bytes = self.read(file).await?;
        }
        let file = file.to_string();
        let Some(bytes) = bytes else {
            return Err(ArchiveError::Missing { file });
        };
        let entries = EntryBundle::first(&bytes, bundle.width()).collect();
        let entries = EntryBundle::new(entries).ok();
        let hashes = tile.hashes().iter().copied();
        let entries = entries.filter(|entries| entries.leaf_hashes().eq(hashes));
        let entries = entries.ok_or(ArchiveError::Differs { file })?;
        Ok(entries.encode())
    }
}

fn bytes_max(resource: Resource) -> usize {
    match resource {
        Resource::Checkpoint => NOTE_BYTES_MAX,
        Resource::Tile(_) => usize::from(TILE_WIDTH) * HASH_BYTES,
        Resource::Entries(_) => usize::from(TILE_WIDTH) * (2 + EVENT_BYTES_MAX),
    }
}
