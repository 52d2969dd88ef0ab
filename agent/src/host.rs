//! Everything that an executor may touch, handed in.

use std::{
    fmt,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::RootCertStore;
use time::OffsetDateTime;

use crate::{error::Error, limits};

/// The node's own clock. Deadlines are decided by the driver in server time; this one only dates what is collected.
pub type Clock = Arc<dyn Fn() -> OffsetDateTime + Send + Sync>;

/// What [`Reboot::Injected`] calls with the command's id; an `Err` is the reason of a refusal.
pub type RebootEffect = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// How `node.reboot` takes effect (K7).
#[derive(Clone)]
pub enum Reboot {
    /// `systemctl reboot`: production.
    Systemctl,
    /// A call back into whoever runs the agent: `command-ledger up` and tests, which never touch the machine.
    Injected(RebootEffect),
}

impl fmt::Debug for Reboot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Systemctl => "Systemctl",
            Self::Injected(_) => "Injected",
        })
    }
}

/// The roots of the kernel's file systems and of the configuration.
#[derive(Debug, Clone)]
pub struct Paths {
    /// `/proc`
    pub proc: PathBuf,
    /// `/sys`
    pub sys: PathBuf,
    /// `/etc`
    pub etc: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            etc: "/etc".into(),
            dev: "/dev".into(),
        }
    }
}

/// The machine as the executors see it.
#[derive(Clone)]
pub struct Host {
    /// Where the kernel and the configuration are read.
    pub paths: Paths,
    /// The folders in which programs are looked for, in this order, each time one is needed: a driver that is installed
    /// later is found without a restart.
    pub program_folders: Vec<PathBuf>,
    /// How long one program may take to answer.
    pub program_timeout: Duration,
    /// The agent's state directory: the kept inventory and the bundles live under it.
    pub state_dir: PathBuf,
    /// The effect of `node.reboot`.
    pub reboot: Reboot,
    /// The node's clock.
    pub clock: Clock,
    /// The authorities of the site's own machines, trusted beside those of this one.
    pub site_ca: Arc<RootCertStore>,
}

impl fmt::Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Host")
            .field("paths", &self.paths)
            .field("program_folders", &self.program_folders)
            .field("state_dir", &self.state_dir)
            .field("reboot", &self.reboot)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// The machine that this process runs on. Programs are looked for in `PATH` and then where distributions put them,
    /// because a service's `PATH` often lacks the `sbin` folders.
    pub fn this_machine(state_dir: PathBuf, reboot: Reboot, clock: Clock) -> Self {
        let mut program_folders: Vec<PathBuf> = std::env::var_os("PATH")
            .map(|path| {
                std::env::split_paths(&path)
                    .filter(|folder| folder.is_absolute())
                    .collect()
            })
            .unwrap_or_default();
        for folder in [
            "/usr/local/sbin",
            "/usr/local/bin",
            "/usr/sbin",
            "/usr/bin",
            "/sbin",
            "/bin",
        ] {
            if !program_folders
                .iter()
                .any(|known| known == Path::new(folder))
            {
                program_folders.push(folder.into());
            }
        }
        Self {
            paths: Paths::default(),
            program_folders,
            program_timeout: Duration::from_secs(limits::PROGRAM_ANSWER_SECONDS_MAX),
            state_dir,
            reboot,
            clock,
            site_ca: Arc::new(RootCertStore::empty()),
        }
    }

    /// Where the program is, or that it is nowhere.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf, Error> {
        self.program_folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| {
                path.metadata()
                    .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
            })
            .ok_or_else(|| Error::ProgramNotFound {
                program: name.to_owned(),
            })
    }

    pub(crate) fn now(&self) -> OffsetDateTime {
        (self.clock)()
    }

    /// The node's time as RFC 3339, in UTC and to the second.
    pub(crate) fn now_text(&self) -> String {
        instant_text(self.now())
    }
}

/// RFC 3339 in UTC, to the second.
pub(crate) fn instant_text(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    at.replace_nanosecond(0)
        .unwrap_or(at)
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_else(|_| at.unix_timestamp().to_string())
}
