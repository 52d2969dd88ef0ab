//! What the commands that run until they are told to stop have in common: a ledger, and how they
//! wait and end.

use std::net::SocketAddr;
use std::sync::Arc;

use ledger::secrets::{self, DatabaseStore, MasterKeys};
use ledger::{Clock, Ledger};
use ledger_audit::{Archive, Checkpointing};
use ledger_gateway::{CertificateAuthority, Gateway};
use ledger_protocol::kind::Registry;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::exit::{Code, Failure};
use crate::lifecycle::{Endings, Phase, Signals};
use crate::limits::{CLOSE_POOL_WITHIN, STOP_EDGE_WITHIN, STOP_LEDGER_WITHIN, STOP_WORKERS_WITHIN};
use crate::postgres;
use crate::secret::Secret;
use crate::signing::Signing;

/// One process's hold on the ledger.
pub(crate) struct Core {
    /// The ledger.
    pub(crate) ledger: Ledger,
    /// A name for leases that no other process has at the same time.
    pub(crate) holder: String,
    phase: Phase,
}

impl Core {
    /// Connects as the service and starts the append; whoever takes in neither commands nor batches
    /// signs nothing.
    pub(crate) async fn start(
        url: &Secret,
        connections_max: u32,
        signing: Signing,
    ) -> Result<Self, Failure> {
        let pool = postgres::connect(url, connections_max).await?;
        signing.begin(&pool).await?;
        let phase = Phase::new("the ledger");
        let mut options = ledger::Options::new(Registry::builtin(), Clock::system());
        options.approval = signing.approval.clone();
        options.signer.clone_from(&signing.signer);
        options.master_keys = signing.master_keys;
        if let Some(signer) = signing.signer {
            let (watcher, pool, token) = (signer.clone(), pool.clone(), phase.token());
            let policy = signing.approval;
            let watch = async move { watcher.watch(&pool, &policy, token).await };
            phase.tasks().spawn(watch);
            let token = phase.token();
            phase.tasks().spawn(async move { signer.run(token).await });
        }
        let ledger = Ledger::start(pool, options, phase.tasks(), phase.token())?;
        let random = hex::encode(ledger.new_id_random());
        let holder = format!("{}-{random}", host_name());
        Ok(Self {
            ledger,
            holder,
            phase,
        })
    }

    /// Lets what is in the queue be appended, then closes the connections.
    pub(crate) async fn stop(&self) {
        self.phase.stop(STOP_LEDGER_WITHIN).await;
        let closing = tokio::time::timeout(CLOSE_POOL_WITHIN, self.ledger.pool().close());
        if closing.await.is_err() {
            tracing::warn!("not every connection to Postgres ended politely");
        }
    }
}

/// The phases of a service, in the order in which they stop.
pub(crate) struct Service {
    /// Whoever talks to the outside: listeners.
    pub(crate) edge: Phase,
    /// Whoever works by itself.
    pub(crate) workers: Phase,
    /// The ledger.
    pub(crate) core: Core,
}

impl Service {
    /// A service with a ledger and nothing else yet.
    pub(crate) fn new(core: Core) -> Self {
        Self {
            edge: Phase::new("the edge"),
            workers: Phase::new("the workers"),
            core,
        }
    }

    /// Serves the API.
    pub(crate) fn start_api(
        &self,
        listener: TcpListener,
        options: ledger_api::Options,
        endings: Endings,
    ) {
        let api = ledger_api::Api::new(self.core.ledger.clone(), options, self.edge.tasks());
        let serving = ledger_api::serve(
            "the API",
            listener,
            ledger_api::router(api),
            self.edge.token(),
        );
        let serving = async {
            serving.await;
            Ok::<_, anyhow::Error>(())
        };
        self.edge.essential("the API", endings, serving);
    }

    /// Serves the log to whoever verifies it.
    pub(crate) fn start_log(
        &self,
        listener: TcpListener,
        archive: Option<Archive>,
        endings: Endings,
    ) {
        let router = ledger_audit::router(self.core.ledger.pool().clone(), archive);
        let serving = ledger_api::serve("the log", listener, router, self.edge.token());
        let serving = async {
            serving.await;
            Ok::<_, anyhow::Error>(())
        };
        self.edge.essential("the log's listener", endings, serving);
    }

    /// Grows the log's tree and signs it.
    pub(crate) fn start_checkpointer(&self, checkpointing: Checkpointing) {
        let (ledger, holder) = (self.core.ledger.clone(), self.core.holder.clone());
        self.workers.worker("the checkpointer", move |token| {
            let (ledger, holder) = (ledger.clone(), holder.clone());
            let checkpointing = checkpointing.clone();
            async move {
                ledger_audit::checkpoint(ledger, checkpointing, holder, token).await;
                Ok::<_, anyhow::Error>(())
            }
        });
    }

