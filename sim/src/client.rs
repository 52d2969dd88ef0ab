//! Those who use the ledger: operators, modules, approvals.

use ledger_protocol::batch::Leaf;
use ledger_protocol::canonical;
use ledger_protocol::command::State;
use ledger_protocol::command::enqueue::Enqueue;
use ledger_protocol::id::{BatchId, CommandId};
use ledger_protocol::kind::Role;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::time::{MICROS_PER_SECOND, Timestamp};
use serde_json::json;

use crate::attest::certificate;
use crate::world::World;

const OF_NODES: &[&str] = &[
    "diag.nvml",
    "inventory.refresh",
    "logs.collect",
    "logs.collect",
    "node.reboot",
    "gpu.reset",
    "diag.dcgm",
    "daemon.upgrade",
];
const OF_RAMDISKS: &[&str] = &[
    "diag.nvml",
    "inventory.refresh",
    "logs.collect",
    "node.reboot",
    "disk.wipe",
    "disk.wipe",
    "deploy.image",
    "boot.kexec",
    "daemon.upgrade",
];
/// Not for the role, so that the daemon refuses it.
const OF_SITES: &str = "bmc.power";

impl World {
    /// Somebody asks for something.
    pub(crate) fn client(&mut self) -> bool {
        let at = Timestamp::from_micros(self.now);
        let api = ledger_protocol::event::Actor::api("ada");
        match self.chance.below(32) {
            0..=15 => self.enqueue_one(None),
            16 | 17 => {
                let kind = self.chance.pick(&["logs.collect", "diag.nvml"]);
                for _ in 0..=self.chance.below(4) {
                    self.enqueue_one(kind);
                }
            }
            18 | 19 => self.retry(),
            20..=24 => {
                if let Some(id) = self.some_live() {
                    self.say(|| format!("cancel {id}"));
                    let cancelled = self.ledger.cancel(&api, id, at);
                    self.expect(cancelled);
                }
            }
            25..=27 => {
                if let Some(id) = self.some_live() {
                    // Most are not held, which is refused. Some are let go without their approval.
                    if !self.chance.one_in(4) {
                        let grace = ledger_protocol::event::Actor::api("grace");
                        _ = self.ledger.approve(&grace, id, at);
                    }
                    if self.ledger.release(&api, id, at).is_ok() {
                        self.tally.released += 1;
                    }
                }
            }
            28 | 29 => {
                let n = self.chance.below(self.machines.len());
                let id = self.machines[n].id;
                let generation = self.ledger.nodes.get(&id).map_or(0, |node| node.generation);
                self.ledger.set_spec(id, &api, generation + 1, at);
            }
            30 => {
                if self.chance.one_in(self.rates.delete) {
                    let n = self.chance.below(self.machines.len());
                    let id = self.machines[n].id;
                    self.say(|| format!("delete {id}"));
                    self.tally.nodes_deleted += 1;
                    self.ledger.delete(id, &api, at);
                }
            }
            _ => {
                if self.chance.one_in(8) {
                    self.certify();
                }
            }
        }
        true
    }

    fn expect(&mut self, done: Result<(), Refusal>) {
        if let Err(refusal) = done {
            self.wrong(format!("refused: {refusal}"));
        }
    }

    fn some_live(&mut self) -> Option<CommandId> {
        let live = self.ledger.commands.values();
        let live = live.filter(|command| !matches!(command.state, State::Settled(_)));
        let live: Vec<_> = live.map(|command| command.id).collect();
        self.chance.pick(&live)
    }

    /// A certificate that allows few kinds, or all again.
    fn certify(&mut self) {
        let n = self.chance.below(self.machines.len());
        let at = Timestamp::from_micros(self.now);
        let few = self.chance.one_in(2);
        let allowed = few.then(|| vec!["diag.nvml".to_owned(), "logs.collect".to_owned()]);
        let api = ledger_protocol::event::Actor::api("ada");
        let id = self.machines[n].id;
        let certified = certificate(id, allowed, at);
        self.ledger.certify(id, &api, certified, at);
    }

