//! The last inventory, kept in the state directory. It is a memory of what the machine had, not a truth: a file that
//! cannot be read counts as none.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::{error::Error, limits};

/// The kept inventory's place, and the turn to change it.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    turn: Arc<Mutex<()>>,
}

impl Kept {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("inventory.json"),
            turn: Arc::default(),
        }
    }

    /// Whoever means to change the inventory reads and writes it within one turn.
    pub(crate) async fn turn(&self) -> Turn {
        Turn {
            path: self.path.clone(),
            _alone: Arc::clone(&self.turn).lock_owned().await,
        }
    }

    /// One section as it was last collected.
    pub(crate) fn section(&self, name: &str) -> Option<Value> {
        let mut inventory = read(&self.path)?;
        Some(
            inventory
                .get_mut("sections")?
                .get_mut(name)?
                .get_mut("data")?
                .take(),
        )
    }
}

/// The turn to change the inventory.
#[derive(Debug)]
pub(crate) struct Turn {
    path: PathBuf,
    _alone: OwnedMutexGuard<()>,
}

impl Turn {
    /// Replaces the given sections and keeps the others. The file is whole at every moment. The turn ends with the
    /// writing, even if nobody waits for it any more.
    pub(crate) async fn replace(
        self,
        collected_at: String,
        collected: Map<String, Value>,
    ) -> Result<(), Error> {
        tokio::task::spawn_blocking(move || replace(&self.path, &collected_at, collected))
            .await
            .unwrap_or(Err(Error::BrokeOff {
                work: "the writing",
            }))
    }
}

fn read(path: &Path) -> Option<Value> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(limits::INVENTORY_FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn replace(path: &Path, collected_at: &str, collected: Map<String, Value>) -> Result<(), Error> {
    let mut sections =
        match read(path).and_then(|mut kept| kept.get_mut("sections").map(Value::take)) {
            Some(Value::Object(sections)) => sections,
            _ => Map::new(),
        };
    for (name, data) in collected {
        sections.insert(name, json!({ "collectedAt": collected_at, "data": data }));
    }
    let inventory = json!({ "version": 1, "sections": sections }).to_string();
    let folder = path.parent().unwrap_or(Path::new("/"));
    let new = path.with_extension("json.new");
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    let mut file = File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(Error::file("create", &new))?;
    file.write_all(inventory.as_bytes())
        .map_err(Error::file("write", &new))?;
    file.sync_all().map_err(Error::file("sync", &new))?;
    fs::rename(&new, path).map_err(Error::file("replace", path))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::file("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sections_are_replaced_one_by_one_and_garbage_counts_as_none() {
        let state_dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(&state_dir.path().join("later"));
        assert_eq!(kept.section("cpu"), None);
        let sections = |value: Value| value.as_object().unwrap().clone();
        kept.turn()
            .await
            .replace("t1".to_owned(), sections(json!({ "cpu": 1, "os": 2 })))
            .await
            .unwrap();
        kept.turn()
            .await
            .replace("t2".to_owned(), sections(json!({ "cpu": 3 })))
            .await
            .unwrap();
        assert_eq!(
            (kept.section("cpu"), kept.section("os")),
            (Some(json!(3)), Some(json!(2)))
        );
        fs::write(&kept.path, "{ torn").unwrap();
        assert_eq!(kept.section("cpu"), None);
        kept.turn()
            .await
            .replace("t3".to_owned(), sections(json!({ "cpu": 4 })))
            .await
            .unwrap();
        assert_eq!(
            (kept.section("cpu"), kept.section("os")),
            (Some(json!(4)), None)
        );
    }

    /// Were it written in place, a crash in between would leave half of it.
    #[tokio::test]
    async fn the_file_is_replaced_and_never_written_in_place() {
        let state_dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(state_dir.path());
        fs::write(&kept.path, "{}").unwrap();
        let mut before = File::open(&kept.path).unwrap();
        kept.turn()
            .await
            .replace("t1".to_owned(), Map::new())
            .await
            .unwrap();
        let mut still = String::new();
        before.read_to_string(&mut still).unwrap();
        assert_eq!(still, "{}");
        assert_eq!(crate::sysfs::names(state_dir.path()), ["inventory.json"]);
    }
}
