//! A gateway that a test plays: real TLS, real WebSocket, and no ledger behind it.

use std::sync::atomic::{AtomicI64, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use ledger_protocol::frame::{
    Acknowledgement, Command, CommandUpdate, Frame, Hello, JOIN_PATH, JoinRequest, JoinResponse,
    Ping, RENEW_PATH, RenewRequest, SESSION_PATH, SUBPROTOCOL, Update, UpdateAck, UpdateState,
    Welcome,
};
use ledger_protocol::id::{CommandId, NodeId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::time::Timestamp;
use ledger_protocol::trust::SignedBundle;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, IsCa,
    KeyPair,
};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role as SocketRole};
use uuid::Uuid;

use crate::clock::Clock;

/// Longest wait of a test for anything.
const WITHIN: Duration = Duration::from_secs(30);
pub(crate) const TOKEN: &str = "let-me-in";

pub(crate) fn node_id() -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(7))
}

pub(crate) fn command_id(number: u64) -> CommandId {
    CommandId::from_uuid(Uuid::from_u128(number.into()))
}

/// A command of this kind, to be accepted within ten minutes.
pub(crate) fn command(number: u64, kind: &str) -> Command {
    let registry = Registry::builtin();
    let kind = registry.get(kind).unwrap();
    Command {
        batch: None,
        batch_id: None,
        signed: None,
        attested: kind.attested,
        command_id: command_id(number),
        destructive: kind.destructive,
        kind: kind.name.to_string(),
        kind_version: kind.version,
        lane: kind.lane,
        min_generation: None,
        node_id: node_id(),
        not_after: Some(Clock::system().wall().plus_seconds(600)),
        payload: vec![0x80],
        retry_safe: kind.retry_safe,
        self_terminating: kind.self_terminating,
        seq: number,
        timeout_seconds: kind.timeout_seconds,
    }
}

/// When the gateway's certificate is valid.
#[derive(Clone, Copy)]
pub(crate) enum Validity {
    Now,
    NotYet,
    NotAnyMore,
}

pub(crate) struct FakeGateway {
    port: u16,
    pub(crate) ca_certificate: String,
    sessions: mpsc::Receiver<Session>,
    /// What a join answers with.
    pub(crate) trust: Arc<Mutex<Option<SignedBundle>>>,
    /// Requests for a session are answered with this HTTP status; 101 opens one.
    pub(crate) status: Arc<AtomicU16>,
    pub(crate) certificates: Arc<Certificates>,
    _accepting: JoinSet<()>,
}

/// The certificates that nodes are given.
pub(crate) struct Certificates {
    /// Begin and end of those that a join gives, in days from now.
    pub(crate) joined_days: [AtomicI64; 2],
    /// Renewals are answered with this HTTP status; 0 gives a certificate and loses the answer.
    pub(crate) renewal_status: AtomicU16,
    /// Renewals that were asked for.
    pub(crate) renewals: AtomicUsize,
    /// Of [`FakeGateway::trust`].
    trust: Arc<Mutex<Option<SignedBundle>>>,
}

impl Certificates {
    /// From now on a join gives certificates that are valid so.
    pub(crate) fn join_with(&self, days: [i64; 2]) {
        for (at, days) in self.joined_days.iter().zip(days) {
            at.store(days, Ordering::SeqCst);
        }
    }
}

pub(crate) struct Session {
    /// The certificate that the node shows, DER.
    pub(crate) certificate: Vec<u8>,
    pub(crate) hello: Hello,
    socket: WebSocketStream<TlsStream<TcpStream>>,
    /// Of frames that came with others.
    pub(crate) updates: std::collections::VecDeque<Update>,
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    acceptor: TlsAcceptor,
}

impl FakeGateway {
    pub(crate) async fn start() -> Self {
        Self::start_with(Validity::Now).await
    }

