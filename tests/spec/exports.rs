//! The log leaves the service as one file, which proves itself where there is neither service nor
//! database (SPEC U2).

use std::path::Path;

use ledger_tests::process::Process;
use ledger_tests::up::Up;
use ledger_tests::wait::found;
use serde_json::Value;

use super::batches::folder;

/// `audit verify --json`: exit code, stdout, stderr.
async fn verify(file: &Path, key: &str, more: &[&str]) -> (i32, String, String) {
    let file = file.to_str().unwrap();
    let arguments = ["audit", "verify", file, "--key", key, "--json"];
    let mut process = Process::start(&[&arguments[..], more].concat());
    let code = process.ended().await.code().unwrap();
    (code, process.stdout(), process.tail())
}

async fn checkpoint(up: &Up) -> String {
    let url = format!("{}/checkpoint", up.text("log"));
    let answer = reqwest::get(url).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap()
}

fn size(checkpoint: &str) -> u64 {
    checkpoint.lines().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn u2_an_export_of_a_running_service_proves_itself_elsewhere() {
    let folder = folder();
    let up = Up::start(&folder.path().join("data")).await;
    let key = up.text("logPublicKey").to_owned();
    let signed = async |at_least: u64| {
        found("a larger log is signed", async || {
            let checkpoint = checkpoint(&up).await;
            (size(&checkpoint) >= at_least).then_some(checkpoint)
        })
        .await
    };
    let command = up.run(0, "diag.nvml", "1").await;
    up.settled(&command).await;
    let earlier = signed(5).await;
    for number in 2..5 {
        let command = up.run(0, "inventory.refresh", &number.to_string()).await;
        up.settled(&command).await;
    }
    let later = signed(size(&earlier) + 12).await;
    let file = folder.path().join("ledger.export");
    let to = ["--out", file.to_str().unwrap()];
    let from = ["audit", "export", "--postgres", up.text("postgres")];
    Process::output(&[&from[..], &to].concat()).await;
    assert!(up.stop().await.success());

    let (code, told, error) = verify(&file, &key, &[]).await;
    assert_eq!(code, 0, "{told} {error}");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(told["events"].as_u64().unwrap() >= size(&later), "{told}");
    assert_eq!(told["signaturesChecked"], true, "{told}");
    let seen = folder.path().join("seen");
    std::fs::write(&seen, &earlier).unwrap();
    let against = ["--against", seen.to_str().unwrap()];
    let (code, told, error) = verify(&file, &key, &against).await;
    assert_eq!(code, 0, "{told} {error}");

    let whole = std::fs::read(&file).unwrap();
    let settled = b"command.settled";
    let at = whole.windows(settled.len()).position(|at| at == settled);
    let mut altered = whole.clone();
    altered[at.unwrap()] ^= 1;
    std::fs::write(&file, &altered).unwrap();
    let (code, told, error) = verify(&file, &key, &[]).await;
    assert_eq!(code, 1, "{told} {error}");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(told["firstBadPosition"].is_u64(), "{told}");
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(verify(&file, &key, &[]).await.0, 1);
    std::fs::write(&file, &whole).unwrap();
    let other = folder.path().join("other.pem");
    let other = other.to_str().unwrap();
    Process::output(&["batch", "keygen", "--out", other]).await;
    let origin = key.split('+').next().unwrap();
    let arguments = ["audit", "key", "--key", other, "--origin", origin];
    let stranger = Process::output(&arguments).await;
    let (code, told, error) = verify(&file, stranger.trim(), &[]).await;
    assert_eq!(code, 1, "{told} {error}");
}
