//! What others published: the trees of RFC 6962's reference code (`merkle_tree_test.cc` of
//! certificate-transparency), and the examples of the C2SP specifications.

use super::super::*;
use super::{by_definition, collected};
use crate::merkle::{Hash, leaf_hash};

const LEAVES: [&str; 8] = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
];

const ROOTS: [&str; 8] = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
];

/// Index, size and path. The reference code counts leaves from 1.
const PATHS: [(u64, u64, &[&str]); 5] = [
    (0, 1, &[]),
    (
        0,
        8,
        &[
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        5,
        8,
        &[
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (
        2,
        3,
        &["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    ),
    (
        1,
        5,
        &[
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
];

/// Smaller size, larger size and proof.
const PROOFS: [(u64, u64, &[&str]); 4] = [
    (1, 1, &[]),
    (
        1,
        8,
        &[
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        6,
        8,
        &[
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (
        2,
        5,
        &[
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
];

fn hash(text: &str) -> Hash {
    hex::decode(text).unwrap().try_into().unwrap()
}

fn tree(size: u64) -> TreeHead {
    let index = usize::try_from(size - 1).unwrap();
    TreeHead {
        size,
        root: hash(ROOTS[index]),
    }
}

#[test]
fn u1_the_published_tree_has_its_roots_paths_and_proofs() {
    let leaves = LEAVES.map(|leaf| leaf_hash(&hex::decode(leaf).unwrap()));
    let mut edge = RightEdge::new();
    for (size, leaf) in (1..).zip(leaves) {
        edge.push(leaf).unwrap();
        assert_eq!(edge.head(), tree(size));
    }
    // The tiles of the largest tree serve for every smaller one.
    let tiles = collected(by_definition(&leaves));
    let hashes = |of: &[&str]| of.iter().copied().map(hash).collect::<Vec<_>>();
    for (index, size, path) in PATHS {
        let proof = InclusionProof::read(index, size, &tiles).unwrap();
        assert_eq!(proof.hashes, hashes(path), "{index} of {size}");
        let leaf = &leaves[usize::try_from(index).unwrap()];
        assert_eq!(proof.verify(leaf, index, &tree(size)), Ok(()));
    }
    for (from, to, path) in PROOFS {
        let proof = ConsistencyProof::read(from, to, &tiles).unwrap();
        assert_eq!(proof.hashes, hashes(path), "{from} to {to}");
        assert_eq!(proof.verify(&tree(from), &tree(to)), Ok(()));
    }
}

/// The example of signed-note, "Verifier keys".
#[test]
fn u1_the_example_of_signed_note_is_verified() {
    let vkey = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
    let note = "This is an example message.\n\n— example.com/foo \
        Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n";
    let key: VerifierKey = vkey.parse().unwrap();
    assert_eq!(
        (key.id(), key.name().as_str()),
        (0x530d_903a, "example.com/foo")
    );
    assert_eq!(key.to_string(), vkey);
    let read = Note::parse(note.as_bytes()).unwrap();
    assert_eq!(read.to_string(), note);
    assert_eq!(read.text(), "This is an example message.\n");
    let keys = [key];
    let verified = read.verify(&keys).unwrap();
    assert_eq!(verified.len(), 1);
    assert_eq!(verified[0].cosigned_at_seconds, None);
}

/// The example of tlog-cosignature; its keys are not published.
#[test]
fn u4_the_example_of_a_cosigned_checkpoint_is_read() {
    let note = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n\
        — example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n\
        — witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n";
    let note = Note::parse(note.as_bytes()).unwrap();
    let checkpoint = Checkpoint::parse(note.text()).unwrap();
    assert_eq!(checkpoint.origin(), "example.com/behind-the-sofa");
    assert_eq!(checkpoint.head().size, 20_852_163);
    let cosignature = Cosignature::decode(note.signatures()[1].bytes()).unwrap();
    assert_eq!(cosignature.timestamp_seconds, 1_679_315_147);
    let message = Cosignature::message(cosignature.timestamp_seconds, &checkpoint);
    let expected = "cosignature/v1\ntime 1679315147\nexample.com/behind-the-sofa\n20852163\n\
        CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n";
    assert_eq!(String::from_utf8(message).unwrap(), expected);
    assert!(Cosignature::decode(note.signatures()[0].bytes()).is_none());
}

/// The example of tlog-witness.
#[test]
fn u4_the_example_of_what_a_witness_is_sent_is_read() {
    let body = "old 20852014\n\
        PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=\n\
        jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=\n\
        5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=\n\
        /6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=\n\
        \n\
        example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\
        \n\
        — example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n\
        — example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=\n";
    let read = AddCheckpoint::parse(body.as_bytes()).unwrap();
    assert_eq!(
        (read.old_size, read.consistency.hashes.len()),
        (20_852_014, 4)
    );
    assert_eq!(read.checkpoint.signatures().len(), 2);
    assert_eq!(read.to_string(), body);
    let answer = "— witness.example/w1 CMp+6LWBU0anHGH5aNDTJkH/gj79sG+T6+iP2ThYN5krrDJbR1HDnucjL39QsZTSvVjyQLrdk3DXDqI5G2HgLatVs0pWh6Up69HVOw==\n\
        — witness.example/w2 AWui8Sk55XjYLOijihBjhqEH6nS1ndDymE0a+6idX7pLcnoB+dhnz0854aLZgrrKbYKA7nC3HNJhm/kWl7oJlqU3rXXvpysAdyP3wQ==\n";
    let signatures = NoteSignature::parse_lines(answer.as_bytes()).unwrap();
    let cosigned = read.checkpoint.with(signatures).unwrap();
    assert_eq!(cosigned.signatures().len(), 4);
    assert!(cosigned.to_string().ends_with(answer));
}
