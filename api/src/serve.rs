//! The accept loop, bounded at every stage: connections, heads, idle time, responses that nobody
//! reads, and the end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::Router;
use axum::http::{Version, header};
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use tracing::{debug, info, warn};

use crate::error::Error;
use crate::limits;

mod guarded;

use guarded::{Guarded, refusal};

/// Serves HTTP/1.1 until `shutdown`, and says that `what` is served; then no connection is accepted, requests in progress get
/// [`limits::DRAIN_MAX`] to end, and what is left is cut off.
pub async fn serve(what: &str, listener: TcpListener, router: Router, shutdown: CancellationToken) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, "{what} is served");
    }
    let connections = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let abort = CancellationToken::new();
    while let Some(accepted) = shutdown
        .run_until_cancelled(accept(&listener, &slots))
        .await
    {
        let Some((stream, slot)) = accepted else {
            continue;
        };
        let (router, shutdown, abort) = (router.clone(), shutdown.clone(), abort.clone());
        connections.spawn(async move {
            let _slot = slot;
            abort
                .run_until_cancelled(connection(stream, router, shutdown))
                .await;
        });
    }
    drop(listener);
    connections.close();
    if timeout(limits::DRAIN_MAX, connections.wait())
        .await
        .is_err()
    {
        warn!(
            left = connections.len(),
            "connections that did not end in time are cut off"
        );
        abort.cancel();
        connections.wait().await;
    }
}

/// One more connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            // Most often too many open files: those that are open must first be given time to end.
            warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(limits::ACCEPT_RETRY).await;
            None
        }
    }
}

async fn connection(stream: TcpStream, router: Router, shutdown: CancellationToken) {
    // Responses are small and wait for nothing; without this each could wait 40 ms for an ack.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        let answer = async move {
            match check_host(&request) {
                Ok(()) => router.oneshot(request).await,
                Err(error) => Ok(error.into_response()),
            }
        };
        // Boxed, because a connection can only be taken apart when its futures can be moved.
        answer.boxed()
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_READ_MAX)
        .max_header_size(limits::HEAD_BYTES_MAX)
        .max_buf_size(limits::CONNECTION_BUFFER_BYTES)
        .serve_connection(
            TokioIo::new(Guarded::new(stream, limits::WRITE_STALL_MAX)),
            service,
        );
    let mut stopping = pin!(shutdown.cancelled());
    let mut is_stopping = false;
    let served = poll_fn(|context| {
        if !is_stopping && stopping.as_mut().poll(context).is_ready() {
            is_stopping = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        connection.poll_without_shutdown(context)
    });
    let failed = served.await.err();
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner().into_inner();
    if let Some(error) = failed {
        debug!(%error, "a connection failed");
        // What was not understood still lies there. An idle connection just ends.
        if let Some(problem) = unanswered(&error).filter(|_| !parts.read_buf.is_empty()) {
            let refusal = refusal(problem);
            let _ = timeout(limits::LINGER_MAX, stream.write_all(&refusal)).await;
        }
    }
    linger(stream).await;
}

/// HTTP/1.1 asks for this of every server: a request names the host that it is for, once.
///
/// A request with both `Content-Length` and `Transfer-Encoding` cannot be told from one with the
/// latter alone: hyper removes the former before anybody sees it. It follows RFC 9112 (6.3) there:
/// the transfer encoding counts, and the connection ends after the answer, so that what a proxy
/// took for a body is never read as a request.
fn check_host(request: &Request<Incoming>) -> Result<(), Error> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || request.version() != Version::HTTP_11 {
        return Ok(());
    }
    let problem = format!("must be given once in HTTP/1.1; it is given {hosts} times");
    Err(Error::unreadable("host", problem, json!({})))
}

/// What was wrong with a head that hyper gives up without a word.
fn unanswered(error: &hyper::Error) -> Option<String> {
    if error.is_timeout() {
        let seconds = limits::HEAD_READ_MAX.as_secs();
        Some(format!("did not arrive whole within {seconds} s"))
    } else if error.is_parse_version_h2() {
        Some("cannot be read: it is HTTP/2, and this is HTTP/1.1".to_owned())
    } else if error.is_incomplete_message() {
        Some("broke off before its end".to_owned())
    } else {
        None
    }
}

/// Ends a connection so that its last response arrives: a socket that is closed while bytes of
/// the client wait in it is reset, and a reset can overtake the response.
async fn linger(mut stream: TcpStream) {
    let end = async {
        stream.shutdown().await?;
        let mut unread = [0; 4 * 1024];
        while stream.read(&mut unread).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    let _ = timeout(limits::LINGER_MAX, end).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_a_head_that_never_ends_is_answered_and_an_idle_connection_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = async |said: &[u8]| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said).await.unwrap();
            let mut heard = String::new();
            stream.read_to_string(&mut heard).await.unwrap();
            heard
        };
        let talk = async {
            let slow = heard(b"POST / HTTP/1.1\r\nhost: x\r\nslow: ").await;
            assert!(slow.starts_with("HTTP/1.1 400 "), "{slow}");
            assert!(
                slow.contains("INVALID_INPUT") && slow.contains("within 30 s"),
                "{slow}"
            );
            assert_eq!(heard(b"").await, "");
        };
        tokio::select! {
            () = talk => {}
            () = serve("the API", listener, Router::new(), CancellationToken::new()) => panic!("it ends"),
        }
    }
}
