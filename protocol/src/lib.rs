//! Ids, kinds, events, frames, canonical bytes and both state machines; no I/O.
