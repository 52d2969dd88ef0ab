//! Calls of the API, over real connections: through a client, or byte by byte.

use std::net::SocketAddr;
use std::sync::Once;

use reqwest::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::wait::in_time;

/// An answer: status and body.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Value,
}

impl Answer {
    /// The result; the test fails when there is none.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// The error's code; the test fails when it is a result, or an error of another form.
    #[track_caller]
    pub fn code(&self) -> &str {
        let body = &self.body;
        let fields = body.as_object().map(serde_json::Map::len);
        assert_eq!(fields, Some(1), "{body}");
        let code = body["error"]["code"].as_str();
        let code = code.unwrap_or_else(|| panic!("no error: {body}"));
        let known = ledger_api::Code::ALL
            .into_iter()
            .find(|known| known.as_str() == code);
        assert_eq!(
            known.map(|known| known.status().as_u16()),
            Some(self.status),
            "{body}"
        );
        let message = body["error"]["message"].as_str();
        assert!(
            message.is_some_and(|message| (1..1_000).contains(&message.len())),
            "{body}"
        );
        code
    }

    /// The field that the error names.
    #[track_caller]
    pub fn field(&self) -> &str {
        let field = self.body["error"]["details"]["field"].as_str();
        field.unwrap_or_else(|| panic!("no field: {}", self.body))
    }
}

/// An HTTP client.
pub fn client() -> Client {
    static PROVIDER: Once = Once::new();
    // The library panics without a provider, also where it needs none.
    PROVIDER.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    Client::new()
}

/// Someone who calls an API for a tenant.
#[derive(Debug, Clone)]
pub struct Caller {
    client: Client,
    /// `http://HOST:PORT`.
    pub api: String,
    /// Whose token it is.
    pub tenant: String,
    /// The token.
    pub token: String,
}

impl Caller {
    /// Calls `api` with this token.
    pub fn new(
        api: impl Into<String>,
        tenant: &(impl ToString + ?Sized),
        token: impl Into<String>,
    ) -> Self {
        let (api, tenant, token) = (api.into(), tenant.to_string(), token.into());
        Self {
            client: client(),
            api,
            tenant,
            token,
        }
    }

    /// Calls another API with the same token.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Self {
        Self {
            api: format!("http://{address}"),
            ..self.clone()
        }
    }

    /// Calls a method such as `commands.run`; `tenantId` is added.
    pub async fn call(&self, method: &str, input: Value) -> Answer {
        self.attempt(method, input).await.unwrap()
    }

    /// The same, of an API that may die meanwhile.
    pub async fn attempt(&self, method: &str, mut input: Value) -> reqwest::Result<Answer> {
        input["tenantId"] = json!(self.tenant);
        let url = format!("{}/api/compute/{}", self.api, method.replace('.', "/"));
        let request = self.client.post(url).bearer_auth(&self.token).json(&input);
        let response = in_time(method, request.send()).await?;
        let status = response.status().as_u16();
        let body = in_time(method, response.json()).await?;
        Ok(Answer { status, body })
    }

    /// The bytes of a request, head and body.
    pub fn bytes(&self, method: &str, body: &[u8]) -> Vec<u8> {
        let length = format!("content-length: {}\r\n", body.len());
        let mut bytes = self.head(method, &length).into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    /// The head of a request with further headers, each ended by CRLF.
    pub fn head(&self, method: &str, more: &str) -> String {
        let (path, token) = (method.replace('.', "/"), &self.token);
        format!(
            "POST /api/compute/{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\n{more}\r\n"
        )
    }
}

/// Writes a request and reads its answer; whether the connection may be used again.
pub async fn exchange(stream: &mut TcpStream, request: &[u8]) -> (Answer, bool) {
    // The server may answer, and close, before it has read everything.
    let _ = in_time("the request is taken", stream.write_all(request)).await;
    receive(stream).await
}

/// Reads one answer; whether the connection may be used again.
pub async fn receive(stream: &mut TcpStream) -> (Answer, bool) {
    let reading = async {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).await.unwrap();
            head.extend_from_slice(&byte);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let length = header("content-length: ").unwrap_or_else(|| panic!("no length: {head}"));
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_slice(&body).unwrap();
        let reusable = header("connection: ") != Some("close");
        (Answer { status, body }, reusable)
    };
    in_time("there is an answer", reading).await
}
