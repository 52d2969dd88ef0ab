//! Bounds of the daemon, with their units.

/// Longest wait for `Welcome` after `Hello`, in seconds.
pub const WELCOME_SECONDS_MAX: u32 = 30;
/// Shortest time between two pings that a gateway may ask for, in seconds.
pub const PING_SECONDS_MIN: u32 = 1;
/// Longest time between two pings that a gateway may ask for, in seconds.
pub const PING_SECONDS_MAX: u32 = 300;
/// Silence that ends a session, in ping intervals.
pub const SILENT_PINGS_MAX: u32 = 3;
/// An update that the gateway has not answered for so long is sent again, in seconds.
pub const RESEND_SECONDS: u32 = 5;
/// Time between two attempts to write a journal that cannot be written, in seconds.
pub const JOURNAL_RETRY_SECONDS: u32 = 1;
/// Most commands that wait, for a newer desired state or for a trust bundle.
pub const WAITING_MAX: usize = 64;
/// How long a command under an unknown root waits for a trust bundle, in seconds.
pub const TRUST_WAIT_SECONDS: u32 = 10;
/// Shortest time between two requests for trust bundles, in seconds.
pub const TRUST_ASK_SECONDS: u32 = 60;
/// A question for a secret that was not answered for so long is asked again, in seconds.
pub const SECRET_RETRY_SECONDS: u32 = 2;
/// Most questions for secrets that are open at once.
pub const SECRETS_WANTED_MAX: usize = 64;
/// Most destructive commands an hour that a node takes without a batch, whatever its bundle says.
pub const UNBATCHED_PER_HOUR_MAX: usize = 1_024;
/// Most bytes that the updates of one frame may take together, so that any frame stays below
/// [`crate::limits::FRAME_BYTES_MAX`].
pub const UPDATES_BYTES_MAX: usize = 192 * 1024;
/// Most bytes of ends that the ledger has not confirmed; above, the daemon is busy.
pub const UNCONFIRMED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Confirmed ends that make the journal be rewritten.
pub const CONFIRMED_MAX: usize = 1_024;
/// Bytes of confirmed commands that make the journal be rewritten.
pub const CONFIRMED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Confirmed ends that a rewrite keeps whole, the newest ones.
pub const CONFIRMED_KEPT_MAX: usize = 256;
/// Bytes of confirmed ends that a rewrite keeps whole, the newest ones.
pub const CONFIRMED_KEPT_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Ends that the ledger refused and that are kept whole for people to look at, the newest ones.
pub const REFUSED_KEPT_MAX: usize = 64;
/// Ends of which only the outcome is kept, once their commands could not be accepted any more.
pub const FORGOTTEN_EXPIRED_MAX: usize = 4_096;
/// Ends of which only the outcome is kept, at most.
pub const FORGOTTEN_MAX: usize = 65_536;
/// Longest explanation of a refusal, in characters.
pub const WHY_CHARS_MAX: usize = 400;
/// Bytes of the beginning, and of the end, that are kept of a result that is too long (SPEC D13).
pub const RESULT_PART_BYTES: usize = 24_000;
/// Bytes of the beginning, and of the end, that are kept of details that are too long.
pub const DETAILS_PART_BYTES: usize = 1_900;
/// Shortest bound of a wait between two attempts to connect, in milliseconds (SPEC D14).
pub const RECONNECT_MILLIS_MIN: u64 = 200;
/// Longest wait between two attempts to connect, in milliseconds (SPEC D14).
pub const RECONNECT_MILLIS_MAX: u64 = 30_000;
