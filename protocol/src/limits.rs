//! Every limit that both sides know, with its unit in its name.

use crate::kind::Lane;

/// Largest leaf of the log, in bytes: an entry bundle of C2SP tlog-tiles has 16-bit lengths.
pub const EVENT_BYTES_MAX: usize = 65_535;
/// Largest payload of a command, as canonical bytes (SPEC K1).
pub const PAYLOAD_BYTES_MAX: usize = 48 * 1024;
/// Largest result that is kept inline, as canonical bytes (SPEC D13).
pub const RESULT_BYTES_MAX: usize = 48 * 1024;
/// Largest `details` of a settled command, as canonical bytes.
pub const DETAILS_BYTES_MAX: usize = 4 * 1024;
/// Longest reason, in bytes.
pub const REASON_BYTES_MAX: usize = 200;
/// Largest frame of a session, in bytes (SPEC D13).
pub const FRAME_BYTES_MAX: usize = 256 * 1024;
/// Largest desired state that fits one event and one frame, in bytes.
pub const SPEC_BYTES_MAX: usize = 48 * 1024;
/// Deepest nesting of maps and arrays in any MessagePack or JSON that is read.
pub const DEPTH_MAX: usize = 32;
/// Largest `seq`, generation and other count that a node may name: what every JSON reader keeps
/// exactly (RFC 8259, section 6).
pub const COUNT_MAX: u64 = (1 << 53) - 1;
/// How far a journal may lift a node's `seq` above the ledger's at one reconnect. A restore loses
/// far less (SPEC L11); a node that asks for more is broken, or lies.
pub const SEQ_LIFT_MAX: u64 = 1_000_000;
/// Most updates in one `CommandUpdate` frame.
pub const UPDATES_PER_FRAME_MAX: usize = 64;
/// Most journal entries that one `Hello` may name; a journal holds fewer by its own bound.
pub const HELLO_ENTRIES_MAX: usize = 2_048;
/// Longest idempotency key of an API caller, in characters (SPEC A1).
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 200;
/// Longest key in the ledger, in bytes.
pub const LEDGER_KEY_BYTES_MAX: usize = 255;
/// Longest name of a node or identity, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Most labels of a node.
pub const LABELS_MAX: usize = 64;
/// Shortest time an API command may wait for its node, in seconds (SPEC A1).
pub const NOT_AFTER_SECONDS_MIN: u32 = 10;
/// Longest time an API command may wait for its node, in seconds (SPEC A1).
pub const NOT_AFTER_SECONDS_MAX: u32 = 3_600;
/// Time an API command may wait for its node when the caller names none, in seconds (SPEC A1).
pub const NOT_AFTER_SECONDS_DEFAULT: u32 = 600;
/// Longest time a module's command may wait for its node, in seconds (SPEC T3).
pub const MODULE_NOT_AFTER_SECONDS_MAX: u32 = 12 * 3_600;
/// Timeout of a command whose kind is no longer registered, in seconds (SPEC K2).
pub const UNREGISTERED_TIMEOUT_SECONDS: u32 = 15 * 60;
/// Most pending commands of one node and lane, unless set otherwise (SPEC K4).
pub const PENDING_PER_LANE_MAX: u32 = 1_000;
/// Shortest backoff after `BUSY`, in seconds (SPEC D4).
pub const BUSY_BACKOFF_SECONDS_MIN: u32 = 1;
/// Longest backoff after `BUSY`, in seconds (SPEC D4).
pub const BUSY_BACKOFF_SECONDS_MAX: u32 = 30;
/// Most leaves of a batch's scope (SPEC P3).
pub const SCOPE_LEAVES_MAX: usize = 10_000;
/// Most people who may approve batches; with longer names they still fit one event.
pub const APPROVERS_MAX: usize = 64;
/// Most roots of a trust bundle: more than one only while they change.
pub const ROOTS_MAX: usize = 8;
/// Largest signed trust bundle, in bytes.
pub const TRUST_BUNDLE_BYTES_MAX: usize = 32 * 1024;
/// Most trust bundles in one frame; a node that is further behind is sent several frames.
pub const TRUST_BUNDLES_PER_FRAME_MAX: usize = 4;
/// Longest reason of a batch, in characters.
pub const BATCH_REASON_CHARS_MAX: usize = 1_000;
/// Shortest time in which a batch may be approved, in seconds.
pub const BATCH_EXPIRES_SECONDS_MIN: u32 = 60;
/// Longest time in which a batch may be approved, in seconds.
pub const BATCH_EXPIRES_SECONDS_MAX: u32 = 7 * 86_400;
/// Time in which a batch may be approved when the caller names none, in seconds.
pub const BATCH_EXPIRES_SECONDS_DEFAULT: u32 = 86_400;
/// Largest value of a secret, in bytes (SPEC P6).
pub const SECRET_BYTES_MAX: usize = 16 * 1024;
/// Longest name of a secret, in bytes.
pub const SECRET_NAME_BYTES_MAX: usize = 200;
/// Time between two sweeps, in seconds (SPEC T2).
pub const SWEEP_SECONDS: u32 = 5;

/// Commands of one lane that may be in flight in one session (SPEC K3).
pub const fn lane_credits(lane: Lane) -> u32 {
    match lane {
        Lane::Control => 8,
        Lane::Provision => 4,
        Lane::Bulk => 2,
    }
}
