//! Secrets and who gets them, on a real Postgres (SPEC P6).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use ed25519_dalek::SigningKey;
use ledger_projections::secrets::{self as rows, Described, exchanges};
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::event::NodeCertified;
use ledger_protocol::frame;
use ledger_protocol::id::CommandId;
use ledger_protocol::secret::{Exchange, PrivateKey, Refused, SecretValue};
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::*;
use crate::secrets::{
    DatabaseStore, Getting, Held, MasterKey, MasterKeys, PutSecret, SecretError, SecretStore,
    StoreFailure, keep,
};
use crate::{HeldRoot, Signer};

const VALUE: &str = "Bearer hunter2";
const KIND: &str = "site.httpProxy";

pub(super) fn keys(first: u8, others: &[u8]) -> Arc<MasterKeys> {
    let key = |number: u8| MasterKey::new(Zeroizing::new([number; 32]));
    let others = others.iter().map(|number| key(*number)).collect();
    Arc::new(MasterKeys::new(key(first), others))
}

/// A site node with a key, a ledger that signs, and keepers that stop with the test.
struct Site {
    ground: Ground,
    clock: Clock,
    root: PublicKey,
    key: SigningKey,
    keepers: CancellationToken,
    tasks: TaskTracker,
    asked: AtomicU32,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.keepers.cancel();
    }
}

fn certified(key: &SigningKey) -> NodeCertified {
    NodeCertified {
        allowed_kinds: None,
        fingerprint: hex(key),
        not_after: NOW.plus_seconds(1_000_000),
        not_before: NOW,
        public_key: key.verifying_key().to_bytes().to_vec(),
        renews: None,
    }
}

fn hex(key: &SigningKey) -> String {
    PublicKey::of(key).to_string()
}

/// A ledger that signs under one root, on this clock.
async fn signing(pool: &PgPool, clock: &Clock) -> Ledger {
    let root = HeldRoot::new(SigningKey::from_bytes(&[1; 32]));
    let signer = Signer::new(Arc::new(root), Vec::new(), clock.clone());
    assert!(signer.renew().await.unwrap());
    start(pool, |options| {
        options.clock = clock.clone();
        options.signer = Some(Arc::new(signer));
        options.master_keys = Some(keys(1, &[]));
    })
}

impl Site {
    async fn on(pool: &PgPool) -> Self {
        let clock = Clock::manual(NOW);
        let ledger = signing(pool, &clock).await;
        let tenant = TenantId::new(NOW, ledger.new_id_random());
        let actor = Actor::api("operator");
        let key = SigningKey::from_bytes(&[9; 32]);
        let node = joined(&ledger, tenant, &key).await;
        let mut opening = open("b1", 1);
        opening.role = Role::Site;
        let opened = ledger.open_session(&actor, node, opening, Vec::new()).await;
        let epoch = opened.unwrap().node.epoch;
        let ground = Ground {
            ledger,
            actor,
            tenant,
            node,
            epoch,
        };
        Self {
            ground,
            clock,
            root: PublicKey::of(&SigningKey::from_bytes(&[1; 32])),
            key,
            keepers: CancellationToken::new(),
            tasks: TaskTracker::new(),
            asked: AtomicU32::new(0),
        }
    }

    fn store(&self, keys: &Arc<MasterKeys>) -> DatabaseStore {
        DatabaseStore::new(self.ground.ledger.pool().clone(), Arc::clone(keys))
    }

    fn keep(&self, ledger: &Ledger, store: Arc<dyn SecretStore>) {
        let (ledger, token) = (ledger.clone(), self.keepers.clone());
        self.tasks.spawn(keep(ledger, store, token));
    }

    /// The keeper of this ledger and these secrets.
    fn keep_own(&self) {
        self.keep(&self.ground.ledger, Arc::new(self.store(&keys(1, &[]))));
    }

    async fn put(&self, name: &str, kinds: Option<&str>, nodes: Option<NodeId>) -> Described {
        let put = PutSecret {
            tenant: self.ground.tenant,
            name: name.to_owned(),
            value: SecretValue::new(VALUE.into()),
            kinds: kinds.map(|kind| vec![kind.to_owned()]),
            nodes: nodes.map(|node| vec![node]),
        };
        let actor = &self.ground.actor;
        self.ground.ledger.put_secret(actor, put).await.unwrap()
    }

