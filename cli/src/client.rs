//! A client of the HTTP API (SPEC section 4).

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use clap::Args;
use ledger_protocol::id::TenantId;
use reqwest::Url;
use serde_json::Value;

use crate::exit::{Code, Failure, Meaning};
use crate::limits::{API_ANSWER_BYTES_MAX, API_ANSWER_WITHIN, API_CONNECT_WITHIN};
use crate::output::printable;
use crate::secret::Secret;

/// Where the API is and who calls it.
#[derive(Debug, Args)]
pub(crate) struct ApiOptions {
    /// Base URL of the API, such as <http://127.0.0.1:7070>
    #[arg(long, env = "COMMAND_LEDGER_API", value_name = "URL")]
    api: String,
    /// API token; better in the environment than on a command line that others can list
    #[arg(
        long,
        env = "COMMAND_LEDGER_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    token: Secret,
}

/// A call in the name of a tenant, and how its answer is printed.
#[derive(Debug, Args)]
pub(crate) struct TenantOptions {
    /// The tenant
    #[arg(long, env = "COMMAND_LEDGER_TENANT", value_name = "TENANT")]
    pub(crate) tenant: TenantId,
    /// Print JSON as the API gives it
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: ApiOptions,
}

/// The API, as one identity sees it.
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    token: Secret,
}

impl ApiOptions {
    /// A known API and identity.
    pub(crate) fn new(api: &str, token: &Secret) -> Self {
        let (api, token) = (api.to_owned(), token.clone());
        Self { api, token }
    }
}

impl Client {
    /// A client; nothing is sent yet.
    pub(crate) fn new(options: &ApiOptions) -> Result<Self, Failure> {
        let wrong = || {
            Failure::usage(
                "--api (or COMMAND_LEDGER_API) is no URL of an API; write http://host:port, such \
                 as http://127.0.0.1:7070",
            )
        };
        let url = Url::parse(&options.api).map_err(|_| wrong())?;
        // Without a scheme, a name before a colon is taken for one.
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong());
        }
        let token = options.token.reveal().trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::usage(
                "--token (or COMMAND_LEDGER_TOKEN) is empty or no token; `up` shows one, and \
                 `command-ledger token create` makes one",
            ));
        }
        let token = Secret::new(token);
        let mut http = reqwest::Client::builder()
            .connect_timeout(API_CONNECT_WITHIN)
            .timeout(API_ANSWER_WITHIN)
            // The API never redirects, and a token must not follow one to somebody else.
            .redirect(reqwest::redirect::Policy::none());
        if url.scheme() == "http" {
            // Looking for the machine's authorities fails where it has none, and none is needed.
            http = http.tls_certs_only([]);
        }
        if is_loopback(&url) {
            // A proxy for the outside world cannot reach this machine's own loopback.
            http = http.no_proxy();
        }
        Ok(Self {
            http: http.build()?,
            base: url.as_str().trim_end_matches('/').to_owned(),
            token,
        })
    }

    /// Calls `method` of `service` and gives its result.
    pub(crate) async fn call(
        &self,
        service: &str,
        method: &str,
        input: &Value,
    ) -> Result<Value, Failure> {
        let url = format!("{}/api/compute/{service}/{method}", self.base);
        let request = self
            .http
            .post(&url)
            .bearer_auth(self.token.reveal())
            .header("content-type", "application/json")
            .body(serde_json::to_vec(input)?);
        let sent = request.send().await.map_err(reqwest::Error::without_url);
        let mut answer = sent.map_err(|error| {
            let told = self.silent(&error);
            Failure::new(Code::Unavailable, error).advised(told)
        })?;
        let status = answer.status();
        let mut body = Vec::new();
        loop {
            let chunk = answer.chunk().await.map_err(reqwest::Error::without_url);
            let Some(chunk) = chunk.or_unavailable("the API's answer broke off")? else {
                break;
            };
            if body.len() + chunk.len() > API_ANSWER_BYTES_MAX {
                return Err(Failure::failed(format!(
                    "the answer has more than {API_ANSWER_BYTES_MAX} bytes; ask for less, such as \
                     limit=20"
                )));
            }
            body.extend_from_slice(&chunk);
        }
        let json: Option<Value> = serde_json::from_slice(&body).ok();
        match json {
            Some(json) if status.is_success() => Ok(json),
            json => Err(refusal(status.as_u16(), json.as_ref())),
        }
    }

    /// What is said of an API that does not answer.
    fn silent(&self, error: &reqwest::Error) -> String {
        let told = format!("the API at {} does not answer", self.base);
        match self.base.strip_prefix("https://") {
            Some(rest) if speaks_no_tls(error) => {
                format!("{told}: what is there speaks http; write --api http://{rest}")
            }
            _ => told,
        }
    }

    /// Every item of a method that answers in pages.
    pub(crate) async fn every_item(
        &self,
        service: &str,
        method: &str,
        mut input: Value,
    ) -> Result<Vec<Value>, Failure> {
        let mut every = Vec::new();
        loop {
            let mut page = self.call(service, method, &input).await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                every.extend(items);
            }
            match page.get_mut("cursor").map(Value::take) {
                None | Some(Value::Null) => return Ok(every),
                Some(cursor) => input["cursor"] = cursor,
            }
        }
    }
}

