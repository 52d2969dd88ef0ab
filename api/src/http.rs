//! From an HTTP request to a method and back.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method as HttpMethod, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Api;
use crate::auth::authenticate;
use crate::error::Error;
use crate::input::Input;
use crate::limits::{BODY_BYTES_MAX, BODY_READ_MAX, METHOD_MAX, READY_MAX};
use crate::methods::{self, Answer, Effect};

/// The routes of the API, with `GET /healthz` (the process lives) and `GET /readyz` (the database
/// answers). It answers every other path too, so that a caller never meets another form of error.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/readyz", any(readyz))
        .fallback(handle)
        .with_state(api)
}

async fn healthz(method: HttpMethod) -> Response {
    respond(reading(&method).and_then(|()| methods::render(&json!({"alive": true}))))
}

async fn readyz(State(api): State<Api>, method: HttpMethod) -> Response {
    let ready = async {
        reading(&method)?;
        let asked = api.clone();
        let question = api.0.tasks.spawn(async move {
            let ping = sqlx::query("SELECT 1").execute(asked.ledger().pool());
            timeout(READY_MAX, ping).await
        });
        match question.await {
            Ok(Ok(answered)) => answered.map_err(Error::unavailable)?,
            Ok(Err(elapsed)) => return Err(Error::unavailable(elapsed)),
            Err(failed) => return Err(Error::internal(failed)),
        };
        methods::render(&json!({"ready": true}))
    };
    respond(ready.await)
}

fn reading(method: &HttpMethod) -> Result<(), Error> {
    match *method {
        HttpMethod::GET | HttpMethod::HEAD => Ok(()),
        _ => Err(wrong_http_method("GET")),
    }
}

fn wrong_http_method(allowed: &'static str) -> Error {
    // The body of such a request was not looked at, so the connection must not go on.
    let details = json!({"allowed": allowed});
    Error::unreadable("method", format!("must be {allowed} on this path"), details)
}

async fn handle(State(api): State<Api>, request: Request) -> Response {
    let answer = AssertUnwindSafe(answer(&api, request)).catch_unwind().await;
    respond(answer.unwrap_or_else(|_| Err(Error::internal("a request panicked"))))
}

fn respond(answer: Answer) -> Response {
    match answer {
        Ok(json) => {
            let mut response = Response::new(Body::from(json));
            let headers = response.headers_mut();
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
            // Results name tokens and machines; no cache between has a use for them.
            let no_store = HeaderValue::from_static("no-store");
            headers.insert(header::CACHE_CONTROL, no_store);
            response
        }
        Err(error) => error.into_response(),
    }
}

async fn answer(api: &Api, request: Request) -> Answer {
    let (
        Parts {
            method: http_method,
            uri,
            headers,
            ..
        },
        body,
    ) = request.into_parts();
    let method = methods::find(uri.path()).ok_or_else(|| methods::unknown(uri.path()))?;
    if http_method != HttpMethod::POST {
        return Err(wrong_http_method("POST"));
    }
    let caller = authenticate(api, &headers).await?;
    check_content(&headers)?;
    let requests = Arc::clone(&api.0.requests);
    let permit = requests
        .try_acquire_owned()
        .map_err(|_| Error::overloaded())?;
    let body = read(&headers, body).await?;

    let api_of_task = api.clone();
    let task = api.0.tasks.spawn(async move {
        let _permit = permit;
        let input = Input::parse(&body, method.fields)?;
        (method.call)(api_of_task, caller, input).await
    });
    settle(task, method.effect).await
}

/// What became of a method's task: its answer, a panic, or nothing in time.
async fn settle(task: JoinHandle<Answer>, effect: Effect) -> Answer {
    match timeout(METHOD_MAX, task).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(failed)) => Err(Error::internal(failed)),
        Err(elapsed) => Err(Error::Unavailable {
            outcome_unknown: effect == Effect::Writes,
            source: elapsed.into(),
        }),
    }
}

/// The body must be said to be JSON, in UTF-8 and not compressed.
fn check_content(headers: &HeaderMap) -> Result<(), Error> {
    let wrong = |field, problem: &str| Err(Error::unreadable(field, problem, json!({})));
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let (media, parameters) = match media {
        Some(value) => value.split_once(';').unwrap_or((value, "")),
        None => return wrong("content-type", "must be application/json; it is missing"),
    };
    if !media.trim().eq_ignore_ascii_case("application/json") {
        return wrong("content-type", "must be application/json");
    }
    for parameter in parameters
        .split(';')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let utf_8 = value.trim_matches('"').eq_ignore_ascii_case("utf-8");
        if name.eq_ignore_ascii_case("charset") && !utf_8 {
            return wrong("content-type", "must have no charset but utf-8");
        }
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(coding) if coding != "identity" => {
            wrong("content-encoding", "must be absent; send the body as it is")
        }
        Some(_) | None => Ok(()),
    }
}

/// The whole body, within its size and its time.
async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Error> {
    let announced = headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64) {
        return Err(body_too_large());
    }
    timeout(BODY_READ_MAX, collect(body))
        .await
        .unwrap_or_else(|_| {
            let seconds = BODY_READ_MAX.as_secs();
            let problem = format!("did not arrive within {seconds} s");
            Err(Error::unreadable(
                "body",
                problem,
                json!({"limitSeconds": seconds}),
            ))
        })
}

async fn collect(body: Body) -> Result<Bytes, Error> {
    let mut chunks = body.into_data_stream();
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            tracing::debug!(%error, "a request's body broke off");
            Error::unreadable("body", "broke off before its end", json!({}))
        })?;
        if first.len() + rest.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(body_too_large());
        }
        // Nearly every body is one chunk, which need not be copied.
        if first.is_empty() && rest.is_empty() {
            first = chunk;
        } else {
            rest.extend_from_slice(&first);
            rest.extend_from_slice(&chunk);
            first.clear();
        }
    }
    Ok(if rest.is_empty() { first } else { rest.into() })
}

fn body_too_large() -> Error {
    let problem = format!("has more than {BODY_BYTES_MAX} bytes, the limit of a request");
    Error::unreadable("body", problem, json!({"limitBytes": BODY_BYTES_MAX}))
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test]
    async fn a_a_panic_is_an_internal_error_that_tells_nothing() {
        let task = TaskTracker::new().spawn(async { panic!("secret") });
        let error = settle(task, Effect::Reads).await.unwrap_err();
        let body = error.body().to_string();
        assert!(
            body.contains("INTERNAL") && !body.contains("secret"),
            "{body}"
        );
    }
}
