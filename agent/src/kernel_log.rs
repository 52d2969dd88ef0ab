//! The kernel's log of this boot, from wherever it can be read.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Read},
    ops::ControlFlow,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use tokio_util::sync::CancellationToken;

use crate::{
    error::Error,
    host::Host,
    limits,
    program::{self, End},
};

/// The lines of the kernel's log that were asked for.
#[derive(Debug, Default)]
pub(crate) struct KernelLog {
    pub(crate) source: &'static str,
    pub(crate) lines: Vec<String>,
    /// Not everything of this boot was looked at.
    pub(crate) cut: bool,
}

/// The lines of this boot that contain `needle`. The journal comes first, because the kernel's own buffer forgets its
/// oldest lines; an `Err` says why each source failed.
pub(crate) async fn lines_with(
    host: &Host,
    needle: &str,
    cancel: &CancellationToken,
) -> Result<KernelLog, String> {
    let mut whys = Vec::new();
    // Newest first, so that what a bound cuts off is the oldest.
    for (program, arguments) in [
        (
            "journalctl",
            &[
                "--dmesg",
                "--boot",
                "--output=short-iso",
                "--no-pager",
                "--reverse",
            ][..],
        ),
        ("dmesg", &[]),
    ] {
        match from_program(host, program, arguments, needle, cancel).await {
            Ok(log) => return Ok(log),
            Err(why) => whys.push(why),
        }
    }
    match ring_buffer(&host.paths.dev.join("kmsg")) {
        Ok(lines) => {
            let lines = lines.into_iter().filter(|line| line.contains(needle));
            Ok(KernelLog {
                source: "/dev/kmsg",
                lines: lines.take(limits::KERNEL_LOG_LINES_MAX).collect(),
                cut: false,
            })
        }
        Err(error) => {
            whys.push(error.chain());
            Err(whys.join("; "))
        }
    }
}

async fn from_program(
    host: &Host,
    name: &'static str,
    arguments: &[&str],
    needle: &str,
    cancel: &CancellationToken,
) -> Result<KernelLog, String> {
    let path = host.program(name).map_err(|error| error.chain())?;
    let mut log = KernelLog {
        source: name,
        ..KernelLog::default()
    };
    let mut bytes: u64 = 0;
    let mut any = false;
    let seen = program::lines(
        &path,
        arguments,
        host.program_timeout,
        cancel,
        &mut |line| {
            bytes += line.len() as u64 + 1;
            let line = String::from_utf8_lossy(line);
            // journalctl says "-- No entries --" on its standard output.
            any |= !line.is_empty() && !line.starts_with("-- ");
            if line.contains(needle) {
                log.lines.push(line.into_owned());
            }
            if bytes > limits::KERNEL_LOG_BYTES_MAX
                || log.lines.len() >= limits::KERNEL_LOG_LINES_MAX
            {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        },
    )
    .await
    .map_err(|error| error.chain())?;
    log.cut = seen.overlong > 0;
    match seen.end {
        End::Exited(status) if status.success() && any => Ok(log),
        End::Exited(status) if status.success() => Err(format!(
            "{name} shows no kernel log: {}",
            program::said(&seen.stderr)
        )),
        End::Exited(status) => Err(format!(
            "{name} ended with {}: {}",
            program::status_text(status),
            program::said(&seen.stderr)
        )),
        End::Cancelled => Err(Error::Cancelled.to_string()),
        End::Stopped | End::TimedOut if any => Ok(KernelLog { cut: true, ..log }),
        End::Stopped | End::TimedOut => Err(format!(
            "{name} did not answer within {} s",
            host.program_timeout.as_secs_f64()
        )),
    }
}

/// Every record that the kernel's buffer holds now. Each read gives one record, `priority,sequence,time,flags;text`.
fn ring_buffer(path: &Path) -> Result<Vec<String>, Error> {
    // Without this flag a read at the end waits for the next message.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(Error::file("open", path))?;
    let mut record = vec![0; 16 * 1024];
    let mut lines = Vec::new();
    let mut bytes: u64 = 0;
    while bytes < limits::KERNEL_LOG_BYTES_MAX {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                bytes += length as u64;
                let text = String::from_utf8_lossy(&record[..length]);
                lines.extend(text.lines().map(|line| {
                    line.split_once(';')
                        .map_or(line, |(_, text)| text)
                        .to_owned()
                }));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // EPIPE: the record was overwritten while we read; the next read continues behind it.
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) =>
            {
                bytes += 1;
            }
            Err(error) => return Err(Error::file("read", path)(error)),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_machine::FakeMachine;

    #[tokio::test]
    async fn the_journal_is_asked_first_then_dmesg_then_the_buffer() {
        let machine = FakeMachine::new();
        let cancel = CancellationToken::new();
        let why = lines_with(&machine.host(), "Xid", &cancel)
            .await
            .unwrap_err();
        assert!(
            why.starts_with("journalctl not found; dmesg not found; cannot open "),
            "{why}"
        );

        machine.file("dev/kmsg", "4,1,2,-;NVRM: Xid one\n6,2,3,-;other\n");
        let log = lines_with(&machine.host(), "Xid", &cancel).await.unwrap();
        assert_eq!(
            (log.source, log.lines),
            ("/dev/kmsg", vec!["NVRM: Xid one".to_owned()])
        );

        machine.program("dmesg", "echo '[ 1.0] NVRM: Xid two'");
        let log = lines_with(&machine.host(), "Xid", &cancel).await.unwrap();
        assert_eq!(
            (log.source, log.lines),
            ("dmesg", vec!["[ 1.0] NVRM: Xid two".to_owned()])
        );

        machine.program(
            "journalctl",
            "echo '-- No entries --'; echo 'No journal files were found.' >&2",
        );
        assert_eq!(
            lines_with(&machine.host(), "Xid", &cancel)
                .await
                .unwrap()
                .source,
            "dmesg"
        );

        machine.program("journalctl", "echo 'kernel: NVRM: Xid three'");
        assert_eq!(
            lines_with(&machine.host(), "Xid", &cancel)
                .await
                .unwrap()
                .source,
            "journalctl"
        );
    }
}