/// Whether the other side answered a TLS greeting with something else.
fn speaks_no_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let garbled = rustls::InvalidMessage::InvalidContentType;
    let garbled = rustls::Error::InvalidMessage(garbled).to_string();
    let mut next = Some(error);
    while let Some(error) = next {
        // The libraries in between wrap it in errors of their own, which keep its text only.
        if error.to_string().contains(&garbled) {
            return true;
        }
        next = error.source();
    }
    false
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// An error of the API, as the API said it.
#[derive(Debug)]
pub(crate) struct ApiError {
    /// One of the codes of SPEC section 4.
    pub(crate) code: String,
    told: String,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told)
    }
}

impl std::error::Error for ApiError {}

/// What an answer other than a result means.
fn refusal(status: u16, body: Option<&Value>) -> Failure {
    let error = body.and_then(|body| body.get("error"));
    let text = |field| {
        error
            .and_then(|error| error.get(field))
            .and_then(Value::as_str)
    };
    let (Some(code), Some(message)) = (text("code"), text("message")) else {
        return Failure::failed(format!(
            "HTTP status {status} without an error of the API: is --api the API's base URL?"
        ));
    };
    let meaning = match code {
        "NOT_FOUND" => Code::NotFound,
        "UNAVAILABLE" => Code::Unavailable,
        "INTERNAL" => Code::Failed,
        _ => Code::Refused,
    };
    let mut told = format!("{code}: {message}");
    if let Some(details) = error.and_then(|error| error.get("details")) {
        // Writing to a string cannot fail.
        let _ = write!(told, " {details}");
    }
    let (code, told) = (code.to_owned(), printable(&told));
    Failure::new(meaning, ApiError { code, told })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(api: &str, token: &str) -> ApiOptions {
        ApiOptions {
            api: api.to_owned(),
            token: Secret::new(token),
        }
    }

    #[test]
    fn h2_the_apis_codes_become_exit_codes() {
        for (code, exit) in [
            ("INVALID_INPUT", Code::Refused),
            ("UNAUTHENTICATED", Code::Refused),
            ("PERMISSION_DENIED", Code::Refused),
            ("NOT_FOUND", Code::NotFound),
            ("CONFLICT", Code::Refused),
            ("INVALID_STATE", Code::Refused),
            ("UNSUPPORTED", Code::Refused),
            ("LIMIT_EXCEEDED", Code::Refused),
            ("INTERNAL", Code::Failed),
            ("UNAVAILABLE", Code::Unavailable),
        ] {
            let body = json!({"error": {"code": code, "message": "why", "details": {"a": 1}}});
            let failure = refusal(400, Some(&body));
            assert_eq!(failure.code, exit, "{code}");
            assert_eq!(failure.to_string(), format!("{code}: why {{\"a\":1}}"));
        }
    }

    #[test]
    fn h2_an_answer_of_something_else_is_named_as_such() {
        let failure = refusal(502, None);
        assert_eq!(failure.code, Code::Failed);
        assert!(failure.to_string().contains("502"), "{failure}");
    }

    #[test]
    fn h2_an_api_url_or_token_that_cannot_be_is_a_usage_error() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        for (api, token) in [
            ("127.0.0.1:7070", "t"),
            ("localhost:7070", "t"),
            ("ftp://host", "t"),
            ("", "t"),
            ("http://host", ""),
            ("http://host", "two words"),
            ("http://host", "line\nline"),
        ] {
            let failure = Client::new(&options(api, token)).err().unwrap();
            assert_eq!(failure.code, Code::Usage, "{api} {token}");
            let told = failure.to_string();
            let named = told.contains("--api (or COMMAND_LEDGER_API)")
                && told.contains("write http://host:port");
            assert!(named || api == "http://host", "{told}");
        }
        let client = Client::new(&options("http://host:1/base/", " t\n"))
            .ok()
            .unwrap();
        assert_eq!(client.base, "http://host:1/base");
        assert_eq!(client.token.reveal(), "t");
    }

    #[test]
    fn h2_a_proxy_is_not_asked_for_this_machine() {
        let loopback = |url: &str| is_loopback(&url.parse().unwrap());
        assert!(loopback("http://127.0.0.1:1"));
        assert!(loopback("http://[::1]:1"));
        assert!(loopback("http://localhost"));
        assert!(!loopback("http://example.org"));
    }
}
