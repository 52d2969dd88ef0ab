//! A secret goes from whoever puts it to the node that needs it, and stands nowhere else (SPEC P6).

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledger::Clock;
use ledger_protocol::frame::{Frame, Secret};
use ledger_protocol::id::CommandId;
use ledger_protocol::secret::{Exchange, OneTimeKey, SecretValue};
use ledger_tests::liar::{Liar, Way};
use ledger_tests::module::Module;
use ledger_tests::process::Process;
use ledger_tests::site::{Echo, Site};
use ledger_tests::up::Up;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use reqwest::Url;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use super::batches::{approved, folder};

type Lie = Box<dyn Fn(Secret) -> Secret + Send>;

const NAME: &str = "site-7/inventory-api";

/// A password that nobody else has, and every form in which it would be the password still.
struct Canary {
    password: String,
}

impl Canary {
    fn new() -> Self {
        let random: [u8; 16] = rand::random();
        Self {
            password: format!("canary-{:032x}", u128::from_be_bytes(random)),
        }
    }

    /// The value of the `Authorization` field.
    fn value(&self) -> String {
        format!(
            "Basic {}",
            STANDARD.encode(format!("site:{}", self.password))
        )
    }

    fn forms(&self) -> Vec<Vec<u8>> {
        let digits = self.password.trim_start_matches("canary-");
        let hex = |text: &str| {
            let digits = text.bytes().map(|byte| format!("{byte:02x}"));
            digits.collect::<String>().into_bytes()
        };
        let value = self.value();
        let encoded = value.trim_start_matches("Basic ");
        let list = |text: &str| {
            let numbers: Vec<_> = text.bytes().map(|byte| byte.to_string()).collect();
            [numbers.join(","), numbers.join(", ")]
        };
        let lists = [list(digits), list(&encoded[8..])].concat();
        // Within the base64 of something longer the text has one of three forms.
        let within = ["", "x", "xx"].map(|before| {
            let whole = STANDARD.encode(format!("{before}{encoded}"));
            whole[4..whole.len() - 4].to_owned().into_bytes()
        });
        [digits, &encoded[8..]]
            .map(|text| text.as_bytes().to_vec())
            .into_iter()
            .chain([hex(digits), hex(&encoded[8..])])
            .chain(lists.into_iter().map(String::into_bytes))
            .chain(within)
            .collect()
    }

    #[track_caller]
    fn assert_not_in(&self, what: &str, bytes: &[u8]) {
        for form in self.forms() {
            let found = bytes.windows(form.len()).position(|at| at == form);
            assert_eq!(
                found,
                None,
                "{what} holds {}",
                String::from_utf8_lossy(&form)
            );
        }
    }
}

/// Every file below a folder with its bytes.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_dir() {
            found.extend(files(&path));
        } else if kind.is_file() {
            found.push((path.display().to_string(), std::fs::read(&path).unwrap()));
        }
    }
    found
}

async fn put(up: &Up, value: &str, more: &[&str]) {
    let at = ["--tenant", up.text("tenantId"), "--api", up.text("api")];
    let arguments = [&["secret", "put", NAME][..], &at, more].concat();
    let arguments = [&arguments[..], &["--token", &up.admin.token]].concat();
    let mut process = Process::start_reading(&arguments, value);
    let status = process.ended().await;
    assert!(status.success(), "{}", process.tail());
}

fn request(echo: &Echo, path: &str, secret: &str) -> Value {
    let url = format!("http://{}/{path}", echo.address);
    json!({"url": url, "method": "GET", "secretRef": secret})
}

/// Postgres notes every statement with its parameters from now on.
async fn tell_everything(postgres: &str) {
    let mut url: Url = postgres.parse().unwrap();
    url.set_username(ledger_servers::ADMIN).unwrap();
    let mut conn = PgConnection::connect(url.as_str()).await.unwrap();
    for statement in [
        "ALTER SYSTEM SET log_statement = 'all'",
        "ALTER SYSTEM SET log_parameter_max_length = -1",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(statement).execute(&mut conn).await.unwrap();
    }
    conn.close().await.unwrap();
}

/// A batch that allows these; a destructive command needs one.
async fn allowed(up: &Up, node: &str, payloads: &[Value]) -> String {
    let commands: Vec<_> = payloads
        .iter()
        .map(|payload| format!("{node}:site.httpProxy:{payload}"))
        .collect();
    approved(up, &commands).await
}

