//! The folder of one `up`: who holds it, and what the next start on it must know.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ledger_protocol::id::{NodeId, TenantId};
use serde::{Deserialize, Serialize};

use crate::exit::{Failure, Meaning};
use crate::service::host_name;

const LOCK: &str = "lock";
const STATE: &str = "up.json";
/// Owner only: the state holds a token.
const STATE_MODE: u32 = 0o600;

/// A folder that no other `up` uses while this value lives.
pub(crate) struct Home {
    folder: PathBuf,
    /// What is kept for the next start.
    pub(crate) state: State,
    // The lock belongs to the open file and goes with this process, however it ends.
    _lock: File,
}

/// What is kept for the next start. Postgres is the truth about all of it but the ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct State {
    pub(crate) tenant_id: Option<TenantId>,
    pub(crate) token: Option<String>,
    pub(crate) api_port: Option<u16>,
    pub(crate) gateway_port: Option<u16>,
    pub(crate) log_port: Option<u16>,
    /// What tells this folder from every other one, also from one at the same path elsewhere.
    pub(crate) instance: Option<String>,
    /// The nodes, in the order of their numbers.
    pub(crate) nodes: Vec<NodeId>,
}

impl Home {
    /// Makes the folder unless it is there, and takes it for this process.
    pub(crate) fn claim(folder: &Path) -> Result<Self, Failure> {
        let shown = folder.display();
        let unusable = || format!("{shown} cannot be used; choose another --data");
        fs::create_dir_all(folder).or_usage(unusable())?;
        let folder = folder.canonicalize().or_usage(unusable())?;
        if folder.to_str().is_none() {
            // The path stands in JSON and in URLs.
            return Err(Failure::usage(format!(
                "--data {shown} is not UTF-8; choose another name"
            )));
        }
        let path = folder.join(LOCK);
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .or_usage(unusable())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(&folder, &mut lock)),
            Err(TryLockError::Error(error)) => {
                return Err(error).or_usage(format!("could not lock {}", path.display()));
            }
        }
        let id = format!("{}\n", std::process::id());
        lock.set_len(0)
            .and_then(|()| lock.write_all(id.as_bytes()))
            .with_context(|| format!("could not write {}", path.display()))?;
        let state = read(&folder.join(STATE))?;
        Ok(Self {
            folder,
            state,
            _lock: lock,
        })
    }

    /// The folder, absolute and without links.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The name under which this folder's `up` holds leases: the same after every start, so that one
    /// that was killed takes its own lease again at once. No two of them hold it at a time, for the
    /// folder is locked. `random` names a folder that has no name yet; the caller saves the state.
    pub(crate) fn lease_holder(&mut self, random: [u8; 10]) -> String {
        let instance = self
            .state
            .instance
            .get_or_insert_with(|| hex::encode(random));
        format!("{}-{instance}:{}", host_name(), self.folder.display())
    }

    /// The state directory of the node with this number, from 1.
    pub(crate) fn node_folder(&self, number: usize) -> PathBuf {
        self.folder.join("nodes").join(number.to_string())
    }

    /// Keeps the state, whole or not at all.
    pub(crate) fn save(&self) -> Result<(), Failure> {
        let path = self.folder.join(STATE);
        let text = serde_json::to_string_pretty(&self.state)?;
        write(&path, &text).with_context(|| format!("could not write {}", path.display()))?;
        Ok(())
    }
}

fn held(folder: &Path, lock: &mut File) -> Failure {
    let mut holder = String::new();
    // Whoever holds it may not have written its number yet; then it stays unnamed.
    let _ = lock
        .rewind()
        .and_then(|()| lock.take(32).read_to_string(&mut holder));
    let holder = match holder.trim() {
        "" => "another process".to_owned(),
        id => format!("process {id}"),
    };
    let folder = folder.display();
    Failure::usage(format!(
        "{folder} is in use by {holder}: stop that one, or choose another folder with --data"
    ))
}

fn read(path: &Path) -> Result<State, Failure> {
    let shown = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        Err(error) => return Err(error).or_usage(format!("could not read {shown}")),
    };
    serde_json::from_str(&text).or_usage(format!(
        "{shown} is damaged; remove it, and a new tenant and token are made"
    ))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(STATE_MODE)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::exit::Code;

    #[test]
    fn h2_a_second_up_is_told_who_holds_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b/ledger");
        let first = Home::claim(&path).unwrap();
        let second = Home::claim(&path).err().unwrap();
        assert_eq!(second.code, Code::Usage);
        let own = format!("process {}:", std::process::id());
        assert!(second.to_string().contains(&own), "{second}");
        drop(first);
        Home::claim(&path).unwrap();
    }

    #[test]
    fn h2_the_state_comes_back_and_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut home = Home::claim(folder.path()).unwrap();
        home.state.token = Some("token_x.secret".to_owned());
        home.state.api_port = Some(7070);
        home.save().unwrap();
        let state = home.state.clone();
        drop(home);
        assert_eq!(Home::claim(folder.path()).unwrap().state, state);
        let mode = fs::metadata(folder.path().join(STATE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn h2_a_damaged_state_is_named_and_not_guessed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(STATE), "{").unwrap();
        let failure = Home::claim(folder.path()).err().unwrap();
        assert!(
            failure.to_string().contains("up.json is damaged"),
            "{failure}"
        );
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(Home::claim(&file).err().unwrap().code, Code::Usage);
        // Nobody may make a file here, whoever runs the test.
        let foreign = Home::claim(Path::new("/proc/self")).err().unwrap();
        assert_eq!(foreign.code, Code::Usage);
        let told = foreign.to_string();
        assert!(told.contains("choose another --data"), "{told}");
    }
}
