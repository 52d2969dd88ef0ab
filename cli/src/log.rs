//! What signs the log and where it is served (SPEC U1).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use ledger_audit::{Archive, Checkpointing, HeldLogKey, LogKey as _, WitnessAt};
use ledger_protocol::tlog::{Algorithm, KeyName, VerifierKey};

use crate::exit::{Failure, Meaning as _};
use crate::key_file;
use crate::limits::KEY_FILE_BYTES_MAX;

/// What the memory of a key's signer is called, after the key's file.
const MEMORY: &str = ".signed";

/// The log's key and its listener.
#[derive(Debug, Args)]
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
    #[command(flatten)]
    witnesses: LogWitnesses,
}

/// Who is asked to cosign the log's checkpoints.
#[derive(Debug, Args)]
pub(crate) struct LogWitnesses {
    /// A witness that is asked to cosign each checkpoint of the log: its verifier key, and the URL under
    /// which it takes add-checkpoint (C2SP tlog-witness). May be repeated. What comes in time is published
    /// with the checkpoint; a witness that does not answer never holds the log up
    #[arg(long, value_name = "KEY=URL")]
    log_witness: Vec<KeyAt>,
}

/// A witness's key and its URL.
#[derive(Debug, Clone)]
struct KeyAt {
    key: VerifierKey,
    url: String,
}

impl FromStr for KeyAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A name may have `=` in it, and a URL too; the key between them has none, and ends what has
        // the second `+`.
        let after_name = text.find('+').map_or(0, |at| at + 1);
        let rest = text.get(after_name..).unwrap_or_default();
        let at = rest.find('=').map(|at| after_name + at);
        let (key, url) = at
            .and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?)))
            .ok_or("must be a witness's verifier key, `=` and its URL")?;
        let key = key
            .parse()
            .map_err(|error| format!("must begin with a verifier key: {error}"))?;
        let url = url.to_owned();
        Ok(Self { key, url })
    }
}

impl LogWitnesses {
    fn read(&self, log: &VerifierKey) -> Result<Vec<WitnessAt>, Failure> {
        let witnesses = self.log_witness.iter();
        let witnesses = witnesses.map(|one| WitnessAt::new(one.key.clone(), &one.url));
        let witnesses: Vec<WitnessAt> = witnesses
            .collect::<Result<_, _>>()
            .or_usage("--log-witness names none")?;
        WitnessAt::check(&witnesses, log).or_usage("--log-witness cannot be followed")?;
        Ok(witnesses)
    }
}

impl LogOptions {
    /// What signs, where a key is given.
    pub(crate) fn read(&self) -> Result<Option<Checkpointing>, Failure> {
        match (&self.log_key, &self.log_origin) {
            (Some(file), Some(origin)) => {
                let mut signs = checkpointing(file, origin.clone(), &self.witnesses)?;
                signs.archive.clone_from(&self.log_archive);
                Ok(Some(signs))
            }
            _ if self.witnesses.log_witness.is_empty() => Ok(None),
            _ => Err(Failure::usage(
                "--log-witness needs --log-key: who does not sign the log asks no witness",
            )),
        }
    }
}

/// The log of this origin, signed with the key in this file.
pub(crate) fn checkpointing(
    file: &Path,
    origin: KeyName,
    witnesses: &LogWitnesses,
) -> Result<Checkpointing, Failure> {
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
        witnesses: witnesses.read(&key.verifier_key())?,
        key: Arc::new(key),
        memory: memory.into(),
        archive: None,
    })
}

/// What others verify signatures with, out of a file with the private or the public key: those of a
/// log, or of a witness.
pub(crate) fn verifier_key(
    file: &Path,
    name: KeyName,
    algorithm: Algorithm,
) -> Result<VerifierKey, Failure> {
    let key = key_file::public_key(file)?;
    Ok(VerifierKey::new(name, algorithm, key))
}

/// A verifier key, or the one in a file.
pub(crate) fn named_key(option: &str, text: &str) -> Result<VerifierKey, Failure> {
    let parsed = text.trim().parse::<VerifierKey>();
    let error = match parsed {
        Ok(key) => return Ok(key),
        Err(error) => error,
    };
    let path = Path::new(text);
    if !path.exists() {
        return Err(Failure::usage(format!(
            "{option} is no verifier key ({error}), and no file has this name"
        )));
    }
    let kept = key_file::read(path, KEY_FILE_BYTES_MAX)?;
    let key = kept.trim().parse::<VerifierKey>();
    key.or_usage(format!("{} holds no verifier key", path.display()))
}

#[cfg(test)]
mod tests {
    use ledger_protocol::tlog::Cosigner;

    use super::*;

    #[test]
    fn u4_a_witness_is_a_key_and_a_url_whatever_they_have_in_them() {
        for name in ["witness.example/1", "a=b"] {
            let key = ed25519_dalek::SigningKey::from_bytes(&[62; 32]);
            let key = Cosigner::new(name.parse().unwrap(), key).verifier_key();
            for url in ["http://127.0.0.1:1", "https://w.example/a=b"] {
                let read: KeyAt = format!("{key}={url}").parse().unwrap();
                assert_eq!((read.key, read.url.as_str()), (key.clone(), url));
            }
            assert!(key.to_string().parse::<KeyAt>().is_err());
        }
        for wrong in [
            "",
            "=",
            "http://w.example",
            "a+b=http://w.example",
            "a+1+c=",
        ] {
            assert!(wrong.parse::<KeyAt>().is_err(), "{wrong}");
        }
    }
}
