use std::{sync::Arc, time::Duration};

use ledger_protocol::{
    daemon::{End, Job as Accepted, Report},
    id::CommandId,
    kind::Lane,
};
use rustls::RootCertStore;
use tokio::{io::AsyncReadExt as _, net::TcpListener};
use uuid::Uuid;

use super::*;
use crate::{
    executor::Executor,
    fake_machine::{FakeMachine, wait_until},
    fake_site::{FakeSite, Reply, Seen},
    kinds::Executors,
    limits::RESULT_BYTES_MAX,
    secrets::tests::FakeKeeper,
    tls,
};

const TOKEN: &str = "c4n4ry-token-of-the-site";
const AUTHORIZATION: &str = "Bearer c4n4ry-token-of-the-site";

/// An executor that trusts these authorities, PEM, beside the machine's.
fn executor(authorities: &[&str]) -> Executor {
    let mut roots = RootCertStore::empty();
    for pem in authorities {
        tls::trust(&mut roots, pem, "a test's authority").unwrap();
    }
    let mut host = FakeMachine::new().host();
    host.site_ca = Arc::new(roots);
    Executor::Host(Box::new(Executors::new(host)))
}

/// Runs a command to its end, and shows that nothing of the secret is in what it tells.
async fn run_within(
    executor: &Executor,
    keeper: FakeKeeper,
    payload: Value,
    timeout: Duration,
    cancel: CancellationToken,
) -> Report {
    let job = Accepted {
        command_id: CommandId::from_uuid(Uuid::from_u128(1)),
        kind: KIND.to_owned(),
        lane: Lane::Control,
        payload,
        timeout_micros: u64::try_from(timeout.as_micros()).unwrap(),
    };
    let report = executor.run(job, keeper.secrets, cancel).await;
    assert!(!format!("{report:?}").contains("c4n4ry"), "{report:?}");
    report
}

/// With these authorities, and the secret.
async fn run_trusting(authorities: &[&str], payload: Value) -> Report {
    let keeper = FakeKeeper::giving(AUTHORIZATION);
    let (time, never) = (Duration::from_secs(30), CancellationToken::new());
    run_within(&executor(authorities), keeper, payload, time, never).await
}

async fn run(payload: Value) -> Report {
    run_trusting(&[], payload).await
}

fn why(report: &Report) -> String {
    let details = report.details.as_ref().unwrap();
    details["why"].as_str().unwrap().to_owned()
}

/// Says the request again, in the body and in a field that is kept.
fn echo(seen: &Seen) -> Reply {
    let fields = format!(
        "content-type: text/plain\r\nset-cookie: session=c4n4ry\r\netag: \"{}\"\r\nx-other: 1\r\n",
        seen.header("authorization").unwrap_or("none")
    );
    Reply::with(200, &fields, format!("{}\n{}", seen.head, seen.body))
}

#[tokio::test]
async fn k_one_request_is_sent_as_it_was_asked_for() {
    let site = FakeSite::start(echo).await;
    let report = run(json!({
        "url": site.url("/a%20b?c=d#e"), "method": "POST", "body": "{\"on\": true}",
    }))
    .await;
    assert_eq!((report.end, report.reason), (End::Succeeded, None));
    let result = report.result.unwrap();
    assert_eq!(result["status"], 200);
    let body = result["body"].as_str().unwrap();
    assert!(body.ends_with("\n{\"on\": true}"), "{body}");
    let mut fields: Vec<_> = result["headers"].as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["content-length", "content-type", "etag"]);
    let seen = site.seen();
    assert_eq!((seen.len(), site.connections()), (1, 1));
    let [method, path, body] = [&seen[0].method, &seen[0].path, &seen[0].body];
    assert_eq!(
        [method, path, body],
        ["POST", "/a%20b?c=d", "{\"on\": true}"]
    );
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    let host = format!("127.0.0.1:{}", site.port);
    assert_eq!(seen[0].header("host"), Some(host.as_str()));
    assert_eq!(seen[0].header("authorization"), None);
}

#[tokio::test]
async fn k_a_body_says_what_it_is_and_every_method_arrives() {
    let site = FakeSite::start(|_| Reply::with(204, "", "")).await;
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
        let report = run(json!({ "url": site.url("/"), "method": method, "body": "on = é" })).await;
        assert_eq!(report.end, End::Succeeded, "{report:?}");
        let seen = site.seen().pop().unwrap();
        assert_eq!([&seen.method, &seen.body], [method, "on = é"]);
        let content_type = seen.header("content-type");
        assert_eq!(content_type, Some("text/plain; charset=utf-8"));
    }
    assert_eq!(site.seen().len(), 6);
}

