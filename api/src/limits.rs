//! Every limit of the API that callers can meet, with its unit in its name.

use std::time::Duration;

/// Largest body of a request, in bytes (SPEC section 4).
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest time in which the whole body of a request must have arrived.
pub const BODY_READ_MAX: Duration = Duration::from_secs(10);
/// Longest time in which the head of a request must have arrived; also how long a connection may
/// be idle between two requests.
pub const HEAD_READ_MAX: Duration = Duration::from_secs(30);
/// Largest head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Read and write buffer of one connection, in bytes.
pub const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// Longest time for which a client may take no byte of a response that waits for it.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(20);
/// How long a closing connection still reads what the client sends, so that the response is not
/// lost to a reset.
pub const LINGER_MAX: Duration = Duration::from_secs(1);
/// Most connections at one time; further ones wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Pause after the operating system refused to hand out a connection.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long requests in progress may take once the server is shutting down.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Most requests at one time whose bodies are read or that are worked on.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 1_024;
/// Longest time that one request may be worked on before its caller is told UNAVAILABLE.
pub const METHOD_MAX: Duration = Duration::from_secs(30);
/// Longest time that the readiness check waits for the database.
pub const READY_MAX: Duration = Duration::from_secs(2);
/// Most items on one page.
pub const PAGE_ITEMS_MAX: u32 = 200;
/// Items on a page when the caller names no limit.
pub const PAGE_ITEMS_DEFAULT: u32 = 100;
/// Most verified tokens that are remembered.
pub const TOKENS_CACHED_MAX: usize = 10_000;
/// Age after which one request asks the database again about a remembered token.
pub const TOKEN_REFRESH_AFTER: Duration = Duration::from_secs(1);
/// Age after which a remembered token is trusted no longer: with the database away, a revocation
/// takes effect at the latest then.
pub const TOKEN_TRUSTED_MAX: Duration = Duration::from_secs(5);
/// Most look-ups of unknown tokens at one time, so that guessing does not take every connection.
pub const TOKEN_LOOKUPS_MAX: usize = 4;
/// Longest time that a request waits for its token to be looked up.
pub const TOKEN_LOOKUP_WAIT_MAX: Duration = Duration::from_secs(5);
/// Most grants of one token.
pub const GRANTS_MAX: usize = 100;
/// Most kinds of one grant.
pub const GRANT_KINDS_MAX: usize = 100;
/// Kinds that a join token may restrict a node to.
pub const JOIN_KINDS_MAX: usize = 100;
/// Kinds that a secret may be restricted to.
pub const SECRET_KINDS_MAX: usize = 100;
/// Nodes that a secret may be restricted to.
pub const SECRET_NODES_MAX: usize = 1_000;
/// Longest name of a kind, in bytes.
pub const KIND_BYTES_MAX: usize = 100;
/// Longest life of an API token that is asked to expire, in seconds (ten years).
pub const TOKEN_EXPIRES_SECONDS_MAX: u32 = 10 * 366 * 24 * 3_600;
/// Shortest life of a join token, in seconds.
pub const JOIN_EXPIRES_SECONDS_MIN: u32 = 60;
/// Longest life of a join token, in seconds (a week).
pub const JOIN_EXPIRES_SECONDS_MAX: u32 = 7 * 24 * 3_600;
/// Life of a join token when the caller names none, in seconds.
pub const JOIN_EXPIRES_SECONDS_DEFAULT: u32 = 3_600;
/// Largest whole number that every JSON reader keeps exactly (2^53 - 1).
pub const JSON_INTEGER_MAX: u64 = 9_007_199_254_740_991;
/// Characters of a caller's own text that an error message repeats at most.
pub const QUOTED_CHARS_MAX: usize = 60;
