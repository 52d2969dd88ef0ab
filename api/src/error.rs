//! The one table of codes (SPEC section 4), and what each error tells its caller.
//!
//! Nothing of the database's or the operating system's words reaches a caller: `INTERNAL` and
//! `UNAVAILABLE` carry their cause as the error's source, which is logged here, at the edge.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ledger_protocol::text::is_printable;
use serde_json::{Map, Value, json};

use crate::auth::Permission;
use crate::limits;

mod from;

/// The codes that a caller can meet; there are no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request says something that cannot be.
    InvalidInput,
    /// No valid token was shown.
    Unauthenticated,
    /// The token's grants do not cover the request.
    PermissionDenied,
    /// There is no such thing in the tenant's view.
    NotFound,
    /// What is asked for contradicts what was asked for before.
    Conflict,
    /// The thing is in a state in which this cannot be done.
    InvalidState,
    /// This is not something that the API does.
    Unsupported,
    /// A limit is reached; later it may work.
    LimitExceeded,
    /// A defect.
    Internal,
    /// Something that the service needs does not answer; later it will work.
    Unavailable,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 10] = [
        Self::InvalidInput,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::NotFound,
        Self::Conflict,
        Self::InvalidState,
        Self::Unsupported,
        Self::LimitExceeded,
        Self::Internal,
        Self::Unavailable,
    ];

    /// The name in the response.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "INVALID_INPUT",
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::NotFound => "NOT_FOUND",
            Self::Conflict => "CONFLICT",
            Self::InvalidState => "INVALID_STATE",
            Self::Unsupported => "UNSUPPORTED",
            Self::LimitExceeded => "LIMIT_EXCEEDED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
        }
    }

    /// The HTTP status.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::InvalidInput => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Conflict | Self::InvalidState => StatusCode::CONFLICT,
            Self::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
            Self::LimitExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// The cause of an error that is no fault of the caller.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What a method answers instead of a result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// INVALID_INPUT.
    #[error("{field} {problem}")]
    InvalidInput {
        /// The field, by its name in the request; `body` for the body as a whole.
        field: String,
        /// What is wrong with it, what its limit is, what would work.
        problem: String,
        /// More for machines, beside `field`.
        details: Map<String, Value>,
        /// The rest of the request was not read, so that the connection cannot go on.
        close: bool,
    },
    /// UNAUTHENTICATED.
    #[error("{problem}")]
    Unauthenticated {
        /// What is wrong with the token or its absence.
        problem: &'static str,
    },
    /// PERMISSION_DENIED.
    #[error("this needs {permission} on {resource}, which the token does not grant")]
    PermissionDenied {
        /// The permission that is missing.
        permission: Permission,
        /// On what.
        resource: String,
    },
    /// NOT_FOUND.
    #[error("{what} not found")]
    NotFound {
        /// What there is not.
        what: String,
    },
    /// NOT_FOUND of a method.
    #[error("{what} not found; call POST /api/compute/{{service}}/{{method}}; there are {known}")]
    NoSuchMethod {
        /// What there is not.
        what: String,
        /// Every method that there is.
        known: String,
    },
    /// CONFLICT.
    #[error("{message}")]
    Conflict {
        /// What stands against it.
        message: String,
        /// More for machines.
        details: Map<String, Value>,
    },
    /// INVALID_STATE.
    #[error("{message}")]
    InvalidState {
        /// What stands against it.
        message: String,
        /// More for machines.
        details: Map<String, Value>,
    },
    /// UNSUPPORTED.
    #[error("{message}")]
    Unsupported {
        /// What is not supported, and what is.
        message: String,
        /// More for machines.
        details: Map<String, Value>,
    },
    /// LIMIT_EXCEEDED.
    #[error("{message}")]
    LimitExceeded {
        /// Which limit.
        message: String,
        /// More for machines.
        details: Map<String, Value>,
        /// When it may work, in seconds, where that can be said.
        retry_after_seconds: Option<u32>,
    },
    /// INTERNAL.
    #[error("the service met a defect of its own; its log says more")]
    Internal(#[source] Cause),
    /// UNAVAILABLE.
    #[error("{}", if *.outcome_unknown {
        "whether this happened is not known; the same request with the same key will tell"
    } else {
        "the service cannot answer now; nothing was changed"
    })]
    Unavailable {
        /// The request may have happened.
        outcome_unknown: bool,
        /// What does not answer.
        #[source]
        source: Cause,
    },
}

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

