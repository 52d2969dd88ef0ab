//! `site.httpProxy`: one HTTP request from the site, with what came back as the result.
//!
//! It is neither retry-safe nor idempotent: it is sent once, and an answer that sends it elsewhere is the result. What
//! went wrong before the request can have left is `unreachable`; after that, `no-answer`, and nobody knows whether it
//! took effect.

use bytes::Bytes;
use hyper::{HeaderMap, Method, header};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Finished, Job, Outcome,
    http::{Answer, Client, Request, Target, authorization},
    payload,
};
use crate::{
    limits::{SITE_BODY_KEPT_BYTES_MAX, SITE_FIELD_CHARS_MAX},
    redaction::Ends,
    secrets::Secrets,
    sysfs::clean,
};

#[cfg(test)]
mod tests;

/// The kind's name.
pub const KIND: &str = "site.httpProxy";

/// The fields of an answer's head that are kept; none of those that carry credentials.
const KEPT: [header::HeaderName; 6] = [
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LOCATION,
    header::RETRY_AFTER,
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Payload {
    url: String,
    method: Verb,
    body: Option<String>,
    secret_ref: Option<String>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "UPPERCASE")]
enum Verb {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    fn method(self) -> Method {
        match self {
            Self::Get => Method::GET,
            Self::Head => Method::HEAD,
            Self::Post => Method::POST,
            Self::Put => Method::PUT,
            Self::Patch => Method::PATCH,
            Self::Delete => Method::DELETE,
        }
    }
}

pub(super) async fn run(
    client: &Client,
    job: &Job,
    secrets: &Secrets,
    cancel: &CancellationToken,
) -> Finished {
    let until = Instant::now() + job.timeout;
    match attempt(client, job, secrets, cancel, until).await {
        Ok(finished) | Err(finished) => finished,
    }
}

async fn attempt(
    client: &Client,
    job: &Job,
    secrets: &Secrets,
    cancel: &CancellationToken,
    until: Instant,
) -> Result<Finished, Finished> {
    let payload: Payload = payload(job)?;
    let target = Target::parse("url", &payload.url)?;
    let authorization = match &payload.secret_ref {
        Some(name) => {
            target.check_private("url")?;
            let secret = secrets.get(name, until, cancel).await;
            let secret = secret.map_err(|failure| failure.finished(name))?;
            Some(authorization(name, &secret)?)
        }
        None => None,
    };
    let body = payload.body.map(|body| {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok();
        let content_type = if is_json {
            "application/json"
        } else {
            "text/plain; charset=utf-8"
        };
        (content_type, Bytes::from(body))
    });
    let request = Request {
        method: payload.method.method(),
        target: &target,
        authorization: authorization.as_ref(),
        body,
    };
    let answer = client.send(request, until, cancel).await;
    let answer = answer.map_err(|unanswered| unanswered.finished(&target, job.timeout))?;
    let status = answer.status.as_u16();
    let result = result(&answer, secrets);
    if (200..400).contains(&status) {
        return Ok(Finished::succeeded(result));
    }
    Err(Finished {
        outcome: Outcome::Failed,
        reason: Some("http-status".to_owned()),
        details: Some(json!({
            "url": target.shown(),
            "why": format!("the answer has status {status}"),
        })),
        result: Some(result),
    })
}

fn result(answer: &Answer, secrets: &Secrets) -> Value {
    let mut result = json!({
        "headers": headers(&answer.headers, secrets),
        "status": answer.status.as_u16(),
    });
    if answer.body.is_empty() {
        return result;
    }
    let (body, ends) = if answer.is_cut {
        // A letter that was cut in two would hide that a secret begins before it.
        let rest = answer.body.utf8_chunks().last();
        let rest = rest.map_or(0, |chunk| chunk.invalid().len());
        (&answer.body[..answer.body.len() - rest], Ends::Cut)
    } else {
        (answer.body.as_slice(), Ends::Whole)
    };
    let text = String::from_utf8_lossy(body);
    let is_lossy = matches!(&text, std::borrow::Cow::Owned(_));
    // Before the cut, which could leave a part of a secret that is no longer known as one.
    let text = secrets.redact_to(&text, ends);
    let kept = cut(&text, SITE_BODY_KEPT_BYTES_MAX);
    if kept.len() < text.len() || answer.is_cut {
        result["bodyTruncated"] = json!(true);
    }
    if is_lossy {
        result["bodyLossy"] = json!(true);
    }
    result["body"] = json!(kept);
    result
}

fn headers(headers: &HeaderMap, secrets: &Secrets) -> Map<String, Value> {
    let kept = KEPT.iter().filter_map(|name| {
        let value = headers.get(name)?;
        let value = String::from_utf8_lossy(value.as_bytes());
        let value = clean(&secrets.redact(&value), SITE_FIELD_CHARS_MAX);
        Some((name.to_string(), json!(value)))
    });
    kept.collect()
}

/// The beginning of a text, so much of it that it takes at most so many bytes as a JSON string.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut bytes = 2;
    for (at, letter) in text.char_indices() {
        bytes += match letter {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            _ => letter.len_utf8(),
        };
        if bytes > bytes_max {
            return &text[..at];
        }
    }
    text
}
