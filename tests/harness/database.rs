//! URLs of the databases that `#[sqlx::test]` makes.

use reqwest::Url;
use sqlx::PgPool;

/// The URL of this pool's database, as its owner.
pub fn url(pool: &PgPool) -> Url {
    let server = std::env::var("DATABASE_URL")
        .expect("no DATABASE_URL: run the tests under `with-servers`, as `make test` does");
    let mut url: Url = server.parse().unwrap();
    let options = pool.connect_options();
    url.set_path(options.get_database().unwrap());
    url
}

/// How many connections to this database are inside a transaction and how many there are at all,
/// without the one that asks.
pub async fn transactions(pool: &PgPool) -> (i64, i64) {
    sqlx::query_as(
        "SELECT count(*) FILTER (WHERE state <> 'idle' OR backend_xid IS NOT NULL), count(*)
         FROM pg_stat_activity
         WHERE datname = current_database() AND backend_type = 'client backend'
           AND pid <> pg_backend_pid()",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}
