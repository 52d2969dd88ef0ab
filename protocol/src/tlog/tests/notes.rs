//! Notes, their keys, checkpoints and cosignatures.

use ed25519_dalek::SigningKey;
use proptest::prelude::*;

use super::super::*;
use super::{head, leaves};
use crate::dsse::InvalidKey;

fn signer(number: u8, name: &str) -> Signer {
    Signer::new(name.parse().unwrap(), SigningKey::from_bytes(&[number; 32]))
}

fn cosigner(number: u8, name: &str) -> Cosigner {
    Cosigner::new(name.parse().unwrap(), SigningKey::from_bytes(&[number; 32]))
}

fn checkpoint() -> Checkpoint {
    Checkpoint::new("ledger.example/log", head(&leaves(7))).unwrap()
}

fn line(line: usize, expected: &'static str) -> Malformed {
    Malformed::Line { line, expected }
}

#[test]
fn u1_a_note_is_believed_by_who_knows_a_key_that_signed_it() {
    let (log, other) = (
        signer(1, "ledger.example/log"),
        signer(2, "ledger.example/log"),
    );
    let text = checkpoint().to_string();
    let note = Note::new(text.clone(), vec![log.sign(&text).unwrap()]).unwrap();
    let read = Note::parse(note.to_string().as_bytes()).unwrap();
    assert_eq!(read, note);
    let known = [log.verifier_key(), other.verifier_key()];
    let verified = read.verify(&known).unwrap();
    assert_eq!(verified.len(), 1);
    assert_eq!(verified[0].key, &known[0]);
    // Neither of another key of the same name nor of nobody.
    assert_eq!(read.verify(&known[1..]), Err(Unverified::Unknown));
    assert_eq!(read.verify(&[]), Err(Unverified::Unknown));
    // Signed by both, and twice: each key counts once.
    let again = vec![other.sign(&text).unwrap(), log.sign(&text).unwrap()];
    let both = read.clone().with(again).unwrap();
    let by: Vec<_> = both.verify(&known).unwrap();
    assert_eq!(
        by.iter().map(|one| one.key).collect::<Vec<_>>(),
        [&known[0], &known[1]]
    );
    assert_eq!(both.verify(&known[1..]).unwrap().len(), 1);
}

#[test]
fn u1_a_forged_signature_makes_the_note_worthless() {
    let (log, other) = (signer(1, "log"), signer(2, "other"));
    let text = "text\n";
    let known = [log.verifier_key(), other.verifier_key()];
    let whole = Note::new(text.to_owned(), vec![log.sign(text).unwrap()]).unwrap();
    // A line in the other's name and ID, over another text.
    let forged = other.sign("text \n").unwrap();
    let note = whole.clone().with(vec![forged]).unwrap();
    let name = "other".parse().unwrap();
    assert_eq!(note.verify(&known), Err(Unverified::Forged { name }));
    // Who does not know that key ignores it.
    assert_eq!(note.verify(&known[..1]).unwrap().len(), 1);
    // The name of a known key with another ID, or its ID with another name, is unknown.
    let one = &whole.signatures()[0];
    let with_id = |id: u32| lines::encode(&[&id.to_be_bytes(), one.bytes()].concat());
    let (same, other) = (with_id(one.key_id()), with_id(one.key_id() ^ 1));
    for line in [format!("— lob {same}\n"), format!("— log {other}\n")] {
        let lines = NoteSignature::parse_lines(line.as_bytes()).unwrap();
        let note = Note::new(text.to_owned(), lines).unwrap();
        assert_eq!(note.verify(&known), Err(Unverified::Unknown), "{line}");
    }
}