    fn enqueue_one(&mut self, name: Option<&'static str>) {
        let n = self.chance.below(self.machines.len());
        let kinds = match self.machines[n].role {
            Role::Node => OF_NODES,
            Role::Ramdisk | Role::Site => OF_RAMDISKS,
        };
        let other = self.chance.one_in(24).then_some(OF_SITES);
        let name = name
            .or(other)
            .or_else(|| self.chance.pick(kinds))
            .unwrap_or(OF_SITES);
        let Some(mut kind) = self.kinds.get(name).cloned() else {
            return;
        };
        kind.timeout_seconds = u32::try_from(self.chance.between(5, 45)).unwrap_or(5);
        let at = Timestamp::from_micros(self.now);
        let wait = self.chance.between(3, 60);
        let not_before = self.chance.one_in(5).then(|| {
            let early = self.chance.between(0, wait * MICROS_PER_SECOND - 1);
            at.plus_micros(early)
        });
        let held = not_before.is_none() && self.chance.one_in(8);
        let node = self.machines[n].id;
        let generation = self
            .ledger
            .nodes
            .get(&node)
            .map_or(0, |node| node.generation);
        let ahead = u64::from(self.chance.one_in(3));
        let min_generation = self.chance.one_in(8).then_some(generation + ahead);
        self.ids += 1;
        let payload = if name == "daemon.upgrade" {
            json!({ "version": format!("1.0.{}", self.ids), "url": "https://x", "sha256": "" })
        } else {
            json!({})
        };
        let [.., a, b] = self.ids.to_be_bytes();
        let mut enqueue = Enqueue {
            asked_at: at,
            id: CommandId::new(at, [0, 0, 0, 0, 0, 0, 0, 0, a, b]),
            tenant: self.ledger.tenant,
            node,
            kind,
            payload: canonical::from_json(&payload).unwrap_or_default(),
            idempotency_key: format!("key-{}", self.ids),
            not_after: at.plus_micros(wait * MICROS_PER_SECOND),
            not_before,
            min_generation,
            batch_id: None,
        };
        let api = ledger_protocol::event::Actor::api("ada");
        if held {
            let batch = BatchId::new(at, [0, 0, 0, 0, 0, 0, 0, 0, a, b]);
            let leaf = Leaf::of(node, name, &enqueue.payload);
            enqueue.batch_id = Some(batch);
            let proposed = self.ledger.propose(&api, batch, leaf, at);
            self.expect(proposed);
        }
        match self.ledger.enqueue(&api, &enqueue, at) {
            Ok((id, _)) => {
                self.say(|| format!("queue {id} of {name} for node {n}"));
                self.tally.queued += 1;
                self.asked.push(enqueue);
            }
            Err(Refusal::PendingFull { .. }) => self.tally.lane_full += 1,
            Err(Refusal::RestrictedIdentity { .. } | Refusal::UnknownNode(_)) => {}
            Err(refusal) => self.wrong(format!("refused: {refusal}")),
        }
    }

    /// The same key again, in vain or after a lost answer.
    fn retry(&mut self) {
        let count = self.asked.len();
        if count == 0 {
            return;
        }
        let mut again = self.asked[self.chance.below(count)].clone();
        let at = Timestamp::from_micros(self.now);
        let first = again.id;
        self.ids += 1;
        let [.., a, b] = self.ids.to_be_bytes();
        again.id = CommandId::new(at, [0, 0, 0, 0, 0, 0, 0, 0, a, b]);
        let api = ledger_protocol::event::Actor::api("ada");
        match self.ledger.enqueue(&api, &again, at) {
            Ok((id, true)) if id == first => self.tally.replayed += 1,
            // The planted bug is to be found by the key that is used twice.
            Ok(_) | Err(Refusal::UnknownNode(_)) => {}
            Err(Refusal::Invalid { .. } | Refusal::PendingFull { .. })
                if self.bug == Some(crate::bug::Bug::KeyForgotten) => {}
            Err(refusal) => self.wrong(format!("A2: a retry was refused: {refusal}")),
        }
    }
}
