//! What an auditor does with a log, through the real program (SPEC U2).

use ledger_tests::process::Process;
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn u2_the_audit_is_measured_on_a_log_that_keeps_every_rule() {
    let arguments = ["bench", "audit", "--events", "2000", "--nodes", "16"];
    let measured = Process::output(&arguments).await;
    let measured: Value = serde_json::from_str(&measured).unwrap();
    let events = measured["events"].as_u64().unwrap();
    assert!(events >= 2_000, "{measured}");
    // Each of queued, dispatched, acked, running, settled.
    assert!(measured["commands"].as_u64().unwrap() * 5 < events);
    assert!(measured["batches"].as_u64().unwrap() > 10);
    for phase in ["export", "hashesAndOrder", "verification"] {
        let phase = &measured[phase];
        assert!(
            phase["eventsPerSecond"].as_f64().unwrap() > 0.0,
            "{measured}"
        );
        assert!(
            phase["peakMemoryBytes"].as_u64().unwrap() > 1 << 20,
            "{measured}"
        );
    }
}
