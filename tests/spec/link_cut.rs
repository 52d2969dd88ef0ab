//! The link to the database dies around a COMMIT (SPEC L10).

use ledger_protocol::id::CommandId;
use ledger_tests::api::{self, Served};
use ledger_tests::database;
use ledger_tests::ground::{Ground, events_of, head};
use ledger_tests::http::Caller;
use ledger_tests::proxy::{Cut, Proxy};
use serde_json::{Value, json};
use sqlx::PgPool;

/// Connections of the API; few, so that one that is lost is missed.
const CONNECTIONS: u32 = 2;

struct World {
    pool: PgPool,
    proxy: Proxy,
    served: Served,
    admin: Caller,
    node: Value,
}

impl World {
    async fn start(pool: PgPool) -> Self {
        let proxy = Proxy::start(&database::url(&pool)).await;
        let over = ledger::connect(proxy.url.as_str(), CONNECTIONS)
            .await
            .unwrap();
        let served = Served::start(over).await;
        let admin = api::admin(&pool, served.address).await;
        let node = admin
            .call("nodes.register", json!({"name": "n"}))
            .await
            .ok()["id"]
            .clone();
        Self {
            pool,
            proxy,
            served,
            admin,
            node,
        }
    }

    fn order(&self, key: &str) -> Value {
        json!({"nodeId": self.node, "kind": "inventory.refresh", "idempotencyKey": key})
    }

    /// Runs a command over a link that is cut; its caller must hear that nobody knows.
    async fn run_and_cut(&self, key: &str, cut: Cut) {
        self.proxy.cut_next(cut);
        let answer = self.admin.call("commands.run", self.order(key)).await;
        assert!(self.proxy.has_cut());
        assert_eq!(answer.code(), "UNAVAILABLE");
        assert_eq!(
            answer.body["error"]["details"]["outcome"], "unknown",
            "{}",
            answer.body
        );
    }

    async fn end(self) {
        self.served.stop().await;
        assert_eq!(database::transactions(&self.pool).await.0, 0);
    }
}

fn id(command: &Value) -> CommandId {
    command["id"].as_str().unwrap().parse().unwrap()
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_link_cut_after_a_commit_leaves_a_command_that_its_key_finds(pool: PgPool) {
    let world = World::start(pool).await;
    // More often than there are connections.
    for key in ["first", "second", "third", "fourth"] {
        let before = head(&world.pool).await;
        world.run_and_cut(key, Cut::AfterCommit).await;
        assert_eq!(head(&world.pool).await, before + 1);
        let again = world
            .admin
            .call("commands.run", world.order(key))
            .await
            .ok();
        assert_eq!(again["replayed"], true, "{again}");
        assert_eq!(events_of(&world.pool, id(&again)).await, 1);
        assert_eq!(head(&world.pool).await, before + 1);
    }
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_link_cut_before_a_commit_leaves_nothing_and_its_key_makes_the_command(pool: PgPool) {
    let world = World::start(pool).await;
    for key in ["first", "second", "third", "fourth"] {
        let before = head(&world.pool).await;
        world.run_and_cut(key, Cut::BeforeCommit).await;
        assert_eq!(head(&world.pool).await, before);
        let again = world
            .admin
            .call("commands.run", world.order(key))
            .await
            .ok();
        assert_ne!(again["replayed"], true, "{again}");
        assert_eq!(events_of(&world.pool, id(&again)).await, 1);
        assert_eq!(head(&world.pool).await, before + 1);
    }
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_cancel_whose_outcome_is_unknown_is_asked_again_without_harm(pool: PgPool) {
    let world = World::start(pool).await;
    for (key, cut) in [("after", Cut::AfterCommit), ("before", Cut::BeforeCommit)] {
        let command = world
            .admin
            .call("commands.run", world.order(key))
            .await
            .ok();
        let input = json!({"nodeId": world.node, "commandId": command["id"]});
        world.proxy.cut_next(cut);
        let answer = world.admin.call("commands.cancel", input.clone()).await;
        assert_eq!(answer.code(), "UNAVAILABLE");
        assert_eq!(
            answer.body["error"]["details"]["outcome"], "unknown",
            "{}",
            answer.body
        );
        let again = world.admin.call("commands.cancel", input).await.ok();
        assert_eq!(again["state"], "cancelled", "{again}");
        // Queued, asked to stop, stopped.
        assert_eq!(events_of(&world.pool, id(&command)).await, 3);
    }
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l10_a_callers_transaction_says_that_its_outcome_is_unknown(pool: PgPool) {
    let proxy = Proxy::start(&database::url(&pool)).await;
    let over = ledger::connect(proxy.url.as_str(), CONNECTIONS)
        .await
        .unwrap();
    let ground = Ground::new(over);
    let node = ground.node("n").await;
    for (key, cut, exists) in [
        ("wf:one:1", Cut::AfterCommit, true),
        ("wf:one:2", Cut::BeforeCommit, false),
    ] {
        let begun = ground.ledger.pool().begin().await.unwrap();
        let mut transaction = ground.ledger.within(begun);
        let id = transaction
            .enqueue(&ground.actor, ground.order(node, key))
            .unwrap();
        proxy.cut_next(cut);
        let ended = transaction.commit().await;
        assert!(
            matches!(ended, Err(ledger::Error::OutcomeUnknown)),
            "{ended:?}"
        );
        assert_eq!(events_of(&pool, id).await, usize::from(exists));
        let queued = ground
            .ledger
            .enqueue(&ground.actor, ground.order(node, key))
            .await
            .unwrap();
        assert_eq!((queued.replayed, queued.command.id == id), (exists, exists));
        assert_eq!(events_of(&pool, queued.command.id).await, 1);
    }
}