#[test]
fn u1_every_bit_of_a_signed_note_matters() {
    let log = signer(1, "ledger.example/log");
    let text = checkpoint().to_string();
    let note = Note::new(text.clone(), vec![log.sign(&text).unwrap()]).unwrap();
    let known = [log.verifier_key()];
    let whole = note.to_string().into_bytes();
    for bit in 0..whole.len() * 8 {
        let mut changed = whole.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = Note::parse(&changed) {
            assert!(read.verify(&known).is_err(), "bit {bit}");
        }
    }
    for end in 0..whole.len() {
        assert!(Note::parse(&whole[..end]).is_err(), "{end} bytes");
    }
}

#[test]
fn u1_a_note_has_its_one_form() {
    let mark = "a signature: an em dash, a key's name, base64 of 5 bytes or more";
    let blank = "empty, between the text and the signatures";
    let ends = "ended by a newline";
    let good = "— a AAAAAAA=\n";
    let cases = [
        (String::new(), line(1, blank)),
        ("\n".to_owned(), line(2, blank)),
        (format!("text\n{good}"), line(3, blank)),
        ("text\n\n".to_owned(), line(3, mark)),
        (format!("text\n\n{good}\n"), line(5, mark)),
        (format!("text\n\n{}", good.trim_end()), line(3, mark)),
        (format!("text\n\n{good}— a AAAAAAA\n"), line(4, mark)),
        (format!("text\n\n{good}— a AAAAAAB=\n"), line(4, mark)),
        (format!("text\n\n{good}— a AAAAAA==\n"), line(4, mark)),
        (format!("text\n\n{good}— a AAAAAAA=\r\n"), line(4, mark)),
        (format!("text\n\n{good}— a  AAAAAAA=\n"), line(4, mark)),
        (format!("text\n\n{good}—  AAAAAAA=\n"), line(4, mark)),
        (format!("text\n\n{good}— a+b AAAAAAA=\n"), line(4, mark)),
        (
            format!("text\n\n{good}— a\u{3000}b AAAAAAA=\n"),
            line(4, mark),
        ),
        (format!("text\n\n{good}- a AAAAAAA=\n"), line(4, mark)),
        (format!("te\txt\n\n{good}"), Malformed::Control),
        (format!("te\rxt\n\n{good}"), Malformed::Control),
        (format!("te\0xt\n\n{good}"), Malformed::Control),
    ];
    for (note, error) in cases {
        assert_eq!(Note::parse(note.as_bytes()), Err(error), "{note:?}");
    }
    assert_eq!(Note::parse(b"te\xffxt\n\n"), Err(Malformed::Utf8));
    assert_eq!(Note::new("text".to_owned(), Vec::new()), Err(line(1, ends)));
    assert_eq!(
        Note::new("text\n".to_owned(), Vec::new()),
        Err(line(3, mark))
    );
    // Empty lines belong to the text, but for the last.
    for text in ["\n", "\n\n", "a\n\n\nb\n", "a\n\n\n", "é\u{7f}\n"] {
        let note = format!("{text}\n{good}");
        let read = Note::parse(note.as_bytes()).unwrap();
        assert_eq!((read.text(), read.to_string()), (text, note.clone()));
    }
}

#[test]
fn u1_a_note_is_bounded_and_takes_the_16_signatures_that_it_must() {
    let text = "text\n";
    let one = signer(1, "log").sign(text).unwrap();
    let max = limits::NOTE_SIGNATURES_MAX;
    assert!(max >= 16);
    let note = Note::new(text.to_owned(), vec![one.clone(); max]).unwrap();
    let known = [signer(1, "log").verifier_key()];
    let read = Note::parse(note.to_string().as_bytes()).unwrap();
    assert_eq!(read.verify(&known).unwrap().len(), 1);
    let what = "signatures";
    let too_many = Malformed::TooMany { what, max };
    assert_eq!(read.with(vec![one.clone()]), Err(too_many));
    let longer = format!("{note}{one}\n");
    assert_eq!(Note::parse(longer.as_bytes()), Err(too_many));
    let max = limits::NOTE_BYTES_MAX;
    let big = format!("{}\n", "x".repeat(max));
    let given = big.len() + 1 + one.to_string().len() + 1;
    let too_long = Malformed::Bytes { given, max };
    assert_eq!(Note::new(big.clone(), vec![one.clone()]), Err(too_long));
    let whole = format!("{big}\n{one}\n");
    assert_eq!(Note::parse(whole.as_bytes()), Err(too_long));
    // 16 signatures of the size of ML-DSA-44's, by keys that nobody here knows.
    let large = format!("— quantum {}\n", lines::encode(&[7; 4 + 8 + 2_420]));
    let note = format!("text\n\n{}{one}\n", large.repeat(15));
    let read = Note::parse(note.as_bytes()).unwrap();
    assert_eq!(read.verify(&known).unwrap().len(), 1);
}

