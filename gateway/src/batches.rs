//! The batches that commands name, which show their nodes that they were approved (SPEC P3).

use ledger::Ledger;
use ledger_projections::{Error, batches};
use ledger_protocol::command::Command;
use ledger_protocol::session::Batches;

/// Reads the batches that these commands name, each once and by its key; nothing is asked when none
/// names one.
pub(crate) async fn named<'a>(
    ledger: &Ledger,
    commands: impl IntoIterator<Item = &'a Command>,
) -> Result<Batches, Error> {
    let ids = Batches::named_by(commands);
    if ids.is_empty() {
        return Ok(Batches::default());
    }
    let mut conn = ledger.pool().acquire().await?;
    let found = batches::get_many(&mut conn, ids).await?;
    Ok(found.into_iter().collect())
}
