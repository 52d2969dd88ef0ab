//! The three requests of a daemon: join, renew its certificate, and open a session.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ledger_protocol::frame::{JOIN_PATH, RENEW_PATH, SESSION_PATH, SUBPROTOCOL};
use ledger_protocol::session::Peer;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tracing::debug;

use crate::authority::Unreadable;
use crate::gateway::Shared;
use crate::{join, limits, renew, session};

/// A WebSocket of a daemon.
pub(crate) type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// One TLS connection; it brings one request.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    /// Who the client's certificate names; nothing without a certificate.
    peer: Result<Option<Peer>, Unreadable>,
    /// The connection's place among those that are no session yet; a session takes it along.
    admission: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        peer: Result<Option<Peer>, Unreadable>,
        admission: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            shared,
            peer,
            admission: Mutex::new(Some(admission)),
        }
    }

    /// Who the client is, by the certificate that it must have.
    fn peer(&self) -> Result<Peer, Failure> {
        match &self.peer {
            Ok(Some(peer)) => Ok(peer.clone()),
            Ok(None) => {
                let message = "this needs a client certificate; join first";
                Err(Failure::unauthenticated(message))
            }
            Err(unreadable) => Err(Failure::unauthenticated(&unreadable.to_string())),
        }
    }
}

/// An error as the HTTP API writes it (SPEC section 4).
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, code: &'static str, message: &str) -> Self {
        Self {
            status,
            code,
            message: message.to_owned(),
        }
    }

    pub(crate) fn invalid(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_INPUT", message)
    }

    pub(crate) fn unauthenticated(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message)
    }

    pub(crate) fn invalid_state(message: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "INVALID_STATE", message)
    }

    pub(crate) fn unavailable(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message)
    }

    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL",
            "the gateway's log tells more",
        )
    }

    fn response(&self) -> Response<Full<Bytes>> {
        let error = serde_json::json!({ "code": self.code, "message": self.message });
        json(self.status, &serde_json::json!({ "error": error }))
    }
}

fn json(status: StatusCode, body: &impl serde::Serialize) -> Response<Full<Bytes>> {
    // What is written here has text keys only, so that it cannot fail.
    let body = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    // One request per connection. hyper's own setting for that would also close upgrades.
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

/// Answers the connection's request.
pub(crate) async fn answer(
    connection: &Connection,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let answered = match (request.uri().path(), request.method()) {
        (JOIN_PATH, &Method::POST) => {
            let joined = join::join(&connection.shared, request.into_body()).await;
            joined.map(|joined| json(StatusCode::OK, &joined))
        }
        (RENEW_PATH, &Method::POST) => match connection.peer() {
            Ok(peer) => {
                let renewed = renew::renew(&connection.shared, peer, request.into_body()).await;
                renewed.map(|renewed| json(StatusCode::OK, &renewed))
            }
            Err(failure) => Err(failure),
        },
        (SESSION_PATH, &Method::GET) => open(connection, request),
        (path, _) => {
            let message = format!(
                "no such request; a daemon sends POST {JOIN_PATH}, POST {RENEW_PATH} or GET {SESSION_PATH}"
            );
            debug!(path, "a request for nothing that is here");
            Err(Failure::new(StatusCode::NOT_FOUND, "NOT_FOUND", &message))
        }
    };
    answered.unwrap_or_else(|failure| {
        debug!(
            code = failure.code,
            message = failure.message,
            "a request was refused"
        );
        failure.response()
    })
}

/// Turns the connection into a session.
fn open(
    connection: &Connection,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Failure> {
    let peer = connection.peer()?;
    let accept = handshake(request.headers())?;
    let admission = connection
        .admission
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(admission) = admission else {
        return Err(Failure::invalid("a connection opens one session"));
    };
    let shared = connection.shared.clone();
    let abort = shared.abort.clone();
    let upgrade = async move {
        let upgraded = timeout(limits::HTTP_HEAD_WITHIN, hyper::upgrade::on(request)).await;
        let Ok(Ok(upgraded)) = upgraded else {
            return debug!("a connection did not become a WebSocket");
        };
        let Ok(parts) = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>() else {
            return debug!("a WebSocket came over another connection than TLS");
        };
        let (stream, read) = (parts.io.into_inner(), parts.read_buf.to_vec());
        let config = Some(websocket_config());
        let socket = WebSocketStream::from_partially_read(stream, read, Role::Server, config).await;
        // On the heap, because what a session holds is large.
        Box::pin(session::run(&shared, socket, peer, admission)).await;
    };
    let tasks = &connection.shared.tasks;
    tasks.spawn(async move { abort.run_until_cancelled(upgrade).await });

    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(
        SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(SUBPROTOCOL),
    );
    Ok(response)
}

fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(limits::READ_BUFFER_BYTES)
        .max_message_size(Some(limits::MESSAGE_BYTES_MAX))
        .max_frame_size(Some(limits::MESSAGE_BYTES_MAX))
}

/// The opening handshake of RFC 6455; answers the value of `Sec-WebSocket-Accept`.
fn handshake(headers: &HeaderMap) -> Result<HeaderValue, Failure> {
    let names = |header: HeaderName, word: &str| {
        let values = headers.get_all(header).into_iter();
        let mut words = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|v| v.split(','));
        words.any(|given| given.trim().eq_ignore_ascii_case(word))
    };
    if !names(CONNECTION, "upgrade") || !names(UPGRADE, "websocket") {
        return Err(Failure::invalid(
            "a session is a WebSocket: send the headers of RFC 6455",
        ));
    }
    if !names(SEC_WEBSOCKET_VERSION, "13") {
        return Err(Failure::invalid("Sec-WebSocket-Version must be 13"));
    }
    if !names(SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        let message = format!("Sec-WebSocket-Protocol must name {SUBPROTOCOL}");
        return Err(Failure::invalid(&message));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| Failure::invalid("Sec-WebSocket-Key is missing"))?;
    HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| Failure::internal())
}
