//! The log's checkpoints on `ledger.checkpoint` (SPEC section 9, U1), for plain subscribers.
//!
//! A checkpoint is no event: it has no position, and the stream does not hold it. Of several that
//! appeared since the last look, the newest is sent, which covers the others. One that was sent is
//! not sent again, unless the publisher dies between sending and noting it.

use async_nats::Client;
use bytes::Bytes;
use ledger_projections::log_tree::{self, Published};
use ledger_protocol::time::Timestamp;
use serde_json::json;
use sqlx::PgPool;
use tokio::time::Instant;

use crate::error::{database, in_time};
use crate::{Error, cloud_event, limits, mark};

/// The subject, the type, and the name of the mark.
pub(crate) const SUBJECT: &str = "ledger.checkpoint";

/// What was sent.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// The largest size that was sent.
    told: u64,
    looked_at: Option<Instant>,
}

impl Checkpoints {
    pub(crate) async fn open(pool: &PgPool) -> Result<Self, Error> {
        Ok(Self {
            told: mark::read(pool, SUBJECT).await?,
            looked_at: None,
        })
    }

    /// Sends the newest checkpoint if it was not sent; looks once a second at most.
    pub(crate) async fn tell(
        &mut self,
        pool: &PgPool,
        client: &Client,
        source: &str,
    ) -> Result<(), Error> {
        let is_recent = |at: Instant| at.elapsed() < limits::CHECKPOINT_LOOK_EVERY;
        if self.looked_at.is_some_and(is_recent) {
            return Ok(());
        }
        self.looked_at = Some(Instant::now());
        let told = self.told;
        let newest = database(async {
            let mut conn = pool.acquire().await?;
            log_tree::newest_after(&mut conn, told).await
        });
        let Some((published, at)) = newest.await? else {
            return Ok(());
        };
        let (headers, data) = message(&published, at, source);
        in_time("NATS", limits::COPIES_WITHIN, async {
            let sent = client.publish_with_headers(SUBJECT, headers, data);
            sent.await.map_err(Error::copy)?;
            client.flush().await.map_err(Error::copy)
        })
        .await?;
        mark::advance(pool, SUBJECT, published.size).await?;
        self.told = published.size;
        Ok(())
    }
}

/// A CloudEvent like those of events; its data has the signed note as it is served.
fn message(published: &Published, at: Timestamp, source: &str) -> (async_nats::HeaderMap, Bytes) {
    let Published { size, note } = published;
    // Of any checkpoint, the first line.
    let origin = note.lines().next().unwrap_or_default();
    let headers = cloud_event::attributes(&cloud_event::Attributes {
        id: &format!("{origin}/{size}"),
        kind: SUBJECT,
        source,
        subject: origin,
        time: at,
        sequence: *size,
    });
    let data = json!({"origin": origin, "size": size, "checkpoint": note});
    (headers, data.to_string().into())
}
