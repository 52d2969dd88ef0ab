//! How a service ends that is told to (README, SPEC H7).

use std::time::{Duration, Instant};

use ledger_tests::http::{Caller, receive};
use ledger_tests::process::Process;
use ledger_tests::serve::{Service, serve};
use ledger_tests::wait::{in_time, until};
use ledger_tests::{api, database};
use rustix::process::Signal;
use serde_json::json;
use sqlx::PgPool;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

/// What comes within this time of the first signal is the same wish.
const SAME_SIGNAL_WITHIN: Duration = Duration::from_secs(1);
const CUT_OFF: &str = "what is left is cut off";

/// A service with a request in progress, and the rest of that request.
async fn busy(pool: &PgPool) -> (Service, TcpStream, Vec<u8>) {
    let service = serve(&database::url(pool), None).await;
    let admin: Caller = api::admin(pool, service.address).await;
    let body = json!({"tenantId": admin.tenant}).to_string();
    let request = admin.bytes("nodes.list", body.as_bytes());
    let (first, rest) = request.split_at(request.len() - 5);
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(first).await.unwrap();
    // The next request is answered after the head of that one was read.
    admin.call("nodes.list", json!({})).await.ok();
    (service, stream, rest.to_vec())
}

async fn is_told(process: &Process, what: &str) {
    until(what, async || process.stderr().contains(what)).await;
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h7_a_signal_told_twice_in_one_breath_is_one_orderly_stop(pool: PgPool) {
    let (mut service, mut stream, rest) = busy(&pool).await;
    // As `timeout` does: to the process, and at once to its group.
    service.process.signal(Signal::TERM);
    is_told(&service.process, "SIGTERM: stopping").await;
    service.process.signal(Signal::TERM);
    service.process.signal(Signal::INT);
    stream.write_all(&rest).await.unwrap();
    receive(&mut stream).await.0.ok();
    let status = service.process.ended().await;
    assert!(status.success(), "{status}");
    assert!(
        !service.process.stderr().contains(CUT_OFF),
        "{}",
        service.process.tail()
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn h7_a_later_signal_cuts_the_stop_short(pool: PgPool) {
    let (mut service, stream, _) = busy(&pool).await;
    let began = Instant::now();
    service.process.signal(Signal::TERM);
    is_told(&service.process, "SIGTERM: stopping").await;
    until("it ends, though a request is in progress", async || {
        service.process.signal(Signal::INT);
        !service.process.runs()
    })
    .await;
    let took = began.elapsed();
    assert!(took >= SAME_SIGNAL_WITHIN, "{took:?}");
    in_time("its end is told", service.process.ended()).await;
    is_told(&service.process, CUT_OFF).await;
    drop(stream);
}
