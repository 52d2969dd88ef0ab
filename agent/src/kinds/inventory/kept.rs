//! The last inventory, kept in the state directory. It is a memory of what the machine had, not a truth: a file that
//! cannot be read counts as none.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::{error::Error, limits};

/// The kept inventory's place, and the turn to change it.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    turn: Mutex<()>,
}

impl Kept {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("inventory.json"),
            turn: Mutex::new(()),
        }
    }

    /// Whoever means to change the inventory reads and writes it within one turn.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// One section as it was last collected.
    pub(crate) fn section(&self, name: &str) -> Option<Value> {
        let mut bytes = Vec::new();
        let file = File::open(&self.path).ok()?;
        file.take(limits::INVENTORY_FILE_BYTES_MAX)
            .read_to_end(&mut bytes)
            .ok()?;
        let mut inventory: Value = serde_json::from_slice(&bytes).ok()?;
        Some(
            inventory
                .get_mut("sections")?
                .get_mut(name)?
                .get_mut("data")?
                .take(),
        )
    }

    /// Replaces the given sections and keeps the others. The file is whole at every moment.
    pub(crate) fn replace(
        &self,
        collected_at: &str,
        collected: &Map<String, Value>,
    ) -> Result<(), Error> {
        let mut sections: Map<String, Value> = fs::read(&self.path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
            .and_then(
                |mut inventory| match inventory.get_mut("sections").map(Value::take) {
                    Some(Value::Object(sections)) => Some(sections),
                    _ => None,
                },
            )
            .unwrap_or_default();
        for (name, data) in collected {
            sections.insert(
                name.clone(),
                json!({ "collectedAt": collected_at, "data": data }),
            );
        }
        let inventory = json!({ "version": 1, "sections": sections }).to_string();
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let new = self.path.with_extension("json.new");
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
        fs::rename(&new, &self.path).map_err(Error::file("replace", &self.path))?;
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(Error::file("sync", folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_replaced_one_by_one_and_garbage_counts_as_none() {
        let state_dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(&state_dir.path().join("later"));
        assert_eq!(kept.section("cpu"), None);
        let sections = |value: Value| value.as_object().unwrap().clone();
        kept.replace("t1", &sections(json!({ "cpu": 1, "os": 2 })))
            .unwrap();
        kept.replace("t2", &sections(json!({ "cpu": 3 }))).unwrap();
        assert_eq!(
            (kept.section("cpu"), kept.section("os")),
            (Some(json!(3)), Some(json!(2)))
        );
        fs::write(&kept.path, "{ torn").unwrap();
        assert_eq!(kept.section("cpu"), None);
        kept.replace("t3", &sections(json!({ "cpu": 4 }))).unwrap();
        assert_eq!(
            (kept.section("cpu"), kept.section("os")),
            (Some(json!(4)), None)
        );
    }
}