#[test]
fn u4_a_cosignature_holds_for_its_checkpoint_time_and_key_alone() {
    let (witness, checkpoint) = (cosigner(3, "witness.example/w1"), checkpoint());
    let signature = witness.cosign(&checkpoint, 1_700_000_000).unwrap();
    let text = checkpoint.to_string();
    let note = Note::new(text.clone(), vec![signature.clone()]).unwrap();
    let known = [witness.verifier_key()];
    let verified = note.verify(&known).unwrap();
    assert_eq!(verified[0].cosigned_at_seconds, Some(1_700_000_000));
    let cosignature = Cosignature::decode(signature.bytes()).unwrap();
    assert_eq!(cosignature.encode(), signature.bytes());
    assert!(cosignature.verify(&known[0], &checkpoint));
    let later = Cosignature {
        timestamp_seconds: 1_700_000_001,
        ..cosignature
    };
    assert!(!later.verify(&known[0], &checkpoint));
    let other = Checkpoint::new("ledger.example/log", head(&leaves(8))).unwrap();
    assert!(!cosignature.verify(&known[0], &other));
    let another = cosigner(4, "witness.example/w1").verifier_key();
    assert!(!cosignature.verify(&another, &checkpoint));
    // The same key as a log's signs something else, and has another ID.
    let log = signer(3, "witness.example/w1").verifier_key();
    assert!(!cosignature.verify(&log, &checkpoint));
    assert_ne!(log.id(), known[0].id());
    assert_eq!(note.verify(&[log]), Err(Unverified::Unknown));
    // Every bit of time and signature.
    for bit in 0..signature.bytes().len() * 8 {
        let mut changed = signature.bytes().to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        let read = Cosignature::decode(&changed);
        let holds = read.is_some_and(|read| read.verify(&known[0], &checkpoint));
        assert!(!holds, "bit {bit}");
    }
    for length in [0, 7, 8, 71, 73] {
        assert_eq!(Cosignature::decode(&vec![0; length]), None);
    }
}

#[test]
fn u4_a_cosignature_has_a_time_that_it_can_have() {
    let (witness, checkpoint) = (cosigner(3, "w"), checkpoint());
    let max = limits::COSIGNATURE_SECONDS_MAX;
    for given in [0, max + 1, u64::MAX] {
        let refused = InvalidTimestamp { given };
        assert_eq!(witness.cosign(&checkpoint, given), Err(refused));
    }
    let last = witness.cosign(&checkpoint, max).unwrap();
    assert!(Cosignature::decode(last.bytes()).is_some());
    let mut beyond = last.bytes().to_vec();
    beyond[..8].copy_from_slice(&(max + 1).to_be_bytes());
    assert_eq!(Cosignature::decode(&beyond), None);
}