    pub(crate) async fn start_with(validity: Validity) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let authority = Arc::new(authority(validity));
        let ca_certificate = authority.issuer.pem();
        let (sender, sessions) = mpsc::channel(256);
        let status = Arc::new(AtomicU16::new(101));
        let trust = Arc::new(Mutex::new(None));
        let certificates = Arc::new(Certificates {
            joined_days: [(-1).into(), 1_000.into()],
            renewal_status: AtomicU16::new(200),
            trust: trust.clone(),
            renewals: AtomicUsize::new(0),
        });
        let given = certificates.clone();
        let mut accepting = JoinSet::new();
        let answered_with = status.clone();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (authority, sender) = (authority.clone(), sender.clone());
                let (status, given) = (answered_with.clone(), given.clone());
                connections.spawn(async move {
                    if let Some(session) = answer(&authority, stream, &status, &given).await {
                        let _ = sender.send(session).await;
                    }
                });
            }
        });
        Self {
            port,
            ca_certificate,
            sessions,
            trust,
            status,
            certificates,
            _accepting: accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The next session, before its `Welcome`.
    pub(crate) async fn hello(&mut self) -> Session {
        let session = timeout(WITHIN, self.sessions.recv()).await;
        session.expect("no session in time").unwrap()
    }

    /// The next session, welcomed.
    pub(crate) async fn session(&mut self) -> Session {
        let mut session = self.hello().await;
        session.welcome(Clock::system().wall()).await;
        session
    }
}

impl Session {
    pub(crate) async fn send(&mut self, frame: impl Into<Frame>) {
        let bytes = frame.into().encode().unwrap();
        self.send_bytes(bytes).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: Vec<u8>) {
        self.socket.send(Message::binary(bytes)).await.unwrap();
    }

    pub(crate) async fn welcome(&mut self, server_time: Timestamp) {
        let welcome = Welcome {
            trust: Vec::new(),
            epoch: 1,
            ping_seconds: 10,
            server_time,
        };
        self.send(welcome).await;
    }

    /// Ends the session with this code.
    pub(crate) async fn close(mut self, code: u16) {
        let frame = CloseFrame {
            code: code.into(),
            reason: "so it is".into(),
        };
        self.socket.close(Some(frame)).await.unwrap();
        while self.frame().await.is_some() {}
    }

