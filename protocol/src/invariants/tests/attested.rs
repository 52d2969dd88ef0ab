//! Whose word an end is (SPEC P2).

use super::*;
use crate::attestation;
use crate::event::{CommandLateResult, NodeCertified};
use crate::frame::{Update, UpdateState};

impl Log {
    fn certify(&mut self, number: u8) {
        self.on_node(NodeCertified {
            renews: None,
            allowed_kinds: None,
            fingerprint: "f".to_owned(),
            not_after: later(10_000),
            not_before: NOW,
            public_key: PublicKey::of(&key(number)).as_bytes().to_vec(),
        });
    }

    /// A node with certificate 1, and a command that was sent to it.
    fn sent(attested: bool) -> Self {
        let mut log = Self::new();
        log.certify(1);
        log.queue(1, |queued| queued.attested = attested);
        log.dispatch(1, 1);
        assert_eq!(log.broken, []);
        log
    }

    fn ends(&mut self, end: CommandSettled) {
        self.event(Stream::Command(command(1)), end.into());
    }

    fn comes_late(&mut self, end: CommandSettled) {
        self.event(Stream::Command(command(1)), CommandLateResult(end).into());
    }
}

/// A success that this key signed, or nobody.
fn end(number: Option<u8>) -> CommandSettled {
    let update = Update::bare(command(1), UpdateState::Succeeded);
    let signature =
        number.and_then(|number| attestation::sign(&key(number), node(), &update).unwrap());
    CommandSettled {
        details: None,
        epoch: Some(1),
        kind: "logs.collect".to_owned(),
        node_id: node(),
        node_sig: signature.map(|bytes| bytes.to_vec()),
        reason: None,
        result: None,
        result_truncated: None,
        seq: 1,
        state: Outcome::Succeeded,
    }
}

#[test]
fn p2_an_end_that_the_node_has_not_signed_is_found() {
    let mut log = Log::sent(true);
    log.ends(end(None));
    assert_eq!(one(&log.broken), Rule::Unattested);

    let mut log = Log::sent(true);
    log.ends(end(Some(1)));
    assert_eq!(log.broken, []);
    log.comes_late(end(None));
    assert_eq!(one(&log.broken), Rule::Unattested);

    let mut log = Log::sent(false);
    log.ends(end(None));
    assert_eq!(log.broken, []);
}

#[test]
fn p2_a_signature_that_does_not_hold_is_found_whatever_the_kind() {
    for attested in [true, false] {
        let not_signed = Rule::BadAttestation(Unproved::NotSigned);
        let mut log = Log::sent(attested);
        log.ends(end(Some(2)));
        assert_eq!(one(&log.broken), not_signed);

        let mut log = Log::sent(attested);
        let state = Outcome::Failed;
        log.ends(CommandSettled {
            state,
            ..end(Some(1))
        });
        assert_eq!(one(&log.broken), not_signed);
        log.comes_late(end(Some(1)));
        assert_eq!(log.broken.len(), 1);
    }
}

#[test]
fn p2_a_signature_is_held_against_the_certificate_of_its_position() {
    let mut log = Log::sent(true);
    log.certify(2);
    log.ends(end(Some(2)));
    log.certify(3);
    log.comes_late(end(Some(3)));
    assert_eq!(log.broken, []);

    let mut log = Log::sent(true);
    log.ends(end(Some(1)));
    log.certify(2);
    assert_eq!(log.broken, []);
    log.comes_late(end(Some(1)));
    assert!(matches!(one(&log.broken), Rule::BadAttestation(_)));

    let mut log = Log::new();
    log.queue(1, |queued| queued.attested = true);
    log.dispatch(1, 1);
    log.ends(end(Some(1)));
    let none = Rule::BadAttestation(Unproved::NoCertificate);
    assert_eq!(one(&log.broken), none);
}

#[test]
fn p2_what_the_ledger_decides_itself_needs_no_signature() {
    for (reason, epoch) in [("timeout", None), ("journal-lost", Some(1))] {
        let mut log = Log::sent(true);
        log.at = later(111);
        log.settle(1, Outcome::Failed, reason, epoch);
        assert_eq!(log.broken, [], "{reason}");
    }
    let mut log = Log::sent(true);
    log.settle(1, Outcome::Failed, "interrupted", Some(1));
    assert_eq!(one(&log.broken), Rule::Unattested);
}
