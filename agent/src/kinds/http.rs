//! One HTTP request to a machine of the site, sent at most once: no redirect is followed, no proxy of the environment
//! is asked, nothing is tried again (`site.httpProxy`, `bmc.power`).

use std::{net::IpAddr, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Method, StatusCode, client::conn::http1, header, header::HeaderValue};
use hyper_util::rt::TokioIo;
use ledger_protocol::secret::SecretValue;
use reqwest::Url;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{ServerName, UnixTime},
    time_provider::TimeProvider,
};
use serde_json::json;
use tokio::{
    net::TcpStream,
    sync::OnceCell,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::{either::Either, sync::CancellationToken};
use tracing::warn;

use super::Finished;
use crate::{
    connect::is_certificate_refusal,
    error::{Error, chain},
    host::{Clock, Host},
    limits::{SITE_BODY_BYTES_MAX, SITE_CONNECT_SECONDS_MAX, SITE_HEAD_BYTES_MAX},
    program::said,
};

/// An `http` or `https` URL without a user or a password in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target(Url);

impl Target {
    /// Reads the URL that stands in this field of a payload. A refusal repeats nothing of it.
    pub(super) fn parse(field: &str, text: &str) -> Result<Self, Finished> {
        let refused = |why: &str| Finished::failed("invalid-payload", format!("{field} {why}"));
        let mut url = Url::parse(text).map_err(|error| refused(&format!("is no URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(refused(
                "must begin with http:// or https:// and name a host",
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused(
                "holds a user or a password, which would stand in the ledger for ever; put the value of the \
                 Authorization field where secrets are kept, and name it by secretRef",
            ));
        }
        url.set_fragment(None);
        Ok(Self(url))
    }

    pub(super) fn url(&self) -> &Url {
        &self.0
    }

    /// Another path of the same service; `None` where the reference leads to another one, which is not to see what was
    /// meant for this.
    pub(super) fn join(&self, reference: &str) -> Option<Self> {
        let url = self.0.join(reference).ok()?;
        let is_same = url.origin() == self.0.origin() && url.username().is_empty();
        (is_same && url.password().is_none()).then_some(Self(url))
    }

    /// What may be shown of it: a query can hold anything, also a key.
    pub(super) fn shown(&self) -> String {
        let mut url = self.0.clone();
        url.set_query(None);
        url.to_string()
    }

    /// Refuses to show a secret to everyone between here and there.
    pub(super) fn check_private(&self, field: &str) -> Result<(), Finished> {
        let host = self.host();
        let is_here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if self.0.scheme() == "https" || is_here {
            return Ok(());
        }
        Err(Finished::failed(
            "invalid-payload",
            format!(
                "{field} is not https, and a secret is never sent in the clear to another machine"
            ),
        ))
    }

    /// Without the brackets around an IPv6 address.
    fn host(&self) -> &str {
        let host = self.0.host_str().unwrap_or_default();
        host.trim_start_matches('[').trim_end_matches(']')
    }

    fn authority(&self) -> String {
        let host = self.0.host_str().unwrap_or_default();
        match self.0.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    fn path_and_query(&self) -> String {
        match self.0.query() {
            Some(query) => format!("{}?{query}", self.0.path()),
            None => self.0.path().to_owned(),
        }
    }
}

/// The `Authorization` field of requests (RFC 9110, 11.6.2): a secret, whole.
pub(super) fn authorization(name: &str, secret: &SecretValue) -> Result<HeaderValue, Finished> {
    let mut value = HeaderValue::from_bytes(secret.reveal()).map_err(|_| Finished {
        details: Some(json!({
            "secretRef": name,
            "why": "the secret is not the value of an HTTP Authorization field, such as `Basic …` or `Bearer …`: it \
                    has a line break or another control character in it; nothing was sent",
        })),
        ..Finished::failed("secret-unusable", "")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// What is sent.
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) target: &'a Target,
    pub(super) authorization: Option<&'a HeaderValue>,
    /// Its type, and its bytes.
    pub(super) body: Option<(&'static str, Bytes)>,
}

/// What came back.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// At most [`SITE_BODY_BYTES_MAX`].
    pub(super) body: Vec<u8>,
    /// The body is longer.
    pub(super) is_cut: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Cancelled; nothing was sent.
    Cancelled,
    /// The job's time was over; nothing was sent.
    TimedOut,
    /// There was no connection; nothing was sent.
    Unreachable(String),
    /// The request may have arrived.
    NoAnswer(String),
}

impl Unanswered {
    /// How a command ends that depended on the answer.
    pub(super) fn finished(self, target: &Target, timeout: Duration) -> Finished {
        let url = target.shown();
        match self {
            Self::Cancelled => Finished::cancelled(),
            Self::TimedOut => Finished::timed_out(timeout),
            Self::Unreachable(why) => Finished {
                details: Some(json!({ "url": url, "why": format!("{why}; nothing was sent") })),
                ..Finished::failed("unreachable", "")
            },
            Self::NoAnswer(why) => Finished {
                details: Some(json!({
                    "tookEffect": "unknown",
                    "url": url,
                    "why": format!("{why}; whether the request took effect is not known"),
                })),
                ..Finished::failed("no-answer", "")
            },
        }
    }
}

/// Sends requests. One of it serves all jobs; it keeps no connection.
#[derive(Debug)]
pub(super) struct Client {
    site_ca: Arc<RootCertStore>,
    clock: Clocked,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl Client {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            site_ca: host.site_ca.clone(),
            clock: Clocked(host.clock.clone()),
            tls: OnceCell::new(),
        }
    }

    /// Sends a request once, and reads its answer, until then. A cancel counts until something may have been sent; what
    /// becomes of it after that is told as it is (D12).
    pub(super) async fn send(
        &self,
        request: Request<'_>,
        until: Instant,
        cancel: &CancellationToken,
    ) -> Result<Answer, Unanswered> {
        let parts = head(&request).map_err(|why| Unanswered::Unreachable(chain(&why)))?;
        let connecting = timeout(
            Duration::from_secs(SITE_CONNECT_SECONDS_MAX),
            self.connect(request.target),
        );
        let connected = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Unanswered::Cancelled),
            connected = timeout_at(until, connecting) => connected,
        };
        let stream = match connected {
            Err(_) => return Err(Unanswered::TimedOut),
            Ok(Err(_)) => {
                let why = format!("no connection within {SITE_CONNECT_SECONDS_MAX} s");
                return Err(Unanswered::Unreachable(why));
            }
            Ok(Ok(Err(why))) => return Err(Unanswered::Unreachable(why)),
            Ok(Ok(Ok(stream))) => stream,
        };
        let answered = timeout_at(until, exchange(stream, parts)).await;
        answered
            .unwrap_or_else(|_| Err("no answer before the command's time was over".to_owned()))
            .map_err(Unanswered::NoAnswer)
    }

    /// A connection on which nothing of HTTP was said yet.
    async fn connect(&self, target: &Target) -> Result<Stream, String> {
        let host = target.host();
        let port = target.url().port_or_known_default().unwrap_or(443);
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| format!("cannot connect: {}", chain(&error)))?;
        if target.url().scheme() == "http" {
            return Ok(Either::Left(stream));
        }
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| format!("no certificate has this name: {error}"))?;
        let tls = self.tls().await.map_err(|error| error.chain())?;
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        let stream = stream.map_err(|error| {
            let advice = if is_certificate_refusal(&error) {
                " (a private authority is trusted by the agent's --site-ca)"
            } else {
                ""
            };
            format!("TLS failed: {}{advice}", said(&chain(&error)))
        })?;
        Ok(Either::Right(stream))
    }

    /// Trusts the authorities of the machine and of the site; made when it is first needed, because the machine's
    /// authorities are hundreds of files.
    async fn tls(&self) -> Result<Arc<ClientConfig>, Error> {
        let tls = self.tls.get_or_try_init(|| async {
            let (site_ca, clock) = (self.site_ca.clone(), self.clock.clone());
            let made = tokio::task::spawn_blocking(move || config(&site_ca, clock)).await;
            made.unwrap_or(Err(Error::BrokeOff {
                work: "reading the machine's certificate authorities",
            }))
        });
        tls.await.cloned()
    }
}

