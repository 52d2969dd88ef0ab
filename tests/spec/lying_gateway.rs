//! A gateway that somebody has taken over, between real daemons and the real service: whatever it
//! makes of what goes through it is refused, by its code (SPEC P1–P3).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ed25519_dalek::SigningKey;
use ledger::Clock;
use ledger_protocol::canonical;
use ledger_protocol::dsse::{PublicKey, Purpose, sign};
use ledger_protocol::frame::{Command, Frame, Trust, Update, UpdateState, Welcome};
use ledger_protocol::kind::Lane;
use ledger_protocol::time::Timestamp;
use ledger_protocol::trust::{
    RootSignature, Signed, SignedBundle, TrustBundle, WorkerCertificate, intent,
};
use ledger_tests::fleet::Fleet;
use ledger_tests::liar::{Liar, Way};
use ledger_tests::up::Up;
use ledger_tests::wait::{found, until};
use reqwest::Url;
use serde_json::{Value, json};

use super::batches::{approved, folder};

type Alteration = fn(&mut Command);
type Lie = Box<dyn Fn(&mut Update) + Send>;

struct Stage {
    up: Up,
    fleet: Fleet,
    liar: Liar,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// Two nodes that reach the service through the liar alone, which begins honestly.
    async fn start() -> Self {
        let folder = folder();
        let up = Up::start(folder.path()).await;
        let gateway: Url = up.text("gateway").parse().unwrap();
        let gateway = SocketAddr::from(([127, 0, 0, 1], gateway.port().unwrap()));
        let data = Path::new(up.text("dataDir"));
        let (authority, nodes) = (data.join("authority"), folder.path().join("fleet"));
        let now = Clock::system().now();
        let liar = Liar::start(gateway, &authority, &nodes, now).await;
        let at = format!("https://localhost:{}", liar.address.port());
        let ca = authority.join("node-ca.pem");
        let fleet = Fleet::start(2, &nodes, (&at, &ca), &up.admin, &["--run-time", "5ms"]).await;
        fleet.joined().await;
        Self {
            up,
            fleet,
            liar,
            _folder: folder,
        }
    }

    fn node(&self, index: usize) -> &Value {
        &self.fleet.nodes[index].0
    }

    async fn run(&self, node: usize, kind: &str, key: &str, batch: Option<&str>) -> Value {
        let mut input = json!({"nodeId": self.node(node), "kind": kind, "idempotencyKey": key});
        if let Some(batch) = batch {
            input["batchId"] = batch.into();
        }
        self.up.admin.call("commands.run", input).await.ok()
    }

    /// Runs a command to its end while each command becomes what the lie makes of it.
    async fn ends(
        &self,
        node: usize,
        (kind, key, batch): (&str, &str, Option<&str>),
        lie: impl Fn(&mut Command) + Send + 'static,
    ) -> Value {
        self.liar.tell(move |way, frame| match (way, frame) {
            (Way::ToNode, Frame::Command(mut command)) => {
                lie(&mut command);
                vec![command.into()]
            }
            (_, other) => vec![other],
        });
        let command = self.run(node, kind, key, batch).await;
        self.up.settled(&command).await
    }

    async fn end(mut self) {
        self.fleet.process.kill().await;
        assert!(self.up.stop().await.success());
    }

    fn starts(&self, command: &Value) -> usize {
        let effects = self.fleet.effects();
        let effect = effects.get(command["id"].as_str().unwrap());
        effect.map_or(0, |effect| effect.started)
    }

    /// A refused command had no effect.
    fn assert_refused(&self, what: &str, command: &Value, code: &str) {
        let ended = (&command["state"], &command["reason"]);
        assert_eq!(
            ended,
            (&json!("rejected"), &json!(code)),
            "{what}: {command}"
        );
        assert_eq!(self.starts(command), 0, "{what}");
    }
}

/// What the liar signs with keys of its own.
fn forged(command: &Command, root: &SigningKey, now: Timestamp) -> Signed {
    let worker = SigningKey::from_bytes(&[9; 32]);
    let (key, under) = (PublicKey::of(&worker), PublicKey::of(root));
    let lives = (now, now.plus_seconds(86_400));
    let statement = WorkerCertificate::statement(key, lives, under).unwrap();
    let certificate = WorkerCertificate {
        key,
        not_after: lives.1,
        not_before: lives.0,
        root: under,
        signature: sign(root, Purpose::WorkerKey, &statement).to_vec(),
    };
    let intent = intent::of_command(command).unwrap();
    Signed::new(&worker, &certificate, Purpose::Command, &intent)
}

