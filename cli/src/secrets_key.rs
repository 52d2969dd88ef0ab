//! Master keys, which encrypt secrets at rest: their files, and the options that name them (SPEC P6).

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use ledger::secrets::{MASTER_KEY_BYTES, MasterKey, MasterKeys};
use rand::TryRng as _;
use rand::rngs::SysRng;
use zeroize::Zeroizing;

use crate::exit::{Failure, Meaning};
use crate::key_file::{self, KEY_MODE};
use crate::limits::KEY_FILE_BYTES_MAX;

/// Where a key may stand that is in no file, in hex.
const VARIABLE: &str = "COMMAND_LEDGER_SECRETS_KEY";

/// Which master keys a process has.
#[derive(Debug, Default, Args)]
pub(crate) struct SecretsKey {
    /// Master key that encrypts secrets at rest (`secret keygen` makes one); may be repeated: the first
    /// encrypts, the others still decrypt, so that keys can be exchanged. Without it, one key in hex may
    /// stand in COMMAND_LEDGER_SECRETS_KEY
    #[arg(long = "secrets-key", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl SecretsKey {
    /// The keys that are named; nothing when none is.
    pub(crate) fn read(&self) -> Result<Option<Arc<MasterKeys>>, Failure> {
        if !self.files.is_empty() {
            return read(&self.files).map(Some);
        }
        let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let text = Zeroizing::new(text.into_encoded_bytes());
        let key = parse(&text, VARIABLE)?;
        Ok(Some(Arc::new(MasterKeys::new(key, Vec::new()))))
    }
}

/// The keys of these files, of which there is at least one.
pub(crate) fn read(files: &[PathBuf]) -> Result<Arc<MasterKeys>, Failure> {
    let mut keys = Vec::with_capacity(files.len());
    for file in files {
        key_file::check_private(file)?;
        let text = Zeroizing::new(key_file::read(file, KEY_FILE_BYTES_MAX)?);
        keys.push(parse(text.as_bytes(), &file.display().to_string())?);
    }
    let mut keys = keys.into_iter();
    let first = keys.next();
    let first = first.ok_or_else(|| Failure::usage("no master key is named"))?;
    Ok(Arc::new(MasterKeys::new(first, keys.collect())))
}

/// Reads a key, and repeats nothing of what is none.
fn parse(text: &[u8], shown: &str) -> Result<MasterKey, Failure> {
    let mut key = Zeroizing::new([0; MASTER_KEY_BYTES]);
    hex::decode_to_slice(text.trim_ascii(), key.as_mut()).map_err(|_| {
        let digits = MASTER_KEY_BYTES * 2;
        Failure::usage(format!(
            "{shown} holds no master key, which is {digits} hexadecimal digits; `command-ledger secret \
             keygen FILE` makes one"
        ))
    })?;
    Ok(MasterKey::new(key))
}

/// Makes a key in a file that is not there yet; answers with the key's id, in hex.
pub(crate) fn generate(path: &Path) -> Result<String, Failure> {
    let mut key = Zeroizing::new([0; MASTER_KEY_BYTES]);
    SysRng
        .try_fill_bytes(key.as_mut())
        .context("the system gave no random bytes")?;
    let mut text = Zeroizing::new(hex::encode(key.as_ref()));
    text.push('\n');
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(KEY_MODE)
        .open(path)
        .or_usage(format!("{} cannot be made", path.display()))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("could not write {}", path.display()))?;
    Ok(hex::encode(MasterKey::new(key).id()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn p6_a_master_key_is_its_owners_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        let id = generate(&path).unwrap();
        assert_eq!(id.len(), 16, "{id}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let read = |path: &Path| read(&[path.to_owned()]);
        assert!(format!("{:?}", read(&path).unwrap()).contains("MasterKey"));
        assert!(generate(&path).is_err(), "a key was overwritten");
        for mode in [0o640, 0o604, 0o620] {
            let open = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, open).unwrap();
            let told = read(&path).unwrap_err().to_string();
            assert!(told.contains("chmod 600"), "{told}");
        }
    }

    #[test]
    fn p6_what_is_no_master_key_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        let whole = "hunter2".repeat(10);
        for text in ["", "hunter2", &whole, &"0".repeat(63), &"g".repeat(64)] {
            std::fs::write(&path, text).unwrap();
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, mode).unwrap();
            let told = read(std::slice::from_ref(&path)).unwrap_err().to_string();
            assert!(told.contains("64 hexadecimal digits"), "{told}");
            assert!(!told.contains("hunter2"), "{told}");
        }
    }
}