async fn settled(up: &Up, node: &str, command: CommandId) -> Value {
    up.settled(&json!({"nodeId": node, "id": command})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_a_secret_reaches_its_node_and_stands_nowhere_else() {
    let (folder, canary, echo) = (folder(), Canary::new(), Echo::start().await);
    let data = folder.path().join("data");
    let up = Up::start_with(&data, &["--log-level", "trace"]).await;
    tell_everything(up.text("postgres")).await;
    put(
        &up,
        &format!("{}\n", canary.value()),
        &["--kind", "site.httpProxy"],
    )
    .await;
    let mut site = Site::start(&up, up.text("gateway"), &data.join("site-7")).await;
    let module = Module::beside(&up).await;

    let good = request(&echo, "good", NAME);
    let unknown = request(&echo, "unknown", "site-7/other");
    let batch = allowed(&up, &site.node, &[good.clone(), unknown.clone()]).await;
    let run = async |payload: &Value, key| {
        let command = ("site.httpProxy", payload.clone());
        let id = module.run(&site.node, command, key, Some(&batch)).await;
        settled(&up, &site.node, id).await
    };
    let ended = run(&good, "good").await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    let body = ended["result"]["body"].as_str().unwrap();
    assert!(body.contains(&format!("[secret {NAME}]")), "{body}");
    let heard = echo.hears("/good").await;
    assert!(heard.contains(&canary.value()), "{heard}");

    let ended = run(&unknown, "unknown").await;
    let said = (&ended["state"], &ended["reason"], &ended["details"]["code"]);
    let (state, reason, code) = (
        json!("failed"),
        json!("secret-unavailable"),
        json!("UNKNOWN_SECRET"),
    );
    assert_eq!(said, (&state, &reason, &code), "{ended}");
    // From here on it is for another kind.
    put(&up, &canary.value(), &["--kind", "bmc.power"]).await;
    let ended = run(&good, "not allowed").await;
    let said = (&ended["state"], &ended["reason"], &ended["details"]["code"]);
    let code = json!("NOT_ALLOWED");
    assert_eq!(said, (&state, &reason, &code), "{ended}");
    assert_eq!(echo.heard().len(), 1, "{:?}", echo.heard());

    let listed = up.admin.call("secrets.list", json!({})).await.ok();
    assert_eq!(listed["items"][0]["name"], NAME, "{listed}");
    let events = up
        .admin
        .call("commands.list", json!({"nodeId": site.node}))
        .await
        .ok();
    let logs = [site.process.stderr(), site.process.stdout()];
    site.process.signal(rustix::process::Signal::TERM);
    site.process.ended().await;
    for (what, text) in [
        ("secrets.list", listed.to_string()),
        ("commands.list", events.to_string()),
    ] {
        canary.assert_not_in(what, text.as_bytes());
    }
    drop(module);
    let said = up.said();
    assert!(up.stop().await.success());
    for (what, text) in [("the service", said), ("the site's agent", logs.concat())] {
        assert!(text.contains(NAME), "{what} says nothing at all of it");
        canary.assert_not_in(what, text.as_bytes());
    }
    // The database with its journal and log, the stream, the nodes' folders, the keys.
    let files = files(folder.path());
    let naming = files
        .iter()
        .filter(|(_, bytes)| bytes.windows(NAME.len()).any(|at| at == NAME.as_bytes()));
    let places: Vec<_> = naming.map(|(path, _)| path).collect();
    assert!(
        places.iter().any(|path| path.contains("pg_wal")),
        "{places:?}"
    );
    assert!(
        places.iter().any(|path| path.contains("site-7")),
        "{places:?}"
    );
    for (path, bytes) in &files {
        canary.assert_not_in(path, bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_no_gateway_reads_a_secret_or_puts_another_in_its_place() {
    let (folder, canary, echo) = (folder(), Canary::new(), Echo::start().await);
    let up = Up::start(&folder.path().join("data")).await;
    put(&up, &canary.value(), &[]).await;
    let gateway: Url = up.text("gateway").parse().unwrap();
    let gateway = SocketAddr::from(([127, 0, 0, 1], gateway.port().unwrap()));
    let authority = Path::new(up.text("dataDir")).join("authority");
    let nodes = folder.path().join("sites");
    std::fs::create_dir(&nodes).unwrap();
    let liar = Liar::start(gateway, &authority, &nodes, Clock::system().now()).await;
    let at = format!("https://localhost:{}", liar.address.port());
    let mut site = Site::start(&up, &at, &nodes.join("site-7")).await;
    let module = Module::beside(&up).await;
    let paths = ["first", "key", "value", "replayed", "stripped"];
    let payloads = paths.map(|path| request(&echo, path, NAME));
    let batch = allowed(&up, &site.node, &payloads).await;
    let run = async |index: usize| {
        let command = ("site.httpProxy", payloads[index].clone());
        let id = module
            .run(&site.node, command, paths[index], Some(&batch))
            .await;
        settled(&up, &site.node, id).await
    };

    // It reads every frame.
    let (seen, kept) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let (frames, answer) = (seen.clone(), kept.clone());
    liar.tell(move |_, frame| {
        frames.lock().unwrap().extend(frame.encode().unwrap());
        if let Frame::Secret(secret) = &frame {
            *answer.lock().unwrap() = Some(secret.clone());
        }
        vec![frame]
    });
    let ended = run(0).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert!(!seen.lock().unwrap().is_empty());
    canary.assert_not_in("what the gateway reads", &seen.lock().unwrap());

    // A one-time key of its own.
    liar.tell(|way, frame| match (way, frame) {
        (Way::ToLedger, Frame::SecretRequest(mut asked)) => {
            asked.key = OneTimeKey::from_bytes([9; 32]);
            vec![asked.into()]
        }
        (Way::ToNode, Frame::Secret(secret)) => {
            assert!(secret.sealed.is_none(), "it was given a secret: {secret:?}");
            vec![secret.into()]
        }
        (_, other) => vec![other],
    });
    let cancelled = async {
        let command = ("site.httpProxy", payloads[1].clone());
        let id = module
            .run(&site.node, command, paths[1], Some(&batch))
            .await;
        let input = json!({"nodeId": site.node, "commandId": id});
        // It would wait for a minute.
        ledger_tests::wait::until("it waits for its secret", async || {
            up.admin.call("commands.get", input.clone()).await.ok()["state"] == "running"
        })
        .await;
        up.admin.call("commands.cancel", input).await.ok();
        settled(&up, &site.node, id).await
    };
    let ended = cancelled.await;
    assert_eq!(ended["state"], "cancelled", "{ended}");

    // Values of its own in the place of the first answer: sealed as the service would, with the
    // signature of the true one; then what another command got; then without a signature.
    let node = site.node.parse().unwrap();
    let lies: [(usize, Lie); 3] = [
        (
            2,
            Box::new(move |mut secret| {
                let exchange = Exchange {
                    command_id: secret.command_id,
                    key: secret.key,
                    node_id: node,
                    secret_ref: NAME,
                };
                let forged = SecretValue::new(b"Bearer forged".to_vec());
                let sealed = exchange
                    .seal(&forged, &mut StdRng::seed_from_u64(1))
                    .unwrap();
                secret.sealed = Some(sealed);
                secret
            }),
        ),
        (
            3,
            Box::new({
                let other: Secret = kept.lock().unwrap().clone().unwrap();
                move |secret| Secret {
                    sealed: other.sealed.clone(),
                    signed: other.signed.clone(),
                    ..secret
                }
            }),
        ),
        (
            4,
            Box::new(|secret| Secret {
                signed: None,
                ..secret
            }),
        ),
    ];
    for (index, lie) in lies {
        let mut is_told = false;
        liar.tell(move |way, frame| match (way, frame) {
            (Way::ToNode, Frame::Secret(secret)) if !is_told => {
                is_told = true;
                vec![lie(secret).into()]
            }
            (_, other) => vec![other],
        });
        let ended = run(index).await;
        assert_eq!(ended["state"], "succeeded", "{}: {ended}", paths[index]);
        let heard = echo.hears(&format!("/{}", paths[index])).await;
        assert!(heard.contains(&canary.value()), "{heard}");
    }
    let heard = echo.heard();
    assert_eq!(heard.len(), 4, "{heard:?}");
    assert!(
        !heard.iter().any(|heard| heard.contains("forged")),
        "{heard:?}"
    );
    site.process.kill().await;
    drop(module);
    assert!(up.stop().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_a_master_key_is_the_owners_file_alone() {
    let folder = folder();
    let key = folder.path().join("secrets.key");
    let path = key.to_str().unwrap();
    Process::output(&["secret", "keygen", path]).await;
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let data = folder.path().join("data");
    let arguments = [
        "up",
        "--data",
        data.to_str().unwrap(),
        "--secrets-key",
        path,
    ];
    let mut process = Process::start(&arguments);
    assert_eq!(process.ended().await.code(), Some(2));
    assert!(process.tail().contains("chmod 600"), "{}", process.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_secrets_under_a_key_that_was_not_given_are_told_once() {
    let folder = folder();
    let (data, key) = (folder.path().join("data"), folder.path().join("other.key"));
    let up = Up::start(&data).await;
    put(&up, "Bearer hunter2", &[]).await;
    let listed = up.admin.call("secrets.list", json!({})).await.ok();
    let id = listed["items"][0]["keyId"].as_str().unwrap().to_owned();
    let told = "secrets are under a master key that this service was not given";
    assert!(!up.said().contains(told));
    assert!(up.stop().await.success());
    let key = key.to_str().unwrap();
    Process::output(&["secret", "keygen", key]).await;
    let up = Up::start_with(&data, &["--secrets-key", key]).await;
    ledger_tests::wait::until("it is told", async || up.said().contains(told)).await;
    let said = up.said();
    let lines: Vec<_> = said.lines().filter(|line| line.contains(told)).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&id), "{id}: {lines:?}");
    assert!(up.stop().await.success());
}
