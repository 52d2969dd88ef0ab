//! The log, held against what must hold of any log (SPEC sections 1, 2, 5 and 6).

use ledger_protocol::invariants::{BrokenChain, Violation, roots};
use ledger_protocol::kind::Registry;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use sqlx::PgPool;

use crate::Error;
use crate::archive::Archive;
use crate::error::database;
use crate::limits::{SWEEP_LATE_SECONDS, VIOLATIONS_MAX};
use crate::log;
use crate::trust;
use crate::verify::shelved;

/// The answer of a check. The log keeps every rule when `violations_total` is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Events that were checked; also the log's last position.
    pub events: u64,
    /// Commands that they made.
    pub commands: usize,
    /// Commands that have not ended.
    pub live: usize,
    /// The first violations, at most 1,000, in the order of their positions; those that time alone
    /// broke come last.
    pub violations: Vec<Violation>,
    /// How many there are.
    pub violations_total: u64,
    /// Why nodes could not follow the published trust bundles (SPEC P1). Signatures are not looked at
    /// then.
    pub broken_trust: Option<BrokenChain>,
}

impl Checked {
    /// Whether no rule is broken.
    pub fn is_clean(&self) -> bool {
        self.violations_total == 0 && self.broken_trust.is_none()
    }

    fn add(&mut self, found: Vec<Violation>) {
        self.violations_total += found.len() as u64;
        let room = VIOLATIONS_MAX.saturating_sub(self.violations.len());
        self.violations.extend(found.into_iter().take(room));
    }
}

/// Checks every event of the log against the protocol's invariants, with a fold that is not the one
/// that decided them, and looks for commands that should have ended by now, which is the database's.
/// What is signed is held against the roots of the trust bundles that stand beside the log.
/// `kinds` says which kinds are registered (SPEC K2).
///
/// Commands that have ended are kept in a temporary file. An error means that the log itself is not
/// sound, or that this file or the database fails.
pub async fn check(
    pool: &PgPool,
    archive: Option<&Archive>,
    kinds: &Registry,
) -> Result<Checked, Error> {
    let mut snapshot = log::snapshot(pool).await?;
    let micros = |seconds: u32| i64::from(seconds) * MICROS_PER_SECOND;
    let mut rules = shelved();
    let mut checked = Checked::default();
    let bundles = trust::read_all(&mut snapshot).await?;
    match roots(&bundles) {
        Ok(roots) => rules.trust(roots),
        Err(broken) => checked.broken_trust = Some(broken),
    }
    checked.events = log::read(&mut snapshot, archive, |stored| {
        let found = rules.observe(stored.position, &stored.event);
        checked.add(found.map_err(Error::Shelf)?);
        Ok(())
    })
    .await?;
    let now = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000000)::bigint");
    let now: i64 = database(now.fetch_one(&mut *snapshot)).await?;
    database(snapshot.rollback()).await?;
    let now = Timestamp::from_micros(now);
    let rules = rules.checker();
    checked.add(rules.overdue(now, micros(SWEEP_LATE_SECONDS), kinds));
    checked.commands = rules.commands();
    checked.live = rules.live();
    tracing::info!(
        events = checked.events,
        violations = checked.violations_total,
        "checked the log"
    );
    Ok(checked)
}
