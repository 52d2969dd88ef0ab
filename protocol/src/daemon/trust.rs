//! Whom the daemon believes (SPEC P1): trust bundles as they come, the roots that stay pinned when
//! the journal is lost, and the commands that wait for a bundle.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits::{TRUST_ASK_SECONDS, TRUST_WAIT_SECONDS, WAITING_MAX};
use super::record::Record;
use super::{Daemon, Effect, Monotonic};
use crate::dsse::{PublicKey, Purpose};
use crate::frame::{Command, Spec, Status};
use crate::id::CommandId;
use crate::limits::{TRUST_BUNDLE_BYTES_MAX, TRUST_BUNDLES_PER_FRAME_MAX};
use crate::trust::{BadSignature, SignedBundle, TrustBundle, Unbelievable, intent};

/// What a node remembers of the newest bundle that it believed, beside its identity, so that a lost
/// journal does not make it believe anybody again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    /// The bundle's roots.
    pub roots: Vec<PublicKey>,
    /// The bundle's version: no older one is believed.
    pub version: u64,
}

impl Pins {
    /// What is to be remembered of a bundle.
    pub fn of(bundle: &TrustBundle) -> Self {
        Self {
            roots: bundle.roots.clone(),
            version: bundle.version,
        }
    }
}

/// What came from a gateway, was not believed, and is passed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// A trust bundle.
    #[error("a trust bundle was passed over: {0}")]
    Bundle(Unbelievable),
    /// A desired state.
    #[error("desired state {generation} was not applied: it {why}")]
    Spec {
        /// Its generation.
        generation: u64,
        /// Why.
        why: Distrust,
    },
    /// The value of a secret.
    #[error("the secret for {command_id} was passed over: it {why}")]
    Secret {
        /// The command that waits for it.
        command_id: CommandId,
        /// Why.
        why: Distrust,
    },
}

/// Why a signature does not count here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// It does not hold.
    #[error(transparent)]
    Bad(#[from] BadSignature),
    /// The node knows its pinned roots alone: its journal was lost, and the bundle with it.
    #[error("cannot be verified, because this node has lost its trust bundle")]
    NoBundle,
    /// What it should be over cannot be written.
    #[error("has no canonical form that could be signed")]
    NoPayload,
}

impl Distrust {
    /// Whether a newer bundle may make it count.
    pub(super) const fn may_pass(self) -> bool {
        matches!(
            self,
            Self::NoBundle | Self::Bad(BadSignature::UnknownRoot(_))
        )
    }
}

/// What waits for a bundle, and what was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    asked_at: Option<Monotonic>,
    held: BTreeMap<CommandId, Held>,
    /// A desired state could not be verified, and a newer bundle may change that.
    spec: bool,
    /// The pins are not known to be durable.
    pin_is_due: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    command: Box<Command>,
    until: Monotonic,
}

impl Wanted {
    pub(super) fn holds(&self, id: CommandId) -> bool {
        self.held.contains_key(&id)
    }

    pub(super) fn take(&mut self, id: CommandId) -> Option<Box<Command>> {
        self.held.remove(&id).map(|held| held.command)
    }

    /// The gateway sends the commands again on the next connection.
    pub(super) fn let_go(&mut self) {
        self.held.clear();
    }

    pub(super) fn pin_again(&mut self) {
        self.pin_is_due = true;
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = Monotonic> {
        self.held.values().map(|held| held.until)
    }
}

/// Until when a command that comes now may wait for a bundle.
pub(super) fn patience(now: Monotonic) -> Monotonic {
    now.plus_seconds(TRUST_WAIT_SECONDS)
}

impl Daemon {
    /// The bundle that is believed: none if all that the journal has is older than the pins.
    pub(super) fn bundle(&self) -> Option<&TrustBundle> {
        let pinned = self.identity.pins.as_ref().map_or(0, |pins| pins.version);
        self.book
            .trusted()
            .filter(|bundle| bundle.version >= pinned)
    }

    pub(super) fn trust_version(&self) -> u64 {
        self.bundle().map_or(0, |bundle| bundle.version)
    }

    pub(super) fn status(&self, wants_spec: bool, wants_trust: bool) -> Effect {
        let status = Status {
            applied_generation: self.book.applied_generation(),
            trust_version: self.trust_version(),
            wants_spec,
            wants_trust,
        };
        Effect::Send(status.into())
    }

