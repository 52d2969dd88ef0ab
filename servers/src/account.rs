//! The unprivileged account that Postgres runs under when its launcher is root.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
};

use crate::Error;

/// The ids of `nobody` on every Linux; used where the password file does not name it.
const NOBODY: u32 = 65534;

/// An account by its ids, so that nothing has to be looked up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Account {
    /// The account to run the tools under: none unless this process is root, because only root can
    /// choose. `data` is a data folder that may exist: its owner goes on owning it.
    pub(crate) fn for_postgres(data: &Path) -> Result<Option<Account>, Error> {
        let own = rustix::process::geteuid().as_raw();
        let owner = fs::metadata(data)
            .ok()
            .map(|found| (found.uid(), found.gid()));
        match (own, owner) {
            (0, Some((uid, gid))) if uid != 0 => Ok(Some(Account { uid, gid })),
            (0, _) => {
                let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
                Ok(Some(unprivileged(&accounts)))
            }
            (own, Some((owner, _))) if owner != own => Err(Error::OtherOwner {
                folder: data.into(),
                owner,
            }),
            _ => Ok(None),
        }
    }

    /// Whether this account may walk down to `folder` and enter it, by the permission bits.
    pub(crate) fn reaches(self, folder: &Path) -> bool {
        folder.ancestors().all(|step| {
            fs::metadata(step).is_ok_and(|found| {
                let bit = if found.uid() == self.uid {
                    0o100
                } else if found.gid() == self.gid {
                    0o010
                } else {
                    0o001
                };
                found.mode() & bit != 0
            })
        })
    }

    /// Makes this account the owner of a file or folder, not of what is in it.
    pub(crate) fn own(self, path: &Path) -> Result<(), Error> {
        chown(path, Some(self.uid), Some(self.gid)).map_err(Error::io("change the owner of", path))
    }
}

/// `postgres` if the machine has it, else `nobody`.
fn unprivileged(accounts: &str) -> Account {
    let find = |wanted: &str| {
        accounts.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (name == wanted && uid != 0).then_some(Account { uid, gid })
        })
    };
    find("postgres")
        .or_else(|| find("nobody"))
        .unwrap_or(Account {
            uid: NOBODY,
            gid: NOBODY,
        })
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::PathBuf};

    use super::*;

    #[test]
    fn the_account_is_postgres_then_nobody_and_never_root() {
        let both = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\npostgres:x:101:104::/:/bin/sh";
        assert_eq!(unprivileged(both), Account { uid: 101, gid: 104 });
        assert_eq!(
            unprivileged("nobody:x:99:98::/:"),
            Account { uid: 99, gid: 98 }
        );
        assert_eq!(
            unprivileged("postgres:x:0:0::/:\nbroken\n"),
            Account {
                uid: NOBODY,
                gid: NOBODY
            }
        );
    }

    #[test]
    fn a_folder_below_a_closed_one_is_out_of_reach() {
        let base = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let inner: PathBuf = base.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let stranger = Account {
            uid: 54321,
            gid: 54321,
        };
        assert!(!stranger.reaches(&inner), "closed to others");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o711)).unwrap();
        assert!(stranger.reaches(&inner));
        assert!(!stranger.reaches(&inner.join("missing")));
    }
}