type Stream = Either<TcpStream, TlsStream<TcpStream>>;

fn config(site_ca: &RootCertStore, clock: Clocked) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = site_ca.clone();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        warn!(%error, "certificate authorities of this machine cannot be read");
    }
    // A machine's store may hold what nobody can use any more.
    roots.add_parsable_certificates(found.certs);
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_details(provider, Arc::new(clock))
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::Tls {
            what: "the TLS versions",
            source,
        })?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The node's best guess at the time, which is the server's once that is known (D10).
#[derive(Clone)]
struct Clocked(Clock);

impl std::fmt::Debug for Clocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clocked")
    }
}

impl TimeProvider for Clocked {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from((self.0)().unix_timestamp()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

type Sent = hyper::Request<Full<Bytes>>;

fn head(request: &Request<'_>) -> Result<Sent, hyper::http::Error> {
    let mut head = hyper::Request::builder()
        .method(request.method.clone())
        .uri(request.target.path_and_query())
        .header(header::HOST, request.target.authority())
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .header(
            header::USER_AGENT,
            concat!("command-ledger-agent/", env!("CARGO_PKG_VERSION")),
        );
    if let Some(authorization) = request.authorization {
        head = head.header(header::AUTHORIZATION, authorization);
    }
    let body = match &request.body {
        Some((content_type, body)) => {
            head = head.header(header::CONTENT_TYPE, *content_type);
            body.clone()
        }
        None => Bytes::new(),
    };
    head.body(Full::new(body))
}

/// Says the request on a connection of its own, and hears the answer. Whatever fails here may have failed after the
/// other side took the request in.
async fn exchange(stream: Stream, request: Sent) -> Result<Answer, String> {
    let broke_off = |error: hyper::Error| format!("the connection broke off: {}", chain(&error));
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(SITE_HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(broke_off)?;
    let answer = async {
        let (head, mut body) = sender
            .send_request(request)
            .await
            .map_err(broke_off)?
            .into_parts();
        let mut answer = Answer {
            status: head.status,
            headers: head.headers,
            body: Vec::new(),
            is_cut: false,
        };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let status = answer.status.as_u16();
                format!(
                    "status {status} came, and the answer broke off: {}",
                    chain(&error)
                )
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let room = SITE_BODY_BYTES_MAX - answer.body.len();
            answer.body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                answer.is_cut = true;
                break;
            }
        }
        Ok(answer)
    };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    tokio::select! {
        biased;
        answered = &mut answer => answered,
        // The connection is closed when all was read from it; what it handed on is still to be taken in.
        _ = &mut connection => answer.await,
    }
}
