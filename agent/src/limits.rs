//! Every bound of this crate, with its unit.

/// How long one program (`nvidia-smi`, `ipmitool`, `dmesg`, …) may take to answer. `nvidia-smi` without its persistence
/// daemon wakes every GPU first, which takes tens of seconds on a machine with eight.
pub const PROGRAM_ANSWER_SECONDS_MAX: u64 = 60;
/// How long a killed program may take to go away before it is left to the runtime's reaper. A program stuck inside a
/// driver cannot be killed, and must not hold the command with it.
pub const PROGRAM_REAP_SECONDS_MAX: u64 = 5;
/// What a program that is asked a question may answer.
pub const PROGRAM_OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// What is kept of a program's standard error.
pub const PROGRAM_STDERR_BYTES_MAX: usize = 8 * 1024;
/// The longest line that is read from a program; a longer one is dropped whole and counted.
pub const PROGRAM_LINE_BYTES_MAX: usize = 1024 * 1024;
/// How much of what a program said may stand in a `why`.
pub const SAID_CHARS_MAX: usize = 240;

/// The largest file of `/proc` or `/sys` that is read; `/proc/cpuinfo` of 512 threads is below 1 MiB.
pub const DOCUMENT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The longest single value taken from `/sys`, `/proc` or a program.
pub const VALUE_CHARS_MAX: usize = 128;

/// How long the collection of one section of the inventory may take.
pub const SECTION_SECONDS_MAX: u64 = 20;
/// How many entries of one list of the inventory are collected at all.
pub const INVENTORY_LIST_ITEMS_MAX: usize = 1024;
/// The addresses that are reported for one network interface.
pub const NIC_ADDRESSES_MAX: usize = 8;
/// The size that an executor's result is cut down to. The wire takes 48 KiB (D13); this leaves room around it.
pub const RESULT_BYTES_MAX: usize = 40 * 1024;
/// The largest kept inventory that is read back.
pub const INVENTORY_FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How much of the kernel's log is searched for GPU errors.
pub const KERNEL_LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How many matching lines of the kernel's log are kept.
pub const KERNEL_LOG_LINES_MAX: usize = 1000;

/// `logs.collect`: the content of one bundle, before compression (section 8).
pub const BUNDLE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// `logs.collect`: the kernel's log inside a bundle.
pub const BUNDLE_KERNEL_LOG_BYTES_MAX: usize = 8 * 1024 * 1024;
/// `logs.collect`: the entries of one unit; their places are held in memory, eight bytes each.
pub const BUNDLE_ENTRIES_MAX: usize = 1_000_000;
/// `logs.collect`: all bundles that stay on the node together. The oldest go first.
pub const BUNDLES_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// `logs.collect`: how many bundles stay on the node. The oldest go first.
pub const BUNDLES_FILES_MAX: usize = 64;
/// `logs.collect`: what is left free on the state directory's disk whatever is asked for.
pub const BUNDLES_DISK_RESERVE_BYTES: u64 = 512 * 1024 * 1024;
/// `logs.collect`: how long the reading of the journal may take; what was read by then is bundled.
pub const LOGS_READ_SECONDS_MAX: u64 = 300;
/// `logs.collect`: `sinceSeconds` when the payload names none.
pub const LOGS_SINCE_SECONDS_DEFAULT: u64 = 3600;
/// `logs.collect`: the units that one command may name.
pub const LOGS_UNITS_MAX: usize = 16;
/// systemd's own bound for a unit's name.
pub const UNIT_NAME_BYTES_MAX: usize = 255;
/// The longest command id that may become the name of a file.
pub const COMMAND_ID_BYTES_MAX: usize = 128;

