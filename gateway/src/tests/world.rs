//! A ledger and a gateway of one test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledger::{Clock, Ledger, Run, Signer};
use ledger_projections::join_tokens::{self, JoinToken};
use ledger_projections::{commands, nodes};
use ledger_protocol::batch::create::Policy;
use ledger_protocol::command::{Command, StateName};
use ledger_protocol::event::{Actor, NodeRegistered, NodeSpecSet};
use ledger_protocol::id::{CommandId, JoinTokenId, NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::{Node, Session};
use ledger_protocol::time::Timestamp;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::daemon::{Daemon, Identity, Response, request};
use crate::{CertificateAuthority, Error, Gateway, NodeCertificateTerms, Options};

/// How long a condition may take to come true.
pub(super) const WITHIN: Duration = Duration::from_secs(15);
const SECRET: &str = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I";

/// A gateway that is served.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    pub(super) shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Served {
    /// Asks it to end, and waits until it has.
    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(WITHIN, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

pub(super) struct World {
    pub(super) authority: CertificateAuthority,
    pub(super) gateway: Served,
    pub(super) ledger: Ledger,
    pub(super) tenant: TenantId,
    pub(super) tasks: TaskTracker,
}

impl World {
    pub(super) async fn start(pool: PgPool) -> Self {
        Self::start_with(pool, Options::default()).await
    }

    pub(super) async fn start_with(pool: PgPool, options: Options) -> Self {
        Self::start_by(Clock::system(), pool, options).await
    }

    /// One whose time is that of the clock.
    pub(super) async fn start_by(clock: Clock, pool: PgPool, options: Options) -> Self {
        let settings = ledger::Options::new(Registry::builtin(), clock);
        Self::start_on(pool, settings, options).await
    }

    /// On a ledger that signs, with approvers.
    pub(super) async fn start_signing(pool: PgPool, signer: Arc<Signer>, approval: Policy) -> Self {
        let mut settings = ledger::Options::new(Registry::builtin(), Clock::system());
        settings.signer = Some(signer);
        settings.approval = approval;
        Self::start_on(pool, settings, Options::default()).await
    }

    async fn start_on(pool: PgPool, settings: ledger::Options, options: Options) -> Self {
        let tasks = TaskTracker::new();
        let ledger = Ledger::start(pool, settings, &tasks, CancellationToken::new()).unwrap();
        let authority = CertificateAuthority::generate(ledger.now()).unwrap();
        let gateway = serve(&tasks, &ledger, &authority, "gw-1", options).await;
        let tenant = TenantId::new(ledger.now(), ledger.new_id_random());
        Self {
            authority,
            gateway,
            ledger,
            tenant,
            tasks,
        }
    }

    /// One more gateway, as another process would have it: with a ledger of its own on the same
    /// database.
    pub(super) async fn serve_elsewhere(&self, name: &str) -> Served {
        let settings = ledger::Options::new(Registry::builtin(), self.ledger.clock().clone());
        let pool = self.ledger.pool().clone();
        let ledger = Ledger::start(pool, settings, &self.tasks, CancellationToken::new()).unwrap();
        let options = Options::default();
        serve(&self.tasks, &ledger, &self.authority, name, options).await
    }

    /// One more gateway on the same ledger.
    pub(super) async fn serve(&self, name: &str) -> Served {
        serve(
            &self.tasks,
            &self.ledger,
            &self.authority,
            name,
            Options::default(),
        )
        .await
    }

    pub(super) async fn register(&self, name: &str) -> NodeId {
        let registered = NodeRegistered {
            labels: BTreeMap::new(),
            name: name.to_owned(),
            role: Role::Node,
        };
        let node = self
            .ledger
            .register_node(&actor(), self.tenant, registered)
            .await;
        node.unwrap().id
    }

    /// A join token for the node, valid until then.
    pub(super) async fn token(&self, node: NodeId, expires_at: Timestamp) -> String {
        self.restricted_token(node, expires_at, None).await
    }

    /// A join token whose certificate allows these kinds.
    pub(super) async fn restricted_token(
        &self,
        node: NodeId,
        expires_at: Timestamp,
        allowed_kinds: Option<Vec<String>>,
    ) -> String {
        let now = self.ledger.now();
        let id = JoinTokenId::new(now, self.ledger.new_id_random());
        let token = JoinToken {
            id,
            tenant: self.tenant,
            node,
            secret_sha256: join_tokens::secret_sha256(SECRET),
            created_at: now,
            expires_at,
            allowed_kinds,
        };
        let mut conn = self.ledger.pool().acquire().await.unwrap();
        join_tokens::create(&mut conn, &token).await.unwrap();
        format!("{id}.{SECRET}")
    }

    /// Posts a join request.
    pub(super) async fn join(&self, token: &str, csr: &str) -> Response {
        let body = serde_json::json!({ "csr": csr, "token": token }).to_string();
        request(
            self,
            "POST",
            ledger_protocol::frame::JOIN_PATH,
            None,
            body.as_bytes(),
        )
        .await
    }

    /// A certificate as a join would give it, without the join.
    pub(super) fn identity(&self, node: NodeId, allowed_kinds: Option<Vec<String>>) -> Identity {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let terms = NodeCertificateTerms {
            allowed_kinds,
            backdated_seconds: 300,
            now: self.ledger.now(),
            serial: self.ledger.new_id_random(),
            valid_seconds: 3_600,
        };
        let issued = self.authority.issue_node(node, &csr(&key), &terms).unwrap();
        Identity {
            certificate: issued.pem,
            key: key.serialize_pem(),
            node,
        }
    }

    /// A node with an open session.
    pub(super) async fn daemon(&self, name: &str) -> Daemon {
        let node = self.register(name).await;
        self.open(&self.identity(node, None)).await
    }

    /// A session of this identity.
    pub(super) async fn open(&self, identity: &Identity) -> Daemon {
        let mut daemon = Daemon::connect(self, self.gateway.address, identity).await;
        daemon.greet().await;
        daemon
    }

    pub(super) fn order(&self, node: NodeId, kind: &str) -> Run {
        let random = self.ledger.new_id_random();
        Run {
            tenant: self.tenant,
            node,
            kind: kind.to_owned(),
            payload: serde_json::json!({}),
            idempotency_key: format!("api:{}", hex::encode(random)),
            not_after: self.ledger.now().plus_seconds(600),
            not_before: None,
            min_generation: None,
            batch_id: None,
        }
    }

    pub(super) async fn run(&self, node: NodeId, kind: &str) -> CommandId {
        self.queue(self.order(node, kind)).await
    }

    pub(super) async fn queue(&self, order: Run) -> CommandId {
        self.ledger
            .enqueue(&actor(), order)
            .await
            .unwrap()
            .command
            .id
    }

    pub(super) async fn cancel(&self, node: NodeId, command: CommandId) {
        self.ledger
            .cancel(&actor(), self.tenant, node, command)
            .await
            .unwrap();
    }

    pub(super) async fn set_spec(&self, node: NodeId, generation: u64, spec: Vec<u8>) {
        let spec = NodeSpecSet {
            signed: None,
            generation,
            spec,
        };
        self.ledger
            .set_spec(&actor(), self.tenant, node, spec)
            .await
            .unwrap();
    }

    pub(super) async fn command(&self, id: CommandId) -> Command {
        let mut conn = self.ledger.pool().acquire().await.unwrap();
        commands::get(&mut conn, id).await.unwrap().unwrap()
    }

    pub(super) async fn node(&self, id: NodeId) -> Node {
        let mut conn = self.ledger.pool().acquire().await.unwrap();
        nodes::get(&mut conn, id).await.unwrap().unwrap()
    }

    /// Waits until the command has this state.
    pub(super) async fn until(&self, id: CommandId, state: StateName) -> Command {
        let deadline = Instant::now() + WITHIN;
        loop {
            let command = self.command(id).await;
            if command.state_name() == state {
                return command;
            }
            assert!(
                Instant::now() < deadline,
                "{id} is {}, not {state}",
                command.state_name()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the ledger says that the node's session ended; answers why.
    pub(super) async fn until_closed(&self, id: NodeId) -> String {
        let deadline = Instant::now() + WITHIN;
        loop {
            let node = self.node(id).await;
            if let Session::Closed { reason, .. } = node.session {
                return reason;
            }
            assert!(
                Instant::now() < deadline,
                "the session of {id} is {:?}",
                node.session
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn serve(
    tasks: &TaskTracker,
    ledger: &Ledger,
    authority: &CertificateAuthority,
    name: &str,
    options: Options,
) -> Served {
    let own = CertificateAuthority::load(authority.certificate_pem(), &authority.key_pem());
    let gateway = Gateway {
        options,
        ..Gateway::new(ledger.clone(), own.unwrap(), name)
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let task = tasks.spawn(crate::serve(listener, gateway, shutdown.clone()));
    Served {
        address,
        shutdown,
        task,
    }
}

/// Who asks for everything.
pub(super) fn actor() -> Actor {
    Actor::api("ada")
}

/// A certificate request for the key.
pub(super) fn csr(key: &KeyPair) -> String {
    let params = CertificateParams::new(Vec::new()).unwrap();
    params.serialize_request(key).unwrap().pem().unwrap()
}
