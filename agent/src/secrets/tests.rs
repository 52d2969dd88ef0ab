//! The service that a test plays, and what becomes of its answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::{SeedableRng as _, rngs::StdRng};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::*;
use crate::kinds::Outcome;

/// Answers the questions of one command.
pub(crate) struct FakeKeeper {
    pub(crate) secrets: Secrets,
    asked: Arc<AtomicUsize>,
    _answering: JoinSet<()>,
}

impl FakeKeeper {
    /// Seals this value, for whatever name.
    pub(crate) fn giving(value: &str) -> Self {
        let value = SecretValue::new(value.as_bytes().to_vec());
        Self::answering(move |exchange| {
            let mut rng = StdRng::from_seed(*random_seed().unwrap());
            Some(Ok(exchange.seal(&value, &mut rng).unwrap()))
        })
    }

    pub(crate) fn refusing(code: &'static str) -> Self {
        Self::answering(move |_| Some(Err(code.to_owned())))
    }

    /// Never answers, and never says so.
    pub(crate) fn silent() -> Self {
        Self::answering(|_| None)
    }

    fn answering(answer: impl Fn(&Exchange<'_>) -> Option<Answer> + Send + 'static) -> Self {
        let node = NodeId::from_uuid(Uuid::from_u128(7));
        let command = CommandId::from_uuid(Uuid::from_u128(1));
        let (session, mut wanted) = mpsc::channel::<Wanted>(1);
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let mut answering = JoinSet::new();
        answering.spawn(async move {
            let mut open = Vec::new();
            while let Some(wanted) = wanted.recv().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let exchange = Exchange {
                    command_id: wanted.command_id,
                    key: wanted.key,
                    node_id: node,
                    secret_ref: &wanted.secret_ref,
                };
                match answer(&exchange) {
                    Some(answer) => drop(wanted.answer.send(answer)),
                    None => open.push(wanted.answer),
                }
            }
        });
        Self {
            secrets: Secrets::new(node, command, session),
            asked,
            _answering: answering,
        }
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.counter()()
    }

    /// How often it was asked, for one who gives the keeper away.
    pub(crate) fn counter(&self) -> impl Fn() -> usize + use<> {
        let asked = self.asked.clone();
        move || asked.load(Ordering::SeqCst)
    }

    pub(crate) async fn get(&self, name: &str) -> Result<SecretValue, SecretFailure> {
        let until = Instant::now() + Duration::from_millis(300);
        self.secrets
            .get(name, until, &CancellationToken::new())
            .await
    }
}

fn why(failure: SecretFailure) -> (Option<String>, String) {
    match failure {
        SecretFailure::Unavailable { code, why } => (code, why),
        SecretFailure::Cancelled => panic!("cancelled"),
    }
}

#[tokio::test]
async fn p6_a_sealed_secret_is_opened_and_from_then_on_taken_out() {
    let keeper = FakeKeeper::giving("Bearer c4n4ry-token");
    let told = "the token is c4n4ry-token";
    assert_eq!(keeper.secrets.redact(told), told, "nothing is known yet");
    let value = keeper.get("bmc/rack-7").await.unwrap();
    assert_eq!(value.reveal(), b"Bearer c4n4ry-token");
    assert_eq!(
        keeper.secrets.redact(told),
        "the token is [secret bmc/rack-7]"
    );
    assert!(!format!("{value:?}{:?}", keeper.secrets).contains("c4n4ry"));
}

#[tokio::test]
async fn p6_each_question_has_a_key_of_its_own() {
    let (session, mut wanted) = mpsc::channel(1);
    let node = NodeId::from_uuid(Uuid::from_u128(7));
    let secrets = Secrets::new(node, CommandId::from_uuid(Uuid::from_u128(1)), session);
    let cancel = CancellationToken::new();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let until = Instant::now() + Duration::from_secs(30);
        let (got, key) = tokio::join!(secrets.get("a", until, &cancel), async {
            // It is dropped with its way back.
            wanted.recv().await.unwrap().key
        });
        assert_eq!(why(got.unwrap_err()).1, "the agent's session ended");
        keys.push(key);
    }
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test]
async fn p6_a_secret_that_does_not_come_says_why() {
    let refused = FakeKeeper::refusing("NOT_ALLOWED");
    assert_eq!(
        why(refused.get("a").await.unwrap_err()),
        (
            Some("NOT_ALLOWED".to_owned()),
            "the secret is not for this kind or this node".to_owned()
        )
    );
    let newer = FakeKeeper::refusing("SOMETHING_NEW");
    let (code, _) = why(newer.get("a").await.unwrap_err());
    assert_eq!(code.as_deref(), Some("SOMETHING_NEW"));
    let silent = FakeKeeper::silent();
    let (code, told) = why(silent.get("a").await.unwrap_err());
    assert_eq!(code, None);
    assert!(told.contains("did not answer"), "{told}");
    assert_eq!(silent.asked(), 1);
    // A name that no secret can have is not even asked for.
    let (_, told) = why(silent.get("Not A Name").await.unwrap_err());
    assert!(told.starts_with("secretRef must be"), "{told}");
    assert_eq!(silent.asked(), 1);
}

#[tokio::test]
async fn p6_a_value_that_was_sealed_for_another_question_is_none() {
    let keeper = FakeKeeper::answering(|exchange| {
        let other = Exchange {
            secret_ref: "another",
            ..*exchange
        };
        let mut rng = StdRng::from_seed(*random_seed().unwrap());
        let value = SecretValue::new(b"c4n4ry".to_vec());
        Some(Ok(other.seal(&value, &mut rng).unwrap()))
    });
    let (_, told) = why(keeper.get("a").await.unwrap_err());
    assert!(told.contains("cannot be opened"), "{told}");
}

#[tokio::test]
async fn d12_who_waits_for_a_secret_can_be_cancelled() {
    let keeper = FakeKeeper::silent();
    let cancel = CancellationToken::new();
    let until = Instant::now() + Duration::from_secs(30);
    let (got, ()) = tokio::join!(keeper.secrets.get("a", until, &cancel), async {
        while keeper.asked() == 0 {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    let failure = got.unwrap_err();
    assert_eq!(failure, SecretFailure::Cancelled);
    assert_eq!(failure.finished("a").outcome, Outcome::Cancelled);
}
