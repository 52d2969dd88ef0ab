//! `token`: who may call the API. The first token of a tenant cannot come through the API, so
//! tokens are made straight in the database.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use ledger::Clock;
use ledger_api::auth::{Grant, NewToken, Permission, Resource, create_token};
use ledger_protocol::id::{TenantId, TokenId};
use ledger_protocol::kind::Registry;
use ledger_protocol::time::Timestamp;
use serde_json::{Value, json};

use super::tenant::told;
use crate::client::{Client, TenantOptions};
use crate::exit::Failure;
use crate::limits::{CONNECTIONS_OF_ONE_CALL, PAGE_ITEMS};
use crate::output::Output;
use crate::postgres::{self, PostgresOption};

/// Make, list and revoke API tokens.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token, straight in the database, and print it; it is shown only now
    #[command(group = ArgGroup::new("grants").args(["grant", "admin"]).required(true))]
    Create {
        /// The tenant whose view it opens
        #[arg(long, env = "COMMAND_LEDGER_TENANT", value_name = "TENANT")]
        tenant: TenantId,
        /// Who acts with it; events name it as their actor
        #[arg(long, value_name = "NAME")]
        identity: String,
        /// What it allows, such as compute:nodes:read or
        /// compute:nodes:exec@compute-node/*#diag.nvml,logs.collect; may be repeated
        #[arg(long, value_name = "PERMISSION[@RESOURCE[#KIND,…]]", value_parser = grant)]
        grant: Vec<Grant>,
        /// Every permission on everything of the tenant
        #[arg(long)]
        admin: bool,
        /// How long it works, from 1s to 100d [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Duration>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        postgres: PostgresOption,
    },
    /// Every token of the tenant, through the API
    List {
        #[command(flatten)]
        common: TenantOptions,
    },
    /// Refuse a token from now on, through the API
    Revoke {
        /// Id of the token: what stands before its dot
        token_id: TokenId,
        #[command(flatten)]
        common: TenantOptions,
    },
}

/// Does what the verb says.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    match options.verb {
        Verb::Create {
            tenant,
            identity,
            grant,
            admin,
            expires,
            json,
            postgres,
        } => {
            let pool = postgres::connect(&postgres.postgres, CONNECTIONS_OF_ONE_CALL).await?;
            let now = Clock::system().now();
            let seconds = expires.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
            let token = NewToken {
                tenant,
                identity,
                grants: if admin { Grant::all() } else { grant },
                expires_at: seconds.map(|seconds| now.plus_seconds(seconds)),
            };
            let made = create_token(&pool, &token, now).await;
            let (id, text) = made.map_err(told)?;
            if json {
                output.json(&json!({"id": id, "token": text, "tenantId": tenant}))
            } else {
                output.line(&text)
            }
        }
        Verb::List { common } => list(common, output).await,
        Verb::Revoke { token_id, common } => {
            let client = Client::new(&common.api)?;
            let input = json!({"tenantId": common.tenant, "tokenId": token_id});
            let revoked = client.call("tokens", "revoke", &input).await?;
            if common.json {
                output.json(&revoked)
            } else {
                output.line(&format!("{token_id} is refused from now on"))
            }
        }
    }
}

async fn list(common: TenantOptions, output: &mut Output) -> Result<(), Failure> {
    let client = Client::new(&common.api)?;
    let input = json!({"tenantId": common.tenant, "limit": PAGE_ITEMS});
    let tokens = client.every_item("tokens", "list", input).await?;
    if common.json {
        return output.json(&json!({ "items": tokens }));
    }
    let now = Clock::system().now();
    let rows: Vec<_> = tokens.iter().map(|token| row(token, now)).collect();
    output.table(&["TOKEN", "IDENTITY", "STATE", "GRANTS"], &rows)
}

