//! A gateway that is killed and does not come back at once (SPEC D2).

use ledger_tests::nats::Server;
use ledger_tests::process::Process;
use ledger_tests::wait::{found, until};
use serde_json::json;
use sqlx::PgPool;

use super::parts::Parts;

#[sqlx::test(migrations = false)]
async fn d2_the_nodes_of_a_killed_gateway_are_not_shown_as_connected_for_long(pool: PgPool) {
    let server = Server::start().await;
    let mut parts = Parts::start(&pool, &server.nats.url()).await;
    let epoch = parts.connected(0).await;
    parts.gateway.process.kill().await;
    let input = json!({"nodeId": parts.node});
    let node = found("the node is shown as gone", async || {
        let node = parts.admin.call("nodes.get", input.clone()).await.ok();
        (node["connected"] == false).then_some(node)
    })
    .await;
    assert_eq!(node["epoch"], epoch);
    assert_eq!(node["session"]["reason"], "gateway-lost", "{node}");
    // Nothing is left of the lease, and the next process makes its own.
    let leases = "SELECT count(*) FROM leases WHERE name LIKE 'gateway:%'";
    until("the lease is forgotten", async || {
        let left: i64 = sqlx::query_scalar(leases).fetch_one(&pool).await.unwrap();
        left == 0
    })
    .await;
    parts.gateway.crash().await;
    parts.connected(epoch).await;
    for verb in ["replay", "check"] {
        Process::output(&["audit", verb, "--postgres", parts.url.as_str()]).await;
    }
}