#[test]
fn u4_a_cosignature_of_what_is_no_checkpoint_is_none() {
    let key = SigningKey::from_bytes(&[3; 32]);
    let witness = cosigner(3, "w").verifier_key();
    let text = "no checkpoint\n";
    let message = format!("cosignature/v1\ntime 5\n{text}");
    let signature = ed25519_dalek::Signer::sign(&key, message.as_bytes()).to_bytes();
    let (id, time) = (witness.id().to_be_bytes(), 5_u64.to_be_bytes());
    let line = lines::encode(&[id.as_slice(), &time, &signature].concat());
    let line = format!("— w {line}\n");
    let note = Note::parse(format!("{text}\n{line}").as_bytes()).unwrap();
    let name = "w".parse().unwrap();
    assert_eq!(note.verify(&[witness]), Err(Unverified::Forged { name }));
    // Nor does a log sign what a witness signs.
    let said = signer(3, "w").sign(&message);
    assert_eq!(
        said,
        Err(Malformed::Line {
            line: 1,
            expected: "no header of a cosignature"
        })
    );
}

#[test]
fn u1_a_verifier_key_has_its_one_form() {
    use InvalidVerifierKey::{Algorithm, Form, Id, IdForm, Key, Name};

    let key = signer(1, "ledger.example/log").verifier_key();
    let shown = key.to_string();
    assert_eq!(shown.parse(), Ok(key.clone()));
    let witness = cosigner(1, "ledger.example/log").verifier_key();
    assert_eq!(witness.to_string().parse(), Ok(witness.clone()));
    let [name, id, base64] =
        <[&str; 3]>::try_from(shown.splitn(3, '+').collect::<Vec<_>>()).unwrap();
    let parse = |text: String| text.parse::<VerifierKey>();
    assert_eq!(parse(String::new()), Err(Form));
    assert_eq!(parse(format!("{name}+{id}")), Err(Form));
    assert_eq!(parse(format!("+{id}+{base64}")), Err(Name));
    assert_eq!(parse(format!("a b+{id}+{base64}")), Err(Name));
    assert_eq!(
        parse(format!("{name}+{}+{base64}", id.to_uppercase())),
        Err(IdForm)
    );
    assert_eq!(parse(format!("{name}+0{id}+{base64}")), Err(IdForm));
    assert_eq!(parse(format!("{name}+{}+{base64}", &id[1..])), Err(IdForm));
    assert_eq!(parse(format!("{name}++{}+{base64}", &id[1..])), Err(IdForm));
    assert_eq!(parse(format!("{name}+{id}+{base64}=")), Err(Form));
    assert_eq!(parse(format!("{name}+{id}+{base64}\n")), Err(Form));
    assert_eq!(parse(format!("{name}+{id}+")), Err(Form));
    let (given, expected) = (key.id() ^ 1, key.id());
    let wrong = Err(Id { given, expected });
    assert_eq!(parse(format!("{name}+{given:08x}+{base64}")), wrong);
    for given in [0, 2, 3, 5, 6, 255] {
        let other = lines::encode(&[&[given], key.public_key().as_bytes().as_slice()].concat());
        assert_eq!(
            parse(format!("{name}+{id}+{other}")),
            Err(Algorithm { given })
        );
    }
    let short = lines::encode(&[&[1], &key.public_key().as_bytes()[1..]].concat());
    let length = Key(InvalidKey::Length { given: 31 });
    assert_eq!(parse(format!("{name}+{id}+{short}")), Err(length));
    let weak = lines::encode(&[&[1], [0; 32].as_slice()].concat());
    assert_eq!(
        parse(format!("{name}+{id}+{weak}")),
        Err(Key(InvalidKey::SmallOrder))
    );
}

#[test]
fn u1_no_private_key_is_shown() {
    let (log, witness) = (signer(1, "log"), cosigner(1, "w"));
    assert_eq!(
        format!("{log:?}"),
        format!("Signer({})", log.verifier_key())
    );
    assert_eq!(
        format!("{witness:?}"),
        format!("Cosigner({})", witness.verifier_key())
    );
}

