//! What the service signs, and what it publishes for nodes to trust (SPEC P1, P4, P5).

use std::sync::atomic::{AtomicU32, Ordering};

use ed25519_dalek::SigningKey;
use ledger_projections::trust::{self, Ahead};
use ledger_protocol::batch::create::Policy;
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::event::NodeSpecSet;
use ledger_protocol::session;
use ledger_protocol::trust::{Published, TrustBundle, intent};

use super::batches::{proposed, queue_in, with_approvers};
use super::*;
use crate::limits::TRUST_VERSIONS_LEFT_OUT_MAX;
use crate::signer::watch::{News, Watch};
use crate::{HeldRoot, PublishError, RootKey, Signer, Signing};

fn root(number: u8) -> Arc<dyn RootKey> {
    Arc::new(HeldRoot::new(SigningKey::from_bytes(&[number; 32])))
}

fn signer(roots: &[u8], clock: &Clock) -> Arc<Signer> {
    let others = roots[1..].iter().map(|number| root(*number)).collect();
    Arc::new(Signer::new(root(roots[0]), others, clock.clone()))
}

/// A ledger that signs under root 1, its clock, and what nodes are to trust.
async fn signing(pool: &PgPool) -> (Ground, Clock, Arc<Signer>, TrustBundle) {
    let clock = Clock::manual(NOW);
    let signer = signer(&[1], &clock);
    assert!(signer.renew().await.unwrap());
    let ledger = start(pool, |options| {
        options.clock = clock.clone();
        options.signer = Some(signer.clone());
    });
    let approval = ledger.inner.options.approval.clone();
    assert_eq!(signer.publish(pool, &approval, 0).await.unwrap(), 1);
    let bundle = bundles(pool).await.remove(0).signed.begin().unwrap();
    (Ground::on(ledger).await, clock, signer, bundle)
}

async fn bundles(pool: &PgPool) -> Vec<Published> {
    let mut conn = pool.acquire().await.unwrap();
    trust::above(&mut conn, 0, 100).await.unwrap()
}