    /// Queues a command that names a secret.
    async fn queue(&self, ledger: &Ledger, name: &str, key: &str) -> Command {
        let mut run = self.ground.run(KIND, key);
        run.payload = json!({"url": "https://bmc.example", "method": "GET", "secretRef": name});
        let queued = ledger.enqueue(&self.ground.actor, run).await;
        queued.unwrap().command
    }

    async fn dispatch(&self, command: &Command) -> CommandId {
        let ground = &self.ground;
        let sent = ground
            .ledger
            .dispatch(&ground.actor, ground.node, command.id, ground.epoch)
            .await;
        sent.unwrap().id
    }

    /// A command in flight that names a secret.
    async fn sent(&self, name: &str) -> CommandId {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let queued = self
            .queue(&self.ground.ledger, name, &format!("wf:{number}"))
            .await;
        self.dispatch(&queued).await
    }

    /// A one-time key that was not used yet.
    fn one_time_key(&self) -> PrivateKey {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let mut seed = Zeroizing::new([7; 32]);
        seed[..4].copy_from_slice(&number.to_be_bytes());
        PrivateKey::derive(&seed)
    }

    fn question(
        &self,
        command: CommandId,
        name: &str,
        key: &PrivateKey,
        by: &SigningKey,
    ) -> frame::SecretRequest {
        let exchange = self.exchange(command, name, key);
        frame::SecretRequest {
            command_id: command,
            key: key.public(),
            node_sig: Some(exchange.sign(by).unwrap().to_vec()),
            secret_ref: name.to_owned(),
        }
    }

    fn exchange<'a>(&self, command: CommandId, name: &'a str, key: &PrivateKey) -> Exchange<'a> {
        Exchange {
            command_id: command,
            key: key.public(),
            node_id: self.ground.node,
            secret_ref: name,
        }
    }

    /// The answer to this question, which is asked again until there is one.
    async fn answer(&self, request: &frame::SecretRequest) -> frame::Secret {
        let until = Instant::now() + Duration::from_mins(1);
        loop {
            let node = self.ground.node;
            let answer = self.ground.ledger.exchange_secret(node, request).await;
            if let Some(answer) = answer.unwrap() {
                assert_eq!(
                    (answer.command_id, answer.key),
                    (request.command_id, request.key)
                );
                return answer;
            }
            assert!(Instant::now() < until, "no answer to {request:?}");
        }
    }

    /// The code with which a question of the node is refused.
    async fn refused(&self, command: CommandId, name: &str) -> String {
        let key = self.one_time_key();
        let request = self.question(command, name, &key, &self.key);
        self.refused_request(&request).await
    }

    async fn refused_request(&self, request: &frame::SecretRequest) -> String {
        let answer = self.answer(request).await;
        assert_eq!((&answer.sealed, &answer.signed), (&None, &None));
        answer.refused.expect("the question was not refused")
    }

    /// The value that the node finds in the answer to its question.
    async fn value(&self, command: CommandId, name: &str) -> Vec<u8> {
        let key = self.one_time_key();
        let request = self.question(command, name, &key, &self.key);
        let answer = self.answer(&request).await;
        assert_eq!(answer.refused, None);
        let exchange = self.exchange(command, name, &key);
        let sealed = answer.sealed.unwrap();
        let statement = exchange.statement(&sealed).unwrap();
        let signed = answer.signed.expect("the answer is not signed");
        let times = (self.clock.now(), self.clock.now());
        signed
            .verify(&[self.root], times, Purpose::Secret, &statement)
            .unwrap();
        key.open(&exchange, &sealed).unwrap().reveal().to_vec()
    }

    async fn row(&self, name: &str) -> Option<rows::Stored> {
        let mut conn = self.ground.ledger.pool().acquire().await.unwrap();
        let row = rows::get(&mut conn, self.ground.tenant, name).await;
        row.unwrap()
    }
}

