//! A state folder that exists twice, by a cloned machine or a backup that was put back: the older
//! copy has the journal's id and not what the journal has seen since (SPEC D2, D8).

use super::*;
use crate::event::JournalLost;

fn journal() -> JournalId {
    JournalId::new(NOW, [5; 10])
}

/// The sessions of one node that has sent one command, of `seq` 1.
struct Sessions {
    life: Life,
    /// Highest `seq` that ended by the node's word.
    answered: u64,
}

impl Sessions {
    fn of(kind: &str) -> Self {
        let life = Life::of(kind).dispatched();
        Self { life, answered: 0 }
    }

    /// A daemon opens a session; answers what becomes of the command, of which it has no entry.
    fn open(&mut self, boot: &str, highest_seq: u64) -> (Option<JournalLost>, Option<Body>) {
        let Life { node, command, .. } = &mut self.life;
        let seen = node.journal_seen([&*command], self.answered);
        let hello = hello(journal(), boot, highest_seq);
        let opened = node.decide_open_session(hello, seen).unwrap();
        let proof = node.rejoin(&opened, None);
        let end = rejoin::decide(command, proof, opened.epoch);
        let lost = opened.journal_lost;
        let stream = Stream::Node(node_id());
        let opened = event(stream, node.version + 1, NOW, opened.into());
        *node = Node::evolve(Some(node.clone()), &opened).unwrap();
        (lost, end)
    }
}

fn is_lost(end: Option<Body>) -> bool {
    match end {
        None => false,
        Some(Body::CommandSettled(end)) => {
            (end.state, end.reason.as_deref()) == (Outcome::Failed, Some("journal-lost"))
        }
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn d2_a_journal_that_has_seen_less_than_it_took_on_is_an_older_copy() {
    for word in [UpdateState::Acked, UpdateState::Running] {
        let mut sessions = Sessions::of("node.reboot");
        sessions.life.report(word).unwrap();
        let (lost, end) = sessions.open("boot-2", 0);
        assert_eq!(lost, Some(JournalLost::Behind));
        // Another machine's boot does not prove that this one has booted.
        assert!(is_lost(end));
    }
}

#[test]
fn d2_what_ended_by_the_nodes_word_shows_an_older_copy_too() {
    let mut sessions = Sessions::of("disk.wipe");
    sessions.answered = 7;
    let (lost, end) = sessions.open("boot-2", 6);
    assert_eq!(lost, Some(JournalLost::Behind));
    assert!(is_lost(end));
}

#[test]
fn d8_a_journal_that_has_seen_what_it_took_on_is_the_same() {
    let mut sessions = Sessions::of("disk.wipe");
    sessions.answered = 7;
    for boot in ["boot-1", "boot-2", "boot-3"] {
        assert_eq!(sessions.open(boot, 7), (None, None));
    }
}

#[test]
fn d8_a_fresh_journal_is_not_measured_by_what_the_one_before_answered() {
    let mut sessions = Sessions::of("diag.nvml");
    sessions.life.node = super::open(sessions.life.node, JournalId::new(NOW, [6; 10]));
    sessions.life.node = super::open(sessions.life.node, journal());
    sessions.life.report(UpdateState::Acked).unwrap();
    sessions.answered = 1;
    assert_eq!(sessions.open("boot-1", 0).0, None);
    // What was queued since, it has seen.
    sessions.answered = 2;
    assert_eq!(sessions.open("boot-1", 0).0, Some(JournalLost::Behind));
}

#[test]
fn d2_two_copies_in_turn_are_never_sent_what_the_other_was_sent() {
    let mut sessions = Sessions::of("disk.wipe");
    sessions.answered = 3;
    let machines = [("boot-1", 3), ("boot-2", 2), ("boot-1", 3), ("boot-2", 4)];
    let seen: Vec<_> = machines
        .into_iter()
        .map(|(boot, highest_seq)| {
            let (lost, end) = sessions.open(boot, highest_seq);
            (lost, is_lost(end))
        })
        .collect();
    let lost = [
        (None, false),
        (Some(JournalLost::Behind), true),
        (Some(JournalLost::Copied), true),
        (Some(JournalLost::Copied), true),
    ];
    assert_eq!(seen, lost);
    // One machine that comes back alone is trusted again, with what it is sent from then on.
    assert_eq!(sessions.open("boot-2", 4).0, Some(JournalLost::Copied));
    assert_eq!(sessions.open("boot-2", 4), (None, None));
}
