//! `tenant`: the owners of nodes and commands, straight in the database.

use clap::{Args, Subcommand};
use ledger::Clock;
use serde_json::json;

use crate::exit::{Code, Failure};
use crate::limits::CONNECTIONS_OF_ONE_CALL;
use crate::output::Output;
use crate::postgres::{self, PostgresOption};

/// Make tenants.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a tenant and print its id
    Create {
        /// Name that people know it by
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        postgres: PostgresOption,
    },
}

/// Does what the verb says.
pub(crate) async fn run(options: Options, output: &mut Output) -> Result<(), Failure> {
    match options.verb {
        Verb::Create {
            name,
            json,
            postgres,
        } => {
            let pool = postgres::connect(&postgres.postgres, CONNECTIONS_OF_ONE_CALL).await?;
            let now = Clock::system().now();
            let tenant = ledger_api::auth::create_tenant(&pool, &name, now).await;
            let tenant = tenant.map_err(told)?;
            if json {
                output.json(&json!({"tenantId": tenant, "name": name}))
            } else {
                output.line(&tenant.to_string())
            }
        }
    }
}

/// What an error of the API's own functions means to a script.
pub(crate) fn told(error: ledger_api::Error) -> Failure {
    let code = match error.code() {
        ledger_api::Code::NotFound => Code::NotFound,
        ledger_api::Code::Unavailable => Code::Unavailable,
        ledger_api::Code::Internal => Code::Failed,
        ledger_api::Code::InvalidInput
        | ledger_api::Code::Unauthenticated
        | ledger_api::Code::PermissionDenied
        | ledger_api::Code::Conflict
        | ledger_api::Code::InvalidState
        | ledger_api::Code::Unsupported
        | ledger_api::Code::LimitExceeded => Code::Refused,
    };
    Failure::new(code, error)
}