async fn joined(ledger: &Ledger, tenant: TenantId, key: &SigningKey) -> NodeId {
    let actor = Actor::api("operator");
    let registered = NodeRegistered {
        labels: BTreeMap::new(),
        name: "site".to_owned(),
        role: Role::Site,
    };
    let node = ledger.register_node(&actor, tenant, registered).await;
    let node = node.unwrap().id;
    let joined = ledger.certify(&actor, node, certified(key)).await;
    joined.unwrap().id
}

/// Waits until something holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !holds().await {
        assert!(Instant::now() < end, "{what} did not come");
        sleep(Duration::from_millis(20)).await;
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_node_gets_the_secret_that_its_command_names(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.keep_own();
    let first = site.put("site/bmc", None, None).await;
    assert_eq!((first.version, first.put_by.as_str()), (1, "api:operator"));
    let second = site
        .put("site/bmc", Some(KIND), Some(site.ground.node))
        .await;
    assert_eq!(second.version, 2);
    let command = site.sent("site/bmc").await;
    assert_eq!(site.value(command, "site/bmc").await, VALUE.as_bytes());
    // While it runs too, and as often as its node lost the answer.
    let head = site.ground.head().await;
    for state in [UpdateState::Acked, UpdateState::Running] {
        let known = site.ground.ledger.pool().acquire().await;
        let known = commands::get(&mut known.unwrap(), command).await;
        let command = known.unwrap().unwrap();
        site.ground.report(&command, state).await.unwrap();
        assert_eq!(site.value(command.id, "site/bmc").await, VALUE.as_bytes());
    }
    assert_eq!(
        site.ground.head().await,
        head + 2,
        "the log knows of secrets"
    );
    // The same question has the same answer.
    let key = site.one_time_key();
    let request = site.question(command, "site/bmc", &key, &site.key);
    let answer = site.answer(&request).await;
    assert_eq!(site.answer(&request).await, answer);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_question_that_is_not_the_nodes_own_is_refused(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.keep_own();
    site.put("bmc", None, None).await;
    let command = site.sent("bmc").await;
    let unknown = CommandId::new(NOW, [1; 10]);
    assert_eq!(site.refused(unknown, "bmc").await, "UNKNOWN_COMMAND");

    // Another node of the tenant asks, with a good signature of its own.
    let other = SigningKey::from_bytes(&[8; 32]);
    let ledger = &site.ground.ledger;
    let stranger = joined(ledger, site.ground.tenant, &other).await;
    let key = site.one_time_key();
    let mut exchange = site.exchange(command, "bmc", &key);
    exchange.node_id = stranger;
    let mut request = site.question(command, "bmc", &key, &other);
    request.node_sig = Some(exchange.sign(&other).unwrap().to_vec());
    let answer = loop {
        let answer = ledger.exchange_secret(stranger, &request).await.unwrap();
        if let Some(answer) = answer {
            break answer;
        }
    };
    assert_eq!(answer.refused.as_deref(), Some("UNKNOWN_COMMAND"));

    // A gateway puts a key of its own in, or a signature that is none.
    let good = site.question(command, "bmc", &key, &site.key);
    let mut key_of_another = good.clone();
    key_of_another.key = site.one_time_key().public();
    let by_another = site.question(command, "bmc", &site.one_time_key(), &other);
    let mut unsigned = site.question(command, "bmc", &site.one_time_key(), &other);
    unsigned.node_sig = None;
    let mut short = site.question(command, "bmc", &site.one_time_key(), &site.key);
    short.node_sig.as_mut().unwrap().pop();
    for request in [key_of_another, by_another, unsigned, short] {
        assert_eq!(site.refused_request(&request).await, "BAD_SIGNATURE");
    }
    // Nothing of it stands in the true one's way.
    assert_eq!(site.value(command, "bmc").await, VALUE.as_bytes());

    // Its key was locked out; a session that is still there gets nothing with it.
    let ground = &site.ground;
    let revoked = ground.ledger.revoke_certificate(
        &ground.actor,
        ground.tenant,
        ground.node,
        "stolen".to_owned(),
    );
    revoked.await.unwrap();
    assert_eq!(site.refused(command, "bmc").await, "BAD_SIGNATURE");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_secret_is_for_a_command_in_flight_that_names_it(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.keep_own();
    for name in ["bmc", "other"] {
        site.put(name, None, None).await;
    }
    let pending = site.queue(&site.ground.ledger, "bmc", "wf:pending").await;
    assert_eq!(site.refused(pending.id, "bmc").await, "NOT_IN_FLIGHT");
    let command = site.sent("bmc").await;
    assert_eq!(site.refused(command, "other").await, "NOT_NAMED");
    let none = site.sent("none").await;
    assert_eq!(site.refused(none, "none").await, "UNKNOWN_SECRET");
    // No row holds what nothing can be named.
    for name in ["", "Bearer hunter2", "a\0"] {
        assert_eq!(site.refused(command, name).await, "UNKNOWN_SECRET");
    }

    let mut conn = pool.acquire().await.unwrap();
    rows::delete(&mut conn, site.ground.tenant, "bmc")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(site.refused(command, "bmc").await, "UNKNOWN_SECRET");
    assert_eq!(site.put("bmc", None, None).await.version, 1);
    assert_eq!(site.value(command, "bmc").await, VALUE.as_bytes());

    let ended = commands::get(&mut conn, command).await.unwrap().unwrap();
    site.ground
        .report(&ended, UpdateState::Succeeded)
        .await
        .unwrap();
    assert_eq!(site.refused(command, "bmc").await, "NOT_IN_FLIGHT");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_secret_is_for_the_kinds_and_nodes_that_it_was_put_for(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.keep_own();
    let other = NodeId::new(NOW, [5; 10]);
    for (name, kinds, nodes) in [
        ("a", Some("bmc.power"), None),
        ("b", None, Some(other)),
        ("c", Some(KIND), Some(other)),
        ("d", Some("bmc.power"), Some(site.ground.node)),
    ] {
        site.put(name, kinds, nodes).await;
        let command = site.sent(name).await;
        assert_eq!(site.refused(command, name).await, "NOT_ALLOWED", "{name}");
    }
    // Whoever writes to the database cannot give it to others.
    sqlx::query("UPDATE secrets SET kinds = NULL, nodes = NULL")
        .execute(&pool)
        .await
        .unwrap();
    let command = site.sent("b").await;
    assert_eq!(site.refused(command, "b").await, "UNREADABLE");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_what_the_master_key_does_not_open_is_refused(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.keep(&site.ground.ledger, Arc::new(site.store(&keys(2, &[]))));
    site.put("bmc", None, None).await;
    let command = site.sent("bmc").await;
    assert_eq!(site.refused(command, "bmc").await, "UNREADABLE");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_command_that_the_service_has_not_signed_gets_nothing(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.keep_own();
    site.put("bmc", None, None).await;
    // Somebody who reaches the database, and no key, makes one up.
    let unsigned = start(&pool, |_| {});
    let made_up = site.queue(&unsigned, "bmc", "wf:made-up").await;
    let command = site.dispatch(&made_up).await;
    assert_eq!(site.refused(command, "bmc").await, "UNKNOWN_COMMAND");
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_where_nothing_is_signed_secrets_are_given_all_the_same(pool: PgPool) {
    let site = Site::on(&pool).await;
    let unsigned = start(&pool, |options| {
        options.clock = site.clock.clone();
    });
    site.keep(&unsigned, Arc::new(site.store(&keys(1, &[]))));
    site.put("bmc", None, None).await;
    let command = site.sent("bmc").await;
    let key = site.one_time_key();
    let request = site.question(command, "bmc", &key, &site.key);
    let answer = site.answer(&request).await;
    assert_eq!(answer.signed, None);
    let exchange = site.exchange(command, "bmc", &key);
    let value = key.open(&exchange, &answer.sealed.unwrap()).unwrap();
    assert_eq!(value.reveal(), VALUE.as_bytes());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_command_has_eight_questions_however_many_come_at_once(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.put("bmc", None, None).await;
    let command = site.sent("bmc").await;
    // Nobody answers yet, so what is counted is what came.
    let questions: Vec<_> = (0..20)
        .map(|_| site.question(command, "bmc", &site.one_time_key(), &site.key))
        .collect();
    let asked = questions.iter().map(|request| {
        let (ledger, node, request) = (
            site.ground.ledger.clone(),
            site.ground.node,
            request.clone(),
        );
        site.tasks
            .spawn(async move { ledger.exchange_secret(node, &request).await.unwrap() })
    });
    let mut refused = 0;
    for asked in asked.collect::<Vec<_>>() {
        if let Some(answer) = asked.await.unwrap() {
            let code = answer.refused.unwrap();
            assert_eq!(code, Refused::TooMany.code());
            refused += 1;
        }
    }
    assert_eq!(refused, 12);
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM secret_exchanges")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, exchanges::PER_COMMAND_MAX);
    // Another node's questions, were it to name this command, are counted apart; another command's too.
    site.keep_own();
    let other = site.sent("bmc").await;
    assert_eq!(site.value(other, "bmc").await, VALUE.as_bytes());
    // Those eight get their answers.
    let mut answered = 0;
    for request in &questions {
        answered += usize::from(site.answer(request).await.sealed.is_some());
    }
    assert_eq!(answered, 8);
}

/// A store that counts, and does not answer at first.
#[derive(Debug)]
struct Counting {
    store: DatabaseStore,
    failures: Mutex<u32>,
    asked: Arc<AtomicU32>,
}

impl SecretStore for Counting {
    fn get<'a>(&'a self, tenant: TenantId, name: &'a str) -> Getting<'a> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            {
                let mut failures = self.failures.lock().unwrap();
                if *failures > 0 {
                    *failures -= 1;
                    return Err(StoreFailure::Unavailable("a link was cut".into()));
                }
            }
            self.store.get(tenant, name).await
        })
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_of_two_keepers_one_answers_each_question(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.put("bmc", None, None).await;
    let mut questions = Vec::new();
    for _ in 0..5 {
        let command = site.sent("bmc").await;
        for _ in 0..8 {
            questions.push(site.question(command, "bmc", &site.one_time_key(), &site.key));
        }
    }
    let mut conn = pool.acquire().await.unwrap();
    for request in &questions {
        let asked = exchanges::Asked {
            command: request.command_id,
            node: site.ground.node,
            key: request.key,
            secret_ref: request.secret_ref.clone(),
            node_sig: request.node_sig.clone(),
            asked_at: NOW,
        };
        assert!(exchanges::ask(&mut conn, &asked).await.unwrap());
        assert!(!exchanges::ask(&mut conn, &asked).await.unwrap());
    }
    let asked = Arc::new(AtomicU32::new(0));
    let there = signing(&pool, &site.clock).await;
    for ledger in [&site.ground.ledger, &there] {
        let store = Counting {
            store: site.store(&keys(1, &[])),
            failures: Mutex::new(0),
            asked: asked.clone(),
        };
        site.keep(ledger, Arc::new(store));
    }
    for request in &questions {
        assert!(site.answer(request).await.sealed.is_some());
    }
    assert_eq!(asked.load(Ordering::SeqCst), 40);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_store_that_does_not_answer_is_asked_again(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.put("bmc", None, None).await;
    let store = Counting {
        store: site.store(&keys(1, &[])),
        failures: Mutex::new(2),
        asked: Arc::new(AtomicU32::new(0)),
    };
    let asked = store.asked.clone();
    site.keep(&site.ground.ledger, Arc::new(store));
    let command = site.sent("bmc").await;
    assert_eq!(site.value(command, "bmc").await, VALUE.as_bytes());
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_old_questions_are_neither_answered_nor_kept(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.put("bmc", None, None).await;
    let command = site.sent("bmc").await;
    let question = |key: &PrivateKey| site.question(command, "bmc", key, &site.key);
    let (old, late) = (site.one_time_key(), site.one_time_key());
    let ask = async |request: frame::SecretRequest| {
        let ledger = &site.ground.ledger;
        let answer = ledger.exchange_secret(site.ground.node, &request).await;
        assert_eq!(answer.unwrap(), None);
    };
    ask(question(&old)).await;
    site.clock.advance_seconds(3_600 - 121);
    ask(question(&late)).await;
    site.clock.advance_seconds(122);
    site.keep_own();
    let keys = async || {
        let keys: Vec<Vec<u8>> =
            sqlx::query_scalar("SELECT one_time_key FROM secret_exchanges ORDER BY asked_at")
                .fetch_all(&pool)
                .await
                .unwrap();
        keys
    };
    let kept = late.public().as_bytes().to_vec();
    until("the end of the old one", async || {
        keys().await == [kept.clone()]
    })
    .await;
    // Whoever asks now is answered before the late one would be, and that one never.
    assert_eq!(site.value(command, "bmc").await, VALUE.as_bytes());
    ask(question(&late)).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_master_key_is_exchanged_while_secrets_are_given(pool: PgPool) {
    let site = Site::on(&pool).await;
    for number in 0..205 {
        site.put(&format!("bmc-{number}"), None, None).await;
    }
    let before = site.row("bmc-7").await.unwrap();
    // One that cannot be read stands in nobody's way.
    sqlx::query("UPDATE secrets SET version = 9 WHERE name = 'bmc-0'")
        .execute(&pool)
        .await
        .unwrap();
    let both = site.store(&keys(2, &[1]));
    let (running, token) = (both.clone(), site.keepers.clone());
    site.tasks.spawn(async move { running.run(token).await });
    let old = before.described.key_id;
    until("the new key", async || {
        let mut conn = pool.acquire().await.unwrap();
        let under = rows::under(&mut conn, &[old], None, 300).await.unwrap();
        under.len() == 1 && under[0].described.name == "bmc-0"
    })
    .await;
    let after = site.row("bmc-7").await.unwrap();
    assert_eq!(after.described.version, before.described.version);
    let held = async |store: &DatabaseStore| {
        let held: Result<Option<Held>, StoreFailure> = store.get(site.ground.tenant, "bmc-7").await;
        held.map(|held| held.unwrap().value.reveal().to_vec())
    };
    // The old one is needed no more, and opens nothing any more.
    let new = site.store(&keys(2, &[]));
    assert_eq!(held(&new).await.unwrap(), VALUE.as_bytes());
    let refused = held(&site.store(&keys(1, &[]))).await.unwrap_err();
    assert!(matches!(refused, StoreFailure::Unreadable(_)), "{refused}");
    site.keep(&site.ground.ledger, Arc::new(new));
    let command = site.sent("bmc-7").await;
    assert_eq!(site.value(command, "bmc-7").await, VALUE.as_bytes());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_a_key_that_moves_never_brings_an_old_value_back(pool: PgPool) {
    let site = Site::on(&pool).await;
    site.put("bmc", None, None).await;
    let read = site.row("bmc").await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    // Between its reading and its writing somebody deletes it and puts another value.
    rows::delete(&mut conn, site.ground.tenant, "bmc")
        .await
        .unwrap();
    site.put("bmc", None, None).await;
    let now = site.row("bmc").await.unwrap();
    let moved = rows::rekey(&mut conn, &read, [2; 8], &read.sealed).await;
    assert!(!moved.unwrap());
    assert_eq!(site.row("bmc").await, Some(now));
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_puts_at_once_are_versions_one_after_the_other(pool: PgPool) {
    let site = Site::on(&pool).await;
    let puts = (0..6).map(|_| site.put("bmc", None, None));
    let puts = futures_util::future::join_all(puts).await;
    let mut versions: Vec<_> = puts.iter().map(|put| put.version).collect();
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6]);
    assert_eq!(site.row("bmc").await.unwrap().described.version, 6);
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn p6_without_a_master_key_nothing_is_taken_in(pool: PgPool) {
    let ground = Ground::on(start(&pool, |_| {})).await;
    let put = PutSecret {
        tenant: ground.tenant,
        name: "bmc".to_owned(),
        value: SecretValue::new(VALUE.into()),
        kinds: None,
        nodes: None,
    };
    assert!(!format!("{put:?}").contains("hunter2"));
    let refused = ground.ledger.put_secret(&ground.actor, put).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, SecretError::NoMasterKey), "{refused}");
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM secrets")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, 0);
}