fn assert_signed(command: &Command, bundle: &TrustBundle, now: Timestamp) {
    let queued = &command.queued;
    let payload = intent::of_command(&session::command(command.id, queued)).unwrap();
    let times = (now, queued.not_after);
    let signed = queued.signed.as_ref().expect("the command is not signed");
    signed
        .verify(&bundle.roots, times, Purpose::Command, &payload)
        .unwrap();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_a_commands_signature_verifies_under_the_published_bundle(pool: PgPool) {
    let (ground, _, _, bundle) = signing(&pool).await;
    let queued = ground.queue("diag.nvml", "api:1").await;
    assert_signed(&queued, &bundle, NOW);
    assert_signed(&ground.read(&queued).await.unwrap(), &bundle, NOW);
    let mut conn = pool.acquire().await.unwrap();
    let stored = log::stream(&mut conn, Stream::Command(queued.id)).await;
    let event = Event::decode(&stored.unwrap()[0].bytes).unwrap();
    assert_signed(&Command::evolve(None, &event).unwrap(), &bundle, NOW);

    // Inside a caller's own transaction as well.
    let transaction = pool.begin().await.unwrap();
    let mut tx = ground.ledger.within(transaction);
    tx.enqueue(&ground.actor, ground.run("inventory.refresh", "wf:a:1"))
        .unwrap();
    let outcomes = tx.commit().await.unwrap();
    let crate::Outcome::Queued(queued) = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert_signed(&queued.command, &bundle, NOW);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p5_a_desired_state_is_signed_and_read_with_its_signature(pool: PgPool) {
    let (ground, _, _, bundle) = signing(&pool).await;
    let spec = NodeSpecSet {
        generation: 1,
        signed: None,
        spec: vec![0x80],
    };
    ground
        .ledger
        .set_spec(&ground.actor, ground.tenant, ground.node, spec)
        .await
        .unwrap();
    let mut conn = pool.acquire().await.unwrap();
    let set = nodes::spec(&mut conn, ground.node).await.unwrap().unwrap();
    let payload = intent::of_spec(ground.node, 1, &set.spec).unwrap();
    let signed = set.signed.expect("the desired state is not signed");
    signed
        .verify(&bundle.roots, (NOW, NOW), Purpose::DesiredState, &payload)
        .unwrap();
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_a_worker_key_is_replaced_at_half_its_life_and_outlives_what_it_signs(pool: PgPool) {
    let (ground, clock, signer, bundle) = signing(&pool).await;
    let worker = |command: &Command| command.queued.signed.clone().unwrap().worker;
    let first = worker(&ground.queue("diag.nvml", "api:1").await);
    assert_eq!(
        first.not_before,
        NOW.plus_seconds(0).plus_micros(-300_000_000)
    );
    assert_eq!(first.not_after, NOW.plus_seconds(24 * 3_600));
    let half = 12 * 3_600 - 150;
    clock.set(NOW.plus_seconds(half - 1));
    assert!(!signer.renew().await.unwrap(), "it was replaced too early");

    // Nobody replaces it: it signs what it outlives, and nothing else.
    let late = NOW.plus_seconds(13 * 3_600);
    clock.set(late);
    let run = |key: &str, seconds: u32| {
        let mut run = ground.run("diag.nvml", key);
        run.not_after = late.plus_seconds(seconds);
        run
    };
    let queued = ground
        .ledger
        .enqueue(&ground.actor, run("api:2", 11 * 3_600));
    assert_eq!(worker(&queued.await.unwrap().command), first);
    let head = ground.head().await;
    let refused = ground
        .ledger
        .enqueue(&ground.actor, run("api:3", 11 * 3_600 + 1))
        .await;
    let Err(Error::NoWorker { not_after }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(not_after, Some(late.plus_seconds(11 * 3_600 + 1)));
    assert_eq!(ground.head().await, head, "something was written");

    assert!(signer.renew().await.unwrap());
    let queued = ground
        .ledger
        .enqueue(&ground.actor, run("api:3", 12 * 3_600));
    let queued = queued.await.unwrap().command;
    assert_ne!(worker(&queued).key, first.key);
    assert_eq!(queued.queued.seq, 3);
    assert_signed(&queued, &bundle, late);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_without_a_worker_key_a_callers_transaction_leaves_nothing(pool: PgPool) {
    let clock = Clock::manual(NOW);
    let ledger = start(&pool, |options| {
        options.signer = Some(signer(&[1], &clock));
    });
    let ground = Ground::on(ledger).await;
    let head = ground.head().await;
    let mut tx = ground.ledger.within(pool.begin().await.unwrap());
    tx.enqueue(&ground.actor, ground.run("diag.nvml", "wf:a:1"))
        .unwrap();
    let committed = tx.commit().await;
    assert!(matches!(committed, Err(Error::NoWorker { .. })));
    assert_eq!(ground.head().await, head);
}

/// A root that signs at the third time it is asked.
#[derive(Debug)]
struct Reluctant {
    root: Arc<dyn RootKey>,
    asked: AtomicU32,
}

impl RootKey for Reluctant {
    fn public_key(&self) -> PublicKey {
        self.root.public_key()
    }

    fn sign<'a>(&'a self, purpose: Purpose, payload: &'a [u8]) -> Signing<'a> {
        match self.asked.fetch_add(1, Ordering::SeqCst) {
            0 => Box::pin(std::future::ready(Err("the device is busy".into()))),
            1 => Box::pin(std::future::pending()),
            _ => self.root.sign(purpose, payload),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_root_that_does_not_sign_is_asked_again() {
    let reluctant = Arc::new(Reluctant {
        root: root(1),
        asked: AtomicU32::new(0),
    });
    let signer = Arc::new(Signer::new(
        reluctant.clone(),
        Vec::new(),
        Clock::manual(NOW),
    ));
    let shutdown = CancellationToken::new();
    let (running, token) = (signer.clone(), shutdown.clone());
    let tasks = TaskTracker::new();
    tasks.spawn(async move { running.run(token).await });
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(reluctant.asked.load(Ordering::SeqCst), 3);
    assert!(
        !signer.renew().await.unwrap(),
        "no worker key was certified by the task"
    );
    shutdown.cancel();
    tasks.close();
    tasks.wait().await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_of_two_replicas_that_start_at_once_one_publishes(pool: PgPool) {
    let clock = Clock::manual(NOW);
    let policy = Policy::default();
    // Whatever order the same roots are given in.
    let replicas = [signer(&[1, 2], &clock), signer(&[2, 1], &clock)];
    let (one, other) = tokio::join!(
        replicas[0].publish(&pool, &policy, 0),
        replicas[1].publish(&pool, &policy, 0)
    );
    assert_eq!((one.unwrap(), other.unwrap()), (1, 1));
    assert_eq!(bundles(&pool).await.len(), 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_each_bundle_is_signed_by_a_root_of_the_one_before(pool: PgPool) {
    let clock = Clock::manual(NOW);
    let mut policy = Policy::default();
    for (roots, version) in [
        (&[1_u8][..], 1),
        (&[1], 1),
        (&[1, 2], 2),
        (&[2, 1], 2),
        (&[2], 3),
    ] {
        let published = signer(roots, &clock).publish(&pool, &policy, 0).await;
        assert_eq!(published.unwrap(), version, "{roots:?}");
    }
    policy.unbatched_destructive_per_hour = 3;
    let published = signer(&[2], &clock).publish(&pool, &policy, 0).await;
    assert_eq!(published.unwrap(), 4);

    let chain = bundles(&pool).await;
    let versions: Vec<u64> = chain.iter().map(|bundle| bundle.version).collect();
    assert_eq!(versions, [1, 2, 3, 4]);
    let mut known = chain[0].signed.begin().unwrap();
    for bundle in &chain[1..] {
        known = bundle.signed.believe(&known.roots, known.version).unwrap();
    }
    assert_eq!(known.unbatched_destructive_per_hour, 3);

    // A root that no bundle knows, and one that was taken out, break the chain.
    for roots in [&[3_u8][..], &[1]] {
        let refused = signer(roots, &clock).publish(&pool, &policy, 0).await;
        let error = refused.unwrap_err();
        assert!(matches!(error, PublishError::Chain { version: 4, .. }));
        let shown = root(2).public_key().to_string();
        assert!(error.to_string().contains(&shown), "{error}");
    }
    assert_eq!(bundles(&pool).await.len(), 4);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_a_bundle_that_cannot_be_read_is_named_with_what_is_wrong(pool: PgPool) {
    let clock = Clock::manual(NOW);
    let policy = Policy::default();
    for roots in [&[1_u8][..], &[1, 2]] {
        let published = signer(roots, &clock).publish(&pool, &policy, 0).await;
        published.unwrap();
    }
    for (damage, parts) in [
        (
            "UPDATE trust_bundles SET version = 7 WHERE version = 2",
            &["row 7 of trust_bundles holds trust bundle 2"][..],
        ),
        (
            "UPDATE trust_bundles SET bundle = substr(bundle, 1, 20) WHERE version = 7",
            &["row 7 of trust_bundles", "ends early, at byte 20"],
        ),
        (
            "UPDATE trust_bundles SET signatures = '\\x93' WHERE version = 7",
            &["trust_bundles.signatures of row 7", "ends early, at byte 1"],
        ),
    ] {
        sqlx::query(damage).execute(&pool).await.unwrap();
        let published = signer(&[1], &clock).publish(&pool, &policy, 0).await;
        let error = published.unwrap_err();
        let mut told = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            told = format!("{told}: {error}");
            cause = error.source();
        }
        for part in parts {
            assert!(told.contains(part), "no {part}: {told}");
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p1_a_service_hears_once_of_each_bundle_that_is_not_its_own(pool: PgPool) {
    let clock = Clock::manual(NOW);
    let (own, other) = (signer(&[1, 2], &clock), signer(&[2], &clock));
    let (mine, mut theirs) = (Policy::default(), Policy::default());
    theirs.unbatched_destructive_per_hour = 3;
    own.publish(&pool, &mine, 0).await.unwrap();
    let mut watch = Watch::new(&own, &pool, &mine);
    assert_eq!(watch.look().await.unwrap(), []);

    other.publish(&pool, &theirs, 0).await.unwrap();
    let fields = vec!["roots", "unbatchedDestructivePerHour"];
    let version = 2;
    let differs = News::Differs { version, fields };
    assert_eq!(watch.look().await.unwrap(), [differs]);
    assert_eq!(watch.look().await.unwrap(), []);
    other.publish(&pool, &mine, 0).await.unwrap();
    let fields = vec!["roots"];
    let version = 3;
    let differs = News::Differs { version, fields };
    assert_eq!(watch.look().await.unwrap(), [differs]);

    own.publish(&pool, &mine, 0).await.unwrap();
    let agrees = News::Agrees { version: 4 };
    assert_eq!(watch.look().await.unwrap(), [agrees]);
    assert_eq!(watch.look().await.unwrap(), []);
    let lost = sqlx::query("DELETE FROM trust_bundles").execute(&pool);
    lost.await.unwrap();
    let (version, fields) = (0, vec!["version"]);
    let differs = News::Differs { version, fields };
    assert_eq!(watch.look().await.unwrap(), [differs]);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn l11_nodes_that_are_ahead_of_a_restored_database_are_told_of_and_caught_up_with(
    pool: PgPool,
) {
    let (ground, _, signer, bundle) = signing(&pool).await;
    let policy = ground.ledger.inner.options.approval.clone();
    let mut more = vec![ground.node];
    for name in ["b", "c", "gone"] {
        let registered = NodeRegistered {
            labels: BTreeMap::new(),
            name: name.to_owned(),
            role: Role::Node,
        };
        let node = ground
            .ledger
            .register_node(&ground.actor, ground.tenant, registered);
        more.push(node.await.unwrap().id);
    }
    let tell = async |nodes: &[NodeId], version: u64| {
        let told: Vec<_> = nodes.iter().map(|node| (*node, version)).collect();
        let mut conn = pool.acquire().await.unwrap();
        trust::record(&mut conn, &told).await.unwrap();
    };
    tell(&more[..1], bundle.version).await;
    let mut watch = Watch::new(&signer, &pool, &policy);
    assert_eq!(watch.look().await.unwrap(), []);

    let ahead = |nodes: u64, highest: u64| {
        let ahead = Ahead { nodes, highest };
        [News::Ahead { newest: 1, ahead }]
    };
    // One that is deleted says nothing any more.
    tell(&more[3..], 9).await;
    let gone = ground
        .ledger
        .delete_node(&ground.actor, ground.tenant, more[3]);
    gone.await.unwrap();
    assert_eq!(watch.look().await.unwrap(), []);
    tell(&more[..1], 4).await;
    assert_eq!(watch.look().await.unwrap(), ahead(1, 4));
    assert_eq!(watch.look().await.unwrap(), []);
    tell(&more[1..2], 4).await;
    assert_eq!(watch.look().await.unwrap(), ahead(2, 4));
    // A fleet that comes back node by node is not told of node by node.
    tell(&more[2..3], 3).await;
    assert_eq!(watch.look().await.unwrap(), []);
    tell(&more[2..3], 5).await;
    assert_eq!(watch.look().await.unwrap(), ahead(3, 5));

    // The same content again, above what they have seen; and once is enough.
    for _ in 0..2 {
        let published = signer.publish(&pool, &policy, 6).await;
        assert_eq!(published.unwrap(), 6);
    }
    assert_eq!(watch.look().await.unwrap(), []);
    let chain = bundles(&pool).await;
    let next = chain[1].signed.believe(&bundle.roots, 5).unwrap();
    assert!(next.means(&bundle), "{next:?}");

    // A node that lies cannot have the versions used up.
    let (newest, asked) = (6, 6 + TRUST_VERSIONS_LEFT_OUT_MAX + 1);
    let refused = signer.publish(&pool, &policy, asked).await.unwrap_err();
    assert!(
        matches!(&refused, PublishError::Leap { asked: a, newest: n } if (*a, *n) == (asked, newest))
    );
    let far = signer.publish(&pool, &policy, asked - 1).await;
    assert_eq!(far.unwrap(), asked - 1);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p4_a_destructive_command_needs_a_batch(pool: PgPool) {
    let ground = Ground::on(start(&pool, with_approvers)).await;
    let run = ground.run("node.reboot", "api:1");
    let refused = ground.ledger.enqueue(&ground.actor, run.clone()).await;
    let kind = "node.reboot".to_owned();
    let expected = Refusal::BatchRequired { kind };
    assert!(matches!(refused, Err(Error::Refused(refusal)) if refusal == expected));
    ground.queue("diag.nvml", "api:2").await;
    let batch = proposed(&ground, "node.reboot").await;
    queue_in(&ground, &batch, "node.reboot", "api:3")
        .await
        .unwrap();

    // Where a node takes a few, it is the node that counts them.
    let ledger = start(&pool, |options| {
        with_approvers(options);
        options.approval.unbatched_destructive_per_hour = 1;
    });
    ledger.enqueue(&ground.actor, run).await.unwrap();
}
