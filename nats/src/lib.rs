//! The log to JetStream, in order, and the wakes (SPEC section 9, L9, L11, T4).
//!
//! NATS holds a copy of the ledger and never decides anything. Stream `LEDGER` has every event,
//! its sequence being the event's position; each event is also sent once on its bare name for
//! plain subscribers, and wakes its node's controller and its workflow. With NATS down, wiped or
//! slow, commands flow and the API answers; when it comes back, the stream becomes whole by
//! itself, from the ledger.
//!
//! - [`run`] publishes; it may run in many processes, one of which leads.
//! - [`wakes`] lets a process that holds sessions look at the ledger at once.
//!
//! A subscriber gets CloudEvents 1.0 in binary mode: attributes as `ce-…` headers (`ce-id` is the
//! event's id and the message's `Nats-Msg-Id`, `ce-type` the bare name, `ce-subject` the command or
//! node, `ce-sequence` the position), the data as JSON. Copies and wakes are sent after the stream
//! has the event, at least once for a publisher that dies in between; `ce-id` tells repeats apart.
//!
//! The log's newest checkpoint is sent on `ledger.checkpoint` when there is a new one, at most once a
//! second, and is not in the stream: data `origin`, `size` and `checkpoint` (the signed note), `ce-id` the
//! origin and the size, `ce-subject` the origin, `ce-sequence` the size.
//!
//! Only this publisher may write to the stream's subjects. Should anybody else, or should the ledger
//! have lost a tail that the stream still has, then the two histories differ: the publisher alarms
//! and stays still until an operator removes the stream, which is then filled again.

mod cancel;
mod checkpoints;
mod cloud_event;
mod connection;
mod data;
mod error;
mod limits;
mod mark;
mod options;
mod publisher;
mod run;
mod stream;
mod subject;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod wakes;
mod workflows;

pub use error::Error;
pub use options::NatsOptions;
pub use run::run;
pub use subject::STREAM;
pub use wakes::wakes;
