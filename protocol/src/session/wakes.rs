//! Which nodes to look at next (SPEC D3): those that something woke, and those that are only to be
//! looked at in case a wake was lost, each at most once at a time.
//!
//! The two wait apart, so that a node with news never waits for all those without.
//!
//! While a node's look is in progress (its due commands are being read and dispatched) it is not
//! looked at again: two looks would count the same credits. What wakes it meanwhile is kept.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;

use crate::id::NodeId;

/// Nodes in the order in which they were woken, and those without news in no order.
#[derive(Debug, Default)]
pub struct Wakes {
    waiting: VecDeque<NodeId>,
    reminded: BTreeSet<NodeId>,
    /// The last that was taken of them: each has its turn before any comes again.
    last: Option<NodeId>,
    states: HashMap<NodeId, Look>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Waiting,
    Reminded,
    InProgress,
    InProgressAndReminded,
    InProgressAndWoken,
}

impl Wakes {
    /// Something happened to the node.
    pub fn wake(&mut self, node: NodeId) {
        let look = match self.states.get(&node) {
            None | Some(Look::Reminded) => {
                self.reminded.remove(&node);
                self.waiting.push_back(node);
                Look::Waiting
            }
            Some(Look::InProgress | Look::InProgressAndReminded) => Look::InProgressAndWoken,
            Some(look @ (Look::Waiting | Look::InProgressAndWoken)) => *look,
        };
        self.states.insert(node, look);
    }

    /// Something may have happened to the node.
    pub fn remind(&mut self, node: NodeId) {
        let look = match self.states.get(&node) {
            None => {
                self.reminded.insert(node);
                Look::Reminded
            }
            Some(Look::InProgress) => Look::InProgressAndReminded,
            Some(look) => *look,
        };
        self.states.insert(node, look);
    }

    /// Takes up to `nodes_max` woken nodes to look at; [`done`](Self::done) gives each back.
    pub fn take(&mut self, nodes_max: usize) -> Vec<NodeId> {
        let count = self.waiting.len().min(nodes_max);
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        self.begin(&taken);
        taken
    }

    /// The same, of those that nothing woke.
    pub fn take_reminded(&mut self, nodes_max: usize) -> Vec<NodeId> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.reminded.range((after, Bound::Unbounded));
        let mut taken: Vec<_> = rest.take(nodes_max).copied().collect();
        if taken.is_empty() {
            taken.extend(self.reminded.iter().take(nodes_max));
        }
        self.last = taken.last().copied();
        for node in &taken {
            self.reminded.remove(node);
        }
        self.begin(&taken);
        taken
    }

    fn begin(&mut self, taken: &[NodeId]) {
        for node in taken {
            self.states.insert(*node, Look::InProgress);
        }
    }

    /// The node's look is over; it waits again if something woke it meanwhile.
    pub fn done(&mut self, node: NodeId) {
        match self.states.remove(&node) {
            Some(Look::InProgressAndWoken) => self.wake(node),
            Some(Look::InProgressAndReminded) => self.remind(node),
            Some(Look::Waiting | Look::Reminded | Look::InProgress) | None => {}
        }
    }

    /// Whether the node's look is in progress.
    pub fn is_in_progress(&self, node: NodeId) -> bool {
        self.states
            .get(&node)
            .is_some_and(|look| !matches!(look, Look::Waiting | Look::Reminded))
    }

    /// Whether a woken node waits to be looked at.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a node that nothing woke waits to be looked at.
    pub fn is_reminded(&self) -> bool {
        !self.reminded.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn node(number: u8) -> NodeId {
        NodeId::new(Timestamp::from_micros(0), [number; 10])
    }

    #[test]
    fn d3_a_node_is_never_looked_at_twice_at_once_and_no_wake_is_lost() {
        let mut wakes = Wakes::default();
        for number in [1, 2, 1, 3, 2] {
            wakes.wake(node(number));
        }
        assert_eq!(wakes.take(2), [node(1), node(2)]);
        wakes.wake(node(1));
        wakes.wake(node(1));
        assert_eq!(wakes.take(9), [node(3)]);
        assert!(!wakes.is_waiting());
        wakes.done(node(2));
        assert!(!wakes.is_waiting());
        assert!(wakes.is_in_progress(node(1)));
        wakes.done(node(1));
        assert!(!wakes.is_in_progress(node(1)));
        assert_eq!(wakes.take(9), [node(1)]);
        wakes.done(node(1));
        assert_eq!(wakes.take(9), []);
    }

    #[test]
    fn d3_a_woken_node_waits_for_none_of_those_that_nothing_woke() {
        let mut wakes = Wakes::default();
        for number in 1..=6 {
            wakes.remind(node(number));
        }
        wakes.wake(node(4));
        assert_eq!(wakes.take(9), [node(4)]);
        assert_eq!(wakes.take_reminded(2), [node(1), node(2)]);
        // A look in progress is not begun anew by either.
        wakes.remind(node(1));
        wakes.wake(node(2));
        wakes.remind(node(2));
        wakes.done(node(1));
        wakes.done(node(2));
        wakes.done(node(4));
        assert_eq!(wakes.take(9), [node(2)]);
        // Each has its turn before one comes again.
        assert_eq!(wakes.take_reminded(9), [node(3), node(5), node(6)]);
        assert_eq!(wakes.take_reminded(9), [node(1)]);
        assert!(!wakes.is_reminded() && !wakes.is_waiting());
        wakes.remind(node(1));
        wakes.wake(node(1));
        wakes.done(node(1));
        assert_eq!(wakes.take(9), [node(1)]);
        assert!(!wakes.is_reminded());
    }
}
