//! The authority on disk: `node-ca.pem`, and `node-ca.key` for its owner only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::CertificateAuthority;
use crate::Error;

const CERTIFICATE: &str = "node-ca.pem";
const KEY: &str = "node-ca.key";

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

pub(super) fn load(folder: &Path) -> Result<Option<CertificateAuthority>, Error> {
    let read = |name: &str| {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path)(error)),
        }
    };
    // The key is written first, so a certificate without it is no half-made authority.
    let Some(certificate) = read(CERTIFICATE)? else {
        return Ok(None);
    };
    let Some(key) = read(KEY)? else {
        let path = folder.join(KEY);
        return Err(failed(&path)(io::ErrorKind::NotFound.into()));
    };
    CertificateAuthority::load(&certificate, &key).map(Some)
}

pub(super) fn save(authority: &CertificateAuthority, folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let certificate = folder.join(CERTIFICATE);
    if certificate.exists() {
        return Err(failed(&certificate)(io::ErrorKind::AlreadyExists.into()));
    }
    write(&folder.join(KEY), &authority.key_pem(), 0o600)?;
    write(&certificate, authority.certificate_pem(), 0o644)
}

/// Writes a whole file or none: readers see the old state or the new one.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed(&temporary)(error));
        }
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed(&temporary))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed(&temporary))?;
    fs::rename(&temporary, path).map_err(failed(path))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed(folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use ledger_protocol::time::Timestamp;

    use super::*;

    #[test]
    fn d1_an_authority_is_kept_with_its_key_private_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::from_micros(1_764_490_000_000_000);
        let made = CertificateAuthority::load_or_generate(folder.path(), now).unwrap();
        let again = CertificateAuthority::load_or_generate(folder.path(), now).unwrap();
        assert_eq!(made.certificate_pem(), again.certificate_pem());
        assert_eq!(made.key_pem(), again.key_pem());
        let permissions = fs::metadata(folder.path().join(KEY)).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600);
        let other = CertificateAuthority::generate(now).unwrap();
        assert!(other.save(folder.path()).is_err());
        let shown = format!("{made:?}");
        assert!(!shown.contains("KEY"), "{shown}");
    }

    #[test]
    fn d1_a_key_of_another_authority_is_refused() {
        let now = Timestamp::from_micros(1_764_490_000_000_000);
        let one = CertificateAuthority::generate(now).unwrap();
        let two = CertificateAuthority::generate(now).unwrap();
        assert!(CertificateAuthority::load(one.certificate_pem(), &two.key_pem()).is_err());
        assert!(CertificateAuthority::load("garbage", &two.key_pem()).is_err());
        assert!(CertificateAuthority::load(one.certificate_pem(), "garbage").is_err());
    }
}
