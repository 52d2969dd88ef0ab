//! A machine of a site that a test plays: a real socket that speaks HTTP, with and without TLS, as well or as badly as
//! the test says, and remembers what it was asked.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{crypto::ring, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = fields.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }
}

/// What is done about a request.
pub(crate) enum Reply {
    /// This is written, and the connection closed.
    Say(Vec<u8>),
    /// The connection is closed.
    HangUp,
    /// Nothing, for so long; then this is written.
    Wait(Duration, Vec<u8>),
}

impl Reply {
    /// An answer with these fields in its head, each with its end of line.
    pub(crate) fn with(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let length = body.len();
        let head = format!("HTTP/1.1 {status} So\r\ncontent-length: {length}\r\n{fields}\r\n");
        Self::Say([head.as_bytes(), body].concat())
    }

    pub(crate) fn json(status: u16, body: &serde_json::Value) -> Self {
        let fields = "content-type: application/json\r\n";
        Self::with(status, fields, body.to_string())
    }
}

pub(crate) struct FakeSite {
    pub(crate) port: u16,
    /// The authority of its certificate, PEM; of a site with TLS.
    pub(crate) ca_certificate: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<Mutex<usize>>,
    _accepting: JoinSet<()>,
}

impl FakeSite {
    pub(crate) async fn start(reply: impl FnMut(&Seen) -> Reply + Send + 'static) -> Self {
        Self::listen(None, String::new(), reply).await
    }

    pub(crate) async fn start_tls(reply: impl FnMut(&Seen) -> Reply + Send + 'static) -> Self {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = server.signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::listen(Some(acceptor), issuer.pem(), reply).await
    }

    async fn listen(
        tls: Option<TlsAcceptor>,
        ca_certificate: String,
        reply: impl FnMut(&Seen) -> Reply + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let connections = Arc::new(Mutex::new(0));
        let (remembered, counted) = (seen.clone(), connections.clone());
        let reply = Arc::new(Mutex::new(reply));
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                *counted.lock().unwrap() += 1;
                let (remembered, reply, tls) = (remembered.clone(), reply.clone(), tls.clone());
                serving.spawn(async move {
                    let answer = |seen: &Seen| {
                        remembered.lock().unwrap().push(seen.clone());
                        (*reply.lock().unwrap())(seen)
                    };
                    match tls {
                        None => serve(stream, answer).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, answer).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Self {
            port,
            ca_certificate,
            seen,
            connections,
            _accepting: accepting,
        }
    }

    /// `http://…` or `https://…`, with this path.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.ca_certificate.is_empty() {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl FnOnce(&Seen) -> Reply,
) -> Option<()> {
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
    let mut line = head.split(' ').map(str::to_owned);
    let mut seen = Seen {
        method: line.next().unwrap(),
        path: line.next().unwrap(),
        head,
        body: String::new(),
    };
    let length = seen.header("content-length").unwrap_or("0");
    let length: usize = length.trim().parse().unwrap();
    while request.len() < head_end + length {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    seen.body = String::from_utf8(request[head_end..].to_vec()).unwrap();
    let said = match answer(&seen) {
        Reply::HangUp => return None,
        Reply::Say(said) => said,
        Reply::Wait(time, said) => {
            tokio::time::sleep(time).await;
            said
        }
    };
    stream.write_all(&said).await.ok()?;
    stream.shutdown().await.ok()?;
    // What the other side still says is read, or a reset could take from it what was said.
    while stream.read_buf(&mut request).await.ok()? > 0 {
        request.clear();
    }
    Some(())
}
