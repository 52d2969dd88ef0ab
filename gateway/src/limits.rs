//! Every limit of the gateway that is no setting, with its unit in its name.

use std::time::Duration;

/// Largest body of a join request, in bytes.
pub const JOIN_BODY_BYTES_MAX: usize = 64 * 1024;
/// Largest head of an HTTP request, in bytes.
pub const HTTP_HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest TLS handshake.
pub const TLS_HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for the head of a request.
pub const HTTP_HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for the body of a request.
pub const HTTP_BODY_WITHIN: Duration = Duration::from_secs(10);
/// Longest life of a connection that does not become a session.
pub const HTTP_CONNECTION_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for the ledger while a certificate is issued.
pub const JOIN_WITHIN: Duration = Duration::from_secs(15);
/// Certificates issued at the same time. Each holds a database connection of the pool while the
/// ledger appends through another one.
pub const JOINS_MAX: usize = 1;
/// Certificates renewed at the same time; more wait for their turn. Those of a fleet share commits.
pub const RENEWALS_MAX: usize = 32;
/// Longest wait for `Hello` once the WebSocket is open.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait for a daemon to take in what was written to it.
pub const WRITE_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for the other side once a session has ended.
pub const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Longest wait for the ledger to record that a session has ended.
pub const RECORD_CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// How long the ledger takes this process for alive after its last sign of life.
pub const LEASE: Duration = Duration::from_secs(10);
/// Renewals in the time of one lease.
pub const LEASE_RENEWALS: u32 = 4;
/// Pause after the lease could not be renewed.
pub const LEASE_RETRY: Duration = Duration::from_secs(1);
/// Longest wait for the ledger to renew the lease.
pub const LEASE_WITHIN: Duration = Duration::from_secs(3);
/// Largest message that is still read, and refused by name, in bytes (SPEC D13).
pub const MESSAGE_BYTES_MAX: usize = 4 * ledger_protocol::limits::FRAME_BYTES_MAX;
/// Bytes that are read and thrown away after a session has ended, so that the close frame is not
/// lost to a reset.
pub const DRAIN_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;
/// Trust bundles that a process keeps at hand, and that one read brings.
pub const TRUST_BUNDLES_KEPT_MAX: u32 = 256;
/// Time between two looks for new trust bundles.
pub const TRUST_LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for the ledger while it is asked about trust bundles.
pub const TRUST_WITHIN: Duration = Duration::from_secs(5);
/// Read buffer of one session, in bytes; a larger message grows it.
pub const READ_BUFFER_BYTES: usize = 8 * 1024;
/// Frames that wait for one daemon; a daemon with more is let go.
pub const OUTBOUND_FRAMES_MAX: usize = 256;
/// Frames that are written with one flush.
pub const FRAMES_PER_WRITE_MAX: usize = 64;
/// Frames of one session that the ledger works on at once; above that the session is not read.
pub const WORKS_PER_SESSION_MAX: usize = 4;
/// Questions for secrets of one session that wait for an answer at once, beside the frames above: as
/// many as commands can be in flight. Any more are passed over, and the daemon asks again.
pub const EXCHANGES_PER_SESSION_MAX: usize = 14;
/// Time between two lines of the log about what one session's daemon sends.
pub const COMPLAIN_EVERY: Duration = Duration::from_secs(10);
/// Nodes of one read of due commands.
pub const NODES_PER_LOOK_MAX: usize = 500;
/// Reads of due commands of woken nodes at the same time; each takes one database connection for its
/// time.
pub const LOOKS_MAX: usize = 2;
/// The same of nodes that nothing woke. A fleet has many of them, and woken ones do not wait.
pub const REPAIR_LOOKS_MAX: usize = 1;
/// Commands that are being dispatched at the same time: a part of what the ledger's queue holds,
/// so that a restart with a full fleet leaves room for everybody else.
pub const DISPATCHES_MAX: usize = 1_024;
/// Time between two looks at every session, whether or not something woke it (SPEC D3).
pub const REPAIR_EVERY: Duration = Duration::from_secs(1);
/// Nodes of one comparison of sessions with the ledger.
pub const NODES_PER_CHECK_MAX: usize = 64;
/// Messages from sessions that wait for the dispatcher.
pub const DISPATCHER_QUEUE_MAX: usize = 1024;
/// Pause after the listener could not accept a connection.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Validity of the certificate authority, in seconds (ten years).
pub const AUTHORITY_SECONDS: u32 = 10 * 365 * 24 * 3_600;
/// Validity of the gateway's own certificate, in seconds. It is made anew at every start.
pub const SERVER_CERTIFICATE_SECONDS: u32 = 397 * 24 * 3_600;
/// How far certificates are dated back, in seconds, for nodes whose clock is behind.
pub const BACKDATED_SECONDS: u32 = 5 * 60;