    /// Takes bundles in, the oldest first: each has to be signed by a root of the one before it.
    /// Whether one of them was believed.
    pub(super) fn believe(&mut self, bundles: &[SignedBundle], out: &mut Vec<Effect>) -> bool {
        let before = self.trust_version();
        for signed in bundles.iter().take(TRUST_BUNDLES_PER_FRAME_MAX) {
            match self.believable(signed) {
                Ok(_) => self.write(Record::Trusted(Box::new(signed.clone())), out),
                Err(why) => out.push(Effect::Doubt(Doubt::Bundle(why))),
            }
        }
        let is_newer = self.trust_version() > before;
        if is_newer {
            self.pin(out);
            let wants_spec = std::mem::take(&mut self.wanted.spec);
            out.push(self.status(wants_spec, false));
        }
        is_newer
    }

    fn believable(&self, signed: &SignedBundle) -> Result<TrustBundle, Unbelievable> {
        let signatures = signed.signatures.iter().map(|by| by.signature.len());
        if signed.bundle.len() + signatures.sum::<usize>() > TRUST_BUNDLE_BYTES_MAX {
            return Err(Unbelievable::Invalid {
                field: "size",
                problem: "must be at most 32 KiB with its signatures",
            });
        }
        match (self.bundle(), &self.identity.pins) {
            (Some(bundle), _) => signed.believe(&bundle.roots, bundle.version),
            (None, Some(pins)) => signed.believe(&pins.roots, pins.version.saturating_sub(1)),
            (None, None) => signed.begin(),
        }
    }

    /// Has the roots of the bundle pinned, once the journal holds it.
    pub(super) fn pin(&mut self, out: &mut Vec<Effect>) {
        let Some(pins) = self.bundle().map(Pins::of) else {
            return;
        };
        let is_new = self.identity.pins.as_ref() != Some(&pins);
        if !is_new && !self.wanted.pin_is_due {
            return;
        }
        self.wanted.pin_is_due = self.broken_until.is_some();
        if self.broken_until.is_none() {
            out.push(Effect::Pin(pins.clone()));
        }
        self.identity.pins = Some(pins);
    }

    /// Bundles came in a frame of their own.
    pub(super) fn told_trust(
        &mut self,
        bundles: &[SignedBundle],
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        let is_newer = self.believe(bundles, out);
        let mut held: Vec<_> = std::mem::take(&mut self.wanted.held)
            .into_values()
            .collect();
        held.sort_by_key(|held| held.command.seq);
        for held in held {
            // A long chain comes in several frames; one that brings nothing new is the answer.
            let until = if is_newer { held.until } else { now };
            self.admit_until(held.command, until, now, out);
        }
    }

    /// Keeps a command until its root is known, and asks for bundles.
    pub(super) fn hold(
        &mut self,
        command: Box<Command>,
        until: Monotonic,
        now: Monotonic,
        out: &mut Vec<Effect>,
    ) {
        let id = command.command_id;
        self.wanted.held.insert(id, Held { command, until });
        self.ask_for_trust(now, out);
    }

    pub(super) fn waits_for_too_many(&self) -> bool {
        self.stopping || self.waiting.len() + self.wanted.held.len() >= WAITING_MAX
    }

    pub(super) fn ask_for_trust(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        let again_at = |asked: Monotonic| asked.plus_seconds(TRUST_ASK_SECONDS);
        if self.wanted.asked_at.is_none_or(|at| again_at(at) <= now) {
            self.wanted.asked_at = Some(now);
            out.push(self.status(false, true));
        }
    }

    /// Answers what has waited for a bundle for long enough.
    pub(super) fn refuse_unknown(&mut self, now: Monotonic, out: &mut Vec<Effect>) {
        let held = self.wanted.held.iter();
        let over: Vec<_> = held
            .filter(|(_, held)| held.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            if let Some(command) = self.wanted.take(id) {
                self.admit_until(command, now, now, out);
            }
        }
    }

    /// A desired state came: it is applied if it is newer and, where there is trust, signed for
    /// this node (SPEC P5).
    pub(super) fn told_spec(&mut self, spec: Spec, now: Monotonic, out: &mut Vec<Effect>) {
        if spec.generation <= self.book.applied_generation() {
            return;
        }
        let generation = spec.generation;
        let payload = intent::of_spec(self.identity.node_id, generation, &spec.spec).ok();
        // Only an open session brings one, and `Welcome` has told the time.
        let Some(server_now) = self.clock.now(now) else {
            return;
        };
        let signed = spec.signed.as_deref();
        // It stays what the service wants for longer than a worker key lives; its generation, and
        // not its age, tells an old one.
        let until = signed.map_or(server_now, |signed| signed.worker.not_after);
        let times = (server_now, until);
        match self.verify(signed, times, Purpose::DesiredState, payload.as_deref()) {
            Ok(()) => out.push(Effect::Apply(spec)),
            Err(why) => {
                out.push(Effect::Doubt(Doubt::Spec { generation, why }));
                if why.may_pass() {
                    self.wanted.spec = true;
                    self.ask_for_trust(now, out);
                }
            }
        }
    }
}
