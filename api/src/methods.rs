//! Every method by name. The list is the API: what is not in it is NOT_FOUND.

use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use crate::auth::Caller;
use crate::error::Error;
use crate::input::Input;
use crate::{Api, commands, nodes, tokens};

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
    /// Runs it.
    pub(crate) call: Call,
}

macro_rules! methods {
    ($($service:ident.$name:literal $effect:ident $module:path;)*) => {
        static METHODS: &[Method] = &[$({
            use $module as module;
            Method {
                service: stringify!($service),
                name: $name,
                effect: Effect::$effect,
                call: |api, caller, input| Box::pin(module::call(api, caller, input)),
            }
        }),*];
    };
}

methods! {
    commands."run" Writes commands::run;
    commands."get" Reads commands::get;
    commands."list" Reads commands::list;
    commands."cancel" Writes commands::cancel;
    commands."timeline" Reads commands::timeline;
    nodes."get" Reads nodes::get;
    nodes."list" Reads nodes::list;
    nodes."register" Writes nodes::register;
    nodes."delete" Writes nodes::delete;
    nodes."setSpec" Writes nodes::set_spec;
    nodes."createJoinToken" Writes nodes::create_join_token;
    tokens."create" Writes tokens::create;
    tokens."list" Reads tokens::list;
    tokens."revoke" Writes tokens::revoke;
}

/// The method that a path names.
pub(crate) fn find(path: &str) -> Option<&'static Method> {
    let (service, name) = path.strip_prefix("/api/compute/")?.split_once('/')?;
    METHODS
        .iter()
        .find(|method| method.name == name && method.service == service)
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
}
