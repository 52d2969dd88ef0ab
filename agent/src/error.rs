//! What can go wrong between this crate and the machine.

use std::{io, path::PathBuf};

/// Every failure of a program, a file or a cancelled wait. `Display` never repeats the source; [`Error::chain`] does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// None of the folders that the host searches holds the program.
    #[error("{program} not found")]
    ProgramNotFound {
        /// The program's name.
        program: String,
    },
    /// The operating system refused to start the program.
    #[error("{program} could not be started")]
    ProgramNotStarted {
        /// The program's name.
        program: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The program was killed because it took too long.
    #[error("{program} did not answer within {seconds} s")]
    ProgramTimedOut {
        /// The program's name.
        program: String,
        /// The time it was given.
        seconds: f64,
    },
    /// A run before this one was killed and does not die; a second one would only hang beside it.
    #[error("{program} of an earlier run still hangs as process {process_id}")]
    ProgramHangs {
        /// The program's name.
        program: String,
        /// The process that hangs.
        process_id: u32,
    },
    /// The program was killed because it would not stop writing.
    #[error("{program} wrote more than {bytes_max} bytes")]
    ProgramSaidTooMuch {
        /// The program's name.
        program: String,
        /// The bound it crossed.
        bytes_max: usize,
    },
    /// The program ended with something else than success.
    #[error("{program} ended with {status}: {said}")]
    ProgramFailed {
        /// The program's name.
        program: String,
        /// Its exit status in words.
        status: String,
        /// The beginning of what it said.
        said: String,
    },
    /// The program succeeded, yet what it wrote makes no sense.
    #[error("{program} gave an answer that cannot be read: {found}")]
    ProgramUnreadable {
        /// The program's name.
        program: String,
        /// What was found instead.
        found: String,
    },
    /// The command was cancelled while it waited.
    #[error("cancelled")]
    Cancelled,
    /// A file or folder refused an action.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Another agent uses the state directory.
    #[error("{} is in use by another agent; give each agent a state directory of its own", path.display())]
    StateDirTaken {
        /// The folder.
        path: PathBuf,
    },
    /// A file is larger than what it is for allows.
    #[error("{} has more than {bytes_max} bytes", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The bound.
        bytes_max: u64,
    },
    /// An earlier write failed, and the journal was not written anew since.
    #[error("{} takes no records after a failed write", path.display())]
    JournalBroken {
        /// The journal.
        path: PathBuf,
    },
    /// A record of the journal cannot be encoded.
    #[error("a record cannot be written to the journal")]
    Record {
        /// What is wrong with it.
        source: ledger_protocol::canonical::Error,
    },
    /// A record of the journal is larger than any command makes one.
    #[error("a record of {bytes} bytes cannot be written to the journal")]
    RecordTooLarge {
        /// Its size, in bytes.
        bytes: usize,
    },
    /// A file is there and does not hold what it should.
    #[error("{} cannot be understood; restore it, or let the node join again with an empty state directory", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
    },
    /// A gateway's address that is none.
    #[error("{given:?} is no gateway; give https://host:port")]
    GatewayAddress {
        /// What was given.
        given: String,
    },
    /// PEM that does not hold what it should.
    #[error("{what} is not readable PEM")]
    Pem {
        /// What it should hold.
        what: &'static str,
    },
    /// Certificates or keys that TLS cannot work with.
    #[error("{what} cannot be used for TLS")]
    Tls {
        /// Which ones.
        what: &'static str,
        /// What is wrong with them.
        source: rustls::Error,
    },
    /// The node's key cannot be made or used.
    #[error("the node's key cannot be made or used")]
    Key {
        /// Why.
        source: rcgen::Error,
    },
    /// The node's key is none that it could sign its results with.
    #[error("the node's key cannot sign its results; it must be an Ed25519 key, as PKCS #8 in PEM")]
    SigningKey {
        /// Why.
        source: ed25519_dalek::pkcs8::Error,
    },
    /// The node never joined, and was not told how.
    #[error("this node has not joined: give a join token and the gateway's certificate authority")]
    NotJoined,
    /// The gateway could not be asked for a certificate, by a join or a renewal.
    #[error("cannot ask {gateway} for a certificate")]
    Join {
        /// The gateway.
        gateway: String,
        /// Why.
        source: reqwest::Error,
    },
    /// The gateway gave no certificate.
    #[error("{gateway} refused to give a certificate ({status}): {message}")]
    JoinRefused {
        /// The gateway.
        gateway: String,
        /// The HTTP status.
        status: u16,
        /// The gateway's reason.
        message: String,
    },
    /// The gateway answered a join or a renewal with something else.
    #[error("{gateway} gave an answer that holds no certificate for this node")]
    JoinUnreadable {
        /// The gateway.
        gateway: String,
    },
    /// The gateway let the node join with a trust bundle that is none.
    #[error(
        "{gateway} let the node join with a trust bundle that cannot be believed; nothing was kept of it"
    )]
    JoinUnbelievable {
        /// The gateway.
        gateway: String,
        /// Why.
        source: ledger_protocol::trust::Unbelievable,
    },
    /// The node's own certificate says nothing that can be read of when it ends.
    #[error("the node's certificate does not say when it ends")]
    Validity,
    /// No connection to the gateway.
    #[error("cannot connect to {gateway}")]
    GatewayUnreachable {
        /// The gateway.
        gateway: String,
        /// The reason, of TCP or of TLS.
        source: io::Error,
    },
    /// The gateway did not open a session in time.
    #[error("{gateway} did not open a session within {seconds} s")]
    GatewaySilent {
        /// The gateway.
        gateway: String,
        /// The time it was given.
        seconds: u64,
    },
    /// The gateway did not open a session.
    #[error("{gateway} refused a session with HTTP status {status}")]
    SessionRefused {
        /// The gateway.
        gateway: String,
        /// The HTTP status.
        status: u16,
    },
    /// The WebSocket could not be opened.
    #[error("cannot open a session with {gateway}")]
    Session {
        /// The gateway.
        gateway: String,
        /// Why.
        source: Box<tokio_tungstenite::tungstenite::Error>,
    },
    /// A blocking piece of work ended without an answer.
    #[error("{work} broke off")]
    BrokeOff {
        /// The piece of work.
        work: &'static str,
    },
}

impl Error {
    /// The error and everything under it in one line, for a `why` that an operator reads.
    pub fn chain(&self) -> String {
        chain(self)
    }

    pub(crate) fn file(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

/// An error and everything under it in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let said = error.to_string();
        // Some errors of others repeat what is under them.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = error.source();
    }
    text
}
