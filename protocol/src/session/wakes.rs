//! Which nodes to look at next (SPEC D3): those that something woke, each at most once at a time.
//!
//! While a node's look is in progress (its due commands are being read and dispatched) it is not
//! looked at again: two looks would count the same credits. What wakes it meanwhile is kept.

use std::collections::{HashMap, VecDeque};

use crate::id::NodeId;

/// Nodes in the order in which they were woken.
#[derive(Debug, Default)]
pub struct Wakes {
    waiting: VecDeque<NodeId>,
    states: HashMap<NodeId, Look>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Waiting,
    InProgress,
    InProgressAndWoken,
}

impl Wakes {
    /// Something happened to the node.
    pub fn wake(&mut self, node: NodeId) {
        match self.states.get_mut(&node) {
            None => {
                self.states.insert(node, Look::Waiting);
                self.waiting.push_back(node);
            }
            Some(look @ Look::InProgress) => *look = Look::InProgressAndWoken,
            Some(Look::Waiting | Look::InProgressAndWoken) => {}
        }
    }

    /// Takes up to `nodes_max` nodes to look at; [`done`](Self::done) gives each back.
    pub fn take(&mut self, nodes_max: usize) -> Vec<NodeId> {
        let count = self.waiting.len().min(nodes_max);
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        for node in &taken {
            self.states.insert(*node, Look::InProgress);
        }
        taken
    }

    /// The node's look is over; it waits again if something woke it meanwhile.
    pub fn done(&mut self, node: NodeId) {
        if self.states.remove(&node) == Some(Look::InProgressAndWoken) {
            self.wake(node);
        }
    }

    /// Whether the node's look is in progress.
    pub fn is_in_progress(&self, node: NodeId) -> bool {
        self.states
            .get(&node)
            .is_some_and(|look| *look != Look::Waiting)
    }

    /// Whether a node waits to be looked at.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
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
}
