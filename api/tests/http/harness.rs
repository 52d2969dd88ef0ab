//! One ledger, one API, one tenant with an admin.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use ledger::secrets::{MasterKey, MasterKeys};
use ledger::{Clock, Ledger};
use ledger_api::auth::{Grant, NewToken, create_tenant, create_token};
use ledger_api::{Api, Options};
use ledger_protocol::event::Actor;
use ledger_protocol::frame::{Update, UpdateState};
use ledger_protocol::id::{CommandId, JournalId, NodeId, TenantId};
use ledger_protocol::kind::{Registry, Role};
use ledger_protocol::node::OpenSession;
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor as _, PgPool};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use zeroize::Zeroizing;

/// Everything that a test of the API needs.
pub(crate) struct World {
    pub(crate) pool: PgPool,
    pub(crate) ledger: Ledger,
    pub(crate) router: Router,
    pub(crate) tenant: TenantId,
    pub(crate) token: String,
}

/// An answer: status and JSON body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// The result; the test fails when there is none.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// The error's code; the test fails when it is a result, or an error of another form.
    #[track_caller]
    pub(crate) fn code(&self) -> &str {
        let body = &self.body;
        assert_eq!(
            body.as_object().map(serde_json::Map::len),
            Some(1),
            "{body}"
        );
        let error = body["error"]
            .as_object()
            .unwrap_or_else(|| panic!("no error: {body}"));
        for field in error.keys() {
            let known = matches!(field.as_str(), "code" | "message" | "details");
            assert!(known, "{body}");
        }
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{body}"
        );
        let code = error["code"].as_str().unwrap();
        let status = ledger_api::Code::ALL
            .into_iter()
            .find(|known| known.as_str() == code)
            .map(|known| known.status().as_u16());
        assert_eq!(status, Some(self.status), "{body}");
        code
    }

    /// The field that the error names.
    #[track_caller]
    pub(crate) fn field(&self) -> &str {
        let field = self.body["error"]["details"]["field"].as_str();
        field.unwrap_or_else(|| panic!("no field: {}", self.body))
    }
}

