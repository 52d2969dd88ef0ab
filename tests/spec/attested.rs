//! What a stranger can prove of a result with the node's certificate alone (SPEC P2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledger_protocol::attestation::Statement;
use ledger_protocol::canonical;
use ledger_protocol::dsse::{PublicKey, Purpose};
use ledger_protocol::frame::{Update, UpdateState};
use ledger_tests::process::Process;
use ledger_tests::up::Up;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

/// What stands before an Ed25519 key in a certificate (RFC 8410).
const KEY_FOLLOWS: &[u8] = &[
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

fn key_of(certificate: &str) -> PublicKey {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let at = certificate
        .windows(KEY_FOLLOWS.len())
        .position(|bytes| bytes == KEY_FOLLOWS)
        .unwrap();
    PublicKey::from_bytes(&certificate[at + KEY_FOLLOWS.len()..][..32]).unwrap()
}

/// The end that the API shows, as the node said it.
fn said(command: &Value) -> Update {
    let state = match command["state"].as_str().unwrap() {
        "succeeded" => UpdateState::Succeeded,
        "failed" => UpdateState::Failed,
        other => panic!("{other} is no end of the node's"),
    };
    let bytes = |field: &str| {
        let value = command.get(field)?;
        Some(canonical::from_json(value).unwrap())
    };
    Update {
        details: bytes("details"),
        reason: command["reason"].as_str().map(str::to_owned),
        result: bytes("result"),
        ..Update::bare(command["id"].as_str().unwrap().parse().unwrap(), state)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_stranger_proves_a_diagnosis_with_the_nodes_certificate() {
    let folder = tempfile::Builder::new()
        .permissions(<std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711))
        .tempdir()
        .unwrap();
    let up = Up::start(folder.path()).await;
    let command = up.run(0, "diag.nvml", "proof").await;
    let ended = up.settled(&command).await;
    assert_eq!(ended["attested"], true, "{ended}");
    let signature = ended["nodeSig"]
        .as_str()
        .unwrap_or_else(|| panic!("{ended}"));
    let signature = STANDARD.decode(signature).unwrap();

    let identity = std::fs::read(up.state_dir(0).join("identity.json")).unwrap();
    let identity: Value = serde_json::from_slice(&identity).unwrap();
    let key = key_of(identity["certificate"].as_str().unwrap());
    let node = ended["nodeId"].as_str().unwrap().parse().unwrap();
    let holds = |update: &Update| {
        let statement = Statement::of_update(node, update).unwrap();
        key.verifies(
            Purpose::CommandUpdate,
            &statement.encode().unwrap(),
            &signature,
        )
    };
    let mut update = said(&ended);
    assert!(holds(&update), "{ended}");
    update.result = canonical::from_json(&serde_json::json!({ "checks": [] })).ok();
    assert!(!holds(&update));

    let mut audit = Process::start(&["audit", "check", "--postgres", up.text("postgres")]);
    let status = audit.ended().await;
    assert!(status.success(), "{}{}", audit.stdout(), audit.tail());
    assert!(up.stop().await.success());
}
