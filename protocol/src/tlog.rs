//! A transparency log without its I/O: what is written, what is read, and what that proves (SPEC
//! U1, U3, U4).
//!
//! The tree is that of RFC 6962; everything around it follows the C2SP specifications, named in
//! each file: [tlog-tiles], [signed-note], [tlog-checkpoint], [tlog-cosignature], [tlog-proof] and
//! [tlog-witness]. So a client, witness or verifier that knows those knows this log.
//!
//! Who writes: a [`RightEdge`] takes the hashes of new leaves and gives the tiles that they make;
//! an [`EntryBundle`] holds the leaves themselves; a [`Signer`] signs the [`Checkpoint`]. Who reads
//! asks [`InclusionProof::tiles`] or [`ConsistencyProof::tiles`] what to fetch, puts what came into
//! [`Tiles`], and has the proof read out of them. Nothing that was fetched need be trusted: a proof
//! made of wrong hashes does not verify.
//!
//! [tlog-tiles]: https://c2sp.org/tlog-tiles
//! [signed-note]: https://c2sp.org/signed-note
//! [tlog-checkpoint]: https://c2sp.org/tlog-checkpoint
//! [tlog-cosignature]: https://c2sp.org/tlog-cosignature
//! [tlog-proof]: https://c2sp.org/tlog-proof
//! [tlog-witness]: https://c2sp.org/tlog-witness

mod add_checkpoint;
mod bundle;
mod checkpoint;
mod consistency;
mod cosignature;
mod edge;
mod inclusion;
mod index;
mod key;
mod lines;
mod note;
mod path;
mod policy;
mod proof;
mod subtree;
#[cfg(test)]
mod tests;
mod tile;

pub mod limits;

pub use add_checkpoint::{AddCheckpoint, Uncosigned};
pub use bundle::{EntryBundle, FirstEntries, InvalidBundle};
pub use checkpoint::{Checkpoint, TreeHead};
pub use consistency::ConsistencyProof;
pub use cosignature::{Cosignature, Cosigner, InvalidTimestamp};
pub use edge::{RightEdge, TreeFull};
pub use inclusion::{InclusionProof, InvalidProof};
pub use index::{BundleIndex, InvalidIndex, TILE_WIDTH, TileIndex, new_bundles, new_tiles};
pub use key::{Algorithm, InvalidVerifierKey, KeyName, Signer, VerifierKey};
pub use lines::Malformed;
pub use note::{Note, NoteSignature, Unverified, Verified};
pub use path::{InvalidPath, Resource};
pub use policy::{InvalidPolicy, Policy, TrustedCheckpoint, Untrusted};
pub use proof::{TlogProof, Unproved};
pub use tile::{InvalidTile, Tile, Tiles, Unreadable};
