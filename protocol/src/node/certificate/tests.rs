use proptest::prelude::*;

use super::*;
use crate::event::{Actor, Event, NodeRegistered, NodeSessionOpened, Stream};
use crate::id::{EventId, JournalId, NodeId};
use crate::kind::Role;

const NOW: Timestamp = Timestamp::from_micros(1_764_490_000_000_000);
const KEY: u8 = 1;
const OTHER_KEY: u8 = 2;

fn tenant() -> TenantId {
    TenantId::new(NOW, [1; 10])
}

fn fold(node: Option<Node>, body: Body) -> Node {
    let version = node.as_ref().map_or(1, |node| node.version + 1);
    let event = Event {
        id: EventId::new(NOW, [2; 10]),
        stream: Stream::Node(NodeId::new(NOW, [3; 10])),
        version,
        at: NOW.plus_seconds(u32::try_from(version).unwrap()),
        actor: Actor::gateway("g"),
        tenant: tenant(),
        body,
    };
    Node::evolve(node, &event).unwrap()
}

fn registered() -> Node {
    let registered = NodeRegistered {
        labels: std::collections::BTreeMap::new(),
        name: "vm".to_owned(),
        role: Role::Node,
    };
    fold(None, registered.into())
}

fn certificate(number: u64, key: u8, seconds: u32) -> NodeCertified {
    NodeCertified {
        allowed_kinds: None,
        fingerprint: format!("{number:064x}"),
        not_after: NOW.plus_seconds(seconds + 3_600),
        not_before: NOW.plus_seconds(seconds),
        public_key: vec![key; 32],
        renews: None,
    }
}

fn shown(certified: &NodeCertified) -> Presented {
    Presented {
        fingerprint: certified.fingerprint.clone(),
        not_after: certified.not_after,
        not_before: certified.not_before,
        public_key: certified.public_key.clone(),
    }
}

fn joined(node: Node, certified: &NodeCertified) -> Node {
    let body = node.decide_certify(certified.clone()).unwrap();
    fold(Some(node), body)
}

fn renewed(node: Node, old: &NodeCertified, new: &NodeCertified) -> Node {
    let body = node.decide_renew(&shown(old), new.clone()).unwrap();
    fold(Some(node), body)
}

fn opened(node: Node) -> Node {
    let opened = NodeSessionOpened {
        agent_version: "1".to_owned(),
        applied_generation: 0,
        boot_id: "boot".to_owned(),
        epoch: node.epoch + 1,
        gateway: "g".to_owned(),
        gateway_lease: None,
        journal_id: JournalId::new(NOW, [5; 10]),
        journal_lost: None,
        role: Role::Node,
        seq_lifted: None,
    };
    fold(Some(node), opened.into())
}

fn revoked(node: Node) -> Node {
    let body = node.decide_revoke(tenant(), "stolen").unwrap().unwrap();
    fold(Some(node), body)
}

#[test]
fn p7_a_certificate_that_a_join_has_replaced_opens_no_session() {
    let node = registered();
    let (old, new) = (certificate(1, KEY, 10), certificate(2, OTHER_KEY, 20));
    // A ledger that was restored to before the join names none.
    assert_eq!(node.check_certificate(&shown(&old)), Ok(()));
    let node = joined(joined(node, &old), &new);
    let refused = Err(Refusal::CertificateReplaced(node.id));
    // Two joins may share a second.
    for older in [certificate(1, KEY, 10), certificate(1, KEY, 20)] {
        assert_eq!(node.check_certificate(&shown(&older)), refused);
    }
    // What has the key and the second of the join may be its renewal.
    let renewal = certificate(4, OTHER_KEY, 20);
    for known in [new, renewal, certificate(3, KEY, 30)] {
        assert_eq!(node.check_certificate(&shown(&known)), Ok(()));
    }
}