#[tokio::test]
async fn p6_the_secret_is_the_authorization_field_and_in_nothing_that_comes_back() {
    let site = FakeSite::start(echo).await;
    let payload = json!({ "url": site.url("/"), "method": "GET", "secretRef": "site/api" });
    let report = run(payload).await;
    assert_eq!(report.end, End::Succeeded);
    assert_eq!(site.seen()[0].header("authorization"), Some(AUTHORIZATION));
    let result = report.result.unwrap();
    let body = result["body"].as_str().unwrap();
    assert!(body.contains("authorization: [secret site/api]"), "{body}");
    assert_eq!(result["headers"]["etag"], "\"[secret site/api]\"");
}

#[tokio::test]
async fn p6_a_secret_that_the_cut_would_divide_is_taken_out_before() {
    let before = "-".repeat(SITE_BODY_KEPT_BYTES_MAX - TOKEN.len() / 2);
    let body = format!("{before}{TOKEN}{}", "-".repeat(9_000));
    let site = FakeSite::start(move |_| Reply::with(200, "", &body)).await;
    let report = run(json!({ "url": site.url("/"), "method": "GET", "secretRef": "a" })).await;
    let result = report.result.unwrap();
    assert_eq!(result["bodyTruncated"], true);
    assert!(!result["body"].as_str().unwrap().contains("c4n"));
}

#[tokio::test]
async fn p6_an_answer_that_repeats_the_secret_beyond_what_is_read_keeps_none_of_it() {
    // What is read ends within the secret, wherever that is.
    for offset in 0..TOKEN.len() {
        let body = format!(
            "{}{}",
            "-".repeat(offset),
            TOKEN.repeat(1_200_000 / TOKEN.len())
        );
        let site = FakeSite::start(move |_| Reply::with(200, "", &body)).await;
        let report = run(json!({ "url": site.url("/"), "method": "GET", "secretRef": "a" })).await;
        let result = report.result.unwrap();
        assert_eq!(result["bodyTruncated"], true);
        let clean = format!("{}[secret a]", "-".repeat(offset));
        assert_eq!(result["body"], clean);
    }
}

#[tokio::test]
async fn d13_a_long_body_is_read_to_a_bound_and_kept_to_another() {
    for body in ["\u{1}".repeat(2 * 1024 * 1024), "ä".repeat(30_000)] {
        let whole = body.clone();
        let site = FakeSite::start(move |_| Reply::with(500, "", &whole)).await;
        let report = run(json!({ "url": site.url("/"), "method": "GET" })).await;
        let result = report.result.unwrap();
        assert_eq!(result["bodyTruncated"], true);
        let kept = result["body"].as_str().unwrap();
        assert!(body.starts_with(kept) && kept.len() > 4_000);
        assert!(result.to_string().len() <= RESULT_BYTES_MAX);
    }
}

#[tokio::test]
async fn k_a_body_that_is_no_text_says_so() {
    let site = FakeSite::start(|_| Reply::with(200, "", b"ab\xff\xfec")).await;
    let report = run(json!({ "url": site.url("/"), "method": "GET" })).await;
    let result = report.result.unwrap();
    assert_eq!(result["body"], "ab\u{fffd}\u{fffd}c");
    assert_eq!(result["bodyLossy"], true);
}

