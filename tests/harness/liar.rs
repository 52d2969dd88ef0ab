//! A gateway that somebody has taken over: it stands between real daemons and a real gateway, holds
//! the authority's key and whatever else a gateway could get at, reads every frame, and passes on
//! what its test makes of it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::{SinkExt as _, StreamExt as _};
use ledger_gateway::CertificateAuthority;
use ledger_protocol::frame::{Frame, SESSION_PATH, SUBPROTOCOL};
use ledger_protocol::time::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::Value;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the gateway to a node.
    ToNode,
    /// From a node to the gateway.
    ToLedger,
}

type Lie = Box<dyn FnMut(Way, Frame) -> Vec<Frame> + Send>;

/// The gateway. It ends, with all its sessions, when this value goes.
pub struct Liar {
    /// Where nodes find it.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

impl std::fmt::Debug for Liar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Liar").finish_non_exhaustive()
    }
}

struct Shared {
    upstream: SocketAddr,
    roots: Arc<RootCertStore>,
    /// Below it are the nodes' state folders, with their keys.
    nodes: PathBuf,
    lie: Mutex<Lie>,
    cut: Mutex<CancellationToken>,
}

impl Liar {
    /// Stands before the gateway at `upstream`, whose authority is in this folder.
    #[expect(
        clippy::disallowed_methods,
        reason = "the guard in the value ends the task"
    )]
    pub async fn start(
        upstream: SocketAddr,
        authority: &Path,
        nodes: &Path,
        now: Timestamp,
    ) -> Self {
        let authority = CertificateAuthority::load_or_generate(authority, now).unwrap();
        let own = authority
            .issue_server(&["localhost".to_owned(), "127.0.0.1".to_owned()], now)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate_der().clone()).unwrap();
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.certificate], own.key)
            .unwrap();
        let shared = Arc::new(Shared {
            upstream,
            roots,
            nodes: nodes.to_owned(),
            lie: Mutex::new(Box::new(|_, frame| vec![frame])),
            cut: Mutex::new(CancellationToken::new()),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (accepting, stopped) = (accept(listener, acceptor, shared.clone()), stop.clone());
        tokio::spawn(async move { stopped.run_until_cancelled(accepting).await });
        Self {
            address,
            shared,
            _stop: stop.drop_guard(),
        }
    }

    /// From now on each frame becomes what this makes of it.
    pub fn tell(&self, lie: impl FnMut(Way, Frame) -> Vec<Frame> + Send + 'static) {
        *self.shared.lie.lock().unwrap() = Box::new(lie);
    }

    /// From now on each frame is passed on as it is.
    pub fn tell_the_truth(&self) {
        self.tell(|_, frame| vec![frame]);
    }

    /// Cuts every session; the nodes come again.
    pub fn cut(&self) {
        let mut cut = self.shared.cut.lock().unwrap();
        cut.cancel();
        *cut = CancellationToken::new();
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        links.spawn(async move {
            let Ok(node) = acceptor.accept(stream).await else {
                return;
            };
            let cut = shared.cut.lock().unwrap().clone();
            let link = Box::pin(link(node, &shared));
            cut.run_until_cancelled(link).await;
        });
        while links.try_join_next().is_some() {}
    }
}

/// A join is passed on as it is; a session is read.
async fn link(mut node: server::TlsStream<TcpStream>, shared: &Shared) {
    let shown = node.get_ref().1.peer_certificates();
    let Some(certificate) = shown.map(|chain| chain[0].clone()) else {
        let Ok(mut gateway) = shared.connect(None).await else {
            return;
        };
        let _ = copy_bidirectional(&mut node, &mut gateway).await;
        return;
    };
    let key = shared.key_of(&certificate);
    let Ok(gateway) = shared.connect(Some((certificate, key))).await else {
        return;
    };
    let mut request = format!("wss://localhost{SESSION_PATH}")
        .into_client_request()
        .unwrap();
    let protocol = SUBPROTOCOL.parse().unwrap();
    request
        .headers_mut()
        .insert("Sec-WebSocket-Protocol", protocol);
    let Ok((mut gateway, _)) = tokio_tungstenite::client_async(request, gateway).await else {
        return;
    };
    #[expect(clippy::result_large_err, reason = "the library's own signature")]
    let answer = |_: &Request, mut response: Response| {
        let protocol = SUBPROTOCOL.parse().unwrap();
        response
            .headers_mut()
            .insert("Sec-WebSocket-Protocol", protocol);
        Ok(response)
    };
    let Ok(mut node) = tokio_tungstenite::accept_hdr_async(node, answer).await else {
        return;
    };
    loop {
        let goes_on = tokio::select! {
            said = node.next() => shared.pass(Way::ToLedger, said, &mut gateway).await,
            said = gateway.next() => shared.pass(Way::ToNode, said, &mut node).await,
        };
        if !goes_on {
            return;
        }
    }
}

impl Shared {
    async fn connect(
        &self,
        identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
    ) -> std::io::Result<client::TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let config = match identity {
            Some((certificate, key)) => config
                .with_client_auth_cert(vec![certificate], key)
                .unwrap(),
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(self.upstream).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await
    }

    /// The key of the node that has this certificate.
    fn key_of(&self, certificate: &CertificateDer<'_>) -> PrivateKeyDer<'static> {
        let folders = std::fs::read_dir(&self.nodes).unwrap();
        let folders = folders.map(|folder| folder.unwrap().path());
        let has_it = |folder: &PathBuf| {
            let kept = std::fs::read(folder.join("identity.json")).ok()?;
            let kept: Value = serde_json::from_slice(&kept).ok()?;
            let pem = kept["certificate"].as_str()?;
            let kept = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
            (kept == *certificate).then(|| folder.join("key.pem"))
        };
        let key = folders.into_iter().find_map(|folder| has_it(&folder));
        PrivateKeyDer::from_pem_file(key.unwrap()).unwrap()
    }

    /// Passes on what was said, or what becomes of it; whether the session goes on.
    async fn pass<S, E>(
        &self,
        way: Way,
        said: Option<Result<Message, E>>,
        to: &mut WebSocketStream<S>,
    ) -> bool
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let Some(Ok(message)) = said else {
            return false;
        };
        let Message::Binary(bytes) = message else {
            let is_end = message.is_close();
            return to.send(message).await.is_ok() && !is_end;
        };
        let frame = Frame::decode(&bytes).unwrap();
        let frames = (self.lie.lock().unwrap())(way, frame);
        for frame in frames {
            let bytes = frame.encode().unwrap();
            if to.send(Message::Binary(bytes.into())).await.is_err() {
                return false;
            }
        }
        true
    }
}