    /// The next frame; `None` when the session has ended.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            let message = timeout(WITHIN, self.socket.next()).await;
            match message.expect("no frame in time") {
                Some(Ok(Message::Binary(bytes))) => return Some(Frame::decode(&bytes).unwrap()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// The next update, whatever else comes before it.
    pub(crate) async fn update(&mut self) -> Update {
        while self.updates.is_empty() {
            if let Frame::CommandUpdate(CommandUpdate { updates }) =
                self.frame().await.expect("the session ended")
            {
                self.updates.extend(updates);
            }
        }
        self.updates.pop_front().unwrap()
    }

    /// The next update of this command and state, which is acknowledged with all before it.
    pub(crate) async fn until(&mut self, number: u64, state: UpdateState) -> Update {
        loop {
            let update = self.update().await;
            self.acknowledge(&update).await;
            if (update.command_id, update.state) == (command_id(number), state) {
                return update;
            }
        }
    }

    pub(crate) async fn acknowledge(&mut self, update: &Update) {
        let answer = Acknowledgement {
            code: None,
            command_id: update.command_id,
            refused: None,
            state: update.state,
        };
        let updates = vec![answer];
        self.send(UpdateAck { updates }).await;
    }

    /// Waits until the agent has taken in everything that was sent.
    pub(crate) async fn settle(&mut self) {
        let nonce = 77;
        self.send(Ping {
            nonce,
            reply: false,
            server_time: None,
        })
        .await;
        loop {
            match self.frame().await.expect("the session ended") {
                Frame::Ping(ping) if ping.nonce == nonce && ping.reply => return,
                Frame::CommandUpdate(body) => self.updates.extend(body.updates),
                _ => {}
            }
        }
    }
}

fn authority(validity: Validity) -> Authority {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();

    let mut server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let now = Clock::system().wall().as_micros() / 1_000_000;
    let now = OffsetDateTime::from_unix_timestamp(now).unwrap();
    let (from, until) = match validity {
        Validity::Now => (-1, 1),
        Validity::NotYet => (10, 20),
        Validity::NotAnyMore => (-20, -10),
    };
    server.not_before = now + time::Duration::days(from);
    server.not_after = now + time::Duration::days(until);
    let key = KeyPair::generate().unwrap();
    let certificate = server.signed_by(&key, &issuer).unwrap();

    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(issuer.der().clone()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    Authority {
        issuer,
        acceptor: TlsAcceptor::from(Arc::new(config)),
    }
}

/// Answers one request: a join, a renewal, or one that becomes a session.
async fn answer(
    authority: &Authority,
    stream: TcpStream,
    status: &AtomicU16,
    given: &Certificates,
) -> Option<Session> {
    let mut stream = authority.acceptor.accept(stream).await.ok()?;
    let mut request = Vec::new();
    let head_end = loop {
        if let Some(at) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(request[..head_end].to_vec()).unwrap();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    };
    let shown = stream.get_ref().1.peer_certificates();
    let shown = shown.and_then(<[_]>::first).map(|shown| shown.to_vec());
    let is_renewal = head.starts_with(&format!("POST {RENEW_PATH} "));
    if is_renewal || head.starts_with(&format!("POST {JOIN_PATH} ")) {
        let length: usize = header("content-length").unwrap().parse().unwrap();
        while request.len() < head_end + length {
            stream.read_buf(&mut request).await.unwrap();
        }
        let body = &request[head_end..];
        let (status, body) = if is_renewal {
            assert!(shown.is_some(), "a renewal without a certificate");
            renew(authority, given, body)?
        } else {
            join(authority, given, body)
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.write_all(body.as_bytes()).await.ok()?;
        stream.shutdown().await.ok()?;
        return None;
    }
    assert!(head.starts_with(&format!("GET {SESSION_PATH} ")), "{head}");
    assert_eq!(
        header("sec-websocket-protocol").as_deref(),
        Some(SUBPROTOCOL)
    );
    let status = status.load(Ordering::SeqCst);
    let Some(certificate) = shown.filter(|_| status == 101) else {
        let head = format!("HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.shutdown().await.ok()?;
        return None;
    };
    let accept = derive_accept_key(header("sec-websocket-key").unwrap().as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-protocol: {SUBPROTOCOL}\r\nsec-websocket-accept: {accept}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    let rest = request[head_end..].to_vec();
    let mut socket =
        WebSocketStream::from_partially_read(stream, rest, SocketRole::Server, None).await;
    let Some(Ok(Message::Binary(bytes))) = socket.next().await else {
        return None;
    };
    let Frame::Hello(hello) = Frame::decode(&bytes).unwrap() else {
        panic!("the first frame is no Hello")
    };
    Some(Session {
        certificate,
        hello,
        socket,
        updates: std::collections::VecDeque::new(),
    })
}

/// A certificate for the key of this request, valid so many days from now.
fn issue(authority: &Authority, given: &Certificates, csr: &str, days: [i64; 2]) -> String {
    let now = Clock::system().wall().as_micros() / 1_000_000;
    let now = OffsetDateTime::from_unix_timestamp(now).unwrap();
    let mut csr = CertificateSigningRequestParams::from_pem(csr).unwrap();
    let [from, until] = days.map(time::Duration::days);
    csr.params.not_before = now + from;
    csr.params.not_after = now + until;
    let certificate = csr.signed_by(&authority.issuer).unwrap();
    let response = JoinResponse {
        trust: given.trust.lock().unwrap().clone(),
        ca_certificate: authority.issuer.pem(),
        certificate: certificate.pem(),
        node_id: node_id(),
        role: Role::Node,
    };
    serde_json::to_string(&response).unwrap()
}

fn renew(
    authority: &Authority,
    given: &Certificates,
    body: &[u8],
) -> Option<(&'static str, String)> {
    let request: RenewRequest = serde_json::from_slice(body).unwrap();
    given.renewals.fetch_add(1, Ordering::SeqCst);
    match given.renewal_status.load(Ordering::SeqCst) {
        0 => None,
        200 => Some(("200 OK", issue(authority, given, &request.csr, [-1, 1_000]))),
        _ => Some(("409 Conflict", "{}".to_owned())),
    }
}

fn join(authority: &Authority, given: &Certificates, body: &[u8]) -> (&'static str, String) {
    let request: JoinRequest = serde_json::from_slice(body).unwrap();
    if request.token != TOKEN {
        let message = "the join token is unknown";
        let error =
            serde_json::json!({ "error": { "code": "UNAUTHENTICATED", "message": message } });
        return ("401 Unauthorized", error.to_string());
    }
    let [from, until] = &given.joined_days;
    let days = [from, until].map(|days| days.load(Ordering::SeqCst));
    ("200 OK", issue(authority, given, &request.csr, days))
}
