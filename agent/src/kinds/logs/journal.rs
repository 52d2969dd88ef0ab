//! Reading the journal, newest entry first: whatever bound ends the reading, what is lost is the oldest. The entries are
//! turned round again when they are packed.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    ops::ControlFlow,
    path::Path,
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    error::Error,
    limits,
    program::{self, End},
};

/// What was read from the journal: a file with one JSON object in each line, newest first.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    /// Where each line starts, and at last where the file ends.
    starts: Vec<u64>,
    /// Which bound ended the reading, if one did.
    pub(crate) cut: Option<Cut>,
    /// What `journalctl` complained about.
    pub(crate) complaint: String,
    /// Entries that were too long to be taken.
    pub(crate) overlong: u64,
}

/// The bound that ended a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Bytes,
    Time,
}

impl Cut {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Time => "time",
        }
    }
}

impl Spool {
    pub(crate) fn entries(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The entries, oldest first.
    pub(crate) fn oldest_first(self) -> impl Read {
        OldestFirst {
            file: self.file,
            starts: self.starts,
            line: Vec::new(),
            given: 0,
        }
    }
}

/// Reads entries into `spool` until one of the bounds. An `Err` means that the journal could not be read at all.
pub(crate) async fn read(
    journalctl: &Path,
    arguments: &[&str],
    spool: &Path,
    bytes_max: u64,
    timeout: Duration,
    cancel: &CancellationToken,
) -> Result<Spool, Error> {
    let file = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(spool)
        .map_err(Error::file("create", spool))?;
    let mut writer = BufWriter::with_capacity(256 * 1024, file);
    let mut starts = vec![0];
    let mut end: u64 = 0;
    let mut failure = None;
    let mut arguments = arguments.to_vec();
    arguments.extend(["--output=json", "--no-pager", "--reverse"]);
    let lines = program::lines(journalctl, &arguments, timeout, cancel, &mut |line| {
        // Everything else that it prints, such as "-- No entries --", is for people.
        if !line.starts_with(b"{") {
            return ControlFlow::Continue(());
        }
        let after = end + line.len() as u64 + 1;
        if after > bytes_max || starts.len() > limits::BUNDLE_ENTRIES_MAX {
            return ControlFlow::Break(());
        }
        if let Err(error) = writer
            .write_all(line)
            .and_then(|()| writer.write_all(b"\n"))
        {
            failure = Some(error);
            return ControlFlow::Break(());
        }
        end = after;
        starts.push(after);
        ControlFlow::Continue(())
    })
    .await?;
    if let Some(source) = failure {
        return Err(Error::file("write", spool)(source));
    }
    let file = writer
        .into_inner()
        .map_err(|error| Error::file("write", spool)(error.into_error()))?;
    let cut = match lines.end {
        End::Exited(status) if status.success() => None,
        End::Exited(status) => {
            return Err(Error::ProgramFailed {
                program: "journalctl".to_owned(),
                status: program::status_text(status),
                said: program::said(&lines.stderr),
            });
        }
        End::Stopped => Some(Cut::Bytes),
        End::TimedOut => Some(Cut::Time),
        End::Cancelled => return Err(Error::Cancelled),
    };
    Ok(Spool {
        file,
        starts,
        cut,
        complaint: lines.stderr,
        overlong: lines.overlong,
    })
}

struct OldestFirst {
    file: File,
    starts: Vec<u64>,
    line: Vec<u8>,
    given: usize,
}

impl Read for OldestFirst {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.line.len() {
            let [.., start, end] = self.starts[..] else {
                return Ok(0);
            };
            self.starts.pop();
            let length = usize::try_from(end - start).map_err(io::Error::other)?;
            self.line.resize(length, 0);
            self.given = 0;
            self.file.seek(SeekFrom::Start(start))?;
            self.file.read_exact(&mut self.line)?;
        }
        let rest = &self.line[self.given..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.given += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    async fn read_with(script: &str, bytes_max: u64, timeout: Duration) -> Result<Spool, Error> {
        let machine = FakeMachine::new();
        let path = machine.program("journalctl", script);
        read(
            &path,
            &[],
            &machine.path("spool"),
            bytes_max,
            timeout,
            &CancellationToken::new(),
        )
        .await
    }

    const MINUTE: Duration = Duration::from_mins(1);

    fn text(spool: Spool) -> String {
        let mut text = String::new();
        spool.oldest_first().read_to_string(&mut text).unwrap();
        text
    }

    #[tokio::test]
    async fn entries_come_out_oldest_first() {
        let spool = read_with(
            "case \"$*\" in *--output=json*--reverse*) ;; *) exit 1;; esac; \
             printf '{\"n\":3}\\n{\"n\":2}\\n-- people --\\n{\"n\":1}\\n'",
            100,
            MINUTE,
        )
        .await
        .unwrap();
        assert_eq!((spool.entries(), spool.bytes(), spool.cut), (3, 24, None));
        assert_eq!(text(spool), "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
    }

    #[tokio::test]
    async fn b_the_byte_bound_cuts_off_the_oldest() {
        let spool = read_with("printf '{\"n\":3}\\n{\"n\":2}\\n{\"n\":1}\\n'", 17, MINUTE)
            .await
            .unwrap();
        assert_eq!(spool.cut, Some(Cut::Bytes));
        assert_eq!(text(spool), "{\"n\":2}\n{\"n\":3}\n");
        let spool = read_with("while :; do echo '{}'; done", 3000, MINUTE)
            .await
            .unwrap();
        assert_eq!((spool.entries(), spool.cut), (1000, Some(Cut::Bytes)));
    }

    #[tokio::test]
    async fn b_the_time_bound_keeps_what_was_read() {
        let spool = read_with(
            "echo '{\"n\":2}'; exec sleep 600",
            1000,
            Duration::from_millis(700),
        )
        .await
        .unwrap();
        assert_eq!((spool.entries(), spool.cut), (1, Some(Cut::Time)));
    }

    #[tokio::test]
    async fn a_journal_that_cannot_be_read_says_why() {
        let error = read_with("echo 'Failed to open journal' >&2; exit 1", 100, MINUTE)
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "journalctl ended with exit status 1: Failed to open journal"
        );
        let spool = read_with(
            "echo 'No journal files were found.' >&2; echo '-- No entries --'",
            100,
            MINUTE,
        )
        .await
        .unwrap();
        assert_eq!(
            (spool.entries(), spool.complaint.trim()),
            (0, "No journal files were found.")
        );
        assert_eq!(text(spool), "");
    }
}
