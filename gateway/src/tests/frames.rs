use ledger_protocol::frame::{CommandUpdate, Frame, Status, Update, UpdateAck, UpdateState};
use ledger_protocol::id::CommandId;
use ledger_protocol::limits::{FRAME_BYTES_MAX, SPEC_BYTES_MAX};
use sqlx::PgPool;
use tokio_tungstenite::tungstenite::Message;

use super::daemon::Daemon;
use super::world::World;
use crate::limits::{MESSAGE_BYTES_MAX, OUTBOUND_FRAMES_MAX};

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_bad_frames_close_their_session_with_a_reason_and_nothing_else(pool: PgPool) {
    let world = World::start(pool).await;
    let mut other = world.daemon("other").await;
    let node = world.register("bad").await;
    let identity = world.identity(node, None);
    let large = vec![0x93; MESSAGE_BYTES_MAX + 1];
    for (message, code, names) in [
        (Message::Binary(vec![0xc1].into()), 1002, "array"),
        (Message::Binary(vec![0x92, 99, 0x80].into()), 1002, "99"),
        (
            Message::Binary(vec![0x92, 5, 0x80].into()),
            1002,
            "CommandUpdate",
        ),
        (
            Message::Binary(vec![0x92, 5, 0xdf, 0xff, 0xff, 0xff, 0xff].into()),
            1002,
            "early",
        ),
        (Message::Text("hello".into()), 1003, "binary"),
        (Message::Binary(large.into()), 1009, "bytes"),
    ] {
        let mut daemon = world.open(&identity).await;
        daemon.send_message(message).await;
        let (closed, reason) = daemon.closed().await;
        assert_eq!(closed, code, "{reason}");
        assert!(reason.contains(names), "{reason}");
        let recorded = world.until_closed(node).await;
        assert!(reason.starts_with(&recorded), "{recorded}");
    }
    let command = world.run(other.node, "inventory.refresh").await;
    assert_eq!(other.receive_command().await.command_id, command);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_a_session_that_does_not_begin_with_its_own_hello_is_closed(pool: PgPool) {
    let world = World::start(pool).await;
    let (one, two) = (world.register("one").await, world.register("two").await);
    let mut daemon =
        Daemon::connect(&world, world.gateway.address, &world.identity(one, None)).await;
    daemon
        .send(Status {
            trust_version: 0,
            wants_trust: false,
            applied_generation: 0,
            wants_spec: false,
        })
        .await;
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 1002);
    assert!(reason.contains("Hello"), "{reason}");

    let mut daemon =
        Daemon::connect(&world, world.gateway.address, &world.identity(one, None)).await;
    daemon.hello.node_id = two;
    daemon.send(daemon.hello.clone()).await;
    let (code, reason) = daemon.closed().await;
    assert_eq!(code, 1008);
    assert!(reason.contains("certificate"), "{reason}");
    assert_eq!(world.node(one).await.epoch, 0);
    assert_eq!(world.node(two).await.epoch, 0);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d13_an_oversized_frame_is_refused_by_name_and_the_session_lives_on(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let command = world.run(daemon.node, "inventory.refresh").await;
    assert_eq!(daemon.receive_command().await.command_id, command);
    let update = Update {
        result: Some(vec![0; FRAME_BYTES_MAX]),
        ..Update::bare(command, UpdateState::Succeeded)
    };
    let ack = daemon.report(vec![update]).await;
    let why = ack.updates[0].refused.as_deref().unwrap();
    assert!(why.contains(&FRAME_BYTES_MAX.to_string()), "{why}");
    daemon.say(command, UpdateState::Succeeded).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_one_refused_update_says_nothing_about_the_others(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    let mut sent = Vec::new();
    for _ in 0..2 {
        world.run(daemon.node, "inventory.refresh").await;
        sent.push(daemon.receive_command().await.command_id);
    }
    let unknown = CommandId::new(world.ledger.now(), [9; 10]);
    let bad = Update {
        result: Some(vec![0xc1]),
        ..Update::bare(sent[1], UpdateState::Succeeded)
    };
    let updates = vec![
        Update::bare(sent[0], UpdateState::Acked),
        Update::bare(unknown, UpdateState::Acked),
        bad,
        Update::bare(sent[1], UpdateState::Running),
    ];
    let UpdateAck { updates } = daemon.report(updates).await;
    let refused: Vec<_> = updates
        .iter()
        .map(|update| update.refused.is_some())
        .collect();
    assert_eq!(refused, [false, true, true, false]);
    assert!(world.command(sent[0]).await.acked_at.is_some());
    assert!(world.command(sent[1]).await.running_at.is_some());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn a6_a_node_cannot_report_another_nodes_command(pool: PgPool) {
    let world = World::start(pool).await;
    let mut one = world.daemon("one").await;
    let mut two = world.daemon("two").await;
    let command = world.run(one.node, "inventory.refresh").await;
    assert_eq!(one.receive_command().await.command_id, command);
    let ack = two
        .report(vec![Update::bare(command, UpdateState::Succeeded)])
        .await;
    let why = ack.updates[0].refused.as_deref().unwrap();
    assert!(why.contains("not found"), "{why}");
    assert!(world.command(command).await.is_in_flight());
    one.say(command, UpdateState::Succeeded).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d1_a_daemon_that_does_not_read_is_let_go_and_nobody_waits_for_it(pool: PgPool) {
    let world = World::start(pool).await;
    let mut other = world.daemon("other").await;
    let node = world.register("slow").await;
    world.set_spec(node, 1, vec![0x80; 1]).await;
    let spec = {
        // One byte string in a map: canonical, and as large as it may be.
        let mut bytes = vec![0x81, 0xa1, b'a', 0xc5];
        let length = u16::try_from(SPEC_BYTES_MAX - 6).unwrap();
        bytes.extend(length.to_be_bytes());
        bytes.resize(SPEC_BYTES_MAX, 7);
        bytes
    };
    world.set_spec(node, 2, spec).await;
    let mut slow = world.open(&world.identity(node, None)).await;
    // As much as the queue holds, and what the sockets' buffers take on top.
    let mut asked = 0;
    while asked < 4 * OUTBOUND_FRAMES_MAX
        && slow
            .try_send(Status {
                trust_version: 0,
                wants_trust: false,
                applied_generation: 0,
                wants_spec: true,
            })
            .await
    {
        asked += 1;
    }
    let command = world.run(other.node, "inventory.refresh").await;
    assert_eq!(other.receive_command().await.command_id, command);
    let reason = world.until_closed(node).await;
    assert!(reason.contains("slow"), "{reason}");
    other
        .send(CommandUpdate {
            updates: vec![Update::bare(command, UpdateState::Acked)],
        })
        .await;
    assert!(matches!(other.receive().await, Frame::UpdateAck(_)));
}
