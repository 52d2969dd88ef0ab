//! A node's end of a session, which says what its test wants.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use ledger_gateway::{CertificateAuthority, NodeCertificateTerms};
use ledger_protocol::frame::{Frame, Hello, SESSION_PATH, SUBPROTOCOL};
use ledger_protocol::id::{JournalId, NodeId};
use ledger_protocol::kind::Role;
use ledger_protocol::time::Timestamp;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::wait::in_time;

/// How a session ended: the close code, 0 without one, and the reason.
pub type End = (u16, String);

/// A node with a certificate.
#[derive(Debug, Clone)]
pub struct Identity {
    node: NodeId,
    config: Arc<ClientConfig>,
}

impl Identity {
    /// A certificate as a join gives it, without the join.
    pub fn new(authority: &CertificateAuthority, node: NodeId, now: Timestamp) -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let request = CertificateParams::default()
            .serialize_request(&key)
            .unwrap();
        let terms = NodeCertificateTerms {
            allowed_kinds: None,
            backdated_seconds: 300,
            now,
            serial: [7; 10],
            valid_seconds: 3_600,
        };
        let issued = authority
            .issue_node(node, &request.pem().unwrap(), &terms)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate_der().clone()).unwrap();
        let certificate = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        Self {
            node,
            config: Arc::new(config),
        }
    }

    /// The first frame of a session.
    pub fn hello(&self) -> Hello {
        Hello {
            trust_version: 0,
            agent_version: "1".to_owned(),
            applied_generation: 0,
            boot_id: "boot".to_owned(),
            entries: Vec::new(),
            highest_seq: 0,
            journal_id: JournalId::new(Timestamp::from_micros(0), [1; 10]),
            node_id: self.node,
            role: Role::Node,
        }
    }
}

/// A session's WebSocket.
#[derive(Debug)]
pub struct Daemon {
    socket: WebSocketStream<TlsStream<TcpStream>>,
}

impl Daemon {
    /// Opens the WebSocket, and says nothing yet.
    pub async fn connect(gateway: SocketAddr, identity: &Identity) -> Self {
        let opening = async {
            let stream = TcpStream::connect(gateway).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let connector = TlsConnector::from(identity.config.clone());
            let stream = connector.connect(name, stream).await.unwrap();
            let url = format!("wss://localhost{SESSION_PATH}");
            let mut request = url.into_client_request().unwrap();
            let protocol = SUBPROTOCOL.parse().unwrap();
            request
                .headers_mut()
                .insert("Sec-WebSocket-Protocol", protocol);
            tokio_tungstenite::client_async(request, stream)
                .await
                .unwrap()
                .0
        };
        Self {
            socket: in_time("the WebSocket opens", Box::pin(opening)).await,
        }
    }

    /// Opens a whole session.
    pub async fn open(gateway: SocketAddr, identity: &Identity) -> Self {
        let mut daemon = Self::connect(gateway, identity).await;
        daemon.say(identity.hello()).await;
        let welcome = daemon.next().await;
        assert!(matches!(welcome, Ok(Frame::Welcome(_))), "{welcome:?}");
        daemon
    }

    /// Sends a frame.
    pub async fn say(&mut self, frame: impl Into<Frame>) {
        let bytes = frame.into().encode().unwrap();
        self.send(Message::Binary(bytes.into())).await;
    }

    /// Sends a message; a gateway that has left already is fine.
    pub async fn send(&mut self, message: Message) {
        let _ = in_time("the message is taken", self.socket.send(message)).await;
    }

    /// The next frame, or how the session ended.
    pub async fn next(&mut self) -> Result<Frame, End> {
        loop {
            let message = in_time("a frame or an end", self.socket.next()).await;
            match message {
                Some(Ok(Message::Binary(bytes))) => return Ok(Frame::decode(&bytes).unwrap()),
                Some(Ok(Message::Close(Some(frame)))) => {
                    return Err((frame.code.into(), frame.reason.to_string()));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err((0, error.to_string())),
                None => return Err((0, "the connection ended".to_owned())),
            }
        }
    }

    /// Reads on until the session ends.
    pub async fn ended(&mut self) -> End {
        loop {
            if let Err(end) = self.next().await {
                return end;
            }
        }
    }
}