/// Connections to the test's database under the service's role, as the service has them.
pub(crate) async fn service(pool: &PgPool, connections_max: u32) -> PgPool {
    let options = pool.connect_options().as_ref().clone();
    PgPoolOptions::new()
        .max_connections(connections_max)
        .after_connect(|connection, _| {
            Box::pin(async move {
                connection
                    .execute("SET ROLE command_ledger_service")
                    .await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await
        .unwrap()
}

/// A ledger of its own on this database, as another process would have it.
pub(crate) fn start(pool: PgPool, options: Options) -> (Ledger, Router) {
    let tasks = TaskTracker::new();
    let mut setting = ledger::Options::new(Registry::builtin(), Clock::system());
    let key = MasterKey::new(Zeroizing::new([1; 32]));
    setting.master_keys = Some(Arc::new(MasterKeys::new(key, Vec::new())));
    let ledger = Ledger::start(pool, setting, &tasks, CancellationToken::new()).unwrap();
    let router = ledger_api::router(Api::new(ledger.clone(), options, &tasks));
    (ledger, router)
}

/// A request with a JSON body.
pub(crate) fn request(token: &str, method: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(format!("/api/compute/{}", method.replace('.', "/")))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap()
}

/// Sends a request to a router.
pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let media = response.headers()[header::CONTENT_TYPE].clone();
    assert_eq!(media, "application/json");
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    Answer {
        status,
        body: serde_json::from_slice(&body).unwrap(),
    }
}

impl World {
    pub(crate) async fn start(pool: PgPool) -> Self {
        Self::start_with(pool, Options::default()).await
    }

    pub(crate) async fn start_with(pool: PgPool, options: Options) -> Self {
        Self::start_on(service(&pool, 5).await, options).await
    }

    /// The same on connections that are the service's own already.
    pub(crate) async fn start_on(pool: PgPool, options: Options) -> Self {
        let (ledger, router) = start(pool.clone(), options);
        let tenant = create_tenant(&pool, "acme", ledger.now()).await.unwrap();
        let token = make_token(&pool, &ledger, tenant, "admin", Grant::all()).await;
        Self {
            pool,
            ledger,
            router,
            tenant,
            token,
        }
    }

    /// A second tenant with an admin of its own.
    pub(crate) async fn other_tenant(&self) -> (TenantId, String) {
        let tenant = create_tenant(&self.pool, "umbrella", self.ledger.now())
            .await
            .unwrap();
        let token = make_token(&self.pool, &self.ledger, tenant, "admin", Grant::all()).await;
        (tenant, token)
    }

    /// A token of this tenant with these grants.
    pub(crate) async fn token(&self, identity: &str, grants: Value) -> String {
        let grants = grants
            .as_array()
            .unwrap()
            .iter()
            .map(|grant| Grant::from_json(grant).unwrap());
        make_token(
            &self.pool,
            &self.ledger,
            self.tenant,
            identity,
            grants.collect(),
        )
        .await
    }

    /// Calls a method; `tenantId` is added.
    pub(crate) async fn call(&self, method: &str, body: Value) -> Answer {
        self.call_as(&self.token, method, body).await
    }

    /// Calls a method with another token of the tenant.
    pub(crate) async fn call_as(&self, token: &str, method: &str, mut body: Value) -> Answer {
        let fields = body.as_object_mut().unwrap();
        fields
            .entry("tenantId")
            .or_insert_with(|| json!(self.tenant));
        self.raw(request(token, method, body.to_string())).await
    }

    pub(crate) async fn raw(&self, request: Request<Body>) -> Answer {
        send(&self.router, request).await
    }

    /// A new node.
    pub(crate) async fn node(&self) -> NodeId {
        let node = self
            .call("nodes.register", json!({"name": "rack-1"}))
            .await
            .ok();
        node["id"].as_str().unwrap().parse().unwrap()
    }

    /// Queues `inventory.refresh` under this key.
    pub(crate) async fn run(&self, node: NodeId, key: &str) -> Value {
        let body = json!({"nodeId": node, "kind": "inventory.refresh", "idempotencyKey": key});
        self.call("commands.run", body).await.ok()
    }

    /// Opens a session of the node; its epoch.
    pub(crate) async fn connect(&self, node: NodeId) -> u64 {
        let open = OpenSession {
            agent_version: "1.2.3".to_owned(),
            applied_generation: 0,
            boot_id: "boot-1".to_owned(),
            certificate: None,
            gateway: "gateway-1".to_owned(),
            gateway_lease: None,
            journal_id: JournalId::new(self.ledger.now(), self.ledger.new_id_random()),
            highest_seq: 0,
            role: Role::Node,
        };
        let gateway = Actor::gateway("gateway-1");
        let opened = self
            .ledger
            .open_session(&gateway, node, open, Vec::new())
            .await
            .unwrap();
        opened.node.epoch
    }

    /// Dispatches a command in the session of this epoch.
    pub(crate) async fn dispatch(&self, node: NodeId, command: &Value, epoch: u64) -> CommandId {
        let id: CommandId = command["id"].as_str().unwrap().parse().unwrap();
        let gateway = Actor::gateway("gateway-1");
        self.ledger
            .dispatch(&gateway, node, id, epoch)
            .await
            .unwrap();
        id
    }

    /// The node's word on a command.
    pub(crate) async fn report(&self, node: NodeId, epoch: u64, update: Update) {
        let (gateway, now) = (Actor::gateway("gateway-1"), self.ledger.now());
        self.ledger
            .report(&gateway, node, epoch, update, now)
            .await
            .unwrap();
    }

    /// A bare word on a command.
    pub(crate) async fn tell(&self, node: NodeId, epoch: u64, id: CommandId, state: UpdateState) {
        self.report(node, epoch, Update::bare(id, state)).await;
    }

    /// Positions in the log so far.
    pub(crate) async fn head(&self) -> i64 {
        sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM events")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

async fn make_token(
    pool: &PgPool,
    ledger: &Ledger,
    tenant: TenantId,
    identity: &str,
    grants: Vec<Grant>,
) -> String {
    let identity = identity.to_owned();
    let token = NewToken {
        tenant,
        identity,
        grants,
        expires_at: None,
    };
    create_token(pool, &token, ledger.now()).await.unwrap().1
}
