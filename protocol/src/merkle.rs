//! Merkle trees over SHA-256 as RFC 6962, section 2.1, and RFC 9162, section 2.1, define them.

use sha2::{Digest, Sha256};

/// A hash of the tree.
pub type Hash = [u8; HASH_BYTES];

/// Size of a hash, in bytes.
pub const HASH_BYTES: usize = 32;

/// The hash of a leaf. Its first byte is another than a node's, so that neither can be shown as
/// the other.
pub fn leaf_hash(leaf: &[u8]) -> Hash {
    let mut hash = Sha256::new();
    hash.update([0]);
    hash.update(leaf);
    hash.finalize().into()
}

/// The hash of two subtrees.
pub(crate) fn node_hash(left: &Hash, right: &Hash) -> Hash {
    let mut hash = Sha256::new();
    hash.update([1]);
    hash.update(left);
    hash.update(right);
    hash.finalize().into()
}

/// A tree with the hashes of all its whole subtrees.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The leaves, then what pairs of them make, up to the root. Where a level has an odd end, the
    /// end goes up as it is; that makes the same tree as splitting at the largest power of two.
    levels: Vec<Vec<Hash>>,
}

impl Tree {
    /// The tree over the hashes of its leaves.
    pub fn new(leaves: Vec<Hash>) -> Self {
        let mut levels = vec![leaves];
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            let pairs = below.chunks(2).map(|pair| match pair {
                [left, right] => node_hash(left, right),
                // `chunks` gives one or two.
                alone => alone.first().copied().unwrap_or_default(),
            });
            levels.push(pairs.collect());
        }
        Self { levels }
    }

    /// The root; that of no leaves is the hash of nothing.
    pub fn root(&self) -> Hash {
        let top = self.levels.last().and_then(|level| level.first());
        top.copied().unwrap_or_else(|| Sha256::digest([]).into())
    }

    /// The hashes that, with the leaf at `index`, make the root: from the leaf's sibling upwards.
    /// None when there is no such leaf.
    pub fn path(&self, index: usize) -> Option<Vec<Hash>> {
        self.levels.first()?.get(index)?;
        let mut at = index;
        let mut path = Vec::new();
        for level in &self.levels {
            path.extend(level.get(at ^ 1));
            at /= 2;
        }
        Some(path)
    }
}

/// The root that a leaf's hash and its path make in a tree of `size` leaves (RFC 9162, section
/// 2.1.3.2). None when there is no leaf at `index`, or the path has another length than it must.
pub fn root_of_path(leaf: Hash, index: u64, size: u64, path: &[Hash]) -> Option<Hash> {
    if index >= size {
        return None;
    }
    let (mut at, mut last) = (index, size - 1);
    let mut hash = leaf;
    for sibling in path {
        if last == 0 {
            return None;
        }
        if at & 1 == 1 || at == last {
            hash = node_hash(sibling, &hash);
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    (last == 0).then_some(hash)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition in RFC 6962, section 2.1, word for word.
    fn by_definition(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => Sha256::digest([]).into(),
            [leaf] => *leaf,
            leaves => {
                let split = leaves.len().next_power_of_two() / 2;
                let (left, right) = leaves.split_at(split);
                node_hash(&by_definition(left), &by_definition(right))
            }
        }
    }

    fn leaves(count: usize) -> Vec<Hash> {
        (0..count)
            .map(|number| leaf_hash(&number.to_be_bytes()))
            .collect()
    }

    #[test]
    fn p3_the_tree_has_the_roots_that_certificate_transparency_publishes() {
        // From the test vectors of RFC 6962's reference code (`merkle_tree_test.cc`).
        let inputs: [&[u8]; 8] = [
            &[],
            &[0x00],
            &[0x10],
            &[0x20, 0x21],
            &[0x30, 0x31],
            &[0x40, 0x41, 0x42, 0x43],
            &[0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57],
            &[
                0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d,
                0x6e, 0x6f,
            ],
        ];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let hashes: Vec<Hash> = inputs.iter().map(|input| leaf_hash(input)).collect();
        for (count, root) in (1..).zip(roots) {
            let tree = Tree::new(hashes[..count].to_vec());
            assert_eq!(hex::encode(tree.root()), root, "{count} leaves");
        }
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex::encode(Tree::new(Vec::new()).root()), empty);
    }

    #[test]
    fn p3_every_leaf_of_every_tree_is_proved_and_no_other() {
        for size in 1..=1_025 {
            let leaves = leaves(size);
            let tree = Tree::new(leaves.clone());
            let root = tree.root();
            assert_eq!(root, by_definition(&leaves), "{size} leaves");
            // The ends and the middle of large trees; small ones whole.
            let step = (size / 16).max(1);
            for index in (0..size).step_by(step).chain([size - 1]) {
                let path = tree.path(index).unwrap();
                let (at, of) = (index as u64, size as u64);
                assert_eq!(root_of_path(leaves[index], at, of, &path), Some(root));
                let beside = leaf_hash(b"another");
                assert_ne!(root_of_path(beside, at, of, &path), Some(root));
            }
            assert_eq!(tree.path(size), None);
        }
    }

    #[test]
    fn p3_a_node_is_no_leaf() {
        let two = leaves(2);
        let root = Tree::new(two.clone()).root();
        let inner = [two[0].as_slice(), two[1].as_slice()].concat();
        assert_ne!(leaf_hash(&inner), root);
    }

    proptest! {
        #[test]
        fn p3_a_path_with_one_bit_or_one_hash_changed_proves_nothing(
            size in 1usize..1_025,
            index in any::<prop::sample::Index>(),
            bit in any::<prop::sample::Index>(),
        ) {
            let leaves = leaves(size);
            let tree = Tree::new(leaves.clone());
            let index = index.index(size);
            let path = tree.path(index).unwrap();
            let (at, of) = (index as u64, size as u64);
            let root = Some(tree.root());
            if !path.is_empty() {
                let bit = bit.index(path.len() * HASH_BYTES * 8);
                let mut changed = path.clone();
                changed[bit / (HASH_BYTES * 8)][bit / 8 % HASH_BYTES] ^= 1 << (bit % 8);
                prop_assert_ne!(root_of_path(leaves[index], at, of, &changed), root);
                prop_assert_eq!(root_of_path(leaves[index], at, of, &path[1..]), None);
            }
            let mut longer = path.clone();
            longer.push(leaves[0]);
            prop_assert_eq!(root_of_path(leaves[index], at, of, &longer), None);
            prop_assert_eq!(root_of_path(leaves[index], of, of, &path), None);
        }
    }
}
