//! Secrets over a session (SPEC P6).

use std::path::Path;

use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::frame::{self, Frame, SecretRequest};
use ledger_protocol::secret::{Exchange, SecretValue};
use rand::{SeedableRng as _, rngs::StdRng};
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::clock::random_seed;
use crate::fake_gateway::Session;
use crate::fake_site::{FakeSite, Reply};

const SECRET: &str = "Basic cm9vdDpjNG40cnktcGFzc3dvcmQ=";
/// What must be nowhere but in the request: the value's parts.
const CANARIES: [&str; 2] = ["cm9vdDpjNG40cnktcGFzc3dvcmQ", "c4n4ry-password"];

/// A daemon of a site.
async fn site_fixture() -> Fixture {
    let machine = Machine::Host(Box::new(FakeMachine::new().host()));
    let mut fixture = Fixture::new(machine).await;
    fixture.crash().await;
    fixture.options.role = Some(Role::Site);
    fixture.start();
    fixture
}

fn proxy_command(number: u64, url: &str) -> frame::Command {
    let payload = json!({ "method": "GET", "secretRef": "site/api", "url": url });
    frame::Command {
        payload: canonical::from_json(&payload).unwrap(),
        ..command(number, "site.httpProxy")
    }
}

fn exchange(request: &SecretRequest) -> Exchange<'_> {
    Exchange {
        command_id: request.command_id,
        key: request.key,
        node_id: node_id(),
        secret_ref: &request.secret_ref,
    }
}

fn sealed(request: &SecretRequest) -> frame::Secret {
    let mut rng = StdRng::from_seed(*random_seed().unwrap());
    let value = SecretValue::new(SECRET.as_bytes().to_vec());
    frame::Secret {
        command_id: request.command_id,
        key: request.key,
        refused: None,
        sealed: Some(exchange(request).seal(&value, &mut rng).unwrap()),
        signed: None,
    }
}

impl Session {
    async fn secret_request(&mut self) -> SecretRequest {
        loop {
            match self.frame().await.expect("the session ended") {
                Frame::SecretRequest(request) => return request,
                Frame::CommandUpdate(body) => self.updates.extend(body.updates),
                _ => {}
            }
        }
    }
}

/// Whether any file below a folder holds one of the canaries.
fn holds_a_canary(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return holds_a_canary(&path);
        }
        has_a_canary(&std::fs::read(&path).unwrap())
    })
}

fn has_a_canary(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    CANARIES.iter().any(|canary| text.contains(canary))
}

/// Everything that is logged in a test, at every level.
#[derive(Clone, Default)]
struct Logged(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logged {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn p6_a_secret_is_used_and_stays_out_of_journal_log_and_result() {
    let logged = Logged::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(logged.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let site = FakeSite::start(|seen| {
        let told = format!(
            "{} means root:c4n4ry-password",
            seen.header("authorization").unwrap()
        );
        Reply::with(500, "", told)
    })
    .await;
    let mut fixture = site_fixture().await;
    let mut session = fixture.gateway.session().await;
    session.send(proxy_command(1, &site.url("/"))).await;
    let request = session.secret_request().await;
    assert_eq!(
        (request.command_id, request.secret_ref.as_str()),
        (command_id(1), "site/api")
    );
    session.send(sealed(&request)).await;
    let update = session.until(1, UpdateState::Failed).await;
    assert_eq!(site.seen()[0].header("authorization"), Some(SECRET));
    assert_eq!(update.reason.as_deref(), Some("http-status"));
    let result = json_of(update.result);
    assert_eq!(result["body"], "[secret site/api] means [secret site/api]");
    session.settle().await;

    // The question is this node's, and says which key may have the answer.
    fixture.crash().await;
    let dir = StateDir::open(&fixture.options.state_dir).unwrap();
    let key = Credentials::load(&dir)
        .unwrap()
        .unwrap()
        .signing_key()
        .unwrap();
    let signature = request.node_sig.as_deref().unwrap();
    let signed = canonical::encode(&exchange(&request)).unwrap();
    assert!(PublicKey::of(&key).verifies(Purpose::SecretRequest, &signed, signature));

    assert!(!holds_a_canary(&fixture.options.state_dir));
    let logged = logged.0.lock().unwrap().clone();
    assert!(logged.len() > 1_000 && !has_a_canary(&logged));
}

#[tokio::test]
async fn p6_a_question_outlives_the_session_in_which_it_was_asked() {
    let site = FakeSite::start(|_| Reply::with(204, "", "")).await;
    let mut fixture = site_fixture().await;
    let mut session = fixture.gateway.session().await;
    session.send(proxy_command(1, &site.url("/"))).await;
    let asked = session.secret_request().await;
    drop(session);
    let mut session = fixture.gateway.session().await;
    let again = session.secret_request().await;
    assert_eq!(again, asked);
    session.send(sealed(&again)).await;
    session.until(1, UpdateState::Succeeded).await;
    assert_eq!(site.seen().len(), 1);
}

#[tokio::test]
async fn p6_a_refused_secret_fails_the_command_before_anything_is_sent() {
    let site = FakeSite::start(|_| Reply::HangUp).await;
    let mut fixture = site_fixture().await;
    let mut session = fixture.gateway.session().await;
    session.send(proxy_command(1, &site.url("/"))).await;
    let request = session.secret_request().await;
    session
        .send(frame::Secret {
            refused: Some("NOT_ALLOWED".to_owned()),
            sealed: None,
            ..sealed(&request)
        })
        .await;
    let update = session.until(1, UpdateState::Failed).await;
    assert_eq!(update.reason.as_deref(), Some("secret-unavailable"));
    let details = json_of(update.details);
    assert_eq!(details["code"], "NOT_ALLOWED");
    assert_eq!(details["secretRef"], "site/api");
    assert_eq!(site.connections(), 0);
}

#[tokio::test]
async fn d12_a_command_that_waits_for_its_secret_is_cancelled() {
    let site = FakeSite::start(|_| Reply::HangUp).await;
    let mut fixture = site_fixture().await;
    let mut session = fixture.gateway.session().await;
    session.send(proxy_command(1, &site.url("/"))).await;
    session.secret_request().await;
    let command_id = command_id(1);
    session.send(Cancel { command_id }).await;
    session.until(1, UpdateState::Cancelled).await;
    assert_eq!(site.connections(), 0);
}
