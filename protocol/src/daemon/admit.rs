//! Whether a command is taken (SPEC D4), and what a second copy of one gets (SPEC D5).
//!
//! To add a check: an arm in [`Daemon::verdict`], at its place in the order.

use serde_json::{Value, json};

use super::approval::NotAllowed;
use super::limits::UNCONFIRMED_BYTES_MAX;
use super::outcome;
use super::record::{Ended, Record};
use super::trust::patience;
use super::{Daemon, Effect, Monotonic, Run};
use crate::canonical;
use crate::frame::{Command, CommandUpdate, Update, UpdateState};
use crate::id::CommandId;
use crate::limits::{HELLO_ENTRIES_MAX, PAYLOAD_BYTES_MAX, lane_credits};
use crate::time::Timestamp;

/// Codes of refusals, as they are reported in `reason`.
const UNSUPPORTED: &str = "UNSUPPORTED";
const STALE_GENERATION: &str = "STALE_GENERATION";
const EXPIRED: &str = "EXPIRED";
const BAD_SIGNATURE: &str = "BAD_SIGNATURE";
const BATCH_UNAPPROVED: &str = "BATCH_UNAPPROVED";
const UNBATCHED_LIMIT: &str = "UNBATCHED_LIMIT";

/// What the acceptance checks say.
enum Verdict {
    /// Taken; when it counts as a destructive one without a batch, at what time of the server.
    Accept { unbatched: Option<Timestamp> },
    /// Never: journaled, and reported as `rejected`.
    Refuse(Refused),
    /// Not before a newer desired state is applied, and not after `notAfter`.
    Wait,
    /// Not before a trust bundle came; refused like this if none does in time.
    Unknown(Refused),
    /// Not now: not journaled.
    Busy,
}

struct Refused {
    code: &'static str,
    details: Option<Vec<u8>>,
}

impl Refused {
    fn because(code: &'static str, why: &str) -> Self {
        let details = outcome::why(why);
        Self { code, details }
    }

    fn by(not_allowed: &NotAllowed) -> Self {
        match not_allowed {
            NotAllowed::Unapproved(why) => {
                Self::because(BATCH_UNAPPROVED, &format!("the command {why}"))
            }
            NotAllowed::Limit(limit) => Self::because(
                UNBATCHED_LIMIT,
                &format!(
                    "the command has no batch, and this node took {limit} destructive ones without \
                     a batch within the last hour, as many as it may"
                ),
            ),
        }
    }
}

impl Daemon {
    /// A command came, for the first time or again.
    pub(super) fn admit(&mut self, command: Box<Command>, now: Monotonic, out: &mut Vec<Effect>) {
        self.admit_until(command, patience(now), now, out);
    }

    /// A command came, and may wait for a trust bundle until `until`.
    pub(super) fn admit_until(
        &mut self,
        command: Box<Command>,
        until: Monotonic,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        let id = command.command_id;
        if self.answer_again(&command, now, out) {
            return;
        }
        match self.verdict(&command, now) {
            Verdict::Accept { unbatched } => {
                if let Some(at) = unbatched {
                    self.write(Record::Unbatched(at), out);
                }
                self.write(Record::Accepted(command), out);
                self.launch(id, now, out);
            }
            Verdict::Refuse(refused) => self.refuse(&command, refused, now, out),
            Verdict::Wait => {
                self.waiting.insert(id, command);
                out.push(self.status(true, false));
            }
            Verdict::Unknown(refused) if until <= now => self.refuse(&command, refused, now, out),
            Verdict::Unknown(_) if self.waits_for_too_many() => out.push(busy(id)),
            Verdict::Unknown(_) => self.hold(command, until, now, out),
            Verdict::Busy => out.push(busy(id)),
        }
    }

    /// The stored answer for a command that is known, or its progress; nothing is done twice.
    fn answer_again(&mut self, command: &Command, now: Monotonic, out: &mut Vec<Effect>) -> bool {
        let id = command.command_id;
        if self.waiting.contains_key(&id) || self.wanted.holds(id) {
            return true;
        }
        let updates = if let Some(open) = self.book.find_open(id) {
            let mut updates = vec![Update::bare(id, UpdateState::Acked)];
            if open.started.is_some() && open.run != Run::Due {
                updates.push(Update::bare(id, UpdateState::Running));
            }
            updates
        } else if let Some(closed) = self.book.find_closed(id) {
            vec![closed.ended.update.clone()]
        } else if let Some(forgotten) = self.book.find_forgotten(id) {
            vec![Update {
                reason: forgotten.reason.clone(),
                result_truncated: forgotten.result_truncated.clone(),
                ..Update::bare(id, forgotten.state)
            }]
        } else {
            return false;
        };
        self.say(updates, now, out);
        true
    }

