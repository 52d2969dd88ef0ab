//! Events for the unit tests.

use ledger_protocol::command::{Command, cancel};
use ledger_protocol::event::{Actor, Body, CommandDispatched, CommandQueued, Event, Stream};
use ledger_protocol::id::{CommandId, EventId, NodeId, TenantId};
use ledger_protocol::kind::Lane;
use ledger_protocol::time::Timestamp;
use uuid::Uuid;

pub(crate) const AT: Timestamp = Timestamp::from_micros(1_764_490_000_123_456);

pub(crate) fn command(number: u128) -> CommandId {
    CommandId::from_uuid(Uuid::from_u128(number))
}

fn event(version: u64, body: Body) -> Event {
    Event {
        id: EventId::from_uuid(Uuid::from_u128(u128::from(version) + 100)),
        stream: Stream::Command(command(1)),
        version,
        at: AT,
        actor: Actor::api("ada"),
        tenant: TenantId::from_uuid(Uuid::from_u128(2)),
        body,
    }
}

pub(crate) fn queued(key: &str) -> Event {
    let queued = CommandQueued {
        signed: None,
        attested: false,
        batch_id: None,
        batch_inclusion: None,
        bundle_key: None,
        destructive: false,
        held: false,
        idempotency_key: key.to_owned(),
        kind: "inventory.refresh".to_owned(),
        kind_version: 1,
        lane: Lane::Control,
        min_generation: None,
        node_id: NodeId::from_uuid(Uuid::from_u128(3)),
        not_after: AT.plus_seconds(600),
        not_before: None,
        payload: vec![0x80],
        retry_safe: true,
        self_terminating: false,
        seq: 1,
        timeout_seconds: 300,
    };
    event(1, queued.into())
}

pub(crate) fn dispatched(queued: &Event, version: u64) -> Event {
    let node_id = queued.node_id().unwrap();
    let kind = "inventory.refresh".to_owned();
    event(
        version,
        CommandDispatched {
            attempt: 1,
            epoch: 1,
            kind,
            node_id,
            seq: 1,
        }
        .into(),
    )
}

pub(crate) fn cancelled_while_pending() -> [Event; 3] {
    let queued = queued("api:1");
    let command = Command::evolve(None, &queued).unwrap();
    let mut bodies = cancel::decide(&command).into_iter();
    let requested = event(2, bodies.next().unwrap());
    let settled = event(3, bodies.next().unwrap());
    [queued, requested, settled]
}
