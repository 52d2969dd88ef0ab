//! What a third party is given, and what a witness is sent.

use ed25519_dalek::SigningKey;

use super::super::*;
use super::{by_definition, collected, head, leaves};
use crate::merkle::Hash;

const ORIGIN: &str = "ledger.example/log";

fn log() -> Signer {
    Signer::new(ORIGIN.parse().unwrap(), SigningKey::from_bytes(&[1; 32]))
}

fn witness(number: u8) -> Cosigner {
    let name = format!("witness.example/{number}").parse().unwrap();
    Cosigner::new(name, SigningKey::from_bytes(&[number; 32]))
}

/// The checkpoint of these leaves, signed, and cosigned by these witnesses.
fn signed(leaves: &[Hash], witnesses: &[u8]) -> Note {
    let checkpoint = Checkpoint::new(ORIGIN, head(leaves)).unwrap();
    let text = checkpoint.to_string();
    let cosigned = witnesses
        .iter()
        .map(|number| witness(*number).cosign(&checkpoint, 1_000).unwrap());
    let signatures = std::iter::once(log().sign(&text).unwrap()).chain(cosigned);
    let signatures = signatures.collect();
    Note::new(text, signatures).unwrap()
}

fn policy(quorum: usize) -> Policy {
    let witnesses = [11, 12, 13].map(|number| witness(number).verifier_key());
    Policy::new(ORIGIN, vec![log().verifier_key()], witnesses.into(), quorum).unwrap()
}

fn proof(extra: Option<Vec<u8>>) -> (TlogProof, Vec<Hash>) {
    let leaves = leaves(300);
    let tiles = collected(by_definition(&leaves));
    let proof = TlogProof {
        extra,
        index: 77,
        inclusion: InclusionProof::read(77, 300, &tiles).unwrap(),
        checkpoint: signed(&leaves, &[12, 11]),
    };
    (proof, leaves)
}

#[test]
fn u3_a_proof_is_believed_by_who_trusts_the_log_and_enough_witnesses() {
    let (proof, leaves) = proof(None);
    let text = proof.to_string();
    let read = TlogProof::parse(text.as_bytes()).unwrap();
    assert_eq!(read, proof);
    for quorum in 0..=2 {
        let policy = policy(quorum);
        let trusted = read.verify(&leaves[77], &policy).unwrap();
        assert_eq!(trusted.checkpoint.head(), &head(&leaves));
        let names = trusted.cosigned.iter().map(|one| one.key.name().as_str());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, ["witness.example/12", "witness.example/11"]);
        assert_eq!(trusted.cosigned[0].cosigned_at_seconds, Some(1_000));
    }
    let (given, quorum) = (2, 3);
    let too_few = Untrusted::Quorum { given, quorum };
    assert_eq!(read.verify(&leaves[77], &policy(3)), Err(too_few.into()));
    let root = InvalidProof::Root { size: 300 };
    assert_eq!(read.verify(&leaves[78], &policy(2)), Err(root.into()));
    let elsewhere = TlogProof { index: 300, ..read };
    let no_leaf = InvalidProof::NoLeaf {
        index: 300,
        size: 300,
    };
    assert_eq!(
        elsewhere.verify(&leaves[77], &policy(2)),
        Err(no_leaf.into())
    );
}

#[test]
fn u3_no_bit_of_a_proof_but_the_extra_data_can_be_changed() {
    let (proof, leaves) = proof(Some(b"of the application".to_vec()));
    let policy = policy(2);
    let text = proof.to_string();
    assert!(text.starts_with("c2sp.org/tlog-proof@v1\nextra b2YgdGhlIGFwcGxpY2F0aW9u\nindex 77\n"));
    let holds = |bytes: &[u8]| {
        let read = TlogProof::parse(bytes).ok()?;
        read.verify(&leaves[77], &policy).ok().map(|_| read)
    };
    assert_eq!(holds(text.as_bytes()), Some(proof.clone()));
    let extra = text.find("b2Y").unwrap()..text.find("\nindex").unwrap();
    for bit in 0..text.len() * 8 {
        let mut changed = text.clone().into_bytes();
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Some(read) = holds(&changed) {
            assert!(extra.contains(&(bit / 8)), "bit {bit}");
            assert_ne!(read.extra, proof.extra);
        }
    }
    for end in 0..text.len() {
        // Without the last cosignature, it is a whole proof that fewer vouch for.
        assert_eq!(holds(&text.as_bytes()[..end]), None, "{end} bytes");
    }
}

