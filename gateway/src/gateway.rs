//! What a gateway is made of, and its settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ledger::Ledger;
use ledger_protocol::event::Actor;
use ledger_protocol::session::Terms;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::CertificateAuthority;
use crate::dispatcher::Message;
use crate::lease::Lease;
use crate::limits;
use crate::trust::Trust;

/// A gateway to be served.
#[derive(Debug)]
pub struct Gateway {
    /// Where its sessions' words go, and their commands come from.
    pub ledger: Ledger,
    /// What names nodes to it, and it to nodes.
    pub authority: CertificateAuthority,
    /// Its name in the ledger, unique among the gateways.
    pub name: String,
    /// Its settings.
    pub options: Options,
}

impl Gateway {
    /// A gateway with the default settings.
    pub fn new(ledger: Ledger, authority: CertificateAuthority, name: &str) -> Self {
        Self {
            ledger,
            authority,
            name: name.to_owned(),
            options: Options::default(),
        }
    }
}

/// Settings of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// DNS names and addresses of the gateway's certificate.
    pub server_names: Vec<String>,
    /// How often a daemon is pinged, in seconds; three times as long a silence ends its session.
    pub ping_seconds: u32,
    /// Connections that are no sessions yet: TLS handshakes, joins, sessions before they open. More
    /// wait in the listener's backlog (SPEC D14).
    pub admissions_max: usize,
    /// Sessions at the same time; more are turned away to try again elsewhere.
    pub sessions_max: usize,
    /// Validity of node certificates, in seconds.
    pub certificate_seconds: u32,
    /// How far node certificates are dated back, in seconds.
    pub certificate_backdated_seconds: u32,
    /// Longest wait at shutdown for sessions to end and to be recorded as ended.
    pub shutdown_within: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            server_names: ["localhost", "127.0.0.1", "::1"]
                .map(str::to_owned)
                .to_vec(),
            ping_seconds: 20,
            admissions_max: 256,
            sessions_max: 20_000,
            // Renewed at half of it: a node may be away for two weeks and still come back by itself.
            certificate_seconds: 30 * 24 * 3_600,
            certificate_backdated_seconds: limits::BACKDATED_SECONDS,
            shutdown_within: Duration::from_secs(8),
        }
    }
}

/// What every connection of a gateway shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ledger: Ledger,
    pub(crate) authority: CertificateAuthority,
    pub(crate) actor: Actor,
    pub(crate) terms: Terms,
    pub(crate) lease: Lease,
    pub(crate) trust: Trust,
    pub(crate) options: Options,
    pub(crate) dispatcher: mpsc::Sender<Message>,
    pub(crate) joins: Arc<Semaphore>,
    pub(crate) renewals: Semaphore,
    pub(crate) sessions: Arc<Semaphore>,
    pub(crate) tasks: TaskTracker,
    /// Ends the accept loop and asks sessions to end.
    pub(crate) shutdown: CancellationToken,
    /// Ends what did not end in time.
    pub(crate) abort: CancellationToken,
    session_numbers: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        gateway: Gateway,
        dispatcher: mpsc::Sender<Message>,
        shutdown: CancellationToken,
    ) -> Self {
        let Gateway {
            ledger,
            authority,
            name,
            options,
        } = gateway;
        let lease = Lease::new(&ledger, &name);
        Self {
            ledger,
            authority,
            actor: Actor::gateway(&name),
            terms: Terms {
                gateway: name,
                gateway_lease: Some(lease.name().to_owned()),
                hello_within: limits::HELLO_WITHIN,
                ping_seconds: options.ping_seconds.max(1),
            },
            lease,
            trust: Trust::new(),
            dispatcher,
            joins: Arc::new(Semaphore::new(limits::JOINS_MAX)),
            renewals: Semaphore::new(limits::RENEWALS_MAX),
            sessions: Arc::new(Semaphore::new(options.sessions_max)),
            options,
            tasks: TaskTracker::new(),
            shutdown,
            abort: CancellationToken::new(),
            session_numbers: AtomicU64::new(1),
        }
    }

    /// A number that no other session of this gateway has.
    pub(crate) fn session_number(&self) -> u64 {
        self.session_numbers.fetch_add(1, Ordering::Relaxed)
    }
}
