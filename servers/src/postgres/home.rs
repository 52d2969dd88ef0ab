//! Where a cluster's files lie: in its folder, or elsewhere when its account may not go there.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

use crate::{Durability, Error, account::Account, files, tools::SHARED_STATE};

/// A link in the cluster's folder to where its files really lie.
const LINK: &str = "elsewhere";

/// The folder above the data folder.
#[derive(Debug)]
pub(super) struct Home {
    /// The cluster's folder, as the user named it.
    pub(super) folder: PathBuf,
    /// Where the files lie.
    path: PathBuf,
    durability: Durability,
}

impl Home {
    /// Where the files of an earlier start lie.
    pub(super) fn existing(folder: &Path, durability: Durability) -> Home {
        let elsewhere = fs::read_link(folder.join(LINK))
            .ok()
            .filter(|path| path.is_dir());
        let path = elsewhere.unwrap_or_else(|| folder.into());
        Home {
            folder: folder.into(),
            path,
            durability,
        }
    }

    /// Decides where the files lie and under which account the tools run.
    ///
    /// A launcher that is root uses an unprivileged account, and that one may be unable to walk to
    /// the cluster's folder, as below `/root`. Then the files go to a folder that root shares, and a
    /// link in the cluster's folder says where, so that the next start finds them.
    pub(super) fn choose(
        folder: &Path,
        durability: Durability,
    ) -> Result<(Home, Option<Account>), Error> {
        let link = folder.join(LINK);
        let mut home = Home::existing(folder, durability);
        let account = Account::for_postgres(&home.data())?;
        let Some(unprivileged) = account else {
            return Ok((home, account));
        };
        if home.path == folder {
            // This folder is ours, so that it may be opened to the account; those above it are not.
            let mode = fs::metadata(folder)
                .map_err(Error::io("look at", folder))?
                .mode();
            files::set_mode(folder, mode & 0o7777 | 0o011)?;
        }
        if !unprivileged.reaches(&home.path) {
            home.path = new_folder(durability)?;
            files::remove_if_there(&link)?;
            symlink(&home.path, &link).map_err(Error::io("link", &link))?;
            tracing::warn!(
                folder = %folder.display(),
                elsewhere = %home.path.display(),
                "the account that Postgres runs under may not enter the folder: its data goes elsewhere"
            );
        }
        Ok((home, account))
    }

    /// The folder that the account works in.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Postgres' data directory.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Removes what lies outside the cluster's folder.
    pub(super) fn remove(&self) -> Result<(), Error> {
        if self.path != self.folder {
            files::remove_folder_if_there(&self.path)?;
            files::remove_if_there(&self.folder.join(LINK))?;
        }
        Ok(())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.durability == Durability::Throwaway {
            // Nobody removes a folder that nobody knows of; the data was to be thrown away.
            let _ = self.remove();
        }
    }
}

fn new_folder(durability: Durability) -> Result<PathBuf, Error> {
    let parent = match durability {
        Durability::Throwaway => Path::new("/tmp"),
        Durability::Durable => Path::new(SHARED_STATE),
    };
    fs::create_dir_all(parent).map_err(Error::io("make the folder", parent))?;
    if durability == Durability::Durable {
        files::set_mode(parent, 0o755)?;
    }
    let new = tempfile::Builder::new()
        .prefix("ledger-postgres-")
        .tempdir_in(parent)
        .map_err(Error::io("make a folder in", parent))?
        .keep();
    files::set_mode(&new, 0o711)?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_where_the_account_can_reach_it_and_is_found_again() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let closed = tempfile::tempdir().unwrap();
        files::set_mode(closed.path(), 0o700).unwrap();
        let folder = closed.path().join("cluster");
        fs::create_dir(&folder).unwrap();
        let (first, account) = Home::choose(&folder, Durability::Throwaway).unwrap();
        assert!(account.unwrap().reaches(first.path()));
        let (second, _) = Home::choose(&folder, Durability::Durable).unwrap();
        assert_eq!(first.path(), second.path(), "the link is followed");
        let elsewhere = first.path().to_owned();
        drop(first);
        assert!(!elsewhere.exists(), "a throwaway's data goes with it");
        assert!(fs::symlink_metadata(folder.join(LINK)).is_err());
    }
}
