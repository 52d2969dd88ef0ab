//! The accept loop: one TLS port for joins and sessions, bounded at every stage, and a shutdown
//! that ends sessions with 1001 and records their end.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use ledger::Clock;
use rustls::RootCertStore;
use rustls::pki_types::UnixTime;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::authority::peer;
use crate::dispatcher::Dispatcher;
use crate::gateway::{Gateway, Shared};
use crate::http::{self, Connection};
use crate::{Error, limits};

/// Serves joins and sessions until `shutdown`, then ends every session with 1001 and records it.
/// The ledger must live until this returns.
pub async fn serve(
    listener: TcpListener,
    gateway: Gateway,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let acceptor = TlsAcceptor::from(Arc::new(tls(&gateway)?));
    let address = listener.local_addr().map_err(Error::Listener)?;
    info!(%address, gateway = gateway.name, "gateway serves nodes");
    let admissions = Arc::new(Semaphore::new(gateway.options.admissions_max.max(1)));
    let (messages, inbox) = mpsc::channel(limits::DISPATCHER_QUEUE_MAX);
    let stop = shutdown.child_token();
    let shared = Arc::new(Shared::new(gateway, messages, stop.clone()));
    let dispatcher = Dispatcher::new(shared.ledger.clone(), shared.actor.clone(), inbox);
    let mut dispatching = shared.tasks.spawn({
        let stop = stop.clone();
        async move { stop.run_until_cancelled(dispatcher.run()).await }
    });

    shared.lease.take(&shared.ledger).await;
    shared.tasks.spawn({
        let (shared, stop) = (shared.clone(), stop.clone());
        async move {
            stop.run_until_cancelled(shared.lease.keep(&shared.ledger))
                .await
        }
    });

    shared.trust.look(&shared.ledger).await;
    shared.tasks.spawn({
        let (shared, stop) = (shared.clone(), stop.clone());
        async move {
            stop.run_until_cancelled(shared.trust.keep(&shared.ledger))
                .await
        }
    });

    let mut served = Ok(());
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            _ = &mut dispatching => {
                // Sessions to which nothing is dispatched are worse than none.
                if !stop.is_cancelled() {
                    served = Err(Error::Dispatcher);
                    stop.cancel();
                }
                break;
            }
            accepted = accept(&listener, &admissions) => accepted,
        };
        let Some((stream, admission)) = accepted else {
            continue;
        };
        let (acceptor, connection) = (acceptor.clone(), shared.clone());
        let abort = shared.abort.clone();
        let task = async move {
            let served = connect(stream, acceptor, connection, admission);
            abort.run_until_cancelled(served).await;
        };
        shared.tasks.spawn(task);
    }
    drop(listener);

    shared.tasks.close();
    if timeout(shared.options.shutdown_within, shared.tasks.wait())
        .await
        .is_err()
    {
        let left = shared.tasks.len();
        warn!(left, "sessions that did not end in time are cut off");
        shared.abort.cancel();
        shared.tasks.wait().await;
    }
    shared.lease.give_up(&shared.ledger).await;
    served
}

/// One more connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    admissions: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let admission = admissions.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, admission)),
        Err(error) => {
            // Most often too many open files: those that are open must first be given time to end.
            warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(limits::ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn connect(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    admission: OwnedSemaphorePermit,
) {
    // Frames are small and wait for nothing; without this each could wait 40 ms for an ack.
    let _ = stream.set_nodelay(true);
    let stream = match timeout(limits::TLS_HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "a TLS handshake failed"),
        Err(_) => return debug!("a TLS handshake took too long"),
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let peer = certificates
        .and_then(<[_]>::first)
        .map(|certificate| peer(certificate));
    let connection = Arc::new(Connection::new(shared.clone(), peer.transpose(), admission));
    let service = hyper::service::service_fn(move |request| {
        let connection = connection.clone();
        async move { Ok::<_, std::convert::Infallible>(http::answer(&connection, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HTTP_HEAD_WITHIN)
        .max_buf_size(limits::HTTP_HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        served = timeout(limits::HTTP_CONNECTION_WITHIN, served) => match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "a connection failed"),
            Err(_) => debug!("a connection took too long"),
        },
        () = shared.shutdown.cancelled() => {}
    }
}

/// Client certificates are optional, because who joins has none yet; those that are shown must be
/// ours.
fn tls(gateway: &Gateway) -> Result<rustls::ServerConfig, Error> {
    let now = gateway.ledger.now();
    let own = gateway
        .authority
        .issue_server(&gateway.options.server_names, now)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(gateway.authority.certificate_der().clone())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()?;
    let time = Arc::new(LedgerTime(gateway.ledger.clock().clone()));
    let mut config = rustls::ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.certificate], own.key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed handshake would not look at the client's certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Certificates are valid by the same clock as everything else (SPEC D10).
#[derive(Debug)]
struct LedgerTime(Clock);

impl TimeProvider for LedgerTime {
    fn current_time(&self) -> Option<UnixTime> {
        let micros = u64::try_from(self.0.now().as_micros()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_micros(micros)))
    }
}
