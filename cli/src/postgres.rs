//! Where Postgres is, and the connections to it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr as _;

use clap::Args;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, PgPool};
use tokio::time::timeout;

use crate::commands::migrate;
use crate::exit::{Code, Failure, Meaning};
use crate::limits::POSTGRES_CONNECT_WITHIN;
use crate::secret::Secret;

// SQLSTATEs.
const INVALID_AUTHORIZATION: &str = "28000";
const INVALID_PASSWORD: &str = "28P01";
const INVALID_CATALOG: &str = "3D000";
const INVALID_PARAMETER: &str = "22023";
const INSUFFICIENT_PRIVILEGE: &str = "42501";
const UNDEFINED_OBJECT: &str = "42704";
const UNDEFINED_TABLE: &str = "42P01";

/// The migration that lets the service read the list of migrations.
const READABLE_FROM: i64 = 6;

/// Where Postgres is.
#[derive(Debug, Clone, Args)]
pub(crate) struct PostgresOption {
    /// URL of Postgres 15 or newer, `postgres://USER:PASSWORD@HOST/DATABASE`
    #[arg(
        long,
        env = "COMMAND_LEDGER_POSTGRES",
        value_name = "URL",
        hide_env_values = true
    )]
    pub(crate) postgres: Secret,
}

/// Reads a URL. Nothing of it goes into the error: it may hold a password.
pub(crate) fn parse(url: &Secret) -> Result<PgConnectOptions, Failure> {
    let url = url.reveal().trim();
    let scheme = ["postgres://", "postgresql://"];
    let options = PgConnectOptions::from_str(url).ok();
    let options = options.filter(|_| scheme.iter().any(|scheme| url.starts_with(scheme)));
    options.ok_or_else(|| {
        Failure::usage(
            "--postgres is no URL of a database, such as postgres://user:password@host/database",
        )
    })
}

/// Connections under the service's role, to a schema that this program can work with.
pub(crate) async fn connect(url: &Secret, connections_max: u32) -> Result<PgPool, Failure> {
    // A pool tells only that its time has run out; one connection of our own tells why.
    let options = parse(url)?;
    let at = At::of(&options);
    let mut first = connect_once(&options).await?;
    let role = sqlx::query("SET ROLE command_ledger_service");
    let role = role.execute(&mut first).await;
    role.map_err(|error| at.told_of_role(error))?;
    check_version(&mut first, &at).await?;
    // Postgres would also notice by itself, after its keepalive.
    let _ = first.close().await;

    let connecting = ledger::connect(url.reveal().trim(), connections_max);
    let connected = timeout(POSTGRES_CONNECT_WITHIN, connecting).await;
    connected
        .or_unavailable(format!("Postgres at {at} does not answer"))?
        .or_unavailable(format!("could not connect to Postgres at {at}"))
}

/// One connection as the schema's owner, to a schema that this program can work with.
pub(crate) async fn connect_owner(url: &Secret) -> Result<PgConnection, Failure> {
    let options = parse(url)?.application_name("command-ledger");
    let at = At::of(&options);
    let mut owner = connect_once(&options).await?;
    check_version(&mut owner, &at).await?;
    let owns = sqlx::query_scalar(
        "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'events'::regclass",
    );
    let owns: bool = owns
        .fetch_one(&mut owner)
        .await
        .map_err(|error| at.broken_off(error))?;
    if owns {
        Ok(owner)
    } else {
        Err(Failure::usage(format!(
            "--postgres does not name the owner of the schema of {at}; this needs the URL that \
             `command-ledger migrate` is run with"
        )))
    }
}

/// One connection, as whoever the URL names.
pub(crate) async fn connect_once(options: &PgConnectOptions) -> Result<PgConnection, Failure> {
    let at = At::of(options);
    let connecting = timeout(POSTGRES_CONNECT_WITHIN, options.connect()).await;
    let connected = connecting.or_unavailable(format!("Postgres at {at} does not answer"))?;
    connected.map_err(|error| {
        let (code, doing) = match state(&error).as_deref() {
            Some(INVALID_PASSWORD | INVALID_AUTHORIZATION) => (
                Code::Usage,
                format!("Postgres at {at} does not let in who --postgres names"),
            ),
            Some(INVALID_CATALOG) => (
                Code::Usage,
                format!("Postgres at {at} has no database of that name"),
            ),
            _ => (
                Code::Unavailable,
                format!("could not connect to Postgres at {at}"),
            ),
        };
        Failure::new(code, anyhow::Error::from(error).context(doing))
    })
}

/// Where a database is, as messages name it: without its user and password.
struct At {
    server: String,
    database: String,
}

impl At {
    fn of(options: &PgConnectOptions) -> Self {
        let host = options.get_host();
        let port = options.get_port();
        let server = match options.get_socket() {
            Some(folder) => format!("{}:{port}", folder.display()),
            None => format!("{host}:{port}"),
        };
        // Postgres itself takes the user's name where none is given.
        let database = options.get_database();
        let database = database.unwrap_or(options.get_username()).to_owned();
        Self { server, database }
    }

