//! Opening a connection to a gateway (SPEC D1).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ed25519_dalek::SigningKey;
use ledger_protocol::attestation;
use ledger_protocol::frame::{CommandUpdate, Frame, SESSION_PATH, SUBPROTOCOL, SecretRequest};
use ledger_protocol::id::NodeId;
use ledger_protocol::secret::Exchange;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, ClientRequestBuilder};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use tracing::error;

use crate::clock::Clock;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::gateway_address::GatewayAddress;
use crate::limits::{CONNECT_SECONDS_MAX, MESSAGE_BYTES_MAX, READ_BUFFER_BYTES};

/// An open WebSocket to a gateway.
pub(crate) type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Opens connections to one gateway as one node, and signs what it says on them.
#[derive(Clone)]
pub struct Connector {
    gateway: GatewayAddress,
    /// Of the certificate that the connections show.
    key: SigningKey,
    server_name: ServerName<'static>,
    session: Uri,
    /// Of the certificate that is shown from the next connection on; clones share it.
    tls: Arc<Mutex<TlsConnector>>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("gateway", &self.gateway)
            .finish_non_exhaustive()
    }
}

impl Connector {
    /// A connector that trusts the authority of the credentials.
    pub fn new(
        gateway: GatewayAddress,
        credentials: &Credentials,
        clock: &Clock,
    ) -> Result<Self, Error> {
        let config = credentials.client_config(clock)?;
        let session = gateway.url("wss", SESSION_PATH);
        let session = session.parse().map_err(|_| Error::GatewayAddress {
            given: gateway.to_string(),
        })?;
        Ok(Self {
            key: credentials.signing_key()?,
            server_name: gateway.server_name()?,
            session,
            tls: Arc::new(Mutex::new(TlsConnector::from(Arc::new(config)))),
            gateway,
        })
    }

    /// Signs the ends that a frame reports (SPEC P2). That is done when they are sent and not when
    /// they are written: after the node has joined anew, its key is another one. Of every kind, so
    /// that whether a signature is asked for is the ledger's to decide. Questions for secrets are signed
    /// alike (SPEC P6).
    pub(crate) fn sign(&self, node: NodeId, frame: &mut Frame) {
        let updates = match frame {
            Frame::CommandUpdate(CommandUpdate { updates }) => updates,
            Frame::SecretRequest(request) => return self.sign_secret_request(node, request),
            _ => return,
        };
        for update in updates {
            match attestation::sign(&self.key, node, update) {
                Ok(signature) => update.node_sig = signature.map(|bytes| bytes.to_vec()),
                // What cannot be encoded is refused as unsigned, where people see it.
                Err(error) => {
                    let command = update.command_id;
                    error!(%node, %command, %error, "an end cannot be signed");
                }
            }
        }
    }

    fn sign_secret_request(&self, node: NodeId, request: &mut SecretRequest) {
        let exchange = Exchange {
            command_id: request.command_id,
            key: request.key,
            node_id: node,
            secret_ref: &request.secret_ref,
        };
        match exchange.sign(&self.key) {
            Ok(signature) => request.node_sig = Some(signature.to_vec()),
            Err(error) => {
                let command = request.command_id;
                error!(%node, %command, %error, "a question for a secret cannot be signed");
            }
        }
    }

    /// Shows the certificate of these credentials from the next connection on.
    pub(crate) fn show(&self, credentials: &Credentials, clock: &Clock) -> Result<(), Error> {
        let config = credentials.client_config(clock)?;
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) =
            TlsConnector::from(Arc::new(config));
        Ok(())
    }

    fn tls(&self) -> TlsConnector {
        let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        tls.clone()
    }

    pub(crate) async fn connect(&self) -> Result<Socket, Error> {
        let within = Duration::from_secs(CONNECT_SECONDS_MAX);
        let opened = tokio::time::timeout(within, self.open()).await;
        opened.unwrap_or_else(|_| {
            Err(Error::GatewaySilent {
                gateway: self.gateway.to_string(),
                seconds: CONNECT_SECONDS_MAX,
            })
        })
    }

    async fn open(&self) -> Result<Socket, Error> {
        let unreachable = |source| Error::GatewayUnreachable {
            gateway: self.gateway.to_string(),
            source,
        };
        let stream = TcpStream::connect(self.gateway.tcp())
            .await
            .map_err(unreachable)?;
        // A report is small and is awaited: it does not wait to be sent with others.
        stream.set_nodelay(true).map_err(unreachable)?;
        let tls = self.tls();
        let stream = tls
            .connect(self.server_name.clone(), stream)
            .await
            .map_err(unreachable)?;
        let request =
            ClientRequestBuilder::new(self.session.clone()).with_sub_protocol(SUBPROTOCOL);
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let opened = client_async_with_config(request, stream, Some(config)).await;
        opened.map(|(socket, _)| socket).map_err(|source| {
            let gateway = self.gateway.to_string();
            match source {
                tungstenite::Error::Http(response) => Error::SessionRefused {
                    gateway,
                    status: response.status().as_u16(),
                },
                source => Error::Session {
                    gateway,
                    source: Box::new(source),
                },
            }
        })
    }
}

/// Whether a failed connection means that the gateway does not want this node, or that the node
/// does not trust this gateway: nothing that a quick next try would change.
pub(crate) fn is_refusal(error: &Error) -> bool {
    if let Error::SessionRefused { status, .. } = error {
        // A timeout (408) and a full gateway (429) pass.
        return (400..500).contains(status) && !matches!(status, 408 | 429);
    }
    is_certificate_refusal(error)
}

/// Whether TLS failed over a certificate, on either side. After TLS 1.3's handshake the other
/// side's refusal only shows when something is read.
pub(crate) fn is_certificate_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::AlertDescription as Alert;
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(_)) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ),
        Some(_) | None => false,
    }
}

/// Whether the gateway says that this node's certificate has expired.
pub(crate) fn is_own_certificate_expired(error: &(dyn std::error::Error + 'static)) -> bool {
    let expired = rustls::AlertDescription::CertificateExpired;
    matches!(tls_error(error), Some(rustls::Error::AlertReceived(alert)) if *alert == expired)
}

/// What TLS says, somewhere below an error.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        // The source of an I/O error is that of the error inside, which would be passed over.
        let inside = error
            .downcast_ref::<std::io::Error>()
            .and_then(|error| error.get_ref())
            .map(|inside| inside as &(dyn std::error::Error + 'static));
        if let found
        @ Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) =
            error.downcast_ref::<rustls::Error>()
        {
            return found;
        }
        next = inside.or_else(|| error.source());
    }
    None
}
