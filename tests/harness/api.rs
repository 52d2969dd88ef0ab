//! An API in this process, and who may call one.

use std::net::SocketAddr;

use ledger::{Clock, Ledger};
use ledger_api::auth::{Grant, NewToken, create_tenant, create_token};
use ledger_api::{Api, Options};
use ledger_protocol::kind::Registry;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http::Caller;
use crate::wait::in_time;

/// A tenant of this database, and who may do everything in it; the API's address comes later.
pub async fn admin(pool: &PgPool, api: SocketAddr) -> Caller {
    let now = Clock::system().now();
    let tenant = create_tenant(pool, "acme", now).await.unwrap();
    let token = NewToken {
        tenant,
        identity: "ada".to_owned(),
        grants: Grant::all(),
        expires_at: None,
    };
    let (_, text) = create_token(pool, &token, now).await.unwrap();
    Caller::new(format!("http://{api}"), &tenant, text)
}

/// An API that is served in this process, over a pool of its own.
#[derive(Debug)]
pub struct Served {
    /// Its ledger.
    pub ledger: Ledger,
    /// Where it listens.
    pub address: SocketAddr,
    edge: (TaskTracker, CancellationToken),
    core: (TaskTracker, CancellationToken),
}

impl Served {
    /// Serves on any port.
    pub async fn start(pool: PgPool) -> Self {
        let edge = (TaskTracker::new(), CancellationToken::new());
        let core = (TaskTracker::new(), CancellationToken::new());
        let options = ledger::Options::new(Registry::builtin(), Clock::system());
        let ledger = Ledger::start(pool, options, &core.0, core.1.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Api::new(ledger.clone(), Options::default(), &edge.0);
        let serving =
            ledger_api::serve("the API", listener, ledger_api::router(api), edge.1.clone());
        edge.0.spawn(serving);
        Self {
            ledger,
            address,
            edge,
            core,
        }
    }

    /// Ends everything, what is under way included.
    pub async fn stop(self) {
        for (tasks, token) in [self.edge, self.core] {
            token.cancel();
            tasks.close();
            in_time("the tasks end", tasks.wait()).await;
        }
    }
}
