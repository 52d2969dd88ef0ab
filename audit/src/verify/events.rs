//! The events of an export alone, for whoever has verified it or does not ask for proof.

use std::io::Read;

use ledger_protocol::canonical;
use ledger_protocol::event::Event;
use ledger_protocol::export::{Header, Kind};
use ledger_protocol::tlog::{EntryBundle, TILE_WIDTH};

use super::problem::{Defect, Place, Problem};
use super::records::{Record, Records, Stop};
use crate::Error;

/// Hands over the events up to a position, in order, and returns the size of the log that the file
/// says it holds.
pub(crate) fn events(
    file: impl Read,
    to: u64,
    mut take: impl FnMut(u64, Event) -> Result<(), Error>,
) -> Result<u64, Error> {
    let mut records = Records::new(file);
    let mut last = 0;
    let stopped = |stop, after| match stop {
        Stop::Io(error) => Error::File(error),
        Stop::At(offset, defect) => at(offset, after, defect),
    };
    records.begin().map_err(|stop| stopped(stop, 0))?;
    let header = records
        .next("the header")
        .map_err(|stop| stopped(stop, 0))?;
    let size = size(&header)?;
    while last < to.min(size) {
        let record = records.next("events");
        let record = record.map_err(|stop| stopped(stop, last))?;
        match record.kind {
            Kind::Entries => {
                let width = (size - last).min(u64::from(TILE_WIDTH));
                let width = u16::try_from(width).unwrap_or(TILE_WIDTH);
                let before = last;
                for entry in EntryBundle::first(&record.payload, width) {
                    let position = last + 1;
                    if position > to {
                        break;
                    }
                    let event = Event::decode(entry)
                        .map_err(|source| Error::Unreadable { position, source })?;
                    take(position, event)?;
                    last = position;
                }
                if last < to && last - before < u64::from(width) {
                    return Err(at(record.offset, last, Defect::Short));
                }
            }
            Kind::Trust | Kind::Hashes | Kind::Checkpoint => {}
            Kind::Header | Kind::Last | Kind::End => {
                let (found, expected) = (record.kind, "more events");
                let unexpected = Defect::Unexpected { found, expected };
                return Err(at(record.offset, last, unexpected));
            }
        }
    }
    Ok(size)
}

fn size(header: &Record) -> Result<u64, Error> {
    let (found, expected) = (header.kind, "the header");
    if found != Kind::Header {
        return Err(at(header.offset, 0, Defect::Unexpected { found, expected }));
    }
    let kind = found;
    let header: Header = canonical::decode(&header.payload)
        .map_err(|source| at(header.offset, 0, Defect::Record { kind, source }))?;
    Ok(header.size)
}

fn at(offset: u64, after: u64, defect: Defect) -> Error {
    let place = Place::Byte { offset, after };
    Error::Export(Box::new(Problem::new(place, defect)))
}
