//! `protocol/vectors/tlog.json`: the log's tiles, proofs, notes and receipts (SPEC U1, U3, U4), put
//! to the code that makes and verifies them. The vectors were made by a program that shares no line
//! with it. What each field means stands at their head.

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::SigningKey;
use ledger_protocol::dsse::PublicKey;
use ledger_protocol::merkle::{Hash, leaf_hash};
use ledger_protocol::tlog::{
    AddCheckpoint, Algorithm, BundleIndex, Checkpoint, ConsistencyProof, Cosigner, EntryBundle,
    InclusionProof, Note, Policy, Resource, RightEdge, Signer, Tile, TileIndex, Tiles, TlogProof,
    TreeHead, VerifierKey, new_tiles,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::vectors::{list, read, signing_key};

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn width(value: &Value) -> u16 {
    number(value).try_into().unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(string(value)).unwrap()
}

fn hash(value: &Value) -> Hash {
    bytes(value).try_into().unwrap()
}

fn hashes(value: &Value) -> Vec<Hash> {
    list(value).iter().map(hash).collect()
}

fn keys(value: &Value) -> Vec<VerifierKey> {
    list(value)
        .iter()
        .map(|key| string(key).parse().unwrap())
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The leaf at an index, in all trees of the vectors.
fn leaf(index: u64) -> Vec<u8> {
    format!("entry {index}").into_bytes()
}

/// All tiles of a tree, and its head.
fn grown(size: u64) -> (Vec<Tile>, TreeHead) {
    let mut edge = RightEdge::new();
    let mut tiles = Vec::new();
    for index in 0..size {
        tiles.extend(edge.push(leaf_hash(&leaf(index))).unwrap());
    }
    tiles.extend(edge.partial_tiles_since(0));
    (tiles, edge.head())
}

/// Trees, each grown once.
#[derive(Default)]
struct Trees(BTreeMap<u64, (Tiles, TreeHead)>);

impl Trees {
    fn of(&mut self, size: u64) -> &(Tiles, TreeHead) {
        self.0.entry(size).or_insert_with(|| {
            let (tiles, head) = grown(size);
            (tiles.into_iter().collect(), head)
        })
    }
}

#[test]
fn u1_the_head_of_the_vectors_says_what_is_in_them() {
    let vectors = read("tlog");
    let said: BTreeSet<_> = vectors["about"].as_object().unwrap().keys().collect();
    for section in vectors.as_object().unwrap().keys() {
        assert!(section == "about" || said.contains(section), "{section}");
    }
}

#[test]
fn u1_paths_are_those_of_the_vectors() {
    let vectors = read("tlog");
    for case in list(&vectors["tilePaths"]) {
        let level = number(&case["level"]).try_into().unwrap();
        let tile = TileIndex::new(level, number(&case["index"]), width(&case["width"])).unwrap();
        assert_eq!(tile.to_string(), string(&case["path"]));
        assert_eq!(string(&case["path"]).parse(), Ok(Resource::Tile(tile)));
    }
    for case in list(&vectors["bundlePaths"]) {
        let bundle = BundleIndex::new(number(&case["index"]), width(&case["width"])).unwrap();
        assert_eq!(bundle.to_string(), string(&case["path"]));
        assert_eq!(string(&case["path"]).parse(), Ok(Resource::Entries(bundle)));
    }
    for path in list(&vectors["refusedPaths"]) {
        assert!(string(path).parse::<Resource>().is_err(), "{path}");
    }
    for case in list(&vectors["newTiles"]) {
        let new = new_tiles(number(&case["from"]), number(&case["to"]));
        let paths: Vec<String> = new.map(|tile| tile.to_string()).collect();
        assert_eq!(
            json!(paths),
            case["paths"],
            "{} to {}",
            case["from"],
            case["to"]
        );
    }
}

#[test]
fn u1_tiles_and_roots_are_those_of_the_vectors() {
    let vectors = read("tlog");
    for case in list(&vectors["tiles"]) {
        let (tiles, _) = grown(number(&case["size"]));
        let made: BTreeMap<String, String> = tiles
            .iter()
            .map(|tile| (tile.index().to_string(), sha256(&tile.encode())))
            .collect();
        for (path, expected) in case["sha256"].as_object().unwrap() {
            assert_eq!(&made[path], string(expected), "{path}");
        }
    }
    for case in list(&vectors["roots"]) {
        let (_, head) = grown(number(&case["size"]));
        assert_eq!(head.root, hash(&case["root"]), "{}", case["size"]);
    }
}

#[test]
fn u1_bundles_are_those_of_the_vectors() {
    let vectors = read("tlog");
    for case in list(&vectors["bundles"]) {
        let entries: Vec<Vec<u8>> = list(&case["entries"]).iter().map(bytes).collect();
        let bundle = EntryBundle::new(entries.iter().map(Vec::as_slice).collect()).unwrap();
        let expected = bytes(&case["bytes"]);
        assert_eq!(bundle.encode(), expected);
        let width = entries.len().try_into().unwrap();
        assert_eq!(EntryBundle::decode(&expected, width), Ok(bundle));
    }
    for case in list(&vectors["refusedBundles"]) {
        let said = EntryBundle::decode(&bytes(&case["bytes"]), width(&case["width"])).is_err();
        assert!(said, "{case}");
    }
    for (path, expected) in vectors["bundleHashes"].as_object().unwrap() {
        let Ok(Resource::Entries(bundle)) = path.parse() else {
            panic!("{path}");
        };
        let first = bundle.first_entry();
        let entries: Vec<_> = (first..first + u64::from(bundle.width()))
            .map(leaf)
            .collect();
        let entries = entries.iter().map(Vec::as_slice).collect();
        let made = EntryBundle::new(entries).unwrap().encode();
        assert_eq!(sha256(&made), string(expected), "{path}");
    }
}

#[test]
fn u1_inclusion_proofs_hold_exactly_when_their_vectors_say_so() {
    let (vectors, mut trees) = (read("tlog"), Trees::default());
    for case in list(&vectors["inclusion"]) {
        let (index, size) = (number(&case["index"]), number(&case["size"]));
        let proof = InclusionProof {
            hashes: hashes(&case["hashes"]),
        };
        let head = TreeHead {
            size,
            root: hash(&case["root"]),
        };
        let holds = proof.verify(&hash(&case["leaf"]), index, &head).is_ok();
        assert_eq!(json!(holds), case["holds"], "{case}");
        if holds {
            let (tiles, made) = trees.of(size);
            assert_eq!(*made, head);
            assert_eq!(InclusionProof::read(index, size, tiles), Ok(proof));
        }
    }
}

#[test]
fn u1_consistency_proofs_hold_exactly_when_their_vectors_say_so() {
    let (vectors, mut trees) = (read("tlog"), Trees::default());
    for case in list(&vectors["consistency"]) {
        let head = |size: &str, root: &str| TreeHead {
            size: number(&case[size]),
            root: hash(&case[root]),
        };
        let (from, to) = (head("from", "fromRoot"), head("to", "toRoot"));
        let proof = ConsistencyProof {
            hashes: hashes(&case["hashes"]),
        };
        let holds = proof.verify(&from, &to).is_ok();
        assert_eq!(json!(holds), case["holds"], "{case}");
        if holds {
            let (tiles, made) = trees.of(to.size);
            assert_eq!(*made, to);
            let read = ConsistencyProof::read(from.size, to.size, tiles);
            assert_eq!(read, Ok(proof));
        }
    }
}

#[test]
fn u1_verifier_keys_are_those_of_the_vectors() {
    let vectors = read("tlog");
    for case in list(&vectors["keys"]) {
        let key = PublicKey::of(&signing_key(&case["seed"]));
        assert_eq!(key.as_bytes().as_slice(), bytes(&case["publicKey"]));
        let algorithm = match number(&case["type"]) {
            1 => Algorithm::Ed25519,
            _ => Algorithm::CosignatureV1,
        };
        let key = VerifierKey::new(string(&case["name"]).parse().unwrap(), algorithm, key);
        assert_eq!(format!("{:08x}", key.id()), string(&case["keyId"]));
        assert_eq!(key.to_string(), string(&case["verifierKey"]));
        assert_eq!(string(&case["verifierKey"]).parse(), Ok(key));
    }
    for text in list(&vectors["refusedKeys"]) {
        assert!(string(text).parse::<VerifierKey>().is_err(), "{text}");
    }
}

#[test]
fn u1_checkpoints_are_those_of_the_vectors() {
    let vectors = read("tlog");
    for case in list(&vectors["checkpoints"]) {
        let read = Checkpoint::parse(string(&case["text"])).unwrap();
        assert_eq!(read.to_string(), string(&case["text"]));
        let head = TreeHead {
            size: number(&case["size"]),
            root: hash(&case["root"]),
        };
        assert_eq!(read.origin(), string(&case["origin"]));
        assert_eq!(*read.head(), head);
        assert_eq!(json!(read.extensions()), case["extensions"]);
        if read.extensions().is_empty() {
            assert_eq!(Checkpoint::new(string(&case["origin"]), head), Ok(read));
        }
    }
    for text in list(&vectors["refusedCheckpoints"]) {
        assert!(Checkpoint::parse(string(text)).is_err(), "{text}");
    }
}

#[test]
fn u1_notes_are_believed_exactly_when_their_vectors_say_so() {
    let vectors = read("tlog");
    for case in list(&vectors["notes"]) {
        let note = Note::parse(string(&case["note"]).as_bytes()).unwrap();
        assert_eq!(note.to_string(), string(&case["note"]));
        let known = keys(&case["keys"]);
        let said = note.verify(&known);
        assert_eq!(json!(said.is_ok()), case["believed"], "{}", case["case"]);
        let by = said.iter().flatten().map(|one| one.key.name().as_str());
        assert_eq!(
            json!(by.collect::<Vec<_>>()),
            case["by"],
            "{}",
            case["case"]
        );
    }
    for text in list(&vectors["refusedNotes"]) {
        assert!(Note::parse(string(text).as_bytes()).is_err(), "{text}");
    }
    // What the log itself signs is what the vectors have.
    let (log, first) = (&vectors["keys"][0], &vectors["notes"][0]);
    let signer = Signer::new(string(&log["name"]).parse().unwrap(), key(log));
    let expected = Note::parse(string(&first["note"]).as_bytes()).unwrap();
    let signature = signer.sign(expected.text()).unwrap();
    assert_eq!(expected.signatures(), [signature]);
}

fn key(of: &Value) -> SigningKey {
    signing_key(&of["seed"])
}

#[test]
fn u4_cosignatures_are_those_of_the_vectors() {
    for case in list(&read("tlog")["cosignatures"]) {
        let witness = Cosigner::new(string(&case["name"]).parse().unwrap(), key(case));
        let checkpoint = Checkpoint::parse(string(&case["checkpoint"])).unwrap();
        let seconds = number(&case["timestampSeconds"]);
        let message = ledger_protocol::tlog::Cosignature::message(seconds, &checkpoint);
        assert_eq!(message, string(&case["message"]).as_bytes());
        let line = witness.cosign(&checkpoint, seconds).unwrap();
        assert_eq!(line.to_string(), string(&case["line"]));
        let note = Note::new(checkpoint.to_string(), vec![line]).unwrap();
        let known = [witness.verifier_key()];
        let verified = note.verify(&known).unwrap();
        assert_eq!(verified[0].cosigned_at_seconds, Some(seconds));
    }
}

#[test]
fn u3_a_receipt_is_believed_exactly_when_its_vector_says_so() {
    let vectors = read("tlog");
    for case in list(&vectors["proofs"]) {
        let text = string(&case["proof"]);
        let proof = TlogProof::parse(text.as_bytes()).unwrap();
        assert_eq!(proof.to_string(), text);
        let (log, witnesses) = (keys(&case["log"]), keys(&case["witnesses"]));
        let quorum = number(&case["quorum"]).try_into().unwrap();
        let policy = Policy::new(string(&case["origin"]), log, witnesses, quorum).unwrap();
        let said = proof.verify(&leaf_hash(&bytes(&case["leaf"])), &policy);
        assert_eq!(
            json!(said.is_ok()),
            case["holds"],
            "{}: {said:?}",
            case["case"]
        );
    }
    for text in list(&vectors["refusedProofs"]) {
        assert!(TlogProof::parse(string(text).as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn u4_what_a_witness_is_sent_is_that_of_the_vectors() {
    let vectors = read("tlog");
    for case in list(&vectors["addCheckpoints"]) {
        let sent = AddCheckpoint {
            old_size: number(&case["oldSize"]),
            consistency: ConsistencyProof {
                hashes: hashes(&case["hashes"]),
            },
            checkpoint: Note::parse(string(&case["checkpoint"]).as_bytes()).unwrap(),
        };
        let body = string(&case["body"]);
        assert_eq!(sent.to_string(), body);
        assert_eq!(AddCheckpoint::parse(body.as_bytes()), Ok(sent));
    }
    for text in list(&vectors["refusedAddCheckpoints"]) {
        assert!(
            AddCheckpoint::parse(string(text).as_bytes()).is_err(),
            "{text}"
        );
    }
}
