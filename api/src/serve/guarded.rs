//! A connection that does not wait for ever for a client that reads nothing, and on which the
//! HTTP library's own refusals have the form that all errors of the API have.
//!
//! The library answers a head that it cannot read with an empty response of its own (400, 414 or
//! 431), before any handler is asked. Its responses are told from ours by their empty body, which
//! ours never have.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::error::Error;
use crate::limits::HEAD_BYTES_MAX;

pub(super) struct Guarded<S> {
    stream: S,
    /// How long bytes may wait for the client.
    stall_max: Duration,
    /// Runs while they do.
    stall: Pin<Box<Sleep>>,
    stalled: bool,
    /// Written in place of a response of the library.
    replacement: Option<Replacement>,
}

struct Replacement {
    bytes: Vec<u8>,
    written: usize,
    /// Length of what is replaced.
    replaced: usize,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, stall_max: Duration) -> Self {
        Self {
            stream,
            stall_max,
            stall: Box::pin(sleep(stall_max)),
            stalled: false,
            replacement: None,
        }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// Passes a result of writing on; one that waits for too long is an error.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.stalled = false;
            return progress;
        }
        if !self.stalled {
            self.stalled = true;
            self.stall.as_mut().reset(Instant::now() + self.stall_max);
        }
        ready!(self.stall.as_mut().poll(context));
        let stalled = "the client takes no byte of its response";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, stalled)))
    }
}

/// The response to send in place of this one, if it is one of the library's own refusals.
fn replacement(response: &[u8]) -> Option<Vec<u8>> {
    let status = response.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let problem = match status {
        b"400" => "cannot be read: it is not HTTP/1.1".to_owned(),
        b"414" => "has a path that is too long".to_owned(),
        b"431" => format!("has more than {HEAD_BYTES_MAX} bytes or 100 headers, the limit"),
        _ => return None,
    };
    let head = str::from_utf8(response).ok()?.strip_suffix("\r\n\r\n")?;
    let is_empty = head
        .split("\r\n")
        .any(|line| line.eq_ignore_ascii_case("content-length: 0"));
    is_empty.then(|| refusal(problem))
}

/// The bytes that refuse a head which no handler gets to see; the connection ends after them.
pub(super) fn refusal(problem: String) -> Vec<u8> {
    let body = Error::unreadable("head", problem, json!({}))
        .body()
        .to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
         cache-control: no-store\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.replacement.is_none() {
            this.replacement = replacement(bytes).map(|replacing| Replacement {
                bytes: replacing,
                written: 0,
                replaced: bytes.len(),
            });
        }
        while let Some(replacement) = &mut this.replacement {
            let rest = replacement.bytes.get(replacement.written..);
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
                let replaced = replacement.replaced;
                this.replacement = None;
                return Poll::Ready(Ok(replaced));
            };
            match Pin::new(&mut this.stream).poll_write(context, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    replacement.written += count;
                    this.stalled = false;
                }
                other => return this.bounded(context, other),
            }
        }
        let progress = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.bounded(context, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, progress)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_a_client_that_reads_nothing_is_given_up() {
        let (mut client, server) = duplex(16);
        let mut server = Guarded::new(server, Duration::from_millis(20));
        let error = server.write_all(&[b'x'; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        client.read_exact(&mut [0; 16]).await.unwrap();
        server.write_all(&[b'x'; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn a_a_refusal_is_replaced_also_when_it_is_taken_byte_by_byte() {
        let (mut client, server) = duplex(1);
        let mut server = Guarded::new(server, Duration::from_secs(20));
        let own = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        let sending = async {
            server.write_all(own).await.unwrap();
            server.write_all(b"end").await.unwrap();
            server.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let ((), read) = tokio::join!(sending, client.read_to_end(&mut received));
        read.unwrap();
        let expected = [&replacement(own).unwrap()[..], b"end"].concat();
        assert_eq!(received, expected);
    }

    #[test]
    fn a_only_the_librarys_own_refusals_are_replaced() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n\r\n";
        let sent = String::from_utf8(replacement(own).unwrap()).unwrap();
        assert!(sent.starts_with("HTTP/1.1 400 "), "{sent}");
        assert!(sent.contains("INVALID_INPUT"), "{sent}");
        for other in [
            &b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 4",
            b"",
        ] {
            assert!(replacement(other).is_none());
        }
    }
}
