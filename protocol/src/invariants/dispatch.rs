//! The one event that lets something happen on a node.

use super::command::Phase;
use super::{Checker, Rule};
use crate::event::Event;
use crate::id::CommandId;
use crate::limits::lane_credits;

impl Checker {
    /// Checks a dispatch but for its epoch, against what stood before it.
    pub(super) fn check_dispatch(&mut self, id: CommandId, event: &Event) {
        let Some(command) = self.commands.get(&id) else {
            return;
        };
        let Some(node) = self.nodes.get(&command.node) else {
            return;
        };
        let mut broken = Vec::new();
        match command.phase {
            Phase::Pending { held: true, .. } => broken.push(Rule::DispatchedHeld),
            Phase::Pending { held: false, .. } => {}
            Phase::InFlight(_) | Phase::Ended(_) => broken.push(Rule::Transition {
                event: event.body.type_name(),
                state: command.phase.as_str(),
            }),
        }
        let due = command.not_before.max(command.retry_at);
        if let Some(until) = due.filter(|until| *until > event.at) {
            broken.push(Rule::DispatchedEarly { until });
        }
        if event.at > command.not_after {
            let not_after = command.not_after;
            broken.push(Rule::DispatchedLate { not_after });
        }
        if let Some(wanted) = command.min_generation
            && wanted > node.applied_generation
        {
            let applied = node.applied_generation;
            broken.push(Rule::DispatchedBelowGeneration { applied, wanted });
        }
        if !node.accepts(&command.kind) {
            broken.push(Rule::DispatchedToRestricted);
        }
        let lane = node.lane(command.lane);
        // What the gateway's look could not have seen yet.
        let seen = event.at.plus_micros(-self.look_micros);
        let unseen = lane.reported.values().filter(|at| **at > seen).count();
        let unseen = u32::try_from(unseen).unwrap_or(u32::MAX);
        let in_flight = lane.in_flight.saturating_sub(unseen);
        if in_flight >= lane_credits(command.lane) {
            broken.push(Rule::AboveCredits {
                lane: command.lane,
                in_flight,
            });
        }
        let earlier = lane.pending.range(..command.seq);
        let passed_over = earlier.filter(|(_, id)| {
            let other = self.commands.get(id);
            other.is_some_and(|other| {
                let since = other.dispatchable_since(node);
                other.not_after >= event.at && since.is_some_and(|since| since <= seen)
            })
        });
        let passed_over = passed_over.map(|(seq, _)| *seq).next();
        broken.extend(passed_over.map(|passed_over| Rule::OutOfOrder { passed_over }));
        for rule in broken {
            self.broken(event, rule);
        }
    }
}
