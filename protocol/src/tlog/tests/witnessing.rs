//! What a witness cosigns (C2SP tlog-witness, "add-checkpoint").

use super::super::*;
use super::{by_definition, collected, head, leaves};
use crate::merkle::Hash;

const ORIGIN: &str = "log.example/1";

/// What a log sends of the tree of all these leaves, with a proof from `old` of them.
fn add(old: u64, of: &[Hash]) -> (AddCheckpoint, Checkpoint) {
    let size = of.len() as u64;
    let tiles = collected(by_definition(of));
    let checkpoint = Checkpoint::new(ORIGIN, head(of)).unwrap();
    let signer = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
    let signer = Signer::new(ORIGIN.parse().unwrap(), signer);
    let text = checkpoint.to_string();
    let signature = signer.sign(&text).unwrap();
    let add = AddCheckpoint {
        old_size: old,
        consistency: ConsistencyProof::read(old.min(size), size, &tiles).unwrap(),
        checkpoint: Note::new(text, vec![signature]).unwrap(),
    };
    assert_eq!(
        AddCheckpoint::parse(add.to_string().as_bytes()).unwrap(),
        add
    );
    (add, checkpoint)
}

#[test]
fn u4_a_witness_cosigns_only_what_extends_what_it_cosigned() {
    let all = leaves(40);
    let mut other = all.clone();
    other[3][0] ^= 1;
    for last in [0, 1, 2, 7, 8, 31] {
        let known = (last > 0).then(|| head(&all[..last]));
        let known = known.as_ref();
        let last = last as u64;
        for size in [1_u64, 2, 7, 8, 9, 31, 32, 40] {
            let whole = &all[..usize::try_from(size).unwrap()];
            for old in 0..=size + 1 {
                let (sent, checkpoint) = add(old, whole);
                let expected = if old > size {
                    Err(Uncosigned::Backwards { old, size })
                } else if old != last {
                    Err(Uncosigned::Conflict { size: last })
                } else {
                    Ok(())
                };
                assert_eq!(
                    sent.check(&checkpoint, known),
                    expected,
                    "{last} {old} {size}"
                );
            }
            if last > size || last < 4 {
                continue;
            }
            let (sent, checkpoint) = add(last, &other[..usize::try_from(size).unwrap()]);
            let refused = sent.check(&checkpoint, known).unwrap_err();
            if last == size {
                assert_eq!(refused, Uncosigned::Conflict { size });
            } else {
                assert!(matches!(refused, Uncosigned::Unproved(_)), "{refused}");
            }
        }
    }
}

#[test]
fn u4_a_proof_of_anything_else_is_unproved() {
    let all = leaves(40);
    let (mut sent, checkpoint) = add(7, &all);
    let last = head(&all[..7]);
    sent.consistency.hashes[1][0] ^= 1;
    let refused = sent.check(&checkpoint, Some(&last));
    assert!(matches!(refused, Err(Uncosigned::Unproved(_))));
    // Hashes where there is nothing to prove.
    for old in [0, 40] {
        let (mut sent, checkpoint) = add(old, &all);
        sent.consistency.hashes.push([0; 32]);
        let last = (old > 0).then(|| head(&all));
        let refused = sent.check(&checkpoint, last.as_ref());
        assert!(matches!(refused, Err(Uncosigned::Unproved(_))), "{old}");
    }
    // A tree without leaves has one root.
    let wrong = TreeHead {
        size: 0,
        root: [1; 32],
    };
    let checkpoint = Checkpoint::new(ORIGIN, wrong).unwrap();
    let (mut sent, _) = add(0, &all);
    sent.consistency.hashes.clear();
    let refused = sent.check(&checkpoint, None);
    assert!(refused.is_err());
}
