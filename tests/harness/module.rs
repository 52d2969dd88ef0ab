//! A module: a program of the platform that queues commands inside transactions of its own, with the
//! service's root at hand.

use std::path::Path;

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use ledger::{Clock, HeldRoot, Ledger, Options, Run, Signer};
use ledger_protocol::event::Actor;
use ledger_protocol::id::{CommandId, TenantId};
use ledger_protocol::kind::Registry;
use serde_json::Value;
use std::sync::Arc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::up::Up;

/// A module that works beside an `up`. Its tasks end with it.
#[derive(Debug)]
pub struct Module {
    ledger: Ledger,
    tenant: TenantId,
    actor: Actor,
    _stop: DropGuard,
}

impl Module {
    /// Begins to work.
    pub async fn beside(up: &Up) -> Self {
        let root = Path::new(up.text("dataDir")).join("signing/root.pem");
        let root = SigningKey::from_pkcs8_pem(&std::fs::read_to_string(root).unwrap()).unwrap();
        let clock = Clock::system();
        let signer = Signer::new(Arc::new(HeldRoot::new(root)), Vec::new(), clock.clone());
        signer.renew().await.unwrap();
        let mut options = Options::new(Registry::builtin(), clock);
        options.signer = Some(Arc::new(signer));
        let pool = ledger::connect(up.text("postgres"), 4).await.unwrap();
        let stop = CancellationToken::new();
        let ledger = Ledger::start(pool, options, &TaskTracker::new(), stop.clone()).unwrap();
        Self {
            ledger,
            tenant: up.text("tenantId").parse().unwrap(),
            actor: Actor::module("site"),
            _stop: stop.drop_guard(),
        }
    }

    /// Queues a command in a transaction of its own.
    pub async fn run(
        &self,
        node: &str,
        (kind, payload): (&str, Value),
        key: &str,
        batch: Option<&str>,
    ) -> CommandId {
        let run = Run {
            tenant: self.tenant,
            node: node.parse().unwrap(),
            kind: kind.to_owned(),
            payload,
            idempotency_key: format!("wf:{key}:1"),
            not_after: self.ledger.now().plus_seconds(600),
            not_before: None,
            min_generation: None,
            batch_id: batch.map(|batch| batch.parse().unwrap()),
        };
        let transaction = self.ledger.pool().begin().await.unwrap();
        let mut transaction = self.ledger.within(transaction);
        let id = transaction.enqueue(&self.actor, run).unwrap();
        transaction.commit().await.unwrap();
        id
    }
}
