//! Old checkpoints go, but for one of each 4,096 events (SPEC U1).
//!
//! Two a second are 170,000 a day. What may go is decided in the database (`thin_checkpoints`), for the
//! service may not delete by itself; here is when. A failure is only told: nothing needs this soon.

use ledger_projections::log_tree::{self, Thinned};
use sqlx::PgPool;
use tokio::time::{Instant, timeout};

use crate::limits;

/// How far it is done, and when it goes on.
#[derive(Debug, Default)]
pub(super) struct Thinning {
    after: u64,
    not_before: Option<Instant>,
}

impl Thinning {
    /// Takes one portion, if one is due.
    pub(super) async fn go_on(&mut self, pool: &PgPool) {
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let portion = limits::THINNED_AT_ONCE_ROWS;
        let thin = async {
            let mut conn = pool.acquire().await?;
            log_tree::thin(&mut conn, self.after, portion).await
        };
        let done = timeout(limits::LOG_STEP_WITHIN, thin).await;
        let problem = match done {
            Ok(Ok(Thinned { seen, to, deleted })) => {
                if deleted > 0 {
                    tracing::debug!(deleted, to, "old checkpoints were thinned out");
                }
                self.after = to;
                if seen == u64::from(portion) {
                    return;
                }
                None
            }
            Ok(Err(error)) => Some(super::chain(&error)),
            Err(_) => Some("it took too long".to_owned()),
        };
        if let Some(problem) = problem {
            tracing::warn!(
                problem,
                "old checkpoints were not thinned out; it is tried again"
            );
        }
        self.not_before = Some(Instant::now() + limits::THIN_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::World;
    use super::*;

    const HOUR: &str = "now() - interval '61 minutes'";

    async fn sizes(pool: &PgPool) -> Vec<i64> {
        let sql = "SELECT size FROM checkpoints ORDER BY size";
        sqlx::query_scalar(sql).fetch_all(pool).await.unwrap()
    }

    /// Checkpoints of other sizes; nobody reads what they say.
    async fn plant(world: &World, sizes: &str, at: &str) {
        let sql = format!(
            "INSERT INTO checkpoints (size, note, signed_at)
             SELECT n, E'log.example/1\n' || n, {at} FROM {sizes} AS n ON CONFLICT DO NOTHING"
        );
        world.tamper(&sql).await;
    }

    #[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
    async fn u1_of_old_checkpoints_one_for_4096_events_stays_and_all_of_the_last_hour(
        pool: PgPool,
    ) {
        let world = World::new(pool);
        world.append(20_000, "a").await;
        world.sign(20_000).await;
        // Those that were signed on the way.
        world
            .tamper("DELETE FROM checkpoints WHERE size < 20000")
            .await;
        plant(&world, "generate_series(3, 14000, 7)", HOUR).await;
        plant(&world, "generate_series(4096, 12288, 4096)", HOUR).await;
        plant(&world, "generate_series(14001, 19999, 11)", "now()").await;
        let before = sizes(&world.pool).await;
        let mut expected = BTreeMap::new();
        for size in before.iter().filter(|size| **size <= 14_000) {
            expected.insert((size - 1) / 4_096, *size);
        }
        let expected: Vec<i64> = expected.into_values().collect();
        assert_eq!(expected.get(..3), Some(&[4_096, 8_192, 12_288][..]));
        let recent = before.iter().filter(|size| **size > 14_000);
        let expected: Vec<i64> = expected.iter().chain(recent).copied().collect();
        assert!(before.len() > 2 * usize::try_from(limits::THINNED_AT_ONCE_ROWS).unwrap());
        // In portions.
        let mut thinning = Thinning::default();
        while thinning.not_before.is_none() {
            thinning.go_on(&world.pool).await;
        }
        assert_eq!(sizes(&world.pool).await, expected);
        // When the rest is old, too; the newest is not touched, and a log of this table is signed on.
        world
            .tamper("UPDATE checkpoints SET signed_at = signed_at - interval '2 hours'")
            .await;
        world.append(20_001, "a").await;
        world.sign(20_001).await;
        let expected = [4_096, 8_192, 12_288, 16_377, 20_000, 20_001];
        let kept = sizes(&world.pool).await;
        assert!(kept.ends_with(&[20_000, 20_001]), "{kept:?}");
        let mut thinning = Thinning::default();
        while thinning.not_before.is_none() {
            thinning.go_on(&world.pool).await;
        }
        assert_eq!(sizes(&world.pool).await, expected);
    }

    #[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
    async fn u1_the_newest_of_each_log_of_a_database_stays(pool: PgPool) {
        let world = World::new(pool);
        plant(&world, "generate_series(1, 9)", HOUR).await;
        let sql = "INSERT INTO checkpoints (size, note, signed_at)
                   SELECT n, E'log.example/2\n' || n, now() - interval '2 hours'
                   FROM generate_series(10, 19) AS n";
        world.tamper(sql).await;
        Thinning::default().go_on(&world.pool).await;
        assert_eq!(sizes(&world.pool).await, [9, 19]);
    }

    #[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
    async fn l6_checkpoints_go_in_no_other_way(pool: PgPool) {
        let world = World::new(pool);
        plant(&world, "generate_series(1, 9)", HOUR).await;
        for role in ["command_ledger_service", "none"] {
            let mut conn = world.pool.acquire().await.unwrap();
            let set = format!("SET ROLE {role}");
            let set = sqlx::query(sqlx::AssertSqlSafe(set));
            set.execute(&mut *conn).await.unwrap();
            for _ in 0..2 {
                for statement in [
                    "DELETE FROM checkpoints",
                    "DELETE FROM checkpoints WHERE size = 1",
                    "UPDATE checkpoints SET note = note",
                    "TRUNCATE checkpoints",
                ] {
                    let refused = sqlx::query(statement).execute(&mut *conn).await;
                    let refused = refused.unwrap_err();
                    let code = refused
                        .as_database_error()
                        .and_then(sqlx::error::DatabaseError::code);
                    assert_eq!(
                        code.as_deref(),
                        Some("42501"),
                        "{role}: {statement}: {refused}"
                    );
                }
                // What thinning leaves behind opens nothing.
                log_tree::thin(&mut conn, 0, 2).await.unwrap();
            }
            sqlx::query("RESET ROLE").execute(&mut *conn).await.unwrap();
        }
        assert_eq!(sizes(&world.pool).await, (5..=9).collect::<Vec<i64>>());
    }
}
