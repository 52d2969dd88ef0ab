//! The little of Postgres' protocol that starting a cluster needs: connect without a password, run
//! one statement, hear how it went.

use std::{fmt, io, path::Path, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use crate::limits::{ANSWER_WITHIN, POSTGRES_MESSAGE_BYTES_MAX};

/// `duplicate_database`, the code of a name that is taken.
pub(super) const DUPLICATE_DATABASE: &str = "42P04";
/// Version 3.0 of the protocol.
const PROTOCOL: i32 = 3 << 16;

/// Why a statement did not run.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection failed.
    Link(io::Error),
    /// The server refused.
    Server {
        /// The SQLSTATE.
        code: String,
        message: String,
    },
    /// No answer in time.
    Late,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Link(error) => write!(formatter, "{error}"),
            Failure::Server { code, message } => write!(formatter, "{message} ({code})"),
            Failure::Late => formatter.write_str("no answer in time"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Link(error)
    }
}

/// Runs one statement on a connection of its own; an empty one just asks whether the server is there.
pub(super) async fn run(
    socket: &Path,
    user: &str,
    database: &str,
    statement: &str,
    within: Duration,
) -> Result<(), Failure> {
    let within = if statement.is_empty() {
        within.min(ANSWER_WITHIN)
    } else {
        within
    };
    let talk = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(&startup(user, database)).await?;
        until_ready(&mut stream).await?;
        if !statement.is_empty() {
            stream
                .write_all(&message(b'Q', &[statement.as_bytes(), b"\0"]))
                .await?;
            until_ready(&mut stream).await?;
        }
        stream.write_all(&message(b'X', &[])).await?;
        Ok(())
    };
    timeout(within, talk).await.unwrap_or(Err(Failure::Late))
}

fn startup(user: &str, database: &str) -> Vec<u8> {
    let version = PROTOCOL.to_be_bytes();
    let parts: [&[u8]; 5] = [
        &version,
        b"user\0",
        user.as_bytes(),
        b"\0database\0",
        database.as_bytes(),
    ];
    let body = [&parts.concat()[..], b"\0\0"].concat();
    [length(body.len()), body].concat()
}

fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut framed = vec![kind];
    framed.extend(length(body.len()));
    framed.extend(body);
    framed
}

/// A length counts itself. Ours are short.
fn length(body: usize) -> Vec<u8> {
    i32::try_from(body.saturating_add(4))
        .unwrap_or(i32::MAX)
        .to_be_bytes()
        .to_vec()
}

/// Reads until the server waits for the next statement; the first error it told on the way is the
/// answer. An error before that ends the connection.
async fn until_ready(stream: &mut UnixStream) -> Result<(), Failure> {
    let mut refused = None;
    loop {
        let (kind, body) = match read_message(stream).await {
            Ok(message) => message,
            Err(error) => return Err(refused.unwrap_or(Failure::Link(error))),
        };
        match kind {
            b'Z' => return refused.map_or(Ok(()), Err),
            b'E' => refused = Some(refusal(&body)),
            // Anything but AuthenticationOk asks for a password.
            b'R' if body != [0; 4] => {
                return Err(Failure::Link(io::Error::other(
                    "the server asks for a password",
                )));
            }
            _ => {}
        }
    }
}

async fn read_message(stream: &mut UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await?;
    let bytes = stream.read_i32().await?;
    let bytes = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| bytes.checked_sub(4));
    match bytes {
        Some(bytes) if bytes <= POSTGRES_MESSAGE_BYTES_MAX => {
            let mut body = vec![0; bytes];
            stream.read_exact(&mut body).await?;
            Ok((kind, body))
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message of impossible length",
        )),
    }
}

/// Fields of an error: a letter, a text, a NUL.
fn refusal(body: &[u8]) -> Failure {
    let field = |letter: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let found = fields.find_map(|field| field.strip_prefix(&[letter]));
        found
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .unwrap_or_default()
    };
    Failure::Server {
        code: field(b'C'),
        message: field(b'M'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_startup_message_has_the_documented_bytes() {
        assert_eq!(
            startup("u", "d"),
            b"\0\0\0\x1b\0\x03\0\0user\0u\0database\0d\0\0"
        );
    }

    #[test]
    fn a_refusal_gives_code_and_message() {
        let body = b"SERROR\0VERROR\0C42P04\0Mdatabase \"x\" already exists\0\0";
        let Failure::Server { code, message } = refusal(body) else {
            panic!("not a refusal")
        };
        assert_eq!(
            (code.as_str(), message.as_str()),
            ("42P04", "database \"x\" already exists")
        );
    }

    #[tokio::test]
    async fn a_stranger_on_the_socket_is_an_error_not_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let answers: [&[u8]; 5] = [
            b"",
            b"R",
            b"R\xff\xff\xff\xff",
            b"R\x7f\xff\xff\xff",
            b"R\0\0\0\x08\0\0\0\x05",
        ];
        for answer in answers {
            let ask = run(&path, "u", "d", "", ANSWER_WITHIN);
            let stranger = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(answer).await.unwrap();
            };
            let (asked, ()) = tokio::join!(ask, stranger);
            assert!(
                matches!(asked, Err(Failure::Link(_))),
                "{answer:?}: {asked:?}"
            );
        }
    }
}
