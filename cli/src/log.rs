//! What signs the log and where it is served (SPEC U1).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ledger_audit::{Archive, Checkpointing, HeldLogKey, LogKey as _};
use ledger_protocol::tlog::{Algorithm, KeyName, VerifierKey};

use crate::exit::{Failure, Meaning as _};
use crate::key_file;

/// What the memory of a key's signer is called, after the key's file.
const MEMORY: &str = ".signed";

/// The log's key and its listener.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_field_names,
    reason = "they are named as the options are, and stand beside those of the API"
)]
pub(crate) struct LogOptions {
    /// Private key that signs the log, Ed25519 in PEM (`batch keygen` makes one). Beside it, FILE.signed
    /// keeps what was signed last: keep both together, and never put back an older FILE.signed. Without
    /// it this process does not sign the log
    #[arg(long, value_name = "FILE", requires = "log_origin")]
    log_key: Option<PathBuf>,
    /// Name of the log in what is signed, such as ledger.example.com/prod; it never changes
    #[arg(long, value_name = "NAME", requires = "log_key")]
    log_origin: Option<KeyName>,
    /// Address to serve the log on, for whoever verifies it (C2SP tlog-tiles): without TLS and without
    /// authentication, so whoever reaches it reads every event. Without it the log is not served
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) log_listen: Option<SocketAddr>,
    /// Folder, or S3-compatible bucket, to keep the log in besides its database, as files that any web
    /// server can serve to whoever verifies it: whoever reads them reads every event. Events that have
    /// left the database (`retention`) are served from it. A bucket is used with AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_REGION and, for one that is not at AWS, AWS_ENDPOINT_URL
    #[arg(long, value_name = "FOLDER|s3://BUCKET/PREFIX", value_parser = crate::archive::parse)]
    pub(crate) log_archive: Option<Archive>,
}

impl LogOptions {
    /// What signs, where a key is given.
    pub(crate) fn read(&self) -> Result<Option<Checkpointing>, Failure> {
        match (&self.log_key, &self.log_origin) {
            (Some(file), Some(origin)) => checkpointing(file, origin.clone()).map(Some),
            _ => Ok(None),
        }
    }
}

/// The log of this origin, signed with the key in this file.
pub(crate) fn checkpointing(file: &Path, origin: KeyName) -> Result<Checkpointing, Failure> {
    let key = HeldLogKey::new(origin, key_file::private_key(file)?);
    let shown = file.display();
    // The same key under two paths would have two memories.
    let mut memory = file
        .canonicalize()
        .or_usage(format!("{shown} cannot be read"))?
        .into_os_string();
    memory.push(MEMORY);
    tracing::info!(key = %key.verifier_key(), "the log is signed with this key");
    Ok(Checkpointing {
        key: Arc::new(key),
        memory: memory.into(),
    })
}

/// What others verify the log with, out of a file with the private or the public key.
pub(crate) fn verifier_key(file: &Path, origin: KeyName) -> Result<VerifierKey, Failure> {
    let key = key_file::public_key(file)?;
    Ok(VerifierKey::new(origin, Algorithm::Ed25519, key))
}
