//! A receipt shows somebody who trusts nobody here what happened to one command (SPEC U3).

use ledger_protocol::receipt::Receipt;
use ledger_protocol::tlog::{Policy, VerifierKey};
use ledger_tests::process::Process;
use ledger_tests::up::Up;
use ledger_tests::wait::found;
use serde_json::{Value, json};

use super::batches::{approved, folder};

/// The receipt of a command that has ended, as soon as a checkpoint covers its end.
async fn receipt(up: &Up, command: &Value) -> Receipt {
    let id = command["id"].as_str().unwrap();
    let arguments = ["audit", "receipt", id, "--postgres", up.text("postgres")];
    found("a checkpoint covers the end", async || {
        let mut process = Process::start(&arguments);
        match process.ended().await.code() {
            Some(0) => {}
            Some(5) => return None,
            other => panic!("{other:?}: {}", process.tail()),
        }
        let receipt = Receipt::parse(process.stdout().as_bytes()).unwrap();
        let policy = policy(up.text("logPublicKey"));
        let ended = receipt.verify(&policy).unwrap().command.state_name();
        ended.is_terminal().then_some(receipt)
    })
    .await
}

fn policy(key: &str) -> Policy {
    let key: VerifierKey = key.parse().unwrap();
    let origin = key.name().as_str().to_owned();
    Policy::new(&origin, vec![key], Vec::new(), 0).unwrap()
}

/// `audit verify-receipt`: exit code, stdout, stderr.
async fn verify(file: &std::path::Path, key: &str, more: &[&str]) -> (i32, String, String) {
    let file = file.to_str().unwrap();
    let arguments = ["audit", "verify-receipt", file, "--key", key];
    let mut process = Process::start(&[&arguments[..], more].concat());
    let code = process.ended().await.code().unwrap();
    (code, process.stdout(), process.tail())
}

#[tokio::test(flavor = "multi_thread")]
async fn u3_a_receipt_proves_what_happened_to_a_command_and_nothing_else() {
    let folder = folder();
    let up = Up::start(&folder.path().join("data")).await;
    let key = up.text("logPublicKey").to_owned();
    let signed = up.run(0, "diag.nvml", "signed").await;
    let signed = up.settled(&signed).await;
    let batch = approved(&up, &[format!("{}:node.reboot", up.node(0))]).await;
    let input = json!({
        "nodeId": up.node(0), "kind": "node.reboot", "idempotencyKey": "approved", "batchId": batch,
    });
    let rebooted = up.admin.call("commands.run", input).await.ok();
    let rebooted = up.settled(&rebooted).await;
    assert_eq!(rebooted["state"], "succeeded", "{rebooted}");
    let (signed_receipt, rebooted_receipt) =
        (receipt(&up, &signed).await, receipt(&up, &rebooted).await);
    let unknown = "cmd_01h455vb4pex5vsknk084sn02q";
    let asked = [
        "audit",
        "receipt",
        unknown,
        "--postgres",
        up.text("postgres"),
    ];
    assert_eq!(Process::start(&asked).ended().await.code(), Some(4));
    // From here on there is neither service nor database.
    assert!(up.stop().await.success());

    let file = folder.path().join("receipt.json");
    std::fs::write(&file, signed_receipt.to_json().to_string()).unwrap();
    let (code, shown, told) = verify(&file, &key, &[]).await;
    assert_eq!(code, 0, "{told}");
    for part in ["diag.nvml", "command.settled", "signed by the node's key"] {
        assert!(shown.contains(part), "no {part}: {shown}");
    }
    let (code, shown, told) = verify(&file, &key, &["--json"]).await;
    assert_eq!(code, 0, "{told}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["commandId"], signed["id"]);
    assert_eq!(shown["state"], signed["state"]);
    assert_eq!(shown["signedByNode"], true);
    let stranger = "stranger.example/log+0df80fd8+ASXfYuPQXmz8jDmcJTGwQYFUBgz8GFUCBl2ZLKHbFXTT";
    let (code, _, told) = verify(&file, stranger, &[]).await;
    assert!(code == 1 || code == 2, "another log's key: {code} {told}");

    std::fs::write(&file, rebooted_receipt.to_json().to_string()).unwrap();
    let (code, shown, told) = verify(&file, &key, &[]).await;
    assert_eq!(code, 0, "{told}");
    assert!(shown.contains("its batch was approved by"), "{shown}");

    let policy = policy(&key);
    every_lie(&signed_receipt, &rebooted_receipt, &policy);
    let mut altered = signed_receipt.to_json();
    altered["entries"][0]["index"] = json!(u64::MAX);
    std::fs::write(&file, altered.to_string()).unwrap();
    let (code, _, told) = verify(&file, &key, &[]).await;
    assert_eq!(code, 1, "{told}");
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(verify(&file, &key, &[]).await.0, 2);
}

/// No receipt that was altered proves anything.
fn every_lie(receipt: &Receipt, other: &Receipt, policy: &Policy) {
    let refused = |what: &str, receipt: Receipt| {
        let proved = receipt.verify(policy);
        assert!(proved.is_err(), "{what}: {proved:?}");
        proved.unwrap_err().to_string()
    };
    for (number, entry) in receipt.entries.iter().enumerate() {
        let position = format!("position {}", entry.index + 1);
        for byte in 0..entry.event.len() {
            let mut altered = receipt.clone();
            altered.entries[number].event[byte] ^= 1;
            let told = refused("a byte of an event", altered);
            assert!(told.starts_with(&position), "{told}");
        }
        for hash in 0..entry.inclusion.hashes.len() {
            let mut altered = receipt.clone();
            altered.entries[number].inclusion.hashes[hash][7] ^= 1;
            refused("a hash of a proof", altered);
        }
        let mut altered = receipt.clone();
        altered.entries[number].index ^= 1;
        refused("an index", altered);
        let mut altered = receipt.clone();
        altered.entries[number]
            .event
            .truncate(entry.event.len() - 1);
        refused("a cut event", altered);
        let mut altered = receipt.clone();
        altered.entries[number].event = other.entries.last().unwrap().event.clone();
        refused("another event", altered);
        // The last event may be kept back: the receipt then shows a command that has not ended.
        if number + 1 < receipt.entries.len() {
            let mut altered = receipt.clone();
            altered.entries.remove(number);
            refused("an event left out", altered);
            let mut altered = receipt.clone();
            altered.entries.swap(number, number + 1);
            refused("events in another order", altered);
        }
        let mut altered = receipt.clone();
        altered.entries.insert(number, entry.clone());
        refused("an event twice", altered);
    }
    let mut altered = receipt.clone();
    altered.checkpoint = {
        let mut text = receipt.checkpoint.to_string().into_bytes();
        let at = text.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        text[at] = if text[at] == b'9' { b'8' } else { text[at] + 1 };
        ledger_protocol::tlog::Note::parse(&text).unwrap()
    };
    refused("the checkpoint's size", altered);
    let mut altered = receipt.clone();
    altered.entries.extend(other.entries.iter().cloned());
    altered.entries.sort_unstable_by_key(|entry| entry.index);
    altered.entries.dedup_by_key(|entry| entry.index);
    refused("two commands", altered);
    let mut altered = receipt.clone();
    altered.entries.clear();
    refused("nothing", altered);
}
