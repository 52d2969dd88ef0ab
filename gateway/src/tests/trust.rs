//! What nodes are sent to trust, and how a command shows that its batch was approved (SPEC P1, P3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use ledger::{HeldRoot, Propose, RootKey, Signer};
use ledger_projections::trust::{self, Standing};
use ledger_protocol::batch::Leaf;
use ledger_protocol::batch::create::Policy;
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::event::{Actor, Approver};
use ledger_protocol::frame::{Frame, JoinResponse, Status};
use ledger_protocol::id::NodeId;
use ledger_protocol::limits::TRUST_BUNDLES_PER_FRAME_MAX;
use ledger_protocol::trust::{SignedBundle, TrustBundle, intent};
use rcgen::{KeyPair, PKCS_ED25519};
use sqlx::PgPool;

use super::daemon::{Daemon, Identity};
use super::world::{WITHIN, World, csr};

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn root(number: u8) -> Arc<dyn RootKey> {
    Arc::new(HeldRoot::new(key(number)))
}

/// Two approvers, who must both approve.
fn policy(allowance: u32) -> Policy {
    let approver = |number| Approver {
        key: PublicKey::of(&key(number)),
        name: format!("approver-{number}"),
    };
    let mut policy = Policy::new(vec![approver(11), approver(12)], 2).unwrap();
    policy.unbatched_destructive_per_hour = allowance;
    policy
}

impl World {
    /// Publishes under these roots, as a service does that starts with them.
    async fn publish(&self, roots: &[u8], allowance: u32) -> u64 {
        let others = roots[1..].iter().map(|number| root(*number)).collect();
        let signer = Signer::new(root(roots[0]), others, self.ledger.clock().clone());
        let policy = policy(allowance);
        let published = signer.publish(self.ledger.pool(), &policy, 0).await;
        published.unwrap()
    }

