use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use ledger_projections::rows::CommandRow;
use ledger_projections::write::{Before, Changes};
use ledger_projections::{commands, nodes};
use ledger_protocol::frame::{CommandUpdate, Frame, Update, UpdateState};
use ledger_protocol::id::NodeId;
use ledger_protocol::kind::Lane;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, PgPool};

use super::daemon::Daemon;
use super::world::World;

const LIVE: usize = 100;
const DEAD: usize = 10_000;
/// Nodes that are asked about: as many as one look has.
const ASKED: usize = crate::limits::NODES_PER_LOOK_MAX;
/// Commands of each live node in one measurement.
const COMMANDS: usize = 10;
/// Requests at the same time, fewer than the ledger's queue holds.
const REQUESTS: usize = 500;
const CONNECTIONS: u32 = 16;
/// So often a question is asked until Postgres keeps its plan.
const ASKS: usize = 10;
/// Rows that a question may read for each node that it is about. Both what is on its way and what
/// waits in three lanes is counted.
const ROWS_PER_NODE_MAX: i64 = 8;
/// What the live nodes' commands may take, as a multiple of what they took before, and more,
/// because other tests use the same machine.
const FACTOR: u32 = 4;
const SLACK: Duration = Duration::from_secs(2);
const VACUUM: &str = "VACUUM ANALYZE nodes, commands_live, commands_settled, command_keys";

/// Queues commands for every live node and waits until all have run; how long it took.
async fn work(world: &World, daemons: &mut [Daemon]) -> Duration {
    let nodes: Vec<_> = daemons.iter().map(|daemon| daemon.node).collect();
    let began = Instant::now();
    let queueing = async {
        for _ in 0..COMMANDS {
            join_all(
                nodes
                    .iter()
                    .map(|node| world.run(*node, "inventory.refresh")),
            )
            .await;
        }
    };
    let working = daemons.iter_mut().map(|daemon| async {
        let mut settled = 0;
        while settled < COMMANDS {
            match daemon.receive().await {
                Frame::Command(command) => {
                    let update = Update::bare(command.command_id, UpdateState::Succeeded);
                    let updates = vec![update];
                    daemon.send(CommandUpdate { updates }).await;
                }
                Frame::UpdateAck(ack) => settled += ack.updates.len(),
                Frame::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    tokio::join!(queueing, join_all(working));
    began.elapsed()
}

/// Registers nodes that never connect, with a command for each.
async fn pending(world: &World, nodes: usize) -> Vec<NodeId> {
    let register = async |number: usize| {
        let node = world.register(&format!("without a session {number}")).await;
        world.run(node, "inventory.refresh").await;
        node
    };
    let nodes = stream::iter(0..nodes).map(register);
    nodes.buffer_unordered(REQUESTS).collect().await
}

/// Rows that this connection has read of the tables that grow with the fleet and has not added to
/// the shared statistics yet.
async fn rows_read(conn: &mut PgConnection) -> i64 {
    let sql = "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint
               FROM pg_stat_xact_user_tables WHERE relname = ANY($1)";
    let tables = ["nodes", "commands_live", "commands_settled", "command_keys"];
    let rows = sqlx::query_scalar(sql).bind(tables);
    rows.fetch_one(conn).await.unwrap()
}

/// Does once, for all these nodes, what the way of a command asks of the database and changes
/// there, and takes it back; of each step, how many nodes it is
/// about and how many rows it has read.
async fn steps(
    conn: &mut PgConnection,
    world: &World,
    asked: &[NodeId],
) -> Vec<(String, usize, i64)> {
    let mut tx = conn.begin().await.unwrap();
    let ids: Vec<_> = asked.iter().map(|node| node.uuid()).collect();
    let mut steps = Vec::new();
    macro_rules! step {
        ($nodes:expr, $step:expr) => {{
            let before = rows_read(&mut tx).await;
            let done = $step.await.unwrap();
            let read = rows_read(&mut tx).await - before;
            steps.push((stringify!($step).to_owned(), $nodes, read));
            done
        }};
    }
    let all = asked.len();
    let lanes = vec![Lane::Control.as_str(); asked.len()];
    let keys = asked.iter().map(|node| commands::Asked {
        node: *node,
        key: "api:free",
        lane: Lane::Control,
    });
    let keys: Vec<commands::Asked<'_>> = Iterator::collect(keys);
    step!(all, nodes::lock(&mut tx, &ids));
    step!(all, nodes::newest_seqs(&mut tx, &ids));
    step!(all, commands::before_enqueue(&mut tx, &keys));
    step!(all, commands::count_pending(&mut tx, &ids, &lanes));
    step!(all, commands::live_of(&mut tx, &ids));
    let due = step!(all, commands::due(&mut tx, asked, world.ledger.now()));
    assert_eq!(due.len(), asked.len());
    let ids: Vec<_> = due.iter().map(|command| command.id.uuid()).collect();
    step!(all, commands::get_many(&mut tx, &ids));
    let mut changes = Changes::default();
    for command in &due {
        changes.command(Before::Live, CommandRow::of(command).unwrap(), command.id);
    }
    step!(all, changes.write(&mut tx));
    let one = asked[0];
    step!(1, nodes::get(&mut tx, one));
    step!(1, commands::in_flight(&mut tx, one));
    tx.rollback().await.unwrap();
    steps
}

/// A connection that serves for days keeps its plans, so each step is done often.
async fn assert_few(conn: &mut PgConnection, world: &World, asked: &[NodeId]) {
    for _ in 0..ASKS {
        for (step, nodes, rows) in steps(conn, world, asked).await {
            let max = ROWS_PER_NODE_MAX * i64::try_from(nodes).unwrap();
            assert!(rows <= max, "{step} has read {rows} rows, more than {max}");
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn d3_10_000_dead_nodes_with_pending_commands_do_not_slow_100_live_ones_down(pool: PgPool) {
    let url = pool.connect_options().to_url_lossy();
    let own = ledger::connect(url.as_str(), CONNECTIONS).await.unwrap();
    let world = World::start(own.clone()).await;
    // The smallest tables that there can be, and plans that are made for them.
    let mut asked = pending(&world, 3).await;
    let mut conn = own.acquire().await.unwrap();
    pool.execute(VACUUM).await.unwrap();
    for _ in 0..ASKS {
        steps(&mut conn, &world, &asked).await;
    }
    asked.extend(pending(&world, ASKED - asked.len()).await);
    let mut daemons = Vec::new();
    for number in 0..LIVE {
        daemons.push(world.daemon(&format!("live {number}")).await);
    }
    work(&world, &mut daemons).await;
    let alone = work(&world, &mut daemons).await;

    pending(&world, DEAD).await;
    assert_few(&mut conn, &world, &asked).await;
    let among = work(&world, &mut daemons).await;
    // New plans, now that the tables are large.
    pool.execute(VACUUM).await.unwrap();
    assert_few(&mut conn, &world, &asked).await;
    let later = work(&world, &mut daemons).await;
    println!("{alone:?} without dead nodes, {among:?} and {later:?} among them");
    for took in [among, later] {
        let max = FACTOR * alone + SLACK;
        assert!(took < max, "{took:?}; it was {alone:?}");
    }
    drop(conn);
    world.gateway.stop().await;
    own.close().await;
}
