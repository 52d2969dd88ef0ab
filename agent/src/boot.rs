//! What a boot is to an agent (SPEC D9, section 12).

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::clock::random;
use crate::error::Error;
use crate::host::Reboot;
use crate::state_dir::{StateDir, replace};

const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_ID_FILE: &str = "boot-id";
const BOOT_ID_BYTES_MAX: u64 = ledger_protocol::limits::NAME_BYTES_MAX as u64;

/// Where the boot id comes from, and what `node.reboot` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// The machine's own: the kernel's boot id, and a real reboot.
    Machine,
    /// A file in the state directory; `node.reboot` puts a new id there and ends the agent's
    /// life, as a reboot would. The machine is never touched.
    Simulated,
}

impl Boot {
    /// The boot id of this life.
    pub(crate) fn id(self, dir: &StateDir) -> Result<String, Error> {
        match self {
            Self::Machine => {
                let path = Path::new(KERNEL_BOOT_ID);
                let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
                named(&text).ok_or_else(|| Error::Unreadable {
                    path: path.to_path_buf(),
                })
            }
            Self::Simulated => {
                let kept = dir.read(BOOT_ID_FILE, BOOT_ID_BYTES_MAX)?;
                let kept = kept.and_then(|bytes| named(&String::from_utf8(bytes).ok()?));
                if let Some(kept) = kept {
                    return Ok(kept);
                }
                let id = new_boot_id();
                dir.write(BOOT_ID_FILE, id.as_bytes())?;
                Ok(id)
            }
        }
    }
}

fn named(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = !text.is_empty() && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}

fn new_boot_id() -> String {
    uuid::Builder::from_random_bytes(random())
        .into_uuid()
        .to_string()
}

/// A reboot that leaves the machine alone: once the new boot id is on the disk, the life that
/// `rebooted` belongs to is over.
pub(crate) fn simulate_reboot(folder: &Path, rebooted: &CancellationToken) -> Reboot {
    let folder = folder.to_path_buf();
    let rebooted = rebooted.clone();
    let going_down = Mutex::new(());
    Reboot::Injected(Arc::new(move |_| {
        // A machine that goes down does so once, however many ask for it.
        let _one = going_down.lock().unwrap_or_else(PoisonError::into_inner);
        if rebooted.is_cancelled() {
            return Ok(());
        }
        let written = replace(&folder, BOOT_ID_FILE, new_boot_id().as_bytes());
        written.map_err(|error| error.chain())?;
        rebooted.cancel();
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d9_a_simulated_boot_id_stays_until_a_reboot() {
        let root = tempfile::tempdir().unwrap();
        let dir = StateDir::open(root.path()).unwrap();
        let first = Boot::Simulated.id(&dir).unwrap();
        assert_eq!(Boot::Simulated.id(&dir).unwrap(), first);
        let rebooted = CancellationToken::new();
        let Reboot::Injected(reboot) = simulate_reboot(root.path(), &rebooted) else {
            panic!("a real reboot")
        };
        reboot("cmd_1").unwrap();
        assert!(rebooted.is_cancelled());
        assert_ne!(Boot::Simulated.id(&dir).unwrap(), first);
    }

    #[test]
    fn d9_reboots_at_once_are_one_boot() {
        let root = tempfile::tempdir().unwrap();
        let rebooted = CancellationToken::new();
        let Reboot::Injected(reboot) = simulate_reboot(root.path(), &rebooted) else {
            panic!("a real reboot")
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let reboot = reboot.clone();
                scope.spawn(move || reboot("cmd_1").unwrap());
            }
        });
        let dir = StateDir::open(root.path()).unwrap();
        let boot = Boot::Simulated.id(&dir).unwrap();
        reboot("cmd_2").unwrap();
        assert_eq!(Boot::Simulated.id(&dir).unwrap(), boot);
    }

    #[test]
    fn d9_the_machines_boot_id_is_the_kernels() {
        let root = tempfile::tempdir().unwrap();
        let dir = StateDir::open(root.path()).unwrap();
        assert_eq!(Boot::Machine.id(&dir).unwrap().len(), 36);
    }
}
