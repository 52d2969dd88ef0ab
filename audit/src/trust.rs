//! The trust bundles that stand beside the log (SPEC P1).

use ledger_projections::trust;
use ledger_protocol::trust::Published;
use sqlx::PgConnection;

use crate::Error;
use crate::limits::TRUST_BUNDLES_PAGE_ROWS;

/// Every bundle, the oldest first.
pub(crate) async fn read_all(conn: &mut PgConnection) -> Result<Vec<Published>, Error> {
    let mut all: Vec<Published> = Vec::new();
    loop {
        let after = all.last().map_or(0, |last| last.version);
        let page = trust::above(conn, after, TRUST_BUNDLES_PAGE_ROWS).await;
        let page = page.map_err(|error| match error {
            ledger_projections::Error::Database(source) => Error::Database(source),
            other => Error::Trust(other),
        })?;
        let is_last = page.len() < TRUST_BUNDLES_PAGE_ROWS as usize;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}
