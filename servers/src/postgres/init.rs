//! Choosing the programs and initialising a cluster.

use std::fs;

use tokio::{process::Command, time::timeout};

use super::{ADMIN, PostgresOptions, home::Home};
use crate::{
    Durability, Error,
    account::Account,
    files,
    limits::INIT_WITHIN,
    process::{Place, Process, describe, stop_leftover},
    tools::{self, Tool},
};

/// The programs for the cluster: those of the major version that wrote its data, if it has any.
pub(super) async fn tool(
    options: &PostgresOptions,
    home: &Home,
    account: Option<Account>,
) -> Result<Tool, Error> {
    let written_by = files::read_if_there(&home.data().join("PG_VERSION"))?;
    let major = written_by.and_then(|text| text.trim().parse().ok());
    let found = tools::postgres_for(options.tools.as_deref(), major, account).await;
    match (found, major) {
        (Err(error @ (Error::ToolMissing { .. } | Error::ToolVersion { .. })), Some(found)) => {
            Err(Error::OtherMajor {
                folder: home.data(),
                found,
                reason: error.to_string(),
            })
        }
        (found, _) => found,
    }
}

/// Initialises the cluster unless it has been. A half-initialised one, of a run that was killed,
/// is thrown away: only a whole one is moved to its place. An `initdb` that is given up, or that a
/// killed run left behind, is ended with the shells that it runs.
pub(super) async fn init_if_empty(
    tool: &Tool,
    home: &Home,
    account: Option<Account>,
    options: &PostgresOptions,
) -> Result<(), Error> {
    let data = home.data();
    if data.join("PG_VERSION").is_file() {
        return Ok(());
    }
    let new = home.path().join("data.new");
    let place = Place {
        server: "initdb",
        log: home.folder.join("initdb.log"),
        pid_file: home.folder.join("initdb.pid"),
        marker: new.clone(),
        stop_steps: &[],
    };
    stop_leftover(&place).await?;
    files::remove_folder_if_there(&new)?;
    fs::create_dir(&new).map_err(Error::io("make the folder", &new))?;
    files::set_mode(&new, 0o700)?;
    if let Some(account) = account {
        account.own(&new)?;
    }
    let mut command = command(tool, "initdb", home);
    command
        .arg("-D")
        .arg(&new)
        .args(["-U", ADMIN, "-A", "trust", "-E", "UTF8"]);
    command.args(["--no-locale", "--data-checksums", "--no-instructions"]);
    if options.durability == Durability::Throwaway {
        command.arg("--no-sync");
    }
    let mut process = Process::spawn(&place, command, account, options.process_group)?;
    let failed = |status| Error::Init {
        status,
        output: files::tail(&place.log),
    };
    // On every way out before the end, dropping the process ends it.
    let Ok(status) = timeout(INIT_WITHIN, process.wait()).await else {
        return Err(failed(format!("no end in {} s", INIT_WITHIN.as_secs())));
    };
    let status = status?;
    if !status.success() {
        return Err(failed(describe(status)));
    }
    drop(process);
    files::remove_folder_if_there(&data)?;
    fs::rename(&new, &data).map_err(Error::io("move the new cluster to", &data))
}

/// A program of Postgres, free of what the caller's environment would tell it.
pub(super) fn command(tool: &Tool, program: &str, home: &Home) -> Command {
    let mut command = Command::new(tool.program(program));
    // The account may be unable to enter the launcher's own working folder.
    command.current_dir(home.path()).env("LC_ALL", "C");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command
}