#[test]
fn p7_a_renewal_replaces_nothing_and_closes_no_session() {
    // X.509 counts whole seconds: the second and the third begin with the join's.
    let certificates: Vec<_> = [0, 0, 0, 10]
        .into_iter()
        .zip(0..)
        .map(|(seconds, number)| certificate(number, KEY, seconds))
        .collect();
    let node = opened(joined(registered(), &certificates[0]));
    let before = node.clone();
    let node = renewed(node, &certificates[0], &certificates[1]);
    let node = renewed(node, &certificates[1], &certificates[2]);
    // A daemon whose answer got lost renews what it has once more.
    let node = renewed(node, &certificates[0], &certificates[3]);
    for certificate in &certificates {
        assert_eq!(node.check_certificate(&shown(certificate)), Ok(()));
    }
    assert_eq!(node.check_epoch(1), Ok(()));
    assert_eq!(
        (node.session, node.epoch, node.journal_id),
        (before.session, before.epoch, before.journal_id)
    );
}

#[test]
fn p7_a_join_ends_the_line_of_renewals_of_its_own_key_too() {
    let [first, renewal, second] = [10, 20, 30].map(|at| certificate(at.into(), KEY, at));
    let node = renewed(joined(registered(), &first), &first, &renewal);
    let node = joined(node, &second);
    for old in [&first, &renewal] {
        let refused = Err(Refusal::CertificateReplaced(node.id));
        assert_eq!(node.check_certificate(&shown(old)), refused);
        let again = node.decide_renew(&shown(old), certificate(9, KEY, 40));
        assert_eq!(again, Err(Refusal::CertificateReplaced(node.id)));
    }
    assert_eq!(node.check_certificate(&shown(&second)), Ok(()));
}

#[test]
fn p7_a_renewal_is_for_the_key_that_is_shown_and_known() {
    let held = certificate(1, KEY, 10);
    let node = joined(registered(), &held);
    let unknown = Err(Refusal::UnknownKey(node.id));
    let other = node.decide_renew(&shown(&held), certificate(2, OTHER_KEY, 20));
    assert_eq!(other, unknown);
    // A restored ledger knows nothing of the join that gave this one.
    let lost = certificate(3, OTHER_KEY, 30);
    let answer = node.decide_renew(&shown(&lost), certificate(4, OTHER_KEY, 40));
    assert_eq!(answer, unknown);
    let never = registered().decide_renew(&shown(&held), certificate(2, KEY, 20));
    assert_eq!(never, unknown);
}

#[test]
fn p7_what_was_revoked_opens_nothing_until_another_key_joins() {
    let (held, renewal) = (certificate(1, KEY, 10), certificate(2, KEY, 20));
    let node = opened(renewed(joined(registered(), &held), &held, &renewal));
    let node = revoked(node);
    let refused = Err(Refusal::CertificateRevoked(node.id));
    assert_eq!(node.check_epoch(1), refused);
    assert!(!node.is_connected());
    // Nor one that a restored ledger does not know.
    for certificate in [&held, &renewal, &certificate(3, OTHER_KEY, 30)] {
        assert_eq!(node.check_certificate(&shown(certificate)), refused);
        let again = node.decide_renew(&shown(certificate), certificate.clone());
        assert_eq!(again, Err(Refusal::CertificateRevoked(node.id)));
    }
    assert_eq!(node.decide_revoke(tenant(), "again"), Ok(None));
    let same_key = node.decide_certify(certificate(4, KEY, 40));
    assert_eq!(same_key, Err(Refusal::KeyRevoked(node.id)));
    let new = certificate(5, OTHER_KEY, 50);
    let node = joined(node, &new);
    assert_eq!(node.check_certificate(&shown(&new)), Ok(()));
    // A gateway's clock that was ahead makes none of the old ones good.
    for old in [&held, &renewal, &certificate(6, KEY, 60)] {
        assert_eq!(node.check_certificate(&shown(old)), refused);
    }
    let stale = Err(Refusal::StaleEpoch {
        current: 1,
        given: 1,
    });
    assert_eq!(node.check_epoch(1), stale);
}