#[tokio::test]
async fn p6_a_redirect_is_the_result_and_takes_the_secret_nowhere() {
    let elsewhere = FakeSite::start(echo).await;
    let location = elsewhere.url("/stolen");
    let fields = format!("location: {location}\r\n");
    for status in [301, 307, 308] {
        let fields = fields.clone();
        let site = FakeSite::start(move |_| Reply::with(status, &fields, "")).await;
        let report = run(json!({ "url": site.url("/"), "method": "POST", "secretRef": "a" })).await;
        assert_eq!(report.end, End::Succeeded);
        let result = report.result.unwrap();
        assert_eq!(result["status"], status);
        assert_eq!(result["headers"]["location"], location);
        assert_eq!(site.seen().len(), 1);
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn k_a_status_from_400_on_fails_and_keeps_the_answer() {
    for status in [400, 401, 404, 429, 500, 503] {
        let site = FakeSite::start(move |_| Reply::with(status, "retry-after: 7\r\n", "no")).await;
        let report = run(json!({ "url": site.url("/x?key=hidden"), "method": "PUT" })).await;
        assert_eq!(report.end, End::Failed);
        assert_eq!(report.reason.as_deref(), Some("http-status"));
        assert_eq!(report.details.unwrap()["url"], site.url("/x"));
        let result = report.result.unwrap();
        assert_eq!(result["status"], status);
        assert_eq!(result["body"], "no");
        assert_eq!(result["headers"]["retry-after"], "7");
        assert_eq!(site.seen().len(), 1);
    }
}

#[tokio::test]
async fn k_a_server_that_hangs_up_on_a_request_leaves_its_effect_unknown() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec();
    let replies = [
        (Reply::HangUp, "broke off"),
        (
            Reply::Say(half),
            "status 200 came, and the answer broke off",
        ),
        (Reply::Say(b"what?\r\n\r\n".to_vec()), "broke off"),
    ];
    for (reply, told) in replies {
        let mut reply = Some(reply);
        let site = FakeSite::start(move |_| reply.take().unwrap()).await;
        let report = run(json!({ "url": site.url("/"), "method": "GET", "secretRef": "a" })).await;
        assert_eq!(report.end, End::Failed);
        assert_eq!(report.reason.as_deref(), Some("no-answer"));
        let why = why(&report);
        assert!(why.contains(told) && why.contains("is not known"), "{why}");
        assert_eq!(report.details.unwrap()["tookEffect"], "unknown");
        assert_eq!((site.seen().len(), site.connections()), (1, 1));
    }
}

#[tokio::test]
async fn k_what_cannot_be_reached_was_sent_nothing() {
    let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let refusing = format!("http://127.0.0.1:{port}/");
    for url in [refusing.as_str(), "http://no-such-machine.invalid/"] {
        let report = run(json!({ "url": url, "method": "POST" })).await;
        assert_eq!(report.end, End::Failed);
        assert_eq!(report.reason.as_deref(), Some("unreachable"));
        assert!(why(&report).ends_with("nothing was sent"), "{report:?}");
    }
}

#[tokio::test]
async fn p6_a_machine_with_a_private_authority_is_trusted_only_if_that_was_given() {
    let site = FakeSite::start_tls(echo).await;
    let other = FakeSite::start_tls(echo).await;
    let payload = json!({ "url": site.url("/"), "method": "GET", "secretRef": "a" });
    let (ours, others) = (site.ca_certificate.as_str(), other.ca_certificate.as_str());
    for authorities in [vec![], vec![others]] {
        let report = run_trusting(&authorities, payload.clone()).await;
        assert_eq!(report.reason.as_deref(), Some("unreachable"));
        assert!(why(&report).contains("--site-ca"), "{report:?}");
        assert_eq!(site.seen().len(), 0);
    }
    let report = run_trusting(&[others, ours], payload.clone()).await;
    assert_eq!(report.end, End::Succeeded, "{report:?}");
    assert_eq!(site.seen()[0].header("authorization"), Some(AUTHORIZATION));
    // Its certificate is not for this name.
    let url = site.url("/").replace("127.0.0.1", "localhost");
    let report = run_trusting(&[ours], json!({ "url": url, "method": "GET" })).await;
    assert_eq!(report.reason.as_deref(), Some("unreachable"));
    assert_eq!(site.seen().len(), 1);
}

#[tokio::test]
async fn p6_without_the_secret_nothing_is_sent() {
    let site = FakeSite::start(echo).await;
    let payload = json!({ "url": site.url("/"), "method": "GET", "secretRef": "site/api" });
    let refusing = FakeKeeper::refusing("NOT_NAMED");
    let unusable = FakeKeeper::giving("Bearer c4n4ry\r\nx: y");
    for (keeper, code, reason) in [
        (refusing, json!("NOT_NAMED"), "secret-unavailable"),
        (FakeKeeper::silent(), json!(null), "secret-unavailable"),
        (unusable, json!(null), "secret-unusable"),
    ] {
        let (time, never) = (Duration::from_millis(500), CancellationToken::new());
        let report = run_within(&executor(&[]), keeper, payload.clone(), time, never).await;
        assert_eq!(report.end, End::Failed);
        assert_eq!(report.reason.as_deref(), Some(reason));
        assert!(why(&report).ends_with("nothing was sent"), "{report:?}");
        let details = report.details.unwrap();
        assert_eq!(details["secretRef"], "site/api");
        assert_eq!(details["code"], code);
    }
    assert_eq!(site.connections(), 0);
}

#[tokio::test]
async fn p6_credentials_in_a_url_and_secrets_in_the_clear_are_refused() {
    for url in [
        "http://user:c4n4ry@127.0.0.1:1/",
        "http://c4n4ry@127.0.0.1:1/",
        "http://pdu.example/",
        "http://192.0.2.1/",
        "ftp://127.0.0.1/",
        "http://",
    ] {
        let keeper = FakeKeeper::giving(AUTHORIZATION);
        let asked = keeper.counter();
        let payload = json!({ "url": url, "method": "GET", "secretRef": "a" });
        let (time, never) = (Duration::from_secs(30), CancellationToken::new());
        let report = run_within(&executor(&[]), keeper, payload, time, never).await;
        assert_eq!(report.reason.as_deref(), Some("invalid-payload"), "{url}");
        assert_eq!(asked(), 0, "{url}");
    }
}

#[tokio::test]
async fn d12_a_cancel_while_it_waits_for_the_secret_sends_nothing() {
    let site = FakeSite::start(echo).await;
    let (cancel, keeper) = (CancellationToken::new(), FakeKeeper::silent());
    let asked = keeper.counter();
    let stop = async {
        wait_until("the secret is asked for", || asked() == 1).await;
        cancel.cancel();
    };
    let payload = json!({ "url": site.url("/"), "method": "GET", "secretRef": "a" });
    let (executor, time) = (executor(&[]), Duration::from_mins(1));
    let run = run_within(&executor, keeper, payload, time, cancel.clone());
    let (report, ()) = tokio::join!(run, stop);
    assert_eq!(report.end, End::Cancelled);
    assert_eq!(site.connections(), 0);
}

/// A machine that does not come forward with its certificate.
async fn mute() -> (TcpListener, Value) {
    let mute = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = mute.local_addr().unwrap().port();
    let url = format!("https://127.0.0.1:{port}/");
    (mute, json!({ "url": url, "method": "GET" }))
}

#[tokio::test]
async fn d12_a_cancel_while_it_connects_sends_nothing() {
    let (mute, payload) = mute().await;
    let cancel = CancellationToken::new();
    let stop = async {
        let (mut stream, _) = mute.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        cancel.cancel();
        stream
    };
    let (executor, time) = (executor(&[]), Duration::from_mins(1));
    let run = run_within(
        &executor,
        FakeKeeper::silent(),
        payload,
        time,
        cancel.clone(),
    );
    let (report, _stream) = tokio::join!(run, stop);
    assert_eq!(report.end, End::Cancelled);
}

#[tokio::test]
async fn d12_a_cancel_after_the_request_changes_nothing() {
    let cancel = CancellationToken::new();
    let cancelling = cancel.clone();
    let site = FakeSite::start(move |_| {
        cancelling.cancel();
        let said = b"HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\ndone".to_vec();
        Reply::Wait(Duration::from_millis(200), said)
    })
    .await;
    let payload = json!({ "url": site.url("/"), "method": "POST" });
    let (keeper, time) = (FakeKeeper::silent(), Duration::from_mins(1));
    let report = run_within(&executor(&[]), keeper, payload, time, cancel).await;
    assert_eq!(report.end, End::Succeeded);
    assert_eq!(report.result.unwrap()["body"], "done");
}

#[tokio::test]
async fn k_a_job_whose_time_is_over_says_whether_anything_was_sent() {
    let executor = executor(&[]);
    let timed = |payload| {
        let (keeper, time) = (FakeKeeper::silent(), Duration::from_millis(500));
        run_within(&executor, keeper, payload, time, CancellationToken::new())
    };
    let (_mute, payload) = mute().await;
    let report = timed(payload).await;
    assert_eq!(report.reason.as_deref(), Some("timeout"));

    let site = FakeSite::start(|_| Reply::Wait(Duration::from_hours(1), Vec::new())).await;
    let report = timed(json!({ "url": site.url("/"), "method": "GET" })).await;
    assert_eq!(report.reason.as_deref(), Some("no-answer"));
    assert!(why(&report).contains("is not known"), "{report:?}");
    assert_eq!(site.seen().len(), 1);
}

#[test]
fn d13_a_text_is_cut_by_its_size_as_json() {
    for text in ["plain", "\"quoted\"\n", "\u{1}\u{7f}é𝄞"] {
        let size = serde_json::to_string(text).unwrap().len();
        assert_eq!(cut(text, size), text);
        assert!(cut(text, size - 1).len() < text.len());
    }
}