    /// Waits until this is what the ledger knows of the node.
    async fn until_believed(&self, node: NodeId, believed: u64, newest: u64) {
        let deadline = Instant::now() + WITHIN;
        loop {
            let mut conn = self.ledger.pool().acquire().await.unwrap();
            let standing = trust::standing(&mut conn, node).await.unwrap();
            if standing == Some(Standing { believed, newest }) {
                return;
            }
            assert!(Instant::now() < deadline, "{standing:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Believes a chain from what is known on, as a daemon does.
fn believe(mut known: TrustBundle, chain: &[SignedBundle]) -> TrustBundle {
    for bundle in chain {
        known = bundle.believe(&known.roots, known.version).unwrap();
    }
    known
}

fn status(believed: u64, wants_trust: bool) -> Status {
    Status {
        applied_generation: 0,
        trust_version: believed,
        wants_spec: false,
        wants_trust,
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_a_node_that_was_offline_during_the_whole_overlap_catches_up_before_any_command(
    pool: PgPool,
) {
    let world = World::start(pool).await;
    let node = world.register("n").await;
    world.publish(&[1], 0).await;
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let in_a_minute = world.ledger.now().plus_seconds(60);
    let token = world.token(node, in_a_minute).await;
    let joined = world.join(&token, &csr(&key)).await;
    let joined: JoinResponse = serde_json::from_value(joined.body).unwrap();
    let first = joined.trust.expect("no trust bundle").begin().unwrap();
    let identity = Identity {
        certificate: joined.certificate,
        key: key.serialize_pem(),
        node,
    };
    let command = world.run(node, "diag.nvml").await;
    let mut daemon = Daemon::connect(&world, world.gateway.address, &identity).await;
    daemon.hello.trust_version = first.version;
    assert_eq!(daemon.greet().await.trust, []);
    daemon.receive_command().await;
    drop(daemon);

    // Root 1 goes and root 2 comes while the node is away; and then more than a frame holds.
    world.publish(&[1, 2], 0).await;
    let mut newest = world.publish(&[2], 0).await;
    for allowance in 1..=u32::try_from(TRUST_BUNDLES_PER_FRAME_MAX).unwrap() {
        newest = world.publish(&[2], allowance).await;
    }
    let later = world.serve("gw-2").await;
    let mut daemon = Daemon::connect(&world, later.address, &identity).await;
    daemon.hello.trust_version = first.version;
    let welcome = daemon.greet().await;
    assert_eq!(welcome.trust.len(), TRUST_BUNDLES_PER_FRAME_MAX);
    let Frame::Trust(rest) = daemon.receive().await else {
        panic!("something came before the rest of the chain");
    };
    let known = believe(believe(first, &welcome.trust), &rest.bundles);
    assert_eq!(known.version, newest);
    assert_eq!(known.roots, [PublicKey::of(&self::key(2))]);
    assert_eq!(daemon.receive_command().await.command_id, command);

    world.until_believed(node, 1, newest).await;
    daemon.send(status(newest, false)).await;
    world.until_believed(node, newest, newest).await;
    // What it has it is not sent again, unless it asks from further back.
    daemon.assert_quiet().await;
    daemon.send(status(newest, true)).await;
    daemon.assert_quiet().await;
    daemon.send(status(newest - 1, true)).await;
    let Frame::Trust(again) = daemon.receive().await else {
        panic!("it was not sent what it asked for");
    };
    assert_eq!(again.bundles.len(), 1);
    later.stop().await;
    world.gateway.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_a_bundle_reaches_open_sessions_and_whoever_asks(pool: PgPool) {
    let world = World::start(pool).await;
    let mut daemon = world.daemon("n").await;
    // Where there are no bundles, nobody is sent any.
    daemon.send(status(0, true)).await;
    daemon.assert_quiet().await;
    world.publish(&[1], 0).await;
    daemon.send(status(0, true)).await;
    let Frame::Trust(first) = daemon.receive().await else {
        panic!("it was not sent what it asked for");
    };
    let known = first.bundles[0].begin().unwrap();
    daemon.send(status(known.version, false)).await;
    world.publish(&[1, 2], 0).await;
    let known = loop {
        // By itself, at the process's next look; the first may come once more.
        let Frame::Trust(next) = daemon.receive().await else {
            panic!("it was not sent the next bundle");
        };
        let newer = next.bundles.last().unwrap();
        if let Ok(newer) = newer.believe(&known.roots, known.version) {
            break newer;
        }
    };
    assert_eq!((known.version, known.roots.len()), (2, 2));
    world.gateway.stop().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p3_a_command_of_a_batch_shows_its_approvals_at_dispatch_and_after_a_reconnect(
    pool: PgPool,
) {
    let signer = Arc::new(Signer::new(root(1), Vec::new(), ledger::Clock::system()));
    signer.renew().await.unwrap();
    let world = World::start_signing(pool, signer.clone(), policy(0)).await;
    signer
        .publish(world.ledger.pool(), &policy(0), 0)
        .await
        .unwrap();
    let node = world.register("n").await;
    let mut daemon = world.open(&world.identity(node, None)).await;
    let propose = Propose {
        tenant: world.tenant,
        reason: "kernel update".to_owned(),
        scope: vec![Leaf::of(node, "node.reboot", &[0x80])],
        idempotency_key: "api:1".to_owned(),
        expires_in_seconds: 600,
    };
    let creator = Actor::api("creator");
    let batch = world.ledger.propose_batch(&creator, propose).await.unwrap();
    let batch = batch.batch;
    let mut order = world.order(node, "node.reboot");
    order.batch_id = Some(batch.id);
    world.queue(order).await;
    for (number, by) in [(11, "grace"), (12, "linus")] {
        let payload = batch.statement().encode().unwrap();
        let signature = sign(&key(number), Purpose::BatchApproval, &payload).to_vec();
        let public = PublicKey::of(&key(number));
        world
            .ledger
            .approve_batch(&Actor::api(by), world.tenant, batch.id, public, signature)
            .await
            .unwrap();
    }
    let released = world.ledger.release_approved(&creator, Some(batch.id));
    assert_eq!(released.await.unwrap().released, 1);

    let mut conn = world.ledger.pool().acquire().await.unwrap();
    let newest = trust::newest(&mut conn).await.unwrap().unwrap();
    let bundle = newest.signed.begin().unwrap();
    // The bundle may come first, at a look of the process.
    let dispatched = loop {
        match daemon.receive().await {
            Frame::Command(command) => break command,
            Frame::Trust(_) => {}
            other => panic!("{other:?}"),
        }
    };
    drop(daemon);
    let mut daemon = world.open(&world.identity(node, None)).await;
    let replayed = daemon.receive_command().await;
    for command in [dispatched, replayed] {
        let leaf = Leaf::of(node, &command.kind, &command.payload);
        let until = command.not_after.unwrap();
        let proof = command.batch.as_ref().expect("no proof was sent along");
        proof.approves(batch.id, &leaf, until, &bundle).unwrap();
        let payload = intent::of_command(&command).unwrap();
        let times = (world.ledger.now(), until);
        let signed = command.signed.as_ref().expect("it is not signed");
        signed
            .verify(&bundle.roots, times, Purpose::Command, &payload)
            .unwrap();
    }
    world.gateway.stop().await;
}