#[test]
fn u3_a_proof_has_its_one_form() {
    let (proof, _) = proof(None);
    let text = proof.to_string();
    let header = "`c2sp.org/tlog-proof@v1`";
    let index = "`index` and a number without leading zeros";
    let extra = "`extra` and at most 1048576 bytes in base64";
    let hash = "a hash of 32 bytes in base64, or empty";
    let size = "the size, up to 9223372036854775807, decimal without leading zeros";
    let line = |line, expected| Malformed::Line { line, expected };
    let first = lines::encode(&proof.inclusion.hashes[0]);
    let cases = [
        (String::new(), line(1, header)),
        (text.replacen("@v1", "@v2", 1), line(1, header)),
        (text.replacen("c2sp", "C2SP", 1), line(1, header)),
        (text.replacen("@v1\n", "@v1\r\n", 1), line(1, header)),
        (text.replacen("index 77", "index 077", 1), line(2, index)),
        (text.replacen("index 77", "index  77", 1), line(2, index)),
        (text.replacen("index 77", "index", 1), line(2, index)),
        (text.replacen("index 77", "extra", 1), line(2, index)),
        (text.replacen("index 77", "extra AA==", 1), line(3, index)),
        (text.replacen("index 77", "extra A", 1), line(2, extra)),
        (
            text.replacen("index 77", "extra AA==\nextra AA==", 1),
            line(3, index),
        ),
        (
            text.replacen("index 77", "index 9223372036854775808", 1),
            line(2, index),
        ),
        (text.replacen(&first, &first[1..], 1), line(3, hash)),
        (
            text.replacen(&first, &format!(" {first}"), 1),
            line(3, hash),
        ),
        (
            text.replacen(&first, &format!("{first}\n").repeat(64), 1),
            Malformed::TooMany {
                what: "hashes",
                max: 63,
            },
        ),
        (text.replacen("\n\n", "\n", 1), line(12, hash)),
        (
            "c2sp.org/tlog-proof@v1\nindex 0\n".to_owned(),
            line(3, hash),
        ),
        // The proof would be the beginning of a note that is no checkpoint.
        (
            text.replacen(&first, &format!("\n{first}"), 1),
            line(2, size),
        ),
    ];
    for (text, error) in cases {
        assert_eq!(TlogProof::parse(text.as_bytes()), Err(error), "{text}");
    }
    let empty = TlogProof {
        extra: Some(Vec::new()),
        ..proof.clone()
    };
    assert_eq!(TlogProof::parse(empty.to_string().as_bytes()), Ok(empty));
    let max = limits::PROOF_EXTRA_BYTES_MAX;
    let largest = TlogProof {
        extra: Some(vec![0; max]),
        ..proof.clone()
    };
    assert_eq!(
        TlogProof::parse(largest.to_string().as_bytes()),
        Ok(largest)
    );
    let larger = TlogProof {
        extra: Some(vec![0; max + 1]),
        ..proof
    };
    let said = TlogProof::parse(larger.to_string().as_bytes());
    assert_eq!(said, Err(line(2, extra)));
    let (given, max) = (limits::PROOF_BYTES_MAX + 1, limits::PROOF_BYTES_MAX);
    let said = TlogProof::parse(&vec![b'a'; given]);
    assert_eq!(said, Err(Malformed::Bytes { given, max }));
}

#[test]
fn u4_a_checkpoint_is_believed_only_from_its_log() {
    let leaves = leaves(9);
    let note = signed(&leaves, &[11, 12]);
    assert_eq!(
        policy(2).believe(&note).unwrap().checkpoint.head(),
        &head(&leaves)
    );
    // Witnesses alone do not make it the log's.
    let text = note.text().to_owned();
    let cosigned = note.signatures()[1..].to_vec();
    let by_witnesses = Note::new(text, cosigned).unwrap();
    assert_eq!(policy(1).believe(&by_witnesses), Err(Untrusted::NotTheLogs));
    // One witness that cosigns twice is one.
    let twice = signed(&leaves, &[11, 11]);
    let (given, quorum) = (1, 2);
    let too_few = Untrusted::Quorum { given, quorum };
    assert_eq!(policy(2).believe(&twice), Err(too_few));
    assert!(policy(1).believe(&twice).is_ok());
    // Witnesses that nobody here knows count for nothing.
    let strangers = signed(&leaves, &[21, 22, 23]);
    let too_few = Untrusted::Quorum { given: 0, quorum };
    assert_eq!(policy(2).believe(&strangers), Err(too_few));
    let elsewhere = Policy::new("other.example", vec![log().verifier_key()], Vec::new(), 0);
    let said = elsewhere.unwrap();
    let origin = Untrusted::Origin {
        given: ORIGIN.to_owned(),
        expected: "other.example".to_owned(),
    };
    assert_eq!(said.believe(&note), Err(origin));
    let text = "no checkpoint\n".to_owned();
    let signature = log().sign(&text).unwrap();
    let said = policy(0);
    let said = said.believe(&Note::new(text, vec![signature]).unwrap());
    assert!(matches!(said, Err(Untrusted::Malformed(_))), "{said:?}");
    // A forged cosignature is worse than none.
    let other = Checkpoint::new(ORIGIN, head(&leaves[..8])).unwrap();
    let forged = witness(13).cosign(&other, 1_000).unwrap();
    let said = policy(2);
    let said = said.believe(&note.with(vec![forged]).unwrap());
    assert!(matches!(
        said,
        Err(Untrusted::Unverified(Unverified::Forged { .. }))
    ));
}

