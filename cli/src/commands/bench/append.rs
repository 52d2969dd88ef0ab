//! `run`s per second through the library, from 1, 16 and 256 concurrent callers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::exit::Failure;

use super::Ground;

const CALLERS: [usize; 3] = [1, 16, 256];

pub(super) async fn measure(ground: &Ground, span: Duration) -> Result<Value, Failure> {
    let mut rows = Vec::new();
    for callers in CALLERS {
        let started = Instant::now();
        let until = started + span;
        let ledger = ground.ledger.clone();
        let done = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let caller = || {
            let (ledger, done) = (ledger.clone(), done.clone());
            async move {
                while Instant::now() < until {
                    ledger.enqueue(&ground.actor, ground.run()).await?;
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                Ok::<_, ledger::Error>(())
            }
        };
        try_join_all((0..callers).map(|_| caller())).await?;
        let done = done.load(std::sync::atomic::Ordering::Relaxed);
        rows.push(json!({
            "callers": callers,
            "runs": done,
            "perSecond": per_second(done, started.elapsed()),
        }));
    }
    Ok(Value::Array(rows))
}

/// A rate, as a whole number.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2⁵²")]
pub(super) fn per_second(count: u64, elapsed: Duration) -> f64 {
    (count as f64 / elapsed.as_secs_f64()).round()
}