#[test]
fn u1_a_checkpoint_has_its_one_form() {
    let root = lines::encode(&[5; 32]);
    let good = format!("log\n12\n{root}\n");
    let read = Checkpoint::parse(&good).unwrap();
    assert_eq!(read.to_string(), good);
    assert_eq!(
        (read.origin(), read.head().size, read.head().root),
        ("log", 12, [5; 32])
    );
    let extended = format!("{good}one\ntwo\n");
    let read = Checkpoint::parse(&extended).unwrap();
    assert_eq!(read.extensions(), ["one", "two"]);
    assert_eq!(read.to_string(), extended);
    assert!(Checkpoint::parse(&format!("log\n0\n{root}\n")).is_ok());
    let origin = "the origin, of a character or more";
    let size = "the size, up to 9223372036854775807, decimal without leading zeros";
    let hash = "the root hash, 32 bytes in base64";
    let extension = "an extension, of a character or more";
    let short = lines::encode(&[5; 31]);
    let cases = [
        (String::new(), line(1, "ended by a newline")),
        (good.trim_end().to_owned(), line(3, "ended by a newline")),
        ("\n".to_owned(), line(1, origin)),
        (format!("\n12\n{root}\n"), line(1, origin)),
        ("log\n".to_owned(), line(2, size)),
        (format!("log\n012\n{root}\n"), line(2, size)),
        (format!("log\n00\n{root}\n"), line(2, size)),
        (format!("log\n+12\n{root}\n"), line(2, size)),
        (format!("log\n-12\n{root}\n"), line(2, size)),
        (format!("log\n\n{root}\n"), line(2, size)),
        (format!("log\n1２\n{root}\n"), line(2, size)),
        (format!("log\n 12\n{root}\n"), line(2, size)),
        (format!("log\n9223372036854775808\n{root}\n"), line(2, size)),
        (
            format!("log\n18446744073709551616\n{root}\n"),
            line(2, size),
        ),
        ("log\n12\n".to_owned(), line(3, hash)),
        (format!("log\n12\n{short}\n"), line(3, hash)),
        (
            format!("log\n12\n{}\n", root.trim_end_matches('=')),
            line(3, hash),
        ),
        (format!("log\n12\n{root} \n"), line(3, hash)),
        (format!("log\n12\n{root}\n\n"), line(4, extension)),
        (format!("log\n12\n{root}\none\n\ntwo\n"), line(5, extension)),
        (format!("log\r\n12\n{root}\n"), Malformed::Control),
    ];
    for (text, error) in cases {
        assert_eq!(Checkpoint::parse(&text), Err(error), "{text:?}");
    }
}

#[test]
fn u1_a_checkpoint_is_made_only_as_it_can_be_read() {
    let head = TreeHead {
        size: 3,
        root: [1; 32],
    };
    for origin in ["", "two\nlines", "tab\t", "a\n12\nb"] {
        assert!(Checkpoint::new(origin, head).is_err(), "{origin:?}");
    }
    let injected = format!("log\n3\n{}", lines::encode(&[1; 32]));
    assert!(Checkpoint::new(&injected, head).is_err());
    let size = limits::TREE_SIZE_MAX + 1;
    assert!(Checkpoint::new("log", TreeHead { size, ..head }).is_err());
    assert!(Checkpoint::new("a log with spaces", head).is_ok());
}

proptest! {
    #[test]
    fn u1_a_signature_comes_back(name in "[^\\s+\\p{Cc}]{1,12}", id: [u8; 4], bytes in prop::collection::vec(any::<u8>(), 1..90)) {
        let line = format!("— {name} {}", lines::encode(&[id.as_slice(), &bytes].concat()));
        let read = NoteSignature::parse_lines(format!("{line}\n").as_bytes()).unwrap();
        prop_assert_eq!(read[0].to_string(), line);
        prop_assert_eq!(read[0].name().as_str(), name);
        prop_assert_eq!(read[0].key_id(), u32::from_be_bytes(id));
        prop_assert_eq!(read[0].bytes(), bytes);
    }
}
