//! Time from `run` to dispatched on an idle node, one command at a time.

use std::time::{Duration, Instant};

use ledger_protocol::id::CommandId;
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::exit::Failure;

use super::Ground;

const SAMPLES_MAX: usize = 2_000;
const HEARD_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn measure(ground: &Ground, span: Duration) -> Result<Value, Failure> {
    let until = Instant::now() + span;
    let mut heard = ground.ledger.subscribe();
    let mut samples = Vec::new();
    while Instant::now() < until && samples.len() < SAMPLES_MAX {
        let node = ground.nodes[samples.len() % ground.nodes.len()];
        let started = Instant::now();
        let queued = ground
            .ledger
            .enqueue(&ground.actor, ground.run_for(node))
            .await?;
        wait(&mut heard, "command.dispatched", queued.command.id).await?;
        samples.push(started.elapsed());
        wait(&mut heard, "command.settled", queued.command.id).await?;
    }
    samples.sort_unstable();
    let at = |share: usize| {
        let index = (samples.len().saturating_sub(1)) * share / 100;
        samples.get(index).map(Duration::as_micros)
    };
    Ok(json!({ "samples": samples.len(), "p50Micros": at(50), "p99Micros": at(99) }))
}

async fn wait(
    heard: &mut Receiver<std::sync::Arc<ledger::Committed>>,
    event_type: &str,
    command: CommandId,
) -> Result<(), Failure> {
    loop {
        let next = tokio::time::timeout(HEARD_WITHIN, heard.recv()).await;
        let next = next.map_err(|_| Failure::failed(format!("{command}: no {event_type}")))?;
        match next {
            Ok(committed) => {
                let mut events = committed.events.iter();
                if events.any(|e| e.event_type == event_type && e.command == Some(command)) {
                    return Ok(());
                }
            }
            Err(RecvError::Lagged(_) | RecvError::Closed) => {
                return Err(Failure::failed("the tail of the log was lost"));
            }
        }
    }
}
