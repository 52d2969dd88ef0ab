//! The parts of `logs.collect`: reading the journal, packing a bundle, and keeping the folder of bundles small.

pub(super) mod bundle;
pub(super) mod journal;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::{error::Error, limits};

/// What unfinished work is called; whatever bears it and belongs to no running command is left from a crash.
const WORK_PREFIX: &str = ".work-";

/// The folder in which bundles stay.
#[derive(Debug)]
pub(crate) struct Bundles {
    folder: PathBuf,
    working: Mutex<BTreeSet<String>>,
    /// What the content of one bundle may measure.
    pub(super) content_bytes_max: u64,
}

/// The scratch folder of one command; it is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Work<'a> {
    bundles: &'a Bundles,
    command_id: String,
    pub(super) folder: PathBuf,
}

impl Bundles {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.join("bundles"),
            working: Mutex::default(),
            content_bytes_max: limits::BUNDLE_BYTES_MAX,
        }
    }

    fn work_name(command_id: &str) -> String {
        format!("{WORK_PREFIX}{command_id}")
    }

    pub(super) fn file_name(command_id: &str) -> String {
        format!("{command_id}.bundle")
    }

    /// Begins the work of one command: removes what a crash left behind, and makes the scratch folder. `None` if the
    /// same command is at work already.
    pub(super) fn begin(&self, command_id: &str) -> Result<Option<Work<'_>>, Error> {
        fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        {
            let mut working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
            if !working.insert(command_id.to_owned()) {
                return Ok(None);
            }
            let entries = fs::read_dir(&self.folder).map_err(Error::file("list", &self.folder));
            for entry in entries.into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name
                    .strip_prefix(WORK_PREFIX)
                    .is_some_and(|owner| owner == command_id || !working.contains(owner))
                {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
        }
        let folder = self.folder.join(Self::work_name(command_id));
        let work = Work {
            bundles: self,
            command_id: command_id.to_owned(),
            folder,
        };
        fs::create_dir(&work.folder).map_err(Error::file("create", &work.folder))?;
        Ok(Some(work))
    }

    /// How much may be collected now: the bundle's own bound, or half of what the disk can spare, since the scratch
    /// files and the bundle made from them stand side by side for a while.
    pub(super) fn budget_bytes(&self) -> u64 {
        let Ok(space) = rustix::fs::statvfs(&self.folder) else {
            return self.content_bytes_max;
        };
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        self.content_bytes_max
            .min(free.saturating_sub(limits::BUNDLES_DISK_RESERVE_BYTES) / 2)
    }

    /// Removes the oldest bundles until a new one of this size has room beside the others.
    pub(super) fn make_room(&self, new_bytes: u64, bytes_max: u64, files_max: usize) {
        let mut bundles: Vec<(std::time::SystemTime, u64, PathBuf)> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                entry
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "bundle")
            })
            .filter_map(|entry| {
                let metadata = entry.metadata().ok()?;
                Some((metadata.modified().ok()?, metadata.len(), entry.path()))
            })
            .collect();
        bundles.sort();
        let mut bytes = bundles
            .iter()
            .map(|(_, bytes, _)| bytes)
            .sum::<u64>()
            .saturating_add(new_bytes);
        let mut files = bundles.len() + 1;
        for (_, length, path) in bundles {
            if bytes <= bytes_max && files <= files_max {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                bytes -= length;
                files -= 1;
            }
        }
    }
}

impl Work<'_> {
    /// Puts the finished bundle into its place, whole and durable.
    pub(super) fn publish(&self, bundle: &Path, bytes: u64) -> Result<(), Error> {
        let place = self
            .bundles
            .folder
            .join(Bundles::file_name(&self.command_id));
        // A bundle that this command left before a crash is replaced, and so does not count.
        let _ = fs::remove_file(&place);
        self.bundles
            .make_room(bytes, limits::BUNDLES_BYTES_MAX, limits::BUNDLES_FILES_MAX);
        fs::rename(bundle, &place).map_err(Error::file("replace", &place))?;
        let folder = &self.bundles.folder;
        fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(Error::file("sync", folder))
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        self.bundles
            .working
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.command_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_bundles_give_way() {
        let state_dir = tempfile::tempdir().unwrap();
        let bundles = Bundles::new(state_dir.path());
        drop(bundles.begin("first").unwrap().unwrap());
        for (age, name) in [(3, "c"), (1, "a"), (2, "b")] {
            let path = bundles.folder.join(format!("{name}.bundle"));
            fs::write(&path, [0; 100]).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(age))
                .unwrap();
        }
        let names = || crate::sysfs::names(&bundles.folder);
        bundles.make_room(100, 400, 64);
        assert_eq!(names().len(), 3);
        bundles.make_room(150, 400, 64);
        assert_eq!(names(), ["b.bundle", "c.bundle"]);
        bundles.make_room(1, 400, 2);
        assert_eq!(names(), ["c.bundle"]);
    }

    #[test]
    fn what_a_crash_left_is_removed_and_running_work_is_not() {
        let state_dir = tempfile::tempdir().unwrap();
        let bundles = Bundles::new(state_dir.path());
        fs::create_dir_all(bundles.folder.join(".work-crashed/units")).unwrap();
        let one = bundles.begin("one").unwrap().unwrap();
        let two = bundles.begin("two").unwrap().unwrap();
        assert!(bundles.begin("one").unwrap().is_none());
        assert_eq!(
            crate::sysfs::names(&bundles.folder),
            [".work-one", ".work-two"]
        );
        drop((one, two));
        assert!(crate::sysfs::names(&bundles.folder).is_empty());
        assert!(bundles.begin("one").unwrap().is_some());
    }
}
