//! Gateways whose process is gone (SPEC D2).

use ledger_projections::nodes;
use ledger_protocol::node::Session;

use super::*;
use crate::error::Error;
use crate::lost_gateways::LostGateways;

const DEAD: &str = "gateway:g:dead";
const ALIVE: &str = "gateway:g:alive";

impl World {
    /// Opens a session of the node through a gateway with this lease; its epoch.
    async fn open(&self, node: NodeId, lease: &str) -> u64 {
        let opened = self
            .ledger
            .open_session(&self.actor, node, hello(Some(lease)), Vec::new());
        opened.await.unwrap().node.epoch
    }

    async fn register(&self, name: &str) -> NodeId {
        let registered = NodeRegistered {
            labels: [].into(),
            name: name.to_owned(),
            role: Role::Node,
        };
        let node = self
            .ledger
            .register_node(&self.actor, self.tenant, registered);
        node.await.unwrap().id
    }

    async fn session(&self, node: NodeId) -> Session {
        let mut conn = self.ledger.pool().acquire().await.unwrap();
        nodes::get(&mut conn, node).await.unwrap().unwrap().session
    }

    /// The gateway gives a sign of life that counts for so long.
    async fn lives(&self, lease: &str, ttl: Duration) {
        lease::acquire(self.ledger.pool(), lease, lease, ttl)
            .await
            .unwrap()
            .unwrap();
    }

    async fn leases(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT name FROM leases WHERE name LIKE 'gateway:%' ORDER BY name")
            .fetch_all(self.ledger.pool())
            .await
            .unwrap()
    }
}

fn is_open(session: &Session) -> bool {
    matches!(session, Session::Open { .. })
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_the_sessions_of_a_lost_gateway_are_closed_and_no_others(pool: PgPool) {
    let world = World::new(pool).await;
    let [elsewhere, moved] = [world.register("two").await, world.register("three").await];
    world.lives(DEAD, Duration::ZERO).await;
    world.lives(ALIVE, Duration::from_mins(10)).await;
    world.open(world.node, DEAD).await;
    world.open(elsewhere, ALIVE).await;
    world.open(moved, DEAD).await;
    world.open(moved, ALIVE).await;

    let fence = world.fence().await;
    let mut gateways = LostGateways::default();
    let mut closed = Vec::new();
    for _ in 0..3 {
        closed.push(gateways.sweep(&world.ledger, &fence).await.unwrap());
    }
    // Seen at the first, closed at the second, forgotten at the third.
    assert_eq!(closed, [0, 1, 0]);
    let Session::Closed { reason, .. } = world.session(world.node).await else {
        panic!("it is still open");
    };
    assert_eq!(reason, "gateway-lost");
    for node in [elsewhere, moved] {
        assert!(is_open(&world.session(node).await));
    }
    assert_eq!(world.leases().await, [ALIVE]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_a_gateway_that_comes_back_before_the_next_sweep_keeps_its_sessions(pool: PgPool) {
    let world = World::new(pool).await;
    world.lives(DEAD, Duration::ZERO).await;
    world.open(world.node, DEAD).await;
    let fence = world.fence().await;
    let mut gateways = LostGateways::default();
    assert_eq!(gateways.sweep(&world.ledger, &fence).await.unwrap(), 0);
    // As after an outage of the database, in which nobody could renew anything.
    world.lives(DEAD, Duration::from_mins(10)).await;
    for _ in 0..2 {
        assert_eq!(gateways.sweep(&world.ledger, &fence).await.unwrap(), 0);
    }
    assert!(is_open(&world.session(world.node).await));
    assert_eq!(world.leases().await, [DEAD]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d2_a_sweeper_that_lost_its_lease_closes_nothing(pool: PgPool) {
    let world = World::new(pool).await;
    world.lives(DEAD, Duration::ZERO).await;
    world.open(world.node, DEAD).await;
    let fence = world.fence().await;
    let mut gateways = LostGateways::default();
    gateways.sweep(&world.ledger, &fence).await.unwrap();
    world.fence().await;
    let late = gateways.sweep(&world.ledger, &fence).await;
    assert!(matches!(late, Err(Error::Fenced)), "{late:?}");
    assert!(is_open(&world.session(world.node).await));
}
