//! Files with Ed25519 keys in PEM: those of approvers and of the roots that sign for a service (SPEC
//! P1, P3).

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{
    DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, KeypairBytes,
};
use ledger_protocol::dsse::PublicKey;
use rand::TryRng as _;
use rand::rngs::SysRng;
use zeroize::Zeroizing;

use crate::exit::{Failure, Meaning};
use crate::limits::KEY_FILE_BYTES_MAX;

/// Owner only: whoever has the file signs as its owner.
pub(crate) const KEY_MODE: u32 = 0o600;

/// A public key as the list of approvers and the API have it.
pub(crate) fn base64(key: &PublicKey) -> String {
    STANDARD.encode(key.as_bytes())
}

/// A new private key.
pub(crate) fn new_key() -> Result<SigningKey, Failure> {
    let mut seed = Zeroizing::new([0; 32]);
    SysRng
        .try_fill_bytes(seed.as_mut())
        .context("the system gave no random bytes")?;
    Ok(SigningKey::from_bytes(&seed))
}

/// Makes a private key in a file that is not there yet.
pub(crate) fn generate(path: &Path) -> Result<PublicKey, Failure> {
    let key = new_key()?;
    // Without the public key in it, as OpenSSL reads it (RFC 8410, section 7).
    let bytes = KeypairBytes {
        secret_key: key.to_bytes(),
        public_key: None,
    };
    let pem = bytes.to_pkcs8_pem(LineEnding::LF)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(KEY_MODE)
        .open(path)
        .or_usage(format!("{} cannot be made", path.display()))?;
    file.write_all(pem.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("could not write {}", path.display()))?;
    Ok(PublicKey::of(&key))
}

/// The public key of a private one in a file, which is made unless it is there.
pub(crate) fn public_key_or_new(path: &Path) -> Result<PublicKey, Failure> {
    if path.exists() {
        public_key(path)
    } else {
        generate(path)
    }
}

/// Reads a private key that nobody else can read.
pub(crate) fn private_key(path: &Path) -> Result<SigningKey, Failure> {
    let shown = path.display();
    let text = Zeroizing::new(read(path, KEY_FILE_BYTES_MAX)?);
    check_private(path)?;
    SigningKey::from_pkcs8_pem(&text).or_usage(format!(
        "{shown} holds no Ed25519 private key in PEM; `command-ledger batch keygen` makes one"
    ))
}

/// Refuses a file that others than its owner can read or write.
pub(crate) fn check_private(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let mode = path
        .metadata()
        .map(|metadata| metadata.permissions().mode());
    let mode = mode.or_usage(format!("{shown} cannot be read"))?;
    if mode & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "{shown} can be read by others (mode {:o}); chmod 600 it",
            mode & 0o777
        )));
    }
    Ok(())
}

/// Reads the public key in a file that holds it, or its private key.
pub(crate) fn public_key(path: &Path) -> Result<PublicKey, Failure> {
    let shown = path.display();
    let text = Zeroizing::new(read(path, KEY_FILE_BYTES_MAX)?);
    if let Ok(key) = SigningKey::from_pkcs8_pem(&text) {
        return Ok(PublicKey::of(&key));
    }
    let key = ed25519_dalek::VerifyingKey::from_public_key_pem(&text);
    let bytes = match key {
        Ok(key) => key.to_bytes().to_vec(),
        Err(_) => STANDARD.decode(text.trim()).or_usage(format!(
            "{shown} holds no Ed25519 key, neither in PEM nor a public one in base64"
        ))?,
    };
    PublicKey::from_bytes(&bytes).or_usage(shown)
}

/// Reads a small file of text.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<String, Failure> {
    let unreadable = || format!("{} cannot be read", path.display());
    // To open a pipe would wait for whoever writes into it.
    let is_file = path.metadata().or_usage(unreadable())?.is_file();
    if !is_file {
        let error = io::Error::other("it is no regular file");
        return Err(error).or_usage(unreadable());
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_string(&mut text));
    let read = read.or_usage(unreadable())?;
    if read as u64 > bytes_max {
        let error = io::Error::other(format!("it has more than {bytes_max} bytes"));
        return Err(error).or_usage(unreadable());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p3_a_key_is_its_owners_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ada.pem");
        let public = generate(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(PublicKey::of(&private_key(&path).unwrap()), public);
        assert_eq!(public_key(&path).unwrap(), public);
        assert!(generate(&path).is_err(), "a key was overwritten");
        // RFC 8410, section 7: version 1, without the public key.
        let pem = std::fs::read_to_string(&path).unwrap();
        assert!(pem.contains("\nMC4CAQAwBQYDK2VwBCIEI"), "{pem}");
        let open = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(&path, open).unwrap();
        let told = private_key(&path).unwrap_err().to_string();
        assert!(told.contains("chmod 600"), "{told}");
        // Such as a pipe, in which nobody ever writes.
        let pipe = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let told = private_key(&pipe).unwrap_err().to_string();
        assert!(told.contains("no regular file"), "{told}");
    }

    #[test]
    fn p3_public_keys_are_read_as_openssl_writes_them_and_as_the_api_shows_them() {
        // RFC 8410, section 10.1.
        let pem = "-----BEGIN PUBLIC KEY-----\n\
                   MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
                   -----END PUBLIC KEY-----\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, pem).unwrap();
        let key = public_key(&path).unwrap();
        std::fs::write(&path, format!("{}\n", base64(&key))).unwrap();
        assert_eq!(public_key(&path).unwrap(), key);
        std::fs::write(&path, "hunter2").unwrap();
        let told = public_key(&path).unwrap_err().to_string();
        assert!(
            told.contains("no Ed25519 key") && !told.contains("hunter2"),
            "{told}"
        );
    }
}
