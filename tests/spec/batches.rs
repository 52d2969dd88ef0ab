//! A batch from its proposal to the end of its commands, as people use it (SPEC P3, P4).

use std::path::Path;

use ledger_tests::process::Process;
use ledger_tests::up::Up;
use serde_json::{Value, json};

/// A folder that the account of the servers may walk through.
pub(crate) fn folder() -> tempfile::TempDir {
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711);
    tempfile::Builder::new()
        .permissions(mode)
        .tempdir()
        .unwrap()
}

/// A token of a new identity that may do this much.
async fn token(up: &Up, identity: &str, permission: &str) -> String {
    let grants = json!([{"permission": permission, "resource": "*"}]);
    let input = json!({"identity": identity, "grants": grants});
    let made = up.admin.call("tokens.create", input).await.ok();
    made["token"].as_str().unwrap().to_owned()
}

/// `command-ledger batch …` as the holder of a token: exit code, stdout, stderr.
async fn batch(up: &Up, token: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut all = vec!["batch"];
    all.extend(arguments);
    if arguments[0] != "keygen" {
        all.extend(["--tenant", up.text("tenantId"), "--api", up.text("api")]);
        all.extend(["--token", token]);
    }
    let mut process = Process::start(&all);
    let code = process.ended().await.code().unwrap();
    (code, process.stdout(), process.tail())
}

async fn audit(up: &Up, verb: &str) {
    let mut audit = Process::start(&["audit", verb, "--postgres", up.text("postgres")]);
    let status = audit.ended().await;
    let told = (audit.stdout(), audit.tail());
    assert!(status.success(), "{verb}: {told:?}");
}

/// A batch of these, `node:kind` each, that two people have approved.
pub(crate) async fn approved(up: &Up, allowed: &[String]) -> String {
    let ada = token(up, "ada", "compute:batches:approve").await;
    let bob = token(up, "bob", "compute:batches:approve").await;
    let mut propose = vec![
        "propose",
        "--reason",
        "as planned",
        "--idempotency-key",
        "planned",
    ];
    for command in allowed {
        propose.extend(["--command", command]);
    }
    let (code, id, told) = batch(up, &up.admin.token, &propose).await;
    assert_eq!(code, 0, "{told}");
    let id = id.trim().to_owned();
    for (token, key) in [(ada, 0), (bob, 1)] {
        let key = key_file(up, key);
        let approve = ["approve", "--batch", &id, "--key", &key];
        let (code, _, told) = batch(up, &token, &approve).await;
        assert_eq!(code, 0, "{told}");
    }
    id
}