#[test]
fn p7_a_revocation_has_a_reason_and_something_to_revoke() {
    let node = registered();
    let never = node.decide_revoke(tenant(), "stolen");
    assert_eq!(never, Err(Refusal::NeverJoined(node.id)));
    let node = joined(node, &certificate(1, KEY, 10));
    for reason in [String::new(), "r".repeat(201), "a\nb".to_owned()] {
        let refused = node.decide_revoke(tenant(), &reason);
        assert!(matches!(refused, Err(Refusal::Invalid { field, .. }) if field == "reason"));
    }
    let elsewhere = node.decide_revoke(TenantId::new(NOW, [9; 10]), "stolen");
    assert_eq!(elsewhere, Err(Refusal::UnknownNode(node.id)));
}

/// What happens to a node, with the key it happens with, or the certificate by its age.
#[derive(Debug, Clone)]
enum Step {
    Join(u8),
    Renew(usize),
    Open(usize),
    Revoke,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (1..=3_u8).prop_map(Step::Join),
        4 => (0..6_usize).prop_map(Step::Renew),
        4 => (0..6_usize).prop_map(Step::Open),
        1 => Just(Step::Revoke),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    /// Against a plain account of what was given and taken away: who may come in and renew are the
    /// certificates that were given since the newest join, until they are revoked; and whatever is
    /// decided can be folded.
    #[test]
    fn p7_who_may_come_in_is_who_came_with_the_newest_join(steps in steps()) {
        let mut node = registered();
        let mut given: Vec<NodeCertified> = Vec::new();
        let mut line: Vec<String> = Vec::new();
        let mut revoked_keys = std::collections::BTreeSet::new();
        let mut is_revoked = false;
        for (number, step) in steps.into_iter().enumerate() {
            let seconds = u32::try_from(number).unwrap() + 1;
            let number = u64::try_from(number).unwrap() + 1;
            let by_age = |age: usize| given.iter().rev().nth(age).cloned();
            match step {
                Step::Join(key) => {
                    let new = certificate(number, key, seconds);
                    match node.decide_certify(new.clone()) {
                        Ok(body) => {
                            node = fold(Some(node), body);
                            line = vec![new.fingerprint.clone()];
                            given.push(new);
                            is_revoked = false;
                        }
                        Err(refusal) => {
                            prop_assert_eq!(refusal, Refusal::KeyRevoked(node.id));
                            prop_assert!(revoked_keys.contains(&key));
                        }
                    }
                }
                Step::Renew(age) => {
                    let Some(old) = by_age(age) else { continue };
                    let new = certificate(number, old.public_key[0], seconds);
                    let before = node.clone();
                    let decided = node.decide_renew(&shown(&old), new.clone());
                    prop_assert_eq!(decided.is_ok(), !is_revoked && line.contains(&old.fingerprint));
                    if let Ok(body) = decided {
                        node = fold(Some(node), body);
                        prop_assert_eq!(&node.session, &before.session);
                        prop_assert_eq!(node.epoch, before.epoch);
                        line.push(new.fingerprint.clone());
                        given.push(new);
                    }
                }
                Step::Open(age) => {
                    let Some(old) = by_age(age) else { continue };
                    let may = node.check_certificate(&shown(&old)).is_ok();
                    prop_assert_eq!(may, !is_revoked && line.contains(&old.fingerprint));
                    if may {
                        node = opened(node);
                    }
                }
                Step::Revoke => {
                    if let Ok(Some(body)) = node.decide_revoke(tenant(), "stolen") {
                        revoked_keys.insert(node.certificate.as_ref().unwrap().public_key[0]);
                        node = fold(Some(node), body);
                        is_revoked = true;
                        prop_assert!(!node.is_connected());
                    }
                }
            }
            prop_assert_eq!(node.is_revoked(), is_revoked);
        }
    }
}
