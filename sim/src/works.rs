//! What sessions ask of the ledger: what `gateway/src/session/work.rs` does. Several are under way
//! at once, and any of them may come to its end first.

use ledger_protocol::event::NodeSpecSet;
use ledger_protocol::frame::{JournalEntry, Update, UpdateState};
use ledger_protocol::node::OpenSession;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::{
    Answer, Effect, acknowledge, busy_backoff, command_frame, spec_frame,
};
use ledger_protocol::time::Timestamp;

use crate::bug::Bug;
use crate::world::World;

/// What a session asks of the ledger.
pub(crate) enum Work {
    Open(OpenSession, Vec<JournalEntry>),
    Report(Vec<Update>),
    ApplyGeneration(u64),
    SendSpec,
}

impl World {
    /// Some session's work is done by the ledger. Several are under way, so any may be first.
    pub(crate) fn gateway_work(&mut self, g: usize) -> bool {
        let sessions = &self.gateways[g].sessions;
        let able: Vec<_> = (0..sessions.len())
            .filter(|s| !sessions[*s].works.is_empty())
            .collect();
        let Some(place) = self.chance.pick(&able) else {
            return false;
        };
        // The ledger may be out of reach.
        let unavailable = self.faults_on && self.chance.one_in(self.rates.unavailable);
        let held = &mut self.gateways[g].sessions[place];
        let which = self.chance.below(held.works.len());
        let work = held.works.swap_remove(which);
        let (id, node, epoch) = (held.connection, held.node, held.epoch);
        let at = Timestamp::from_micros(self.now);
        let actor = self.gateways[g].actor.clone();
        match work {
            Work::Open(open, entries) if !unavailable => self.open(g, id, open, &entries),
            Work::Open(..) => self.end_session(g, id, "the ledger is not available"),
            Work::Report(updates) => self.report(g, id, updates, unavailable),
            Work::ApplyGeneration(_) if unavailable => {}
            Work::ApplyGeneration(generation) => {
                match self
                    .ledger
                    .apply_generation(node, &actor, epoch, generation, at)
                {
                    Ok(()) => {
                        if let Some(held) = self.held(g, id) {
                            held.machine.generation_recorded(generation);
                        }
                    }
                    Err(Refusal::StaleEpoch { .. }) => self.end_session(g, id, "superseded"),
                    Err(_) => {}
                }
            }
            Work::SendSpec => {
                let generation = self
                    .ledger
                    .nodes
                    .get(&node)
                    .map_or(0, |node| node.generation);
                if generation > 0 && !unavailable {
                    let set = NodeSpecSet {
                        generation,
                        signed: None,
                        spec: vec![0x80],
                    };
                    self.send(id, spec_frame(set));
                }
            }
        }
        true
    }

    fn open(&mut self, g: usize, id: u64, open: OpenSession, entries: &[JournalEntry]) {
        let now = self.now;
        let at = Timestamp::from_micros(now);
        let Some(node) = self.held(g, id).map(|held| held.node) else {
            return;
        };
        let actor = self.gateways[g].actor.clone();
        let (node, replay) = match self.ledger.open_session(node, &actor, open, entries, at) {
            Ok(opened) => opened,
            Err(refusal) => return self.end_session(g, id, &refusal.to_string()),
        };
        self.tally.sessions += 1;
        if self
            .connections
            .get(&id)
            .is_none_or(|connection| !connection.node_end)
        {
            self.stale_hellos.push((node.id, node.epoch));
        }
        let Some(held) = self.held(g, id) else { return };
        held.epoch = node.epoch;
        let elapsed = held.elapsed(now);
        for command in &replay {
            held.sent.insert(command.id);
            if command.cancel_requested_at.is_some() {
                held.cancels.sent(command.id, elapsed);
            }
        }
        let mut effects = held.machine.opened(&node, &replay, elapsed, at);
        if self.bug == Some(Bug::ReplaysSelfTerminating) {
            let again = replay
                .iter()
                .filter(|command| command.queued.self_terminating);
            effects.extend(again.map(|command| Effect::Send(command_frame(command))));
        }
        let older: Vec<_> = self.gateways[g]
            .sessions
            .iter()
            .filter(|held| held.node == node.id && (1..node.epoch).contains(&held.epoch))
            .map(|held| held.connection)
            .collect();
        for older in older {
            self.end_session(g, older, "superseded");
        }
        self.gateways[g].wakes.wake(node.id);
        self.perform(g, id, effects);
    }

    fn report(&mut self, g: usize, id: u64, updates: Vec<Update>, unavailable: bool) {
        let at = Timestamp::from_micros(self.now);
        let Some((node, epoch)) = self.held(g, id).map(|held| (held.node, held.epoch)) else {
            return;
        };
        let actor = self.gateways[g].actor.clone();
        let mut answers = Vec::new();
        for mut update in updates {
            let (command, state) = (update.command_id, update.state);
            // Some of a batch may be taken in, and the others not.
            if unavailable && self.chance.one_in(2) {
                answers.push((command, state, Answer::None));
                continue;
            }
            let forged = self.lie(g, &mut update);
            let attempts = self
                .ledger
                .commands
                .get(&command)
                .map_or(1, |known| known.attempts);
            let random = u32::try_from(self.chance.bits() >> 32).unwrap_or(0);
            let wait = busy_backoff(attempts, random);
            let wait = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
            let retry_at = if state == UpdateState::Busy {
                at.plus_micros(wait)
            } else {
                at
            };
            let reported = self
                .ledger
                .report(&actor, node, epoch, &update, retry_at, at);
            if self.tracing {
                self.trace.push(format!(
                    "gateway {g} reports {state:?} of {command}: {reported:?}"
                ));
            }
            let answer = match reported {
                // The commit is done, and nobody is told.
                Ok(()) if unavailable => Answer::None,
                Ok(()) => Answer::Recorded,
                Err(Refusal::StaleEpoch { .. }) => {
                    self.tally.fenced += 1;
                    return self.end_session(g, id, "superseded");
                }
                Err(Refusal::NodeDeleted(_)) => return self.end_session(g, id, "node-deleted"),
                Err(refusal) if forged => Answer::refused(&refusal),
                Err(refusal) => {
                    let late = format!("{command}: a report was refused: {refusal}");
                    self.wrong.push(late);
                    Answer::refused(&refusal)
                }
            };
            answers.push((command, state, answer));
        }
        if self.bug == Some(Bug::AnswerBeforeCommit) {
            return;
        }
        if let Some(frame) = acknowledge(answers) {
            self.send(id, frame);
        }
    }
}
