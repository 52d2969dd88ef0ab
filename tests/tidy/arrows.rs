//! Which crate may use which. To add a crate: a line in `ARROWS`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ledger_tests::repository::root;
use serde_json::Value;

/// Each crate of the workspace, with those that its product may use. Tests may use more: see
/// `FOR_TESTS`.
const ARROWS: &[(&str, &[&str])] = &[
    ("ledger-protocol", &[]),
    ("ledger-migrations", &[]),
    ("ledger-servers", &[]),
    ("ledger-projections", &["ledger-protocol"]),
    ("ledger", &["ledger-protocol", "ledger-projections"]),
    (
        "ledger-sweeper",
        &["ledger", "ledger-projections", "ledger-protocol"],
    ),
    (
        "ledger-nats",
        &["ledger", "ledger-projections", "ledger-protocol"],
    ),
    (
        "ledger-audit",
        &["ledger", "ledger-projections", "ledger-protocol"],
    ),
    (
        "ledger-gateway",
        &["ledger", "ledger-projections", "ledger-protocol"],
    ),
    (
        "ledger-api",
        &["ledger", "ledger-projections", "ledger-protocol"],
    ),
    ("ledger-agent", &["ledger-protocol"]),
    ("ledger-sim", &["ledger-protocol"]),
    (
        "ledger-cli",
        &[
            "ledger",
            "ledger-agent",
            "ledger-api",
            "ledger-audit",
            "ledger-gateway",
            "ledger-migrations",
            "ledger-nats",
            "ledger-projections",
            "ledger-protocol",
            "ledger-servers",
            "ledger-sweeper",
        ],
    ),
];

/// What a crate's own tests may use beside that: a database with its schema, and servers. The
/// crates below the ledger that would close a circle are not among them.
const FOR_TESTS: &[&str] = &["ledger-migrations", "ledger-servers", "ledger"];
/// Whatever needs more than one crate.
const TESTS: &str = "ledger-tests";

/// Crates that could do I/O, ask the time or draw a random number: `protocol` has none of them.
const NOT_IN_PROTOCOL: &[&str] = &[
    "async-nats",
    "axum",
    "fastrand",
    "futures-util",
    "getrandom",
    "hyper",
    "mio",
    "rand",
    "reqwest",
    "rustix",
    "socket2",
    "sqlx",
    "tempfile",
    "tokio",
];
/// What an agent never links, directly or through others.
const NOT_IN_AGENT: &[&str] = &["sqlx", "sqlx-postgres", "tokio-postgres", "async-nats"];

struct Use {
    by: String,
    of: String,
    kind: Kind,
}

#[derive(PartialEq, Eq)]
enum Kind {
    Product,
    Tests,
}

fn cargo(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(arguments)
        .args(["--offline", "--locked"])
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

fn packages() -> Vec<Value> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn name(package: &Value) -> String {
    package["name"].as_str().unwrap().to_owned()
}

fn uses(packages: &[Value]) -> Vec<Use> {
    let mut uses = Vec::new();
    for package in packages {
        for dependency in package["dependencies"].as_array().unwrap() {
            let kind = if dependency["kind"] == "dev" {
                Kind::Tests
            } else {
                Kind::Product
            };
            uses.push(Use {
                by: name(package),
                of: name(dependency),
                kind,
            });
        }
    }
    uses
}

#[test]
fn h_every_use_of_a_crate_of_ours_follows_an_arrow() {
    let packages = packages();
    let own: BTreeSet<String> = packages.iter().map(name).collect();
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let listed: BTreeSet<String> = arrows.keys().map(|name| (*name).to_owned()).collect();
    let listed = listed.into_iter().chain([TESTS.to_owned()]).collect();
    assert_eq!(
        own, listed,
        "a crate without a line in ARROWS, or a line without a crate"
    );
    for Use { by, of, kind } in uses(&packages) {
        if by == TESTS || !own.contains(&of) {
            continue;
        }
        let allowed = arrows[by.as_str()].contains(&of.as_str())
            || kind == Kind::Tests && by != "ledger-protocol" && FOR_TESTS.contains(&of.as_str());
        assert!(allowed, "{by} uses {of}, against the arrows");
    }
}

#[test]
fn h_the_protocol_cannot_do_anything_but_decide() {
    let uses = uses(&packages());
    let own = uses
        .iter()
        .filter(|one| one.by == "ledger-protocol" && one.kind == Kind::Product);
    for one in own {
        assert!(
            !NOT_IN_PROTOCOL.contains(&one.of.as_str()),
            "protocol uses {}",
            one.of
        );
    }
}

#[test]
fn h_an_agent_links_no_database() {
    let tree = [
        "tree",
        "--package",
        "ledger-agent",
        "--edges",
        "normal",
        "--prefix",
        "none",
    ];
    let tree = cargo(&tree);
    let linked: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(linked.contains("ledger-protocol"), "{tree}");
    for crate_name in NOT_IN_AGENT {
        assert!(!linked.contains(crate_name), "an agent links {crate_name}");
    }
}

#[test]
fn h_every_crate_has_the_lints_and_the_facts_of_the_workspace() {
    for package in packages() {
        let path = package["manifest_path"].as_str().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let has = |line: &str| text.lines().any(|own| own.trim() == line);
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{path} has lints of its own"
        );
        for fact in ["version", "edition", "rust-version", "license", "publish"] {
            assert!(
                has(&format!("{fact}.workspace = true")),
                "{path}: {fact} of its own"
            );
        }
        assert!(
            package["description"].is_string(),
            "{path} does not say what it is"
        );
        for line in text.lines() {
            let pinned = line.contains("version =") && line.contains('{');
            assert!(!pinned, "{path}: versions stand in the workspace: {line}");
        }
    }
}