/// A bundle of the liar's own, newer than any.
fn planted(root: &SigningKey) -> SignedBundle {
    let bundle = TrustBundle {
        approvers: Vec::new(),
        quorum: 0,
        roots: vec![PublicKey::of(root)],
        unbatched_destructive_per_hour: 0,
        version: 1_000,
    };
    let bundle = bundle.encode().unwrap();
    let signature = sign(root, Purpose::TrustBundle, &bundle).to_vec();
    let root = PublicKey::of(root);
    SignedBundle {
        bundle,
        signatures: vec![RootSignature { root, signature }],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p1_p3_no_gateway_makes_a_node_run_what_nobody_meant() {
    let stage = Stage::start().await;
    let plain = |key| ("inventory.refresh", key, None);
    let honest = stage.ends(0, plain("honest"), |_| {}).await;
    assert_eq!(honest["state"], "succeeded", "{honest}");

    let alterations: [(&str, Alteration); 11] = [
        ("payload", |command| {
            command.payload = canonical::from_json(&json!({"rescan": true})).unwrap();
        }),
        ("kind", |command| command.kind = "diag.nvml".to_owned()),
        ("lane", |command| {
            command.lane = Lane::Bulk;
        }),
        ("notAfter", |command| {
            command.not_after = command.not_after.map(|at| at.plus_seconds(60));
        }),
        ("seq", |command| command.seq += 1_000),
        ("timeoutSeconds", |command| command.timeout_seconds += 1),
        ("retrySafe", |command| command.retry_safe = false),
        ("attested", |command| command.attested = true),
        ("destructive", |command| command.destructive = true),
        ("selfTerminating", |command| command.self_terminating = true),
        ("signature", |command| command.signed = None),
    ];
    for (what, alter) in alterations {
        let ended = stage.ends(0, plain(what), alter).await;
        stage.assert_refused(what, &ended, "BAD_SIGNATURE");
    }

    let other = Arc::new(Mutex::new(None));
    let kept = other.clone();
    let keep = move |command: &mut Command| *kept.lock().unwrap() = command.signed.clone();
    stage.ends(0, plain("kept"), keep).await;
    let show = move |command: &mut Command| command.signed = other.lock().unwrap().clone();
    let ended = stage.ends(0, plain("another's"), show).await;
    stage.assert_refused("another command's signature", &ended, "BAD_SIGNATURE");

    // Its own keys, and a bundle that would have nodes believe them.
    let (root, now) = (SigningKey::from_bytes(&[8; 32]), Clock::system().now());
    let forge =
        move |command: &mut Command| command.signed = Some(Box::new(forged(command, &root, now)));
    let ended = stage.ends(0, plain("forged"), forge.clone()).await;
    stage.assert_refused("a root of its own", &ended, "BAD_SIGNATURE");
    let bundle = planted(&SigningKey::from_bytes(&[8; 32]));
    stage.liar.tell(move |_, frame| match frame {
        Frame::Welcome(welcome) => {
            let trust = vec![bundle.clone()];
            let bundles = trust.clone();
            vec![
                Welcome { trust, ..welcome }.into(),
                Trust { bundles }.into(),
            ]
        }
        other => vec![other],
    });
    stage.liar.cut();
    let command = stage.run(0, "inventory.refresh", "after", None).await;
    let ended = stage.up.settled(&command).await;
    assert_eq!(
        ended["state"], "succeeded",
        "what it believed stays: {ended}"
    );
    let ended = stage.ends(0, plain("planted"), forge).await;
    stage.assert_refused("a bundle of its own", &ended, "BAD_SIGNATURE");

    // Twice, and to another node.
    let to = stage.node(1).as_str().unwrap().parse().unwrap();
    stage.liar.tell(move |way, frame| match (way, frame) {
        (Way::ToNode, Frame::Command(command)) if command.node_id == to => vec![command.into()],
        (Way::ToNode, Frame::Command(command)) => {
            let moved = Command {
                node_id: to,
                ..command.clone()
            };
            vec![command.clone().into(), moved.into(), command.into()]
        }
        (_, other) => vec![other],
    });
    let command = stage.run(0, "inventory.refresh", "twice", None).await;
    let ended = stage.up.settled(&command).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert_eq!(stage.starts(&command), 1);

    batches(&stage).await;
    stage.end().await;
}

/// A destructive command runs by its own batch and its own place in it alone.
async fn batches(stage: &Stage) {
    let allowed = [0, 1].map(|node| format!("{}:node.reboot", stage.node(node).as_str().unwrap()));
    let batch = approved(&stage.up, &allowed).await;
    let reboot = |key| ("node.reboot", key, Some(batch.as_str()));
    let strip = |command: &mut Command| command.batch = None;
    let ended = stage.ends(0, reboot("stripped"), strip).await;
    stage.assert_refused("no approvals", &ended, "BATCH_UNAPPROVED");
    let one = |command: &mut Command| {
        let approvals = command.batch.as_mut().map(|batch| &mut batch.approvals);
        approvals.unwrap().truncate(1);
    };
    let ended = stage.ends(0, reboot("one"), one).await;
    stage.assert_refused("one approval", &ended, "BATCH_UNAPPROVED");
    let twice = |command: &mut Command| {
        let approvals = &mut command.batch.as_mut().unwrap().approvals;
        approvals[1] = approvals[0].clone();
    };
    let ended = stage.ends(0, reboot("one, twice"), twice).await;
    stage.assert_refused("one approval, twice", &ended, "BATCH_UNAPPROVED");

    let other = Arc::new(Mutex::new(None));
    let kept = other.clone();
    let keep = move |command: &mut Command| *kept.lock().unwrap() = command.batch.clone();
    let ended = stage.ends(1, reboot("kept proof"), keep).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    let show = move |command: &mut Command| command.batch = other.lock().unwrap().clone();
    let ended = stage.ends(0, reboot("another's proof"), show).await;
    stage.assert_refused("another node's proof", &ended, "BATCH_UNAPPROVED");
    let unnamed = |command: &mut Command| command.batch_id = None;
    let ended = stage.ends(0, reboot("unnamed"), unnamed).await;
    stage.assert_refused("no batch", &ended, "BAD_SIGNATURE");
    let ended = stage.ends(0, reboot("honest reboot"), |_| {}).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_no_gateway_says_what_a_node_did_not() {
    let stage = Stage::start().await;
    let before = Arc::new(Mutex::new(None::<Update>));
    let kept = before.clone();
    stage.liar.tell(move |_, frame| {
        if let Frame::CommandUpdate(said) = &frame {
            let end = said.updates.iter().find(|said| said.result.is_some());
            kept.lock().unwrap().clone_from(&end.cloned());
        }
        vec![frame]
    });
    let command = stage.run(0, "diag.nvml", "honest", None).await;
    let honest = stage.up.settled(&command).await;
    assert_eq!(honest["state"], "succeeded", "{honest}");
    assert!(honest["nodeSig"].is_string(), "{honest}");

    let replayed = before.lock().unwrap().clone().unwrap();
    let lies: [(&str, &str, Lie); 5] = [
        (
            "stripped",
            "UNATTESTED",
            Box::new(|said| said.node_sig = None),
        ),
        (
            "failed",
            "BAD_ATTESTATION",
            Box::new(|said| said.state = UpdateState::Failed),
        ),
        (
            "result",
            "BAD_ATTESTATION",
            Box::new(|said| said.result = canonical::from_json(&json!({"ok": true})).ok()),
        ),
        (
            "replayed",
            "BAD_ATTESTATION",
            Box::new(move |said| {
                said.node_sig.clone_from(&replayed.node_sig);
                said.result.clone_from(&replayed.result);
            }),
        ),
        (
            "forged",
            "BAD_ATTESTATION",
            Box::new(|said| said.node_sig = Some(vec![7; 64])),
        ),
    ];
    for (what, code, lie) in lies {
        stage.liar.tell(move |_, frame| match frame {
            Frame::CommandUpdate(mut said) => {
                let ends = said.updates.iter_mut();
                ends.filter(|said| said.result.is_some()).for_each(&lie);
                vec![said.into()]
            }
            other => vec![other],
        });
        let command = stage.run(0, "diag.nvml", what, None).await;
        let refused = found("the forged word is shown", async || {
            let input = json!({"nodeId": command["nodeId"]});
            let node = stage.up.admin.call("nodes.get", input).await.ok();
            let refused = node["refusedReports"].as_array()?.clone();
            let mine = |refused: &Value| refused["commandId"] == command["id"];
            refused.into_iter().find(mine)
        })
        .await;
        assert_eq!(refused["code"], code, "{what}: {refused}");
        until("the command is under way", async || {
            stage.up.command(&command).await["state"] == "running"
        })
        .await;
        assert_eq!(stage.starts(&command), 1, "{what}");
    }
    stage.end().await;
}
