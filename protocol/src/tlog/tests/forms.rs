//! No reader of bytes from elsewhere panics, and what one takes is in its one form.

use ed25519_dalek::SigningKey;
use proptest::prelude::*;

use super::super::*;
use super::{head, leaves};

/// Puts bytes to every reader.
fn read_all(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(note) = Note::parse(bytes) {
        assert_eq!(note.to_string().as_bytes(), bytes);
        let known = [log().verifier_key(), witness().verifier_key()];
        drop(note.verify(&known));
    }
    if let Ok(lines) = NoteSignature::parse_lines(bytes) {
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
        assert_eq!(lines.concat().as_bytes(), bytes);
    }
    if let Ok(checkpoint) = Checkpoint::parse(&text) {
        assert_eq!(checkpoint.to_string(), text);
    }
    if let Ok(proof) = TlogProof::parse(bytes) {
        assert_eq!(proof.to_string().as_bytes(), bytes);
    }
    if let Ok(sent) = AddCheckpoint::parse(bytes) {
        assert_eq!(sent.to_string().as_bytes(), bytes);
    }
    if let Ok(key) = text.parse::<VerifierKey>() {
        assert_eq!(key.to_string(), text);
    }
    if let Ok(name) = text.parse::<KeyName>() {
        assert_eq!(name.to_string(), text);
    }
    if let Ok(resource) = text.parse::<Resource>() {
        assert_eq!(resource.to_string(), text);
    }
    let _ = Cosignature::decode(bytes);
    for width in [0, 1, 2, 255, 256, 257, u16::MAX] {
        if let Ok(bundle) = EntryBundle::decode(bytes, width) {
            assert_eq!(bundle.encode(), bytes);
        }
        if let Ok(index) = TileIndex::new(0, 0, width) {
            drop(Tile::decode(index, bytes));
        }
    }
}

fn log() -> Signer {
    Signer::new("log".parse().unwrap(), SigningKey::from_bytes(&[1; 32]))
}

fn witness() -> Cosigner {
    Cosigner::new("w".parse().unwrap(), SigningKey::from_bytes(&[2; 32]))
}

/// One of each text form, all well.
fn forms() -> Vec<String> {
    let checkpoint = Checkpoint::new("log", head(&leaves(5))).unwrap();
    let signatures = vec![
        log().sign(&checkpoint.to_string()).unwrap(),
        witness().cosign(&checkpoint, 7).unwrap(),
    ];
    let lines = format!("{}\n{}\n", signatures[0], signatures[1]);
    let note = Note::new(checkpoint.to_string(), signatures).unwrap();
    let hashes = vec![[3; 32], [4; 32]];
    let proof = TlogProof {
        extra: Some(b"extra".to_vec()),
        index: 4,
        inclusion: InclusionProof {
            hashes: hashes.clone(),
        },
        checkpoint: note.clone(),
    };
    let sent = AddCheckpoint {
        old_size: 3,
        consistency: ConsistencyProof { hashes },
        checkpoint: note.clone(),
    };
    vec![
        checkpoint.to_string(),
        note.to_string(),
        lines,
        proof.to_string(),
        sent.to_string(),
        log().verifier_key().to_string(),
        "tile/1/x001/234.p/5".to_owned(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn u1_no_reader_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn u1_no_reader_panics_on_what_was_once_well(
        form in 0usize..7,
        cuts in any::<[prop::sample::Index; 4]>(),
        piece in "\\PC{0,3}|\n{1,3}|[0-9]{1,20}|(— ?)?",
        byte: u8,
    ) {
        let whole = forms()[form].clone().into_bytes();
        let at = cuts.map(|cut| cut.index(whole.len() + 1));
        read_all(&whole);
        read_all(&whole[at[0].min(at[1])..at[0].max(at[1])]);
        // Put in, taken out, doubled, changed.
        let put = [&whole[..at[2]], piece.as_bytes(), &whole[at[2]..]].concat();
        read_all(&put);
        read_all(&[&whole[..at[2].min(at[3])], &whole[at[2].max(at[3])..]].concat());
        read_all(&[&whole[..at[2].max(at[3])], &whole[at[2].min(at[3])..]].concat());
        let mut changed = whole;
        if let Some(place) = changed.get_mut(at[0]) {
            *place = byte;
        }
        read_all(&changed);
    }
}
