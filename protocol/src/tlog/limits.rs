//! Bounds of the log's forms, with their units.

/// Most leaves of a tree: sizes are signed 64-bit numbers to most readers, and C2SP tlog-witness
/// allows a consistency proof no more hashes than such a size needs.
pub const TREE_SIZE_MAX: u64 = (1 << 63) - 1;
/// Most hashes of a proof (C2SP tlog-witness).
pub const PROOF_HASHES_MAX: usize = 63;
/// Largest entry, in bytes: its length has 16 bits (C2SP tlog-tiles).
pub const ENTRY_BYTES_MAX: usize = crate::limits::EVENT_BYTES_MAX;
/// Largest signed note that is read, in bytes. Signatures of quantum-safe keys that this reader
/// ignores take nearly 7,000 bytes each.
pub const NOTE_BYTES_MAX: usize = 512 * 1024;
/// Most signatures of a note that is read; C2SP signed-note asks for 16 or more.
pub const NOTE_SIGNATURES_MAX: usize = 64;
/// Most bytes of a tlog-proof's extra data.
pub const PROOF_EXTRA_BYTES_MAX: usize = 1024 * 1024;
/// Largest tlog-proof or `add-checkpoint` body that is read, in bytes: the largest note, the
/// longest proof and the largest extra data in base64, with their words.
pub const PROOF_BYTES_MAX: usize = NOTE_BYTES_MAX + PROOF_EXTRA_BYTES_MAX / 3 * 4 + 4 * 1024;
/// Latest time of a cosignature, in seconds since the epoch (C2SP tlog-cosignature).
pub const COSIGNATURE_SECONDS_MAX: u64 = (1 << 63) - 1;
