//! What every figure stands on: a migrated database, a ledger, a tenant, nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ledger::{Clock, HeldRoot, Ledger, Run, Signer, lease};
use ledger_protocol::event::{Actor, NodeRegistered};
use ledger_protocol::id::{NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_servers::{Postgres, PostgresOptions};
use serde_json::json;
use sqlx::PgPool;

use crate::exit::{Failure, Meaning};
use crate::key_file;
use crate::lifecycle::Phase;
use crate::limits::STOP_LEDGER_WITHIN;
use crate::postgres;
use crate::secret::Secret;

pub(super) const DATABASE: &str = "command_ledger_bench";
const CONNECTIONS: u32 = 16;
/// Name and holder of the lease that is taken again and again; no process acts by it.
const LEASE: &str = "bench";
const LEASE_TIME: Duration = Duration::from_secs(1);
/// Long enough that nothing expires while it is measured.
const WAIT_SECONDS: u32 = 12 * 3_600 - 60;

pub(super) struct Ground {
    pub(super) ledger: Ledger,
    pub(super) actor: Actor,
    pub(super) tenant: TenantId,
    pub(super) nodes: Vec<NodeId>,
    /// Whether commands are signed.
    pub(super) signs: bool,
    /// Stops what the ledger runs on.
    phase: Phase,
    own: Option<Postgres>,
    keys: AtomicU64,
}

impl Ground {
    pub(super) async fn prepare(
        url: Option<&Secret>,
        nodes: u16,
        signs: bool,
    ) -> Result<Self, Failure> {
        let own = match url {
            Some(_) => None,
            None => Some(own_postgres().await?),
        };
        let url = match (&own, url) {
            (Some(own), _) => Secret::new(own.url(DATABASE, ledger_servers::ADMIN)),
            (None, Some(url)) => url.clone(),
            (None, None) => return Err(Failure::usage("no Postgres")),
        };
        let admin = PgPool::connect(url.reveal().trim())
            .await
            .or_unavailable("could not connect to Postgres")?;
        ledger_migrations::MIGRATOR
            .run(&admin)
            .await
            .or_unavailable("could not migrate")?;
        admin.close().await;

        let pool = postgres::connect(&url, CONNECTIONS).await?;
        let phase = Phase::new("the ledger");
        let mut options = ledger::Options::new(Registry::builtin(), Clock::system());
        // The queues are what is measured, so they may grow.
        options.pending_per_lane_max = u32::MAX;
        if signs {
            // A root of its own, which is published nowhere: a database that is given keeps its own.
            let root = Arc::new(HeldRoot::new(key_file::new_key()?));
            let signer = Arc::new(Signer::new(root, Vec::new(), Clock::system()));
            signer.renew().await.context("no worker key")?;
            options.signer = Some(signer);
        }
        let ledger = Ledger::start(pool, options, phase.tasks(), phase.token())?;
        let actor = Actor::module("bench");
        let tenant = ledger_api::auth::create_tenant(ledger.pool(), "bench", ledger.now()).await;
        let tenant = tenant.or_unavailable("could not make a tenant")?;
        let mut registered = Vec::with_capacity(nodes.into());
        for index in 0..nodes {
            let registration = NodeRegistered {
                labels: BTreeMap::new(),
                name: format!("bench-{index}"),
                role: Role::Node,
            };
            registered.push(ledger.register_node(&actor, tenant, registration).await?.id);
        }
        let keys = AtomicU64::new(0);
        Ok(Self {
            ledger,
            actor,
            tenant,
            nodes: registered,
            signs,
            phase,
            own,
            keys,
        })
    }

    /// One more command, for the next node in turn.
    pub(super) fn run(&self) -> Run {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        let index = usize::try_from(number).unwrap_or(0) % self.nodes.len();
        self.run_on(self.nodes[index], number)
    }

    /// One more command, for this node.
    pub(super) fn run_for(&self, node: NodeId) -> Run {
        self.run_on(node, self.keys.fetch_add(1, Ordering::Relaxed))
    }

    fn run_on(&self, node: NodeId, number: u64) -> Run {
        Run {
            tenant: self.tenant,
            node,
            kind: "inventory.refresh".to_owned(),
            payload: json!({ "sections": ["cpu", "memory"] }),
            idempotency_key: format!("bench:{number}"),
            not_after: self.ledger.now().plus_seconds(WAIT_SECONDS),
            not_before: None,
            min_generation: None,
            batch_id: None,
        }
    }

    /// Writes of a single row with a commit each, one after the other: what the disk under this
    /// database allows who does not commit in groups. Taking and renewing a lease is such a write.
    pub(super) async fn raw_commits_per_second(&self, span: Duration) -> Result<f64, Failure> {
        let pool = self.ledger.pool();
        let until = Instant::now() + span.min(Duration::from_secs(3));
        let (started, mut commits) = (Instant::now(), 0_u32);
        while Instant::now() < until {
            let taken = lease::acquire(pool, LEASE, LEASE, LEASE_TIME).await?;
            let fence = taken.ok_or_else(|| Failure::failed("another benchmark runs here"))?;
            lease::renew(pool, &fence, LEASE_TIME).await?;
            commits += 2;
        }
        Ok((f64::from(commits) / started.elapsed().as_secs_f64()).round())
    }

    pub(super) async fn version(&self) -> Result<String, Failure> {
        Ok(sqlx::query_scalar("SHOW server_version")
            .fetch_one(self.ledger.pool())
            .await?)
    }

    pub(super) async fn clear(self) -> Result<(), Failure> {
        self.phase.stop(STOP_LEDGER_WITHIN).await;
        self.ledger.pool().close().await;
        if let Some(own) = self.own {
            own.destroy()
                .await
                .or_unavailable("Postgres could not be stopped")?;
        }
        Ok(())
    }
}

pub(super) async fn own_postgres() -> Result<Postgres, Failure> {
    let folder = std::env::temp_dir().join(format!("command-ledger-bench-{}", std::process::id()));
    let started = Postgres::start(PostgresOptions::new(folder)).await;
    let postgres = started.or_unavailable("could not start Postgres")?;
    postgres
        .create_database(DATABASE)
        .await
        .or_unavailable("could not create a database")?;
    Ok(postgres)
}
