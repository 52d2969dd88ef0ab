//! What plain subscribers and controllers are told.

use std::collections::BTreeSet;

use ledger_projections::log_tree;
use sqlx::PgPool;

use super::world::{World, header, next, until};
use crate::{STREAM, mark};

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn n_plain_subscribers_get_cloud_events_that_the_stream_does_not_capture(pool: PgPool) {
    let world = World::new(pool).await;
    let connection = world.connection().await;
    let mut settled = connection
        .client
        .subscribe("command.settled")
        .await
        .unwrap();
    let mut requested = connection
        .client
        .subscribe("node.command.cancel-requested")
        .await
        .unwrap();
    connection.client.flush().await.unwrap();
    world.publisher("one");
    let command = world.enqueue_and_cancel("api:1").await;

    let copy = next(&mut settled).await;
    let headers = copy.headers.unwrap();
    assert_eq!(header(&headers, "ce-specversion"), "1.0");
    assert_eq!(header(&headers, "ce-type"), "command.settled");
    assert_eq!(header(&headers, "ce-source"), "/ledger/test");
    assert_eq!(header(&headers, "ce-subject"), command.id.to_string());
    assert_eq!(
        header(&headers, "ce-id"),
        world.events().await[3].id.to_string()
    );
    assert_eq!(header(&headers, "content-type"), "application/json");
    let data: serde_json::Value = serde_json::from_slice(&copy.payload).unwrap();
    let expected = serde_json::json!({
        "commandId": command.id, "nodeId": world.node, "tenantId": world.tenant,
        "kind": "inventory.refresh", "state": "cancelled", "reason": null,
        "seq": 1, "position": 4,
    });
    assert_eq!(data, expected);

    let copy = next(&mut requested).await;
    let data: serde_json::Value = serde_json::from_slice(&copy.payload).unwrap();
    assert_eq!(data["state"], "cancelled", "it was pending");
    assert_eq!(data["position"], 3);

    // L8: who was told of the end finds it in the ledger.
    let mut conn = world.ledger.pool().acquire().await.unwrap();
    let found = ledger_projections::commands::get(&mut conn, command.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.state_name().as_str(), "cancelled");
    drop(conn);
    world.assert_whole().await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn t4_a_transition_wakes_the_node_and_the_workflow_of_its_key(pool: PgPool) {
    let world = World::new(pool).await;
    let connection = world.connection().await;
    let mut wakes = connection.client.subscribe("wake.>").await.unwrap();
    connection.client.flush().await.unwrap();
    let publisher = world.publisher("one");
    let command = world.enqueue("wf:roll-out:reboot").await;
    let expected: BTreeSet<_> = [
        format!("wake.node.{}", world.node),
        "wake.workflow.roll-out".to_owned(),
    ]
    .into();
    let mut heard = BTreeSet::new();
    while heard != expected {
        heard.insert(next(&mut wakes).await.subject.to_string());
    }
    // A publisher that never saw the command being queued asks the ledger for its key.
    until("the first publisher is done", async || {
        mark::read(world.ledger.pool(), STREAM).await.unwrap() == 2
    })
    .await;
    publisher.abort();
    let actor = ledger_protocol::event::Actor::api("ada");
    world
        .ledger
        .cancel(&actor, world.tenant, world.node, command.id)
        .await
        .unwrap();
    let mut workflow = connection
        .client
        .subscribe("wake.workflow.roll-out")
        .await
        .unwrap();
    connection.client.flush().await.unwrap();
    world.publisher("one");
    let _ = next(&mut workflow).await;
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l11_copies_that_a_dead_publisher_left_out_are_sent_and_no_others(pool: PgPool) {
    let world = World::new(pool).await;
    let publisher = world.publisher("one");
    world.enqueue_and_cancel("api:1").await;
    world.assert_whole().await;
    until("the copies were sent", async || {
        mark::read(world.ledger.pool(), STREAM).await.unwrap() == 4
    })
    .await;
    publisher.abort();
    // As if it had died between the stream and the copies of the last event.
    sqlx::query("UPDATE publications SET position = 3")
        .execute(world.ledger.pool())
        .await
        .unwrap();
    let connection = world.connection().await;
    let mut settled = connection
        .client
        .subscribe("command.settled")
        .await
        .unwrap();
    let mut queued = connection
        .client
        .subscribe("node.command.queued")
        .await
        .unwrap();
    connection.client.flush().await.unwrap();
    world.publisher("one");
    let copy = next(&mut settled).await;
    assert_eq!(header(copy.headers.as_ref().unwrap(), "ce-sequence"), "4");
    world.enqueue("api:2").await;
    let copy = next(&mut queued).await;
    assert_eq!(header(copy.headers.as_ref().unwrap(), "ce-sequence"), "5");
    let stream = connection.jetstream.get_stream(STREAM).await.unwrap();
    assert!(stream.cached_info().state.messages >= 5);
    world.end().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn n_each_new_checkpoint_is_told_once_and_the_stream_does_not_hold_it(pool: PgPool) {
    let world = World::new(pool.clone()).await;
    let connection = world.connection().await;
    let mut told = connection
        .client
        .subscribe("ledger.checkpoint")
        .await
        .unwrap();
    connection.client.flush().await.unwrap();
    let note = |size: u64| format!("log.example/1\n{size}\nroot\n\n— log.example/1 AAAAAAA=\n");
    let publish = async |size: u64| {
        let mut conn = pool.acquire().await.unwrap();
        assert!(
            log_tree::publish(&mut conn, size, &note(size))
                .await
                .unwrap()
        );
    };
    publish(3).await;
    let publisher = world.publisher("one");
    for (size, next_size) in [(3, 7), (7, 12)] {
        let message = next(&mut told).await;
        let headers = message.headers.unwrap();
        for (name, expected) in [
            ("ce-specversion", "1.0"),
            ("ce-type", "ledger.checkpoint"),
            ("ce-source", "/ledger/test"),
            ("ce-subject", "log.example/1"),
            ("ce-id", &format!("log.example/1/{size}")),
            ("ce-sequence", &size.to_string()),
            ("content-type", "application/json"),
        ] {
            assert_eq!(header(&headers, name), expected);
        }
        assert!(header(&headers, "ce-time").ends_with('Z'));
        let data: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        let expected = serde_json::json!({
            "origin": "log.example/1", "size": size, "checkpoint": note(size),
        });
        assert_eq!(data, expected);
        publish(next_size).await;
    }
    let data: serde_json::Value = serde_json::from_slice(&next(&mut told).await.payload).unwrap();
    assert_eq!(data["size"], 12);
    // Another publisher does not tell it again; an event that comes later would be told after it.
    until("12 is noted", async || {
        mark::read(&pool, "ledger.checkpoint").await.unwrap() == 12
    })
    .await;
    publisher.abort();
    let _ = publisher.await;
    world.publisher("two");
    publish(13).await;
    let data: serde_json::Value = serde_json::from_slice(&next(&mut told).await.payload).unwrap();
    assert_eq!(data["size"], 13);
    world.assert_whole().await;
    world.end().await;
}