#[test]
fn u4_a_policy_that_trusts_nobody_or_one_key_twice_is_refused() {
    let key = || vec![log().verifier_key()];
    let keys = |numbers: &[u8]| -> Vec<VerifierKey> {
        let keys = numbers.iter().map(|number| witness(*number).verifier_key());
        keys.collect()
    };
    let said = Policy::new(ORIGIN, Vec::new(), keys(&[1]), 1);
    assert_eq!(said, Err(InvalidPolicy::NoLogKey));
    let said = Policy::new(ORIGIN, key(), key(), 1);
    assert_eq!(said, Err(InvalidPolicy::Witness));
    let (quorum, witnesses) = (2, 1);
    let said = Policy::new(ORIGIN, key(), keys(&[11]), 2);
    assert_eq!(said, Err(InvalidPolicy::Quorum { quorum, witnesses }));
    let said = Policy::new(ORIGIN, key(), keys(&[11, 11]), 2);
    assert_eq!(said, Err(InvalidPolicy::Repeated));
    // The key of the log, as a witness.
    let said = Policy::new(ORIGIN, key(), keys(&[1]), 1);
    assert_eq!(said, Err(InvalidPolicy::Repeated));
}

#[test]
fn u4_a_witness_can_check_what_it_is_sent() {
    let all = leaves(300);
    let tiles = collected(by_definition(&all));
    for old in [0, 1, 255, 256, 257, 300] {
        let sent = AddCheckpoint {
            old_size: old,
            consistency: ConsistencyProof::read(old, 300, &tiles).unwrap(),
            checkpoint: signed(&all, &[]),
        };
        let text = sent.to_string();
        let read = AddCheckpoint::parse(text.as_bytes()).unwrap();
        assert_eq!(read, sent);
        assert!(text.starts_with(&format!("old {old}\n")));
        let policy = policy(0);
        let new = policy.believe(&read.checkpoint).unwrap().checkpoint;
        let known = head(&all[..usize::try_from(old).unwrap()]);
        assert_eq!(read.consistency.verify(&known, new.head()), Ok(()));
        // What it answers goes behind the log's own signature.
        let answer = witness(11).cosign(&new, 1_000).unwrap();
        let lines = NoteSignature::parse_lines(format!("{answer}\n").as_bytes()).unwrap();
        let cosigned = read.checkpoint.with(lines).unwrap();
        assert_eq!(policy.believe(&cosigned).unwrap().cosigned.len(), 1);
    }
    let size = "`old` and a size without leading zeros";
    let good = signed(&all, &[]);
    for old in [
        "old 00",
        "old 01",
        "old",
        "old -1",
        "Old 0",
        "old 0 ",
        "old 9223372036854775808",
    ] {
        let said = AddCheckpoint::parse(format!("{old}\n\n{good}").as_bytes());
        assert_eq!(
            said,
            Err(Malformed::Line {
                line: 1,
                expected: size
            }),
            "{old}"
        );
    }
    let hash = lines::encode(&[1; 32]);
    let many = format!("old 1\n{}\n{good}", format!("{hash}\n").repeat(64));
    let (what, max) = ("hashes", 63);
    assert_eq!(
        AddCheckpoint::parse(many.as_bytes()),
        Err(Malformed::TooMany { what, max })
    );
    let most = format!("old 1\n{}\n{good}", format!("{hash}\n").repeat(63));
    assert!(AddCheckpoint::parse(most.as_bytes()).is_ok());
}