fn row(token: &Value, now: Timestamp) -> Vec<String> {
    let text = |field: &str| token[field].as_str().unwrap_or("-").to_owned();
    let state = match (&token["revokedAt"], &token["expiresAt"]) {
        (Value::String(at), _) => format!("revoked {at}"),
        (_, Value::String(at)) if Timestamp::parse_rfc3339(at).is_some_and(|end| end <= now) => {
            format!("expired {at}")
        }
        (_, Value::String(at)) => format!("until {at}"),
        _ => "valid".to_owned(),
    };
    let grants = token["grants"].as_array().into_iter().flatten();
    let grants: Vec<_> = grants
        .filter_map(|grant| Grant::from_json(grant).ok())
        .collect();
    let grants: Vec<_> = grants.iter().map(written).collect();
    vec![text("id"), text("identity"), state, grants.join(" ")]
}

/// A grant as the command line takes it.
fn written(grant: &Grant) -> String {
    let kinds = grant
        .kinds
        .as_ref()
        .map_or(String::new(), |kinds| format!("#{}", kinds.join(",")));
    format!("{}@{}{kinds}", grant.permission, grant.resource)
}

/// Reads `PERMISSION[@RESOURCE[#KIND,…]]`; without a resource, everything is meant.
fn grant(text: &str) -> Result<Grant, String> {
    let (permission, on) = text.split_once('@').unwrap_or((text, "*"));
    let (resource, kinds) = match on.split_once('#') {
        Some((resource, kinds)) => (resource, Some(kinds)),
        None => (on, None),
    };
    let mut json = json!({"permission": permission, "resource": resource});
    if let Some(kinds) = kinds {
        json["kinds"] = kinds.split(',').collect();
    }
    if Permission::parse(permission).is_none() {
        let known = Permission::ALL.map(Permission::as_str).join(", ");
        return Err(format!(
            "`{permission}` is no permission; there are {known}"
        ));
    }
    if Resource::parse(resource).is_none() {
        return Err(format!(
            "`{resource}` is no resource; write *, compute-node/* or compute-node/node_…"
        ));
    }
    let grant = Grant::from_json(&json).and_then(|grant| {
        grant.check_kinds(&Registry::builtin())?;
        Ok(grant)
    });
    grant.map_err(|problem| format!("grants {problem}"))
}

/// Reads how long a token works. It is kept in whole seconds, and one that has expired when it is
/// made is a mistake.
fn expiry(text: &str) -> Result<Duration, String> {
    let time = crate::duration::parse(text)?;
    if time < Duration::from_secs(1) {
        return Err(format!("`{text}` is too short; the least is 1s"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a13_grants_are_read_as_they_are_written() {
        for text in [
            "compute:nodes:read@*",
            "compute:nodes:admin@compute-node/*",
            "compute:nodes:exec@compute-node/node_01h455vb4pex5vsknk084sn02q",
            "compute:nodes:exec@compute-node/*#diag.nvml,logs.collect",
        ] {
            assert_eq!(written(&grant(text).unwrap()), text);
        }
        assert_eq!(
            written(&grant("compute:nodes:read").unwrap()),
            "compute:nodes:read@*"
        );
    }

    #[test]
    fn a13_a_token_is_listed_as_expired_from_its_end_on() {
        let end = "2026-11-30T10:37:00.453776Z";
        let token = json!({"id": "token_1", "identity": "ada", "expiresAt": end, "grants": []});
        let at = Timestamp::parse_rfc3339(end).unwrap();
        let state = |now| row(&token, now).swap_remove(2);
        assert_eq!(state(at.plus_micros(-1)), format!("until {end}"));
        assert_eq!(state(at), format!("expired {end}"));
    }

    #[test]
    fn a13_a_token_works_for_a_second_at_least() {
        assert_eq!(expiry("1s"), Ok(Duration::from_secs(1)));
        for text in ["0s", "0", "999ms", "101d"] {
            assert!(expiry(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a13_grants_that_cannot_be_are_refused() {
        for text in [
            "",
            "nodes:read",
            "compute:nodes:read@somewhere",
            "compute:nodes:read@compute-node/node_1",
            "compute:nodes:read@*#diag.nvml",
            "compute:nodes:exec@*#",
            "compute:nodes:exec@*#node.rebot",
            "compute:nodes:exec@*#diag.nvml,",
        ] {
            assert!(grant(text).is_err(), "{text}");
        }
    }
}