    fn verdict(&self, command: &Command, now: Monotonic) -> Verdict {
        let refuse = |code, details: Value| {
            let details = outcome::fit_details(&details);
            Verdict::Refuse(Refused { code, details })
        };
        if let Some(why) = self.unsupported(command) {
            return Verdict::Refuse(Refused::because(UNSUPPORTED, &why));
        }
        // Only an open session lets a command in, and `Welcome` has told the time.
        let Some(server_now) = self.clock.now(now) else {
            return Verdict::Busy;
        };
        let applied = self.book.applied_generation();
        if let Some(wanted) = command.min_generation.filter(|wanted| *wanted > applied) {
            if command.not_after.is_none_or(|at| at < server_now) {
                return refuse(STALE_GENERATION, stale(applied, wanted));
            }
            return if self.waits_for_too_many() {
                Verdict::Busy
            } else {
                Verdict::Wait
            };
        }
        let Some(until) = command.not_after.filter(|at| *at >= server_now) else {
            return refuse(EXPIRED, expired(command.not_after, server_now));
        };
        if let Err(distrust) = self.verify_command(command, server_now, until) {
            let why = format!("the command {distrust}");
            let refused = Refused::because(BAD_SIGNATURE, &why);
            return if distrust.may_pass() {
                Verdict::Unknown(refused)
            } else {
                Verdict::Refuse(refused)
            };
        }
        let unbatched = match self.allow(command, server_now, until) {
            Ok(unbatched) => unbatched,
            Err(not_allowed) => return Verdict::Refuse(Refused::by(&not_allowed)),
        };
        if self.has_room(command) {
            Verdict::Accept { unbatched }
        } else {
            Verdict::Busy
        }
    }

    fn unsupported(&self, command: &Command) -> Option<String> {
        let own = self.identity.node_id;
        if command.node_id != own {
            return Some(format!("is for {}; this is {own}", command.node_id));
        }
        let name = &command.kind;
        let Some(kind) = self.identity.kinds.0.get(name) else {
            return Some(format!("this daemon cannot run kind `{name}`"));
        };
        if command.kind_version > kind.version {
            let (given, known) = (command.kind_version, kind.version);
            return Some(format!(
                "this daemon runs version {known} of kind `{name}`; the command has version {given}"
            ));
        }
        let role = self.identity.role;
        if !kind.roles.contains(&role) {
            return Some(format!("kind `{name}` does not run in role {role}"));
        }
        if command.payload.len() > PAYLOAD_BYTES_MAX {
            let bytes = command.payload.len();
            return Some(format!(
                "payload has {bytes} bytes; the limit is {PAYLOAD_BYTES_MAX}"
            ));
        }
        let payload = canonical::check(&command.payload).err();
        payload.map(|error| format!("payload is not readable: {error}"))
    }

    fn has_room(&self, command: &Command) -> bool {
        let credits = usize::try_from(lane_credits(command.lane)).unwrap_or(usize::MAX);
        self.broken_until.is_none()
            && !self.stopping
            && self.book.in_lane(command.lane) < credits
            && self.book.unsettled_count() < HELLO_ENTRIES_MAX
            && self.book.unconfirmed_bytes() < UNCONFIRMED_BYTES_MAX
    }

    fn refuse(
        &mut self,
        command: &Command,
        refused: Refused,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        // A refusal that cannot be journaled is no refusal yet.
        if self.broken_until.is_some() || self.book.unsettled_count() >= HELLO_ENTRIES_MAX {
            return out.push(busy(command.command_id));
        }
        let update = Update {
            details: refused.details,
            reason: Some(refused.code.to_owned()),
            ..Update::bare(command.command_id, UpdateState::Rejected)
        };
        self.end_unaccepted(command, update, now, out);
    }

    /// Ends a command that was never accepted.
    pub(super) fn end_unaccepted(
        &mut self,
        command: &Command,
        update: Update,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        // Another node's `seq` says nothing about this node's queue, and nor does one that nobody
        // has signed.
        let is_forged = update.reason.as_deref() == Some(BAD_SIGNATURE);
        let own = command.node_id == self.identity.node_id && !is_forged;
        let ended = Ended {
            accepted: false,
            not_after: command.not_after,
            seq: if own { command.seq } else { 0 },
            started: false,
            update: update.clone(),
        };
        self.write(Record::Ended(Box::new(ended)), out);
        self.say(vec![update], now, out);
    }

    /// Refuses what waited for a newer desired state until its time was over.
    pub(super) fn refuse_stale(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        let Some(server_now) = self.clock.now(now) else {
            return;
        };
        let is_over = |command: &Command| command.not_after.is_none_or(|at| at < server_now);
        let waiting = self.waiting.values();
        let over: Vec<_> = waiting
            .filter(|command| is_over(command))
            .map(|command| command.command_id)
            .collect();
        for id in over {
            // With its time over, the checks now refuse it.
            if let Some(command) = self.waiting.remove(&id) {
                self.admit(command, now, out);
            }
        }
    }
}

fn busy(id: CommandId) -> Effect {
    let updates = vec![Update::bare(id, UpdateState::Busy)];
    Effect::Send(CommandUpdate { updates }.into())
}

fn stale(applied: u64, wanted: u64) -> Value {
    json!({ "appliedGeneration": applied, "minGeneration": wanted })
}

fn expired(not_after: Option<Timestamp>, server_now: Timestamp) -> Value {
    match not_after {
        Some(at) => json!({ "notAfter": at.to_string(), "serverTime": server_now.to_string() }),
        None => json!({ "why": "the command has no notAfter" }),
    }
}
