//! The accept loop, bounded at every stage: connections, heads, idle time, responses that nobody
//! reads, and the end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::Router;
use futures_util::FutureExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use tracing::{debug, info, warn};

use crate::limits;

mod guarded;

use guarded::Guarded;

/// Serves HTTP/1.1 until `shutdown`; then no connection is accepted, requests in progress get
/// [`limits::DRAIN_MAX`] to end, and what is left is cut off.
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, "the API is served");
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
        // Boxed, because a connection can only be taken apart when its futures can be moved.
        router.clone().oneshot(request).boxed()
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
    if let Err(error) = served.await {
        debug!(%error, "a connection failed");
    }
    linger(connection.into_parts().io.into_inner().into_inner()).await;
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