    fn told_of_role(&self, error: sqlx::Error) -> Failure {
        let missing = matches!(
            state(&error).as_deref(),
            Some(INVALID_PARAMETER | INSUFFICIENT_PRIVILEGE | UNDEFINED_OBJECT)
        );
        if missing {
            let doing = format!(
                "{self} cannot be used under the role command_ledger_service; run \
                 `command-ledger migrate` as its owner first"
            );
            return Failure::new(Code::Failed, anyhow::Error::from(error).context(doing));
        }
        self.broken_off(error)
    }

    fn broken_off(&self, error: sqlx::Error) -> Failure {
        let doing = format!("Postgres at {self} does not answer as it should");
        Failure::new(Code::Unavailable, anyhow::Error::from(error).context(doing))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, database {}", self.server, self.database)
    }
}

/// Where the schema of a database stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Nobody has migrated it.
    None,
    /// It comes from before the version that lets the service read where the schema stands.
    Before(i64),
    /// The newest migration that was applied.
    At(i64),
}

/// Refuses a schema that lacks something of ours. A newer one is fine: while a fleet of services
/// is upgraded, the old ones go on, and a migration takes nothing away.
async fn check_version(connection: &mut PgConnection, at: &At) -> Result<(), Failure> {
    let newest = sqlx::query_scalar::<_, Option<i64>>(
        "SELECT max(version) FROM _sqlx_migrations WHERE success",
    );
    let version = match newest.fetch_one(connection).await {
        Ok(Some(version)) => Version::At(version),
        Ok(None) => Version::None,
        Err(error) => match state(&error).as_deref() {
            Some(UNDEFINED_TABLE) => Version::None,
            Some(INSUFFICIENT_PRIVILEGE) => Version::Before(READABLE_FROM),
            _ => return Err(at.broken_off(error)),
        },
    };
    lacking(version, migrate::newest(), &at.database)
        .map_or(Ok(()), |told| Err(Failure::failed(told)))
}

/// What to tell of a schema that is older than what is needed.
fn lacking(version: Version, needed: i64, database: &str) -> Option<String> {
    let stands = match version {
        Version::At(version) if version >= needed => return None,
        Version::At(version) => format!("at version {version} of its schema"),
        Version::Before(version) => format!("at a version of its schema before {version}"),
        Version::None => "at no version of its schema (none)".to_owned(),
    };
    Some(format!(
        "database {database} is {stands}, this program needs {needed}; run `command-ledger \
         migrate` as its owner"
    ))
}

fn state(error: &sqlx::Error) -> Option<String> {
    let error = error.as_database_error()?;
    error.code().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    #[test]
    fn p6_a_postgres_url_that_cannot_be_is_refused_without_being_shown() {
        for url in [
            "",
            "hunter2",
            "http://u:hunter2@h/d",
            "postgres://u:hunter2@h:port/d",
        ] {
            let failure = parse(&Secret::new(url)).unwrap_err();
            assert_eq!(failure.code, Code::Usage, "{url}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
        parse(&Secret::new("postgres://u@localhost/d?host=%2Ftmp%2Fa%20b")).unwrap();
    }

    #[test]
    fn h7_a_schema_must_be_as_new_as_the_program_and_may_be_newer() {
        for version in [Version::At(6), Version::At(7)] {
            assert_eq!(lacking(version, 6, "d"), None);
        }
        for (version, told) in [
            (Version::None, "(none)"),
            (Version::Before(6), "before 6"),
            (Version::At(5), "at version 5"),
        ] {
            let lacking = lacking(version, 7, "ledger").unwrap();
            for part in [
                "database ledger",
                told,
                "needs 7",
                "`command-ledger migrate`",
            ] {
                assert!(lacking.contains(part), "{lacking}");
            }
        }
    }

    #[test]
    fn h7_a_server_that_goes_away_is_no_matter_of_migrating() {
        let options = parse(&Secret::new("postgres://u@h/d")).unwrap();
        let failure = At::of(&options).told_of_role(sqlx::Error::PoolClosed);
        assert_eq!(failure.code, Code::Unavailable);
        assert!(!failure.to_string().contains("migrate"), "{failure}");
    }

    #[test]
    fn p6_where_a_database_is_is_told_without_who_asks() {
        for (url, told) in [
            ("postgres://u:hunter2@h:5433/d", "h:5433, database d"),
            (
                "postgres://u:hunter2@localhost/d?host=%2Ftmp%2Fa",
                "/tmp/a:5432, database d",
            ),
        ] {
            let options = parse(&Secret::new(url)).unwrap();
            assert_eq!(At::of(&options).to_string(), told);
        }
    }
}