fn key_file(up: &Up, index: usize) -> String {
    let file = up.line["approvers"][index]["keyFile"].as_str().unwrap();
    assert!(Path::new(file).is_file(), "{file}");
    file.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_command_runs_after_two_people_have_signed_what_they_saw() {
    let folder = folder();
    let up = Up::start(folder.path()).await;
    assert_eq!(up.line["quorum"], 2);
    let ada = token(&up, "ada", "compute:batches:approve").await;
    let bob = token(&up, "bob", "compute:batches:approve").await;
    let proposer = token(&up, "pia", "compute:batches:create").await;

    let allowed = format!("{}:inventory.refresh:{{\"sections\":[\"os\"]}}", up.node(0));
    let propose = [
        "propose",
        "--reason",
        "what runs there?",
        "--command",
        &allowed,
        "--idempotency-key",
        "look",
    ];
    let (code, id, told) = batch(&up, &proposer, &propose).await;
    assert_eq!(code, 0, "{told}");
    let id = id.trim();
    let (_, again, _) = batch(&up, &proposer, &propose).await;
    assert_eq!(again.trim(), id, "a retry finds the first one");

    let run = |sections: Value, key: &str| {
        json!({
            "nodeId": up.node(0), "kind": "inventory.refresh", "batchId": id,
            "payload": {"sections": sections}, "idempotencyKey": key,
        })
    };
    let other = up
        .admin
        .call("commands.run", run(json!(["cpu"]), "1"))
        .await;
    assert_eq!((other.code(), other.field()), ("INVALID_INPUT", "batchId"));
    let command = up.admin.call("commands.run", run(json!(["os"]), "2")).await;
    let command = command.ok();
    assert_eq!(command["awaitingApproval"], true, "{command}");

    let keys = [key_file(&up, 0), key_file(&up, 1)];
    let approve = |key: usize| ["approve", "--batch", id, "--key", &keys[key]];
    let (code, _, told) = batch(&up, &proposer, &approve(0)).await;
    assert_eq!(code, 3, "without the permission: {told}");
    let (code, shown, told) = batch(&up, &ada, &approve(0)).await;
    assert_eq!(code, 0, "{told}");
    for part in [
        up.node(0),
        "what runs there?",
        "api:pia",
        "payload not shown: SHA-256",
        "0 of 1 shown",
        "1 of 2",
    ] {
        assert!(shown.contains(part), "no {part}: {shown}");
    }
    let (code, _, told) = batch(&up, &ada, &approve(1)).await;
    assert_eq!(code, 3, "one person twice: {told}");
    assert!(told.contains("one person counts once"), "{told}");
    let (code, _, _) = batch(&up, &ada, &["verify", "--batch", id]).await;
    assert_eq!(code, 1, "one approval of two");
    assert_eq!(up.command(&command).await["state"], "pending");

    // Whoever has the payload sees it before the signature, and what is none of it signs nothing.
    let payload = folder.path().join("payload.json");
    std::fs::write(&payload, r#"{ "sections": ["os"] }"#).unwrap();
    let foreign = folder.path().join("foreign.json");
    std::fs::write(&foreign, r#"{"sections":["cpu"]}"#).unwrap();
    let (payload, foreign) = (payload.to_str().unwrap(), foreign.to_str().unwrap());
    let wrong = [&approve(1)[..], &["--payload", foreign]].concat();
    let (code, _, told) = batch(&up, &bob, &wrong).await;
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("foreign.json: no command of"), "{told}");
    let scope = folder.path().join("scope.json");
    let scoped = json!([{
        "subject": up.node(0), "kind": "inventory.refresh", "payload": {"sections": ["os"]},
    }]);
    std::fs::write(&scope, scoped.to_string()).unwrap();
    let scope = scope.to_str().unwrap();
    for known in [["--payload", payload], ["--scope", scope]] {
        // The id by its place, or by name.
        for id in [&[id][..], &["--batch", id]] {
            let show = [&["show"], id, &known].concat();
            let (code, shown, told) = batch(&up, &bob, &show).await;
            assert_eq!(code, 0, "{told}");
            for part in [
                r#"  {"sections":["os"]}"#,
                "1 of 1 shown",
                "1 of 2: approver-1",
            ] {
                assert!(shown.contains(part), "no {part}: {shown}");
            }
        }
    }
    let show = ["show", id, "--json", "--payload", payload];
    let (_, shown, _) = batch(&up, &bob, &show).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["scope"][0]["payload"], json!({"sections": ["os"]}));

    let approve = ["approve", id, "--key", &keys[1], "--payload", payload];
    let (code, shown, told) = batch(&up, &bob, &approve).await;
    assert_eq!(code, 0, "{told}");
    let (before, signed) = shown.split_once("signed: ").unwrap();
    assert!(before.contains(r#"  {"sections":["os"]}"#), "{shown}");
    assert_eq!(signed.trim(), "2 of 2 approvals, approved");
    let command = up.settled(&command).await;
    assert_eq!(command["state"], "succeeded", "{command}");
    for verify in [&["verify", "--batch", id][..], &["verify", id]] {
        let (code, _, told) = batch(&up, &bob, verify).await;
        assert_eq!(code, 0, "{told}");
    }
    let three = ["verify", "--batch", id, "--quorum", "3"];
    let (code, _, told) = batch(&up, &bob, &three).await;
    assert_eq!(code, 1, "{told}");
    let stranger = folder.path().join("stranger.pem");
    let stranger = stranger.to_str().unwrap();
    let (code, _, told) = batch(&up, "", &["keygen", "--out", stranger]).await;
    assert_eq!(code, 0, "{told}");
    let trusting = ["verify", "--batch", id, "--key", stranger];
    let (code, _, _) = batch(&up, &bob, &trusting).await;
    assert_eq!(code, 1, "no approval by whom I trust");
    let (code, _, told) = batch(&up, &bob, &["approve", "--batch", id, "--key", stranger]).await;
    assert_eq!(code, 3, "{told}");
    assert!(told.contains("publicKey is no approver's"), "{told}");

    audit(&up, "replay").await;
    audit(&up, "check").await;
    assert!(up.stop().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_what_destroys_needs_a_batch_and_is_signed() {
    let folder = folder();
    let up = Up::start(folder.path()).await;
    let run = json!({"nodeId": up.node(0), "kind": "node.reboot", "idempotencyKey": "1"});
    let refused = up.admin.call("commands.run", run).await;
    assert_eq!(refused.code(), "INVALID_STATE");
    let details = &refused.body["error"]["details"];
    assert_eq!(
        details,
        &json!({"reason": "batch-required", "kind": "node.reboot"})
    );
    let node = json!({"nodeId": up.node(0)});
    let node = up.admin.call("nodes.get", node).await.ok();
    assert_eq!(node["trust"]["newest"], 1, "{node}");

    // The root stays with its folder, and nobody else reads it.
    let root = folder.path().join("signing/root.pem");
    let mode = std::os::unix::fs::PermissionsExt::mode(&root.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let ended = up.run(0, "inventory.refresh", "2").await;
    assert_eq!(up.settled(&ended).await["state"], "succeeded");
    audit(&up, "check").await;

    // A service that signs nothing, or with a root that nodes do not know, does not start; nor does
    // one that would take the approvers off every node because nobody named them.
    let other = folder.path().join("other.pem");
    let other = other.to_str().unwrap();
    Process::output(&["batch", "keygen", "--out", other]).await;
    let nobody = folder.path().join("nobody.json");
    std::fs::write(&nobody, r#"{"quorum": 0, "approvers": []}"#).unwrap();
    let nobody = nobody.to_str().unwrap();
    let (root, foreign) = (root.to_str().unwrap(), ["--command-root", other]);
    for (more, part) in [
        (&[][..], "give --command-root"),
        (&["--command-root", root][..], "give --approvers"),
        (
            &[&foreign[..], &["--approvers", nobody]].concat()[..],
            "none of the root keys given",
        ),
    ] {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--postgres"];
        let serve = [&serve[..], &[up.text("postgres")], more].concat();
        let mut serve = Process::start(&serve);
        assert!(!serve.ended().await.success(), "it serves with {more:?}");
        let told = serve.tail();
        assert!(told.contains(part), "{told}");
    }
}