    /// Keeps an archive up with the log.
    pub(crate) fn start_archiver(&self, archive: Archive) {
        let (ledger, holder) = (self.core.ledger.clone(), self.core.holder.clone());
        self.workers.worker("the archiver", move |token| {
            let (ledger, holder, archive) = (ledger.clone(), holder.clone(), archive.clone());
            async move {
                ledger_audit::archive(ledger, archive, holder, token).await;
                Ok::<_, anyhow::Error>(())
            }
        });
    }

    /// Serves the nodes.
    pub(crate) fn start_gateway(
        &self,
        listener: TcpListener,
        authority: CertificateAuthority,
        name: &str,
        options: ledger_gateway::Options,
        endings: Endings,
    ) {
        let mut gateway = Gateway::new(self.core.ledger.clone(), authority, name);
        gateway.options = options;
        let serving = ledger_gateway::serve(listener, gateway, self.edge.token());
        self.edge.essential("the gateway", endings, serving);
    }

    /// Publishes the log to NATS.
    pub(crate) fn start_publisher(&self, options: ledger_nats::NatsOptions) {
        let ledger = self.core.ledger.clone();
        self.workers.worker("the publisher", move |token| {
            ledger_nats::run(ledger.clone(), options.clone(), token)
        });
    }

    /// Lets NATS tell this process at once that another one has appended.
    pub(crate) fn start_wakes(&self, nats: Secret) {
        let ledger = self.core.ledger.clone();
        self.workers.worker("the wakes", move |token| {
            let (ledger, nats) = (ledger.clone(), nats.clone());
            async move { ledger_nats::wakes(ledger, nats.reveal(), token).await }
        });
    }

    /// Gives nodes the secrets that their commands name, and puts what is under an older master key under
    /// the first.
    pub(crate) fn start_keeper(&self, keys: &Arc<MasterKeys>) {
        let ledger = self.core.ledger.clone();
        let store = DatabaseStore::new(ledger.pool().clone(), Arc::clone(keys));
        self.workers.worker("the keeper of secrets", move |token| {
            let (ledger, store) = (ledger.clone(), store.clone());
            async move {
                let kept = secrets::keep(ledger, Arc::new(store.clone()), token.clone());
                tokio::join!(kept, store.run(token));
                Ok::<_, anyhow::Error>(())
            }
        });
    }

    /// Enforces the deadlines.
    pub(crate) fn start_sweeper(&self) {
        let (ledger, holder) = (self.core.ledger.clone(), self.core.holder.clone());
        self.workers.worker("the sweeper", move |token| {
            let (ledger, holder) = (ledger.clone(), holder.clone());
            async move {
                ledger_sweeper::run(ledger, holder, token).await;
                Ok::<_, anyhow::Error>(())
            }
        });
    }

    /// Runs until a signal, or until an essential part ends, which is a failure; then stops
    /// everything. A later signal cuts the stop short.
    pub(crate) async fn run(
        self,
        mut signals: Signals,
        mut ended: mpsc::Receiver<Failure>,
    ) -> Result<(), Failure> {
        let result = until_told(&mut signals, &mut ended).await;
        let stop = async {
            self.edge.stop(STOP_EDGE_WITHIN).await;
            self.workers.stop(STOP_WORKERS_WITHIN).await;
            self.core.stop().await;
        };
        tokio::select! {
            () = stop => {}
            signal = signals.insisted() => {
                tracing::warn!("{signal} again: what is left is cut off");
            }
        }
        result
    }
}

/// Waits for a signal, which is how a service ends well, or for the end of an essential part.
pub(crate) async fn until_told(
    signals: &mut Signals,
    ended: &mut mpsc::Receiver<Failure>,
) -> Result<(), Failure> {
    tokio::select! {
        signal = signals.asked() => {
            tracing::info!("{signal}: stopping");
            Ok(())
        }
        Some(failure) = ended.recv() => {
            tracing::error!("{failure}: stopping");
            Err(failure)
        }
    }
}

/// Listens on an address; port 0 is any free one.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let error = anyhow::Error::from(error).context(format!("could not listen on {address}"));
        Failure::new(Code::Failed, error)
    })
}

/// Sessions and journals are open files, and the usual limit of 1,024 is soon reached; the system
/// lets every process raise its own.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}

/// The machine's name.
pub(crate) fn host_name() -> String {
    let system = rustix::system::uname();
    let name: String = system
        .nodename()
        .to_string_lossy()
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}