impl Error {
    /// INVALID_INPUT for a field.
    pub(crate) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidInput {
            field: field.into(),
            problem: problem.into(),
            details: Map::new(),
            close: false,
        }
    }

    /// INVALID_INPUT for a request of which something was left unread.
    pub(crate) fn unreadable(
        field: &'static str,
        problem: impl Into<String>,
        details: Value,
    ) -> Self {
        Self::InvalidInput {
            field: field.to_owned(),
            problem: problem.into(),
            details: map(details),
            close: true,
        }
    }

    /// NOT_FOUND.
    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound { what: what.into() }
    }

    /// INTERNAL, with its cause for the log.
    pub(crate) fn internal(cause: impl Into<Cause>) -> Self {
        Self::Internal(cause.into())
    }

    /// UNAVAILABLE of something that changed nothing.
    pub(crate) fn unavailable(cause: impl Into<Cause>) -> Self {
        Self::Unavailable {
            outcome_unknown: false,
            source: cause.into(),
        }
    }

    /// LIMIT_EXCEEDED because the service as a whole has enough to do.
    pub(crate) fn overloaded() -> Self {
        Self::LimitExceeded {
            message: "the service has more requests than it can take; try again".to_owned(),
            details: Map::new(),
            retry_after_seconds: Some(1),
        }
    }

    /// The code.
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidInput { .. } => Code::InvalidInput,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::PermissionDenied { .. } => Code::PermissionDenied,
            Self::NotFound { .. } | Self::NoSuchMethod { .. } => Code::NotFound,
            Self::Conflict { .. } => Code::Conflict,
            Self::InvalidState { .. } => Code::InvalidState,
            Self::Unsupported { .. } => Code::Unsupported,
            Self::LimitExceeded { .. } => Code::LimitExceeded,
            Self::Internal(_) => Code::Internal,
            Self::Unavailable { .. } => Code::Unavailable,
        }
    }

    /// `details` of the response; empty for none.
    pub fn details(&self) -> Map<String, Value> {
        match self {
            Self::InvalidInput { field, details, .. } => {
                let mut details = details.clone();
                details.insert("field".to_owned(), json!(field));
                details
            }
            Self::PermissionDenied {
                permission,
                resource,
            } => map(json!({"permission": permission.as_str(), "resource": resource})),
            Self::Conflict { details, .. }
            | Self::InvalidState { details, .. }
            | Self::Unsupported { details, .. }
            | Self::LimitExceeded { details, .. } => details.clone(),
            Self::Unavailable {
                outcome_unknown: true,
                ..
            } => map(json!({"outcome": "unknown"})),
            Self::Unauthenticated { .. }
            | Self::NotFound { .. }
            | Self::NoSuchMethod { .. }
            | Self::Internal(_)
            | Self::Unavailable { .. } => Map::new(),
        }
    }

    fn log(&self) {
        match self {
            Self::Internal(source) => {
                tracing::error!(error = %chain(source.as_ref()), "request failed by a defect");
            }
            Self::Unavailable {
                outcome_unknown,
                source,
            } => {
                let error = chain(source.as_ref());
                tracing::warn!(%error, outcome_unknown, "request could not be answered");
            }
            Self::InvalidInput { .. }
            | Self::Unauthenticated { .. }
            | Self::PermissionDenied { .. }
            | Self::NotFound { .. }
            | Self::NoSuchMethod { .. }
            | Self::Conflict { .. }
            | Self::InvalidState { .. }
            | Self::Unsupported { .. }
            | Self::LimitExceeded { .. } => {}
        }
    }

    /// The body of the response.
    pub(crate) fn body(&self) -> Value {
        let mut error = map(json!({
            "code": self.code().as_str(),
            "message": self.to_string(),
        }));
        let details = self.details();
        if !details.is_empty() {
            error.insert("details".to_owned(), Value::Object(details));
        }
        json!({ "error": error })
    }
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let told = next.to_string();
        // Libraries differ in whether an error's text holds that of its cause already.
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = next.source();
    }
    text
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.log();
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.code().status();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self {
            Self::InvalidInput { close: true, .. } => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Self::Unauthenticated { .. } => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::LimitExceeded {
                retry_after_seconds: Some(seconds),
                ..
            } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            Self::Unavailable { .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::InvalidInput { .. }
            | Self::PermissionDenied { .. }
            | Self::NotFound { .. }
            | Self::NoSuchMethod { .. }
            | Self::Conflict { .. }
            | Self::InvalidState { .. }
            | Self::Unsupported { .. }
            | Self::LimitExceeded { .. }
            | Self::Internal(_) => {}
        }
        response
    }
}

/// A caller's own text as an error message repeats it: short, and with nothing invisible.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(limits::QUOTED_CHARS_MAX)
        .map(|c| if is_printable(c) { c } else { '\u{fffd}' })
        .collect();
    if text.chars().nth(limits::QUOTED_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_the_table_of_codes_is_the_one_of_the_specification() {
        let table: Vec<_> = Code::ALL
            .iter()
            .map(|code| (code.as_str(), code.status().as_u16()))
            .collect();
        assert_eq!(
            table,
            [
                ("INVALID_INPUT", 400),
                ("UNAUTHENTICATED", 401),
                ("PERMISSION_DENIED", 403),
                ("NOT_FOUND", 404),
                ("CONFLICT", 409),
                ("INVALID_STATE", 409),
                ("UNSUPPORTED", 422),
                ("LIMIT_EXCEEDED", 429),
                ("INTERNAL", 500),
                ("UNAVAILABLE", 503),
            ]
        );
    }

    #[test]
    fn a13_a_chain_of_causes_says_nothing_twice() {
        #[derive(Debug, thiserror::Error)]
        #[error("could not ask: {source}")]
        struct Repeats {
            source: std::io::Error,
        }
        let error = Repeats {
            source: std::io::ErrorKind::BrokenPipe.into(),
        };
        assert_eq!(chain(&error), "could not ask: broken pipe");
    }

    #[test]
    fn l10_an_unknown_outcome_says_so() {
        let error = Error::Unavailable {
            outcome_unknown: true,
            source: "link".into(),
        };
        assert_eq!(error.body()["error"]["code"], "UNAVAILABLE");
        assert_eq!(error.body()["error"]["details"]["outcome"], "unknown");
    }

    #[test]
    fn a_a_callers_text_is_repeated_shortly_and_visibly() {
        assert_eq!(quoted("a\u{0}b"), "a\u{fffd}b");
        assert_eq!(quoted(&"x".repeat(500)).chars().count(), 61);
    }
}