/// `site.httpProxy`, `bmc.power`: how long a connection may take: name, TCP and TLS together.
pub const SITE_CONNECT_SECONDS_MAX: u64 = 10;
/// `site.httpProxy`, `bmc.power`: the head of an answer.
pub const SITE_HEAD_BYTES_MAX: usize = 64 * 1024;
/// `site.httpProxy`, `bmc.power`: what is read of an answer's body.
pub const SITE_BODY_BYTES_MAX: usize = 1024 * 1024;
/// `site.httpProxy`: what is kept of an answer's body, as JSON.
pub const SITE_BODY_KEPT_BYTES_MAX: usize = 32 * 1024;
/// `site.httpProxy`: what is kept of one field of an answer's head.
pub const SITE_FIELD_CHARS_MAX: usize = 1024;
/// `bmc.power`: how long a machine may take to reach the power state that it was told to, after the reset.
pub const POWER_WAIT_SECONDS_MAX: u64 = 180;
/// `bmc.power`: from one look at the power state to the next, in milliseconds.
pub const POWER_LOOK_MILLIS: u64 = 1_000;
/// `bmc.power`: a machine that was cycled and is seen on for so long was not caught while it was off.
pub const POWER_CYCLE_SECONDS: u64 = 15;
/// `bmc.power`: the systems that are named where a service has more than one.
pub const POWER_SYSTEMS_NAMED_MAX: usize = 16;
/// How long a secret that a command names may take to come (P6).
pub const SECRET_WAIT_SECONDS_MAX: u64 = 60;
/// Requests for secrets that wait to be taken in by the session.
pub const SECRETS_WANTED_MAX: usize = 64;

/// The largest journal that is read back; the daemon's own bounds keep it far below.
pub const JOURNAL_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The largest record of the journal: a command as it came, and a little around it.
pub const JOURNAL_RECORD_BYTES_MAX: usize = ledger_protocol::limits::FRAME_BYTES_MAX + 4 * 1024;
/// How many lost journals are kept for people to look at. The oldest go first.
pub const LOST_JOURNALS_MAX: usize = 8;

/// How long a join may take.
pub const JOIN_SECONDS_MAX: u64 = 30;
/// The largest answer to a join.
pub const JOIN_ANSWER_BYTES_MAX: usize = 256 * 1024;
/// The longest wait between two attempts to renew a certificate, in seconds; never more than a tenth of
/// what is left of it.
pub const RENEWAL_RETRY_SECONDS_MAX: u64 = 3_600;
/// The shortest wait between two attempts to renew a certificate, in seconds.
pub const RENEWAL_RETRY_SECONDS_MIN: u64 = 1;
/// How long connecting may take: TCP, TLS and the WebSocket's upgrade together.
pub const CONNECT_SECONDS_MAX: u64 = 15;
/// The largest message that is still read, so that it can be refused by name (D13).
pub const MESSAGE_BYTES_MAX: usize = 4 * ledger_protocol::limits::FRAME_BYTES_MAX;
/// Read buffer of a session, in bytes; a larger message grows it.
pub const READ_BUFFER_BYTES: usize = 8 * 1024;
/// How long the gateway may take to take in what was written to it.
pub const SEND_SECONDS_MAX: u64 = 15;
/// How long the goodbye of a session may take.
pub const GOODBYE_SECONDS_MAX: u64 = 2;
/// Inputs that are taken in together; what they ask to be written becomes durable together.
pub const INPUTS_MAX: usize = 64;
/// A session that lasted so long ends the backoff.
pub const STABLE_SESSION_SECONDS: u64 = 10;
/// The shortest wait after the gateway refused this node, in seconds.
pub const REFUSED_RETRY_SECONDS_MIN: u64 = 10;
/// The longest wait after the gateway refused this node, in seconds.
pub const REFUSED_RETRY_SECONDS_MAX: u64 = 60;
/// The shortest wait after the node's certificates were revoked, in seconds: a person must come.
pub const REVOKED_RETRY_SECONDS_MIN: u64 = 300;
/// The longest wait after the node's certificates were revoked, in seconds.
pub const REVOKED_RETRY_SECONDS_MAX: u64 = 600;
/// How long running commands may take to end when the agent stops.
pub const STOP_SECONDS_MAX: u64 = 5;
/// The longest sleep of the driver, in seconds, so that it looks at the clock after a suspend.
pub const SLEEP_SECONDS_MAX: u64 = 60;
/// How long a simulated node is down after it died, in milliseconds, at most.
pub const SIMULATED_DOWN_MILLIS_MAX: u64 = 500;
/// How long a simulated node's dead agent may still hold its state directory.
pub const SIMULATED_OPEN_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
