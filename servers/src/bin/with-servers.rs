//! `with-servers [--postgres-bin FOLDER] [--keep FOLDER] [--] COMMAND [ARGUMENT…]`
//!
//! Runs a command, such as `cargo nextest run`, with a Postgres cluster of its own that is thrown
//! away afterwards, and ends with the command's exit code. The command finds in its environment
//! `DATABASE_URL`, an empty database and a superuser who may make more, which `#[sqlx::test]` does
//! for each test, and `COMMAND_LEDGER_TOOLS`, so that what it starts itself is of the same version.
//! Tests that need NATS start one through this crate: it takes 35 ms.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, IsTerminal as _, Write as _},
    os::unix::{fs::MetadataExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use ledger_servers::{ADMIN, Error, Postgres, PostgresOptions, tools};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    signal::unix::{Signal as Signals, SignalKind, signal},
    time::timeout,
};

const USAGE: &str =
    "usage: with-servers [--postgres-bin FOLDER] [--keep FOLDER] [--] COMMAND [ARGUMENT…]
  --postgres-bin FOLDER  use the Postgres in this folder
  --keep FOLDER          use this folder for the cluster and do not remove it";

/// The database that `DATABASE_URL` names.
const DATABASE: &str = "ledger_tests";
/// Tests run in parallel, each with a pool or two.
const CONNECTIONS_MAX: u32 = 400;
/// The folders below the system's temporary one.
const PREFIX: &str = "ledger-tests-";
/// From a signal to killing a command that does not end.
const COMMAND_STOP_WITHIN: Duration = Duration::from_secs(30);

/// Exit codes as shells use them.
const USAGE_CODE: u8 = 2;
const NO_SERVERS_CODE: u8 = 125;
const NO_COMMAND_CODE: u8 = 127;
const SIGNAL_CODE: u8 = 128;

struct Arguments {
    postgres: Option<PathBuf>,
    keep: Option<PathBuf>,
    command: Vec<OsString>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(arguments) = parse(env::args_os().skip(1)) else {
        tell(USAGE);
        return USAGE_CODE.into();
    };
    let interrupts = Interrupts::listen();
    let done = match interrupts {
        Ok(interrupts) => run(arguments, interrupts).await,
        Err(source) => Err((NO_SERVERS_CODE, Box::from(source))),
    };
    match done {
        Ok(code) => code.into(),
        Err((code, error)) => {
            tell(&format!("with-servers: {}", chain(&*error)));
            code.into()
        }
    }
}

fn parse(mut words: impl Iterator<Item = OsString>) -> Option<Arguments> {
    let mut arguments = Arguments {
        postgres: None,
        keep: None,
        command: Vec::new(),
    };
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--postgres-bin") => arguments.postgres = Some(words.next()?.into()),
            Some("--keep") => arguments.keep = Some(words.next()?.into()),
            Some("--") => arguments.command.extend(words.by_ref()),
            Some(option) if option.starts_with('-') => return None,
            _ => {
                arguments.command.push(word);
                arguments.command.extend(words.by_ref());
            }
        }
    }
    (!arguments.command.is_empty()).then_some(arguments)
}

type Failure = (u8, Box<dyn std::error::Error>);

fn no_servers(error: impl Into<Box<dyn std::error::Error>>) -> Failure {
    (NO_SERVERS_CODE, error.into())
}

/// Starts, runs, stops, removes; whatever happens to the command, the rest is done.
async fn run(arguments: Arguments, mut interrupts: Interrupts) -> Result<u8, Failure> {
    remove_leftovers().await;
    let temporary = match &arguments.keep {
        Some(_) => None,
        None => Some(temporary().map_err(no_servers)?),
    };
    let base = temporary
        .as_ref()
        .map(tempfile::TempDir::path)
        .or(arguments.keep.as_deref());
    let base = base.unwrap_or(Path::new("."));
    let options = PostgresOptions {
        tools: arguments.postgres.clone(),
        max_connections: CONNECTIONS_MAX,
        ..PostgresOptions::new(base.join("postgres")).throwaway()
    };
    // A start that is given up ends what it has started.
    let mut postgres = tokio::select! {
        started = start(options) => started.map_err(no_servers)?,
        signal = interrupts.next() => return Ok(code_of(signal)),
    };
    let code = run_command(&arguments, &mut postgres, &mut interrupts).await;
    let stopped = match temporary {
        Some(_) => postgres.destroy().await,
        None => postgres.stop().await,
    };
    stopped.map_err(no_servers)?;
    code
}

