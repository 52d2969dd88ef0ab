//! Asking a program for its version.

use std::{fmt, io, path::Path, process::Stdio};

use tokio::{process::Command, time::timeout};

use crate::{Error, account::Account, files, limits::VERSION_WITHIN, process::run_as};

/// A version of a server. Postgres has no patch number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the three numbers of a version")]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)?;
        if self.patch > 0 {
            write!(formatter, ".{}", self.patch)?;
        }
        Ok(())
    }
}

impl Version {
    /// The first thing that looks like a version: `nats-server: v2.15.1`, `postgres (PostgreSQL) 18.6`,
    /// `postgres (PostgreSQL) 19beta1`.
    pub(crate) fn in_text(text: &str) -> Option<Version> {
        text.split_ascii_whitespace().find_map(|word| {
            let word = word.strip_prefix('v').unwrap_or(word);
            let mut numbers = word.split('.').map(|part| {
                let digits = part
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(part.len());
                part.get(..digits).unwrap_or_default().parse().ok()
            });
            let major = numbers.next()??;
            let mut rest = || numbers.next().flatten().unwrap_or(0);
            Some(Version {
                major,
                minor: rest(),
                patch: rest(),
            })
        })
    }
}

/// Runs `program --version` under the account; none if the account may not run it where it lies.
pub(super) async fn ask(
    program: &Path,
    account: Option<Account>,
) -> Result<Option<Version>, Error> {
    let unreadable = |found: String| Error::ToolUnreadable {
        path: program.into(),
        found,
    };
    let mut command = Command::new(program);
    command
        .arg("--version")
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    run_as(&mut command, account);
    let output = match timeout(VERSION_WITHIN, command.output()).await {
        Err(_) => {
            return Err(unreadable(format!(
                "no answer in {} s",
                VERSION_WITHIN.as_secs()
            )));
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied && account.is_some() => {
            return Ok(None);
        }
        Ok(Err(error)) => return Err(unreadable(error.to_string())),
        Ok(Ok(output)) => output,
    };
    // Some versions of nats-server print it on the other channel.
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    match Version::in_text(&text) {
        Some(version) if output.status.success() => Ok(Some(version)),
        _ => Err(unreadable(format!(
            "{}, {}",
            output.status,
            files::last_lines(&text)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_print() {
        let version = |major, minor, patch| {
            Some(Version {
                major,
                minor,
                patch,
            })
        };
        assert_eq!(
            Version::in_text("nats-server: v2.15.1\n"),
            version(2, 15, 1)
        );
        assert_eq!(Version::in_text("nats-server: v2.9.10"), version(2, 9, 10));
        assert_eq!(
            Version::in_text("postgres (PostgreSQL) 18.6"),
            version(18, 6, 0)
        );
        assert_eq!(
            Version::in_text("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"),
            version(15, 18, 0)
        );
        assert_eq!(
            Version::in_text("postgres (PostgreSQL) 19beta1"),
            version(19, 0, 0)
        );
        assert_eq!(Version::in_text("no number here v"), None);
        assert!(version(2, 9, 10) < version(2, 10, 0), "compared as numbers");
    }
}
