//! Every method by name. The list is the API: what is not in it is NOT_FOUND.

use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use crate::auth::Caller;
use crate::error::{Error, quoted};
use crate::input::Input;
use crate::{Api, command_batches, commands, nodes, secrets, tokens};

/// The JSON of a result.
pub(crate) type Answer = Result<Vec<u8>, Error>;

type Call = fn(Api, Arc<Caller>, Input) -> Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Whether a method that was cut off may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It changes nothing.
    Reads,
    /// It changes something.
    Writes,
}

/// One method.
pub(crate) struct Method {
    /// `commands` in `commands.run`.
    pub(crate) service: &'static str,
    /// `run` in `commands.run`.
    pub(crate) name: &'static str,
    /// Whether it changes something.
    pub(crate) effect: Effect,
    /// The fields that it takes.
    pub(crate) fields: &'static [&'static str],
    /// Runs it.
    pub(crate) call: Call,
}

macro_rules! methods {
    ($($service:ident.$name:literal($($field:ident),*) $effect:ident $module:path;)*) => {
        static METHODS: &[Method] = &[$({
            use $module as module;
            Method {
                service: stringify!($service),
                name: $name,
                effect: Effect::$effect,
                fields: &[$(stringify!($field)),*],
                call: |api, caller, input| Box::pin(module::call(api, caller, input)),
            }
        }),*];
    };
}

methods! {
    commands."run"(tenantId, nodeId, kind, payload, idempotencyKey, notAfterSeconds, batchId)
        Writes commands::run;
    commands."get"(tenantId, nodeId, commandId) Reads commands::get;
    commands."list"(tenantId, nodeId, state, limit, cursor) Reads commands::list;
    commands."cancel"(tenantId, nodeId, commandId) Writes commands::cancel;
    commands."timeline"(tenantId, nodeId, commandId) Reads commands::timeline;
    commandBatches."create"(tenantId, reason, scope, idempotencyKey, expiresInSeconds)
        Writes command_batches::create;
    commandBatches."get"(tenantId, batchId) Reads command_batches::get;
    commandBatches."list"(tenantId, limit, cursor) Reads command_batches::list;
    commandBatches."scope"(tenantId, batchId, limit, cursor) Reads command_batches::scope;
    commandBatches."approve"(tenantId, batchId, publicKey, signature)
        Writes command_batches::approve;
    nodes."get"(tenantId, nodeId) Reads nodes::get;
    nodes."list"(tenantId, limit, cursor, includeDeleted) Reads nodes::list;
    nodes."register"(tenantId, name, role, labels) Writes nodes::register;
    nodes."delete"(tenantId, nodeId) Writes nodes::delete;
    nodes."setSpec"(tenantId, nodeId, generation, spec) Writes nodes::set_spec;
    nodes."createJoinToken"(tenantId, nodeId, expiresInSeconds, allowedKinds)
        Writes nodes::create_join_token;
    nodes."revokeCertificate"(tenantId, nodeId, reason) Writes nodes::revoke_certificate;
    secrets."put"(tenantId, name, value, kinds, nodeIds) Writes secrets::put;
    secrets."list"(tenantId, limit, cursor) Reads secrets::list;
    secrets."delete"(tenantId, name) Writes secrets::delete;
    tokens."create"(tenantId, identity, grants, expiresInSeconds) Writes tokens::create;
    tokens."list"(tenantId, limit, cursor) Reads tokens::list;
    tokens."revoke"(tenantId, tokenId) Writes tokens::revoke;
}

/// The method that a path names.
pub(crate) fn find(path: &str) -> Option<&'static Method> {
    let (service, name) = path.strip_prefix("/api/compute/")?.split_once('/')?;
    METHODS
        .iter()
        .find(|method| method.name == name && method.service == service)
}

/// The name of every method, `service.method`, sorted.
pub fn names() -> Vec<String> {
    let name = |method: &Method| format!("{}.{}", method.service, method.name);
    let mut names: Vec<_> = METHODS.iter().map(name).collect();
    names.sort();
    names
}

/// A path that names no method.
pub(crate) fn unknown(path: &str) -> Error {
    let known = names().join(", ");
    let given = path.strip_prefix("/api/compute/").filter(|name| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '/';
        !name.is_empty() && name.chars().all(plain)
    });
    let what = match given {
        Some(name) => format!("method {}", quoted(&name.replace('/', "."))),
        None => "method at this path".to_owned(),
    };
    Error::NoSuchMethod { what, known }
}

/// Renders a result.
pub(crate) fn render(result: &impl Serialize) -> Answer {
    serde_json::to_vec(result).map_err(Error::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_a_path_names_one_method_or_none() {
        for method in METHODS {
            let path = format!("/api/compute/{}/{}", method.service, method.name);
            let found = find(&path).unwrap();
            assert!(std::ptr::eq(found, method), "{path} stands twice");
        }
        for path in [
            "",
            "/",
            "/api/compute/",
            "/api/compute/commands",
            "/api/compute/commands/",
            "/api/compute/commands/run/",
            "/api/compute/commands/Run",
            "/api/compute/commands.run",
            "//api/compute/commands/run",
            "/api/compute/nodes/run",
            "/API/compute/commands/run",
            "/api/compute/commands/%72un",
        ] {
            assert!(find(path).is_none(), "{path} was found");
        }
    }

    #[test]
    fn a13_a_method_that_there_is_not_is_answered_with_those_that_there_are() {
        for (path, given) in [
            ("/api/compute/commands/foo", "method commands.foo not found"),
            ("/api/compute/help", "method help not found"),
            ("/api/compute/", "method at this path not found"),
            ("/elsewhere/hunter2", "method at this path not found"),
        ] {
            let body = unknown(path).body();
            let told = body["error"]["message"].as_str().unwrap();
            assert_eq!(body["error"]["code"], "NOT_FOUND");
            assert!(told.starts_with(given), "{told}");
            assert!(
                told.contains("; call POST /api/compute/{service}/{method}; "),
                "{told}"
            );
            assert!(
                told.contains("there are commandBatches.approve, "),
                "{told}"
            );
            assert!(told.ends_with("tokens.revoke"), "{told}");
        }
    }
}