async fn start(options: PostgresOptions) -> Result<Postgres, Error> {
    let postgres = Postgres::start(options).await?;
    postgres.create_database(DATABASE).await?;
    Ok(postgres)
}

/// A folder that the account of the servers may walk through.
fn temporary() -> io::Result<tempfile::TempDir> {
    let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711);
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(mode)
        .tempdir()
}

async fn run_command(
    arguments: &Arguments,
    postgres: &mut Postgres,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    let (program, rest) = arguments
        .command
        .split_first()
        .ok_or((USAGE_CODE, USAGE.into()))?;
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("DATABASE_URL", postgres.url(DATABASE, ADMIN));
    command.env(tools::TOOLS_VARIABLE, tool_folders(postgres).await?);
    if env::var_os("SQLX_OFFLINE").is_none() {
        // Else the macros of sqlx would check queries against the database, which is empty.
        command.env("SQLX_OFFLINE", "true");
    }
    // Started by `cargo run`, this program has variables about its own package. Build scripts such
    // as ring's look at them, so the cargo that is started here would build half the tree again.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    let mut child = command.spawn().map_err(|error| {
        (
            NO_COMMAND_CODE,
            format!("cannot run {}: {error}", program.display()).into(),
        )
    })?;
    let mut served = true;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(code(status.map_err(no_servers)?)),
            signal = interrupts.next() => {
                pass_on(&child, signal);
                let Ok(status) = timeout(COMMAND_STOP_WITHIN, child.wait()).await else {
                    tell("with-servers: the command does not end: killed");
                    child.kill().await.map_err(no_servers)?;
                    return Ok(code_of(Signal::KILL));
                };
                return Ok(code(status.map_err(no_servers)?));
            }
            ended = postgres.exited(), if served => {
                served = false;
                let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                tell(&format!("with-servers: Postgres has ended ({how}):\n{}", postgres.log_tail()));
            }
        }
    }
}

/// The folders of both servers; NATS may be missing, since not every command needs it.
async fn tool_folders(postgres: &Postgres) -> Result<OsString, Failure> {
    let mut folders = vec![postgres.tools().to_owned()];
    if let Ok(nats) = tools::nats(None).await {
        folders.push(nats.folder);
    }
    env::join_paths(folders).map_err(no_servers)
}

/// What ends this program; it goes on to stop the servers all the same.
struct Interrupts {
    interrupt: Signals,
    terminate: Signals,
    hangup: Signals,
}

impl Interrupts {
    fn listen() -> io::Result<Interrupts> {
        Ok(Interrupts {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

fn pass_on(child: &Child, signal: Signal) {
    // A terminal sends Ctrl-C to the command as well, and some take a second one as "at once".
    if signal == Signal::INT && io::stdin().is_terminal() {
        return;
    }
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| {
        status
            .signal()
            .map(|signal| i32::from(SIGNAL_CODE) + signal)
    });
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

fn code_of(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).map_or(u8::MAX, |signal| SIGNAL_CODE.saturating_add(signal))
}

/// Removes what runs that were killed left behind. Those that still run hold their folder's lock.
async fn remove_leftovers() {
    let own = rustix::process::geteuid().as_raw();
    let leftovers = fs::read_dir(env::temp_dir())
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    for folder in leftovers.map(|entry| entry.path()) {
        let ours = fs::symlink_metadata(&folder).is_ok_and(|found| found.uid() == own)
            && folder
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
            && folder.join("postgres/lock").is_file();
        if ours && remove_leftover(&folder).await.is_ok() {
            tell(&format!(
                "with-servers: removed {}, left by an earlier run",
                folder.display()
            ));
        }
    }
}

async fn remove_leftover(folder: &Path) -> Result<(), Error> {
    Postgres::clear(folder.join("postgres")).await?;
    // What else is in it is not ours to judge: then it stays.
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// The error and what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn tell(text: &str) {
    // A closed stderr is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}
