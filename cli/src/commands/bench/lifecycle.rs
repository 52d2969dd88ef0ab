//! Whole lifecycles per second, queued to settled, through a gateway and scripted agents that
//! hold real sessions: TLS, WebSocket, frames. Their journals are in memory, because a fleet's
//! disks are not the server's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use ledger_agent::journal::Opened;
use ledger_agent::session::{Agent, Setup};
use ledger_agent::{Clock, Connector, Credentials, Executor, GatewayAddress, ScriptedExecutor};
use ledger_gateway::{CertificateAuthority, Gateway};
use ledger_projections::join_tokens::{self, JoinToken};
use ledger_projections::nodes;
use ledger_protocol::daemon::{Identity, SupportedKinds};
use ledger_protocol::id::{JoinTokenId, JournalId, NodeId};
use ledger_protocol::kind::{Registry, Role};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, Meaning};
use crate::lifecycle::Phase;
use crate::limits::STOP_EDGE_WITHIN;

use super::Ground;
use super::append::per_second;

/// Commands that are under way at a time, over all nodes.
const UNDER_WAY: usize = 512;
/// Sessions that open at a time.
const JOINS: usize = 16;
const SETTLE_WITHIN: Duration = Duration::from_mins(1);

pub(super) struct Fleet {
    agents: Phase,
    edge: Phase,
}

impl Fleet {
    /// A gateway, and an agent with an open session for each node.
    pub(super) async fn start(ground: &Ground) -> Result<Self, Failure> {
        let (agents, edge) = (Phase::new("the agents"), Phase::new("the gateway"));
        let authority = CertificateAuthority::generate(ground.ledger.now())
            .or_unavailable("could not make a certificate authority")?;
        let ca = authority.certificate_pem().to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address: GatewayAddress =
            format!("https://127.0.0.1:{}", listener.local_addr()?.port()).parse()?;
        let gateway = Gateway::new(ground.ledger.clone(), authority, "bench");
        edge.tasks()
            .spawn(ledger_gateway::serve(listener, gateway, edge.token()));
        for some in ground.nodes.chunks(JOINS) {
            let joining = some.iter().map(|node| agent(ground, *node, &address, &ca));
            for agent in try_join_all(joining).await? {
                let token = agents.token();
                agents.tasks().spawn(async move { agent.run(&token).await });
            }
        }
        connected(ground).await?;
        Ok(Self { agents, edge })
    }

    /// Keeps so many commands under way, and counts what settles.
    pub(super) async fn measure(&self, ground: &Ground, span: Duration) -> Result<Value, Failure> {
        let settled = Arc::new(AtomicU64::new(0));
        let queued = AtomicU64::new(0);
        let room = Arc::new(tokio::sync::Semaphore::new(UNDER_WAY));
        let mut heard = ground.ledger.subscribe();
        let done = CancellationToken::new();
        let counting = {
            let (settled, room) = (settled.clone(), room.clone());
            done.run_until_cancelled(async move {
                loop {
                    match heard.recv().await {
                        Ok(committed) => {
                            let ends = committed.events.iter();
                            let ends = ends.filter(|e| e.event_type == "command.settled").count();
                            settled.fetch_add(ends as u64, Ordering::Relaxed);
                            room.add_permits(ends);
                        }
                        Err(RecvError::Lagged(_)) => {
                            return Err(Failure::failed("the count of ends was lost"));
                        }
                        Err(RecvError::Closed) => return Ok(()),
                    }
                }
            })
        };
        let started = Instant::now();
        let until = started + span;
        let caller = || async {
            while Instant::now() < until {
                let Ok(permit) = room.acquire().await else {
                    break;
                };
                permit.forget();
                ground.ledger.enqueue(&ground.actor, ground.run()).await?;
                queued.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Failure>(())
        };
        let driving = async {
            try_join_all((0..128).map(|_| caller())).await?;
            let waiting = Instant::now();
            while settled.load(Ordering::Relaxed) < queued.load(Ordering::Relaxed) {
                if waiting.elapsed() > SETTLE_WITHIN {
                    return Err(Failure::failed("not every command settled"));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let elapsed = started.elapsed();
            done.cancel();
            Ok(elapsed)
        };
        let (elapsed, counted) = tokio::join!(driving, counting);
        if let Some(counted) = counted {
            counted?;
        }
        let elapsed = elapsed?;
        let settled = settled.load(Ordering::Relaxed);
        Ok(json!({
            "sessions": ground.nodes.len(),
            "underWay": UNDER_WAY,
            "lifecycles": settled,
            "perSecond": per_second(settled, elapsed),
        }))
    }

    pub(super) async fn stop(self) {
        self.agents.stop(STOP_EDGE_WITHIN).await;
        self.edge.stop(STOP_EDGE_WITHIN).await;
    }
}

async fn agent(
    ground: &Ground,
    node: NodeId,
    gateway: &GatewayAddress,
    ca: &str,
) -> Result<Agent, Failure> {
    let ledger = &ground.ledger;
    let id = JoinTokenId::new(ledger.now(), ledger.new_id_random());
    // The token lives for a moment, on a database of its own, and needs only the right form.
    let secret: String = hex::encode([ledger.new_id_random(), ledger.new_id_random()].concat())
        .chars()
        .cycle()
        .take(join_tokens::SECRET_LETTERS)
        .collect();
    let token = JoinToken {
        id,
        tenant: ground.tenant,
        node,
        secret_sha256: join_tokens::secret_sha256(&secret),
        created_at: ledger.now(),
        expires_at: ledger.now().plus_seconds(600),
        allowed_kinds: None,
    };
    let mut conn = ledger.pool().acquire().await?;
    join_tokens::create(&mut conn, &token).await?;
    drop(conn);
    let clock = Clock::system();
    let key = Credentials::generate_key()?;
    let token = format!("{id}.{secret}");
    let credentials = Credentials::join(gateway, ca, &token, key, &clock).await?;
    let executor = ScriptedExecutor::succeeding(Duration::ZERO, json!({ "ok": true }));
    let executor = Arc::new(Executor::Scripted(executor));
    let kinds = SupportedKinds::new(&Registry::builtin(), |kind| executor.runs(kind));
    let identity = Identity {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: "bench".to_owned(),
        node_id: node,
        role: Role::Node,
        kinds: Arc::new(kinds),
        pins: credentials.pins.clone(),
    };
    Ok(Agent::new(Setup {
        identity,
        journal: Opened::memory(JournalId::new(ledger.now(), ledger.new_id_random())),
        executor,
        connector: Connector::new(gateway.clone(), &credentials, &clock)?,
        clock,
        state_dir: None,
        rebooted: CancellationToken::new(),
        cut_every: None,
    })?)
}

async fn connected(ground: &Ground) -> Result<(), Failure> {
    let started = Instant::now();
    for node in &ground.nodes {
        loop {
            let mut conn = ground.ledger.pool().acquire().await?;
            let node = nodes::get(&mut conn, *node).await?;
            if node.is_some_and(|node| node.is_connected()) {
                break;
            }
            if started.elapsed() > SETTLE_WITHIN {
                return Err(Failure::failed("not every agent opened its session"));
            }
            drop(conn);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}
