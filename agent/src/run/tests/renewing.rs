use ledger_protocol::session::Close;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::*;

/// What a join gives when it was long ago: more than half of it is over.
const HALF_OVER: [i64; 2] = [-30, 10];

async fn joined_long_ago(machine: Machine) -> Fixture {
    let gateway = FakeGateway::start().await;
    gateway.certificates.join_with(HALF_OVER);
    Fixture::with(gateway, machine, TOKEN)
}

impl Fixture {
    /// The certificate that the state directory holds, PEM.
    fn kept(&self) -> String {
        let kept = std::fs::read(self.options.state_dir.join("identity.json")).unwrap();
        let kept: Value = serde_json::from_slice(&kept).unwrap();
        kept["certificate"].as_str().unwrap().to_owned()
    }

    fn renewals(&self) -> usize {
        self.gateway.certificates.renewals.load(Ordering::SeqCst)
    }

    fn answer_renewals_with(&self, status: u16) {
        let answer = &self.gateway.certificates.renewal_status;
        answer.store(status, Ordering::SeqCst);
    }
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .unwrap()
        .to_vec()
}

#[tokio::test]
async fn p7_a_certificate_is_renewed_beside_the_session_and_shown_in_the_next() {
    let mut fixture = joined_long_ago(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.session().await;
    let old = session.certificate.clone();
    wait_until("the renewed certificate is kept", || {
        der(&fixture.kept()) != old
    })
    .await;
    session.send(command(1, "diag.nvml")).await;
    session.until(1, UpdateState::Succeeded).await;
    session.close(Close::certificate_expired().code).await;
    let renewed = der(&fixture.kept());
    let mut session = fixture.gateway.session().await;
    assert_eq!(session.certificate, renewed);
    session.settle().await;
    // It is good for a long time, so that one was enough.
    assert_eq!(fixture.renewals(), 1);
    fixture.crash().await;
    fixture.start();
    let session = fixture.gateway.session().await;
    assert_eq!(session.certificate, renewed);
}

#[tokio::test]
async fn p7_nothing_is_renewed_before_a_server_has_told_the_time() {
    let mut fixture = joined_long_ago(scripted(Duration::ZERO)).await;
    let mut session = fixture.gateway.hello().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.renewals(), 0);
    // By the server, half of it is not over; by the node's own clock it is.
    let early = Clock::system()
        .wall()
        .plus_micros(-20 * 24 * 3_600 * 1_000_000);
    session.welcome(early).await;
    session.settle().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.renewals(), 0);
}

#[tokio::test]
async fn p7_a_crash_while_it_renews_leaves_a_certificate_that_opens_sessions() {
    let mut fixture = joined_long_ago(scripted(Duration::ZERO)).await;
    // The answer never comes, and the agent dies.
    fixture.answer_renewals_with(0);
    let session = fixture.gateway.session().await;
    let old = session.certificate.clone();
    wait_until("a renewal was asked for", || fixture.renewals() > 0).await;
    fixture.crash().await;
    assert_eq!(der(&fixture.kept()), old);
    // It dies in the middle of the writing: the new file is not in its place yet.
    let half = fixture.options.state_dir.join("identity.json.new");
    std::fs::write(&half, b"{\"certificate\":\"-----BEGIN").unwrap();
    fixture.start();
    let session = fixture.gateway.session().await;
    assert_eq!(session.certificate, old);
    fixture.crash().await;
    // It dies between the writing and the showing.
    fixture.answer_renewals_with(200);
    fixture.start();
    let _session = fixture.gateway.session().await;
    wait_until("the renewed certificate is kept", || {
        der(&fixture.kept()) != old
    })
    .await;
    fixture.crash().await;
    fixture.start();
    let session = fixture.gateway.session().await;
    assert_eq!(session.certificate, der(&fixture.kept()));
}

#[tokio::test]
async fn p7_a_refused_renewal_is_tried_again_and_leaves_the_session_alone() {
    let mut fixture = joined_long_ago(scripted(Duration::ZERO)).await;
    fixture.answer_renewals_with(409);
    let mut session = fixture.gateway.session().await;
    let old = session.certificate.clone();
    wait_until("it is tried again", || fixture.renewals() > 1).await;
    session.send(command(1, "diag.nvml")).await;
    session.until(1, UpdateState::Succeeded).await;
    assert_eq!(der(&fixture.kept()), old);
    fixture.answer_renewals_with(200);
    wait_until("the renewed certificate is kept", || {
        der(&fixture.kept()) != old
    })
    .await;
    session.settle().await;
}

#[tokio::test]
async fn p7_a_revoked_node_waits_for_a_person() {
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let session = fixture.gateway.session().await;
    session.close(Close::certificate_revoked().code).await;
    let soon = tokio::time::timeout(Duration::from_secs(2), fixture.gateway.hello());
    assert!(soon.await.is_err(), "it came back by itself");
    assert!(fixture.agent.try_join_next().is_none(), "the agent lives");
    // Any other end of that range is nothing to wait for.
    let mut fixture = Fixture::new(scripted(Duration::ZERO)).await;
    let session = fixture.gateway.session().await;
    session.close(Close::certificate_expired().code).await;
    fixture.gateway.session().await;
}

#[tokio::test]
async fn p7_a_node_that_was_away_for_too_long_is_told_that_it_must_join_anew() {
    let gateway = FakeGateway::start().await;
    gateway.certificates.join_with([-30, -1]);
    let (address, clock) = (gateway.url().parse().unwrap(), Clock::system());
    let key = Credentials::generate_key().unwrap();
    let joined = Credentials::join(&address, &gateway.ca_certificate, TOKEN, key, &clock);
    let credentials = joined.await.unwrap();
    let connector = Connector::new(address.clone(), &credentials, &clock).unwrap();
    let error = connector.connect().await.unwrap_err();
    assert!(crate::connect::is_refusal(&error), "{}", error.chain());
    let told = crate::connect::is_own_certificate_expired(&error);
    assert!(told, "{}", error.chain());
    let error = credentials.renew(&address, &clock).await.unwrap_err();
    assert!(
        crate::connect::is_own_certificate_expired(&error),
        "{}",
        error.chain()
    );
    for part in ["expired", "new join token", "empty state directory"] {
        assert!(crate::renewal::EXPIRED.contains(part));
    }
}
