//! A daemon that does what its test says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use ledger_protocol::frame::{
    Command, CommandUpdate, Frame, Hello, JournalEntry, SESSION_PATH, SUBPROTOCOL, Update,
    UpdateAck, UpdateState, Welcome,
};
use ledger_protocol::id::{CommandId, JournalId, NodeId};
use ledger_protocol::kind::Role;
use ledger_protocol::time::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};

use super::world::{WITHIN, World};

/// After how long a daemon says again what was not acknowledged.
const SOON: Duration = Duration::from_millis(200);

/// A node's certificate and key, PEM.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) node: NodeId,
}

/// A status and a body.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: serde_json::Value,
}

impl Response {
    pub(super) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// A TLS connection to the gateway, or why there is none.
pub(super) async fn connect_tls(
    world: &World,
    address: SocketAddr,
    identity: Option<&Identity>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(world.authority.certificate_der().clone())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes());
            builder
                .with_client_auth_cert(vec![certificate.unwrap()], key.unwrap())
                .unwrap()
        }
    };
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// Sends one HTTP request.
pub(super) async fn request(
    world: &World,
    method: &str,
    path: &str,
    identity: Option<&Identity>,
    body: &[u8],
) -> Response {
    let mut stream = connect_tls(world, world.gateway.address, identity)
        .await
        .unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The gateway may answer before it has read everything.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = timeout(WITHIN, stream.read_to_end(&mut answer))
        .await
        .unwrap();
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response {
        status,
        body: serde_json::from_str(body).unwrap_or_default(),
    }
}

/// A session, from the node's side.
pub(super) struct Daemon {
    pub(super) hello: Hello,
    pub(super) node: NodeId,
    pub(super) epoch: u64,
    socket: WebSocketStream<TlsStream<TcpStream>>,
}

impl Daemon {
    /// Opens the WebSocket, and says nothing yet.
    pub(super) async fn connect(world: &World, address: SocketAddr, identity: &Identity) -> Self {
        let stream = connect_tls(world, address, Some(identity)).await.unwrap();
        let mut request = format!("wss://localhost{SESSION_PATH}")
            .into_client_request()
            .unwrap();
        let headers = request.headers_mut();
        headers.insert("Sec-WebSocket-Protocol", SUBPROTOCOL.parse().unwrap());
        let (socket, _) = tokio_tungstenite::client_async(request, stream)
            .await
            .unwrap();
        let hello = Hello {
            trust_version: 0,
            agent_version: "0.1.0".to_owned(),
            applied_generation: 0,
            boot_id: "boot-1".to_owned(),
            entries: Vec::new(),
            highest_seq: 0,
            journal_id: JournalId::new(Timestamp::from_micros(0), [1; 10]),
            node_id: identity.node,
            role: Role::Node,
        };
        Self {
            hello,
            node: identity.node,
            epoch: 0,
            socket,
        }
    }

    /// Says hello and reads the welcome.
    pub(super) async fn greet(&mut self) -> Welcome {
        self.send(self.hello.clone()).await;
        match self.receive().await {
            Frame::Welcome(welcome) => {
                self.epoch = welcome.epoch;
                welcome
            }
            other => panic!("{other:?} is no Welcome"),
        }
    }

    pub(super) fn with_entries(mut self, entries: Vec<JournalEntry>) -> Self {
        let highest = entries.iter().map(|entry| entry.seq).max().unwrap_or(0);
        self.hello.highest_seq = self.hello.highest_seq.max(highest);
        self.hello.entries = entries;
        self
    }

    pub(super) async fn send(&mut self, frame: impl Into<Frame>) {
        self.send_bytes(frame.into().encode().unwrap()).await;
    }

    pub(super) async fn send_bytes(&mut self, bytes: Vec<u8>) {
        self.send_message(Message::Binary(bytes.into())).await;
    }

    pub(super) async fn send_message(&mut self, message: Message) {
        self.socket.send(message).await.unwrap();
    }

    /// Sends and does not mind that the session may be over.
    pub(super) async fn try_send(&mut self, frame: impl Into<Frame>) -> bool {
        let bytes = frame.into().encode().unwrap();
        self.socket
            .send(Message::Binary(bytes.into()))
            .await
            .is_ok()
    }

    /// The next message, or the close code and reason.
    async fn next(&mut self) -> Result<Frame, (u16, String)> {
        loop {
            let message = timeout(WITHIN, self.socket.next())
                .await
                .expect("nothing came");
            match message {
                Some(Ok(Message::Binary(bytes))) => return Ok(Frame::decode(&bytes).unwrap()),
                Some(Ok(Message::Close(Some(frame)))) => {
                    return Err((frame.code.into(), frame.reason.to_string()));
                }
                Some(Ok(_)) => {}
                Some(Err(tungstenite::Error::ConnectionClosed)) | None => {
                    return Err((0, "the connection ended".to_owned()));
                }
                Some(Err(error)) => return Err((0, error.to_string())),
            }
        }
    }

    /// A frame, if one comes soon.
    pub(super) async fn receive_soon(&mut self) -> Option<Frame> {
        timeout(SOON, self.receive()).await.ok()
    }

    pub(super) async fn receive(&mut self) -> Frame {
        self.next()
            .await
            .unwrap_or_else(|close| panic!("the session closed: {close:?}"))
    }

    /// Reads on until the session is closed.
    pub(super) async fn closed(&mut self) -> (u16, String) {
        loop {
            if let Err(close) = self.next().await {
                return close;
            }
        }
    }

    pub(super) async fn receive_command(&mut self) -> Command {
        match self.receive().await {
            Frame::Command(command) => command,
            other => panic!("{other:?} is no Command"),
        }
    }

    pub(super) async fn receive_ack(&mut self) -> UpdateAck {
        match self.receive().await {
            Frame::UpdateAck(ack) => ack,
            other => panic!("{other:?} is no UpdateAck"),
        }
    }

    /// Reports, and reads the answer.
    pub(super) async fn report(&mut self, updates: Vec<Update>) -> UpdateAck {
        self.send(CommandUpdate { updates }).await;
        self.receive_ack().await
    }

    /// Reports one state; the ledger must take it.
    pub(super) async fn say(&mut self, command: CommandId, state: UpdateState) {
        let ack = self.report(vec![Update::bare(command, state)]).await;
        let [answer] = ack.updates.as_slice() else {
            panic!("{ack:?}")
        };
        assert_eq!((answer.command_id, answer.state), (command, state));
        assert_eq!(answer.refused, None);
    }

    /// Whether nothing comes for a while: a `Ping` of ours is answered first.
    pub(super) async fn assert_quiet(&mut self) {
        let ping = ledger_protocol::frame::Ping {
            nonce: 4_711,
            reply: false,
            server_time: None,
        };
        self.send(ping).await;
        match self.receive().await {
            Frame::Ping(ping) => assert_eq!((ping.nonce, ping.reply), (4_711, true)),
            other => panic!("{other:?} came"),
        }
    }
}
