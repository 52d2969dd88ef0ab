//! Effects that must be durable before others: those that go to the journal, and pins.

use ledger_protocol::daemon::Effect;
use tokio::task;

use super::Agent;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::journal::{Change, JournalStore, Unwritten};

/// What could not be written.
pub(super) struct Failed {
    /// The first effect whose record is not known to be durable.
    pub(super) first: usize,
    pub(super) error: Error,
}

impl Agent {
    /// Writes the records among the effects, then pins what is to be pinned after them.
    pub(super) async fn make_durable(&mut self, effects: &[Effect]) -> Result<(), Failed> {
        let written = self.write_journal(effects).await;
        let first_unwritten = written.as_ref().err().map(|failed| failed.first);
        for (place, effect) in effects.iter().enumerate() {
            if first_unwritten.is_some_and(|first| place >= first) {
                break;
            }
            let (Effect::Pin(pins), Some(dir)) = (effect, self.state_dir.clone()) else {
                continue;
            };
            let pins = pins.clone();
            let write = task::spawn_blocking(move || Credentials::pin(&dir, pins));
            let pinned = write.await.unwrap_or(Err(Error::BrokeOff {
                work: "pinning the roots",
            }));
            pinned.map_err(|error| Failed {
                first: place,
                error,
            })?;
        }
        written
    }

    /// Writes the records among the effects.
    async fn write_journal(&mut self, effects: &[Effect]) -> Result<(), Failed> {
        if let Some(JournalStore::Memory) = self.journal {
            return Ok(());
        }
        let mut changes = Vec::new();
        let mut places = Vec::new();
        for (place, effect) in effects.iter().enumerate() {
            let change = match effect {
                Effect::Journal(record) => Change::Append(record.clone()),
                Effect::Rewrite(records) => Change::Rewrite(records.clone()),
                Effect::Start(_)
                | Effect::Stop(_)
                | Effect::Send(_)
                | Effect::Apply(_)
                | Effect::Pin(_)
                | Effect::Secret { .. }
                | Effect::Doubt(_)
                | Effect::Close(_) => continue,
            };
            changes.push(change);
            places.push(place);
        }
        let Some(first) = places.first().copied() else {
            return Ok(());
        };
        let broke_off = || Failed {
            first,
            error: Error::BrokeOff {
                work: "writing the journal",
            },
        };
        let mut store = self.journal.take().ok_or_else(broke_off)?;
        // A disk may take its time, which is not for the runtime's threads to wait for.
        let write = task::spawn_blocking(move || {
            let written = store.write(&changes);
            (store, written)
        });
        let (store, written) = write.await.map_err(|_| broke_off())?;
        self.journal = Some(store);
        written.map_err(|Unwritten { durable, error }| Failed {
            first: places.get(durable).copied().unwrap_or(first),
            error,
        })
    }
}
