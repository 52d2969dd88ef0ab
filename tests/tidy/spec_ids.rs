//! Every requirement that is built has a test with its name.

use std::collections::BTreeSet;

use ledger_tests::repository::files;

/// The requirements of SPEC that are built so far. To build one more: its id here.
const BUILT: &[&str] = &[
    "l1", "l2", "l3", "l4", "l5", "l6", "l7", "l8", "l9", "l10", // the ledger
    "s1", "s2", "s3", "s4", // a command's life
    "k1", "k2", "k3", "k4", "k5", "k7", // kinds
    "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a10", "a11", "a13", // the API
    "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9", "d10", "d11", "d12", "d13",
    "d14", // delivery
    "t1", "t2", "t3", "t4", // time
    "n",  // NATS
    "p1", "p2", "p3", "p4", "p5", "p6", "p7", // signatures and approvals
    "u1", "u2", "u3", "u4", // audit
    "h1", "h2", // for people
];

/// The names of all test functions of the workspace.
fn tests() -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for (_, text) in files("", "rs") {
        let mut marked = false;
        for line in text.lines().map(str::trim) {
            let attribute = line.starts_with("#[") || line.starts_with("//");
            if line.starts_with("#[") && line.contains("test") {
                marked = true;
            } else if let Some((_, name)) = line.split_once("fn ").filter(|_| marked) {
                tests.insert(name.split('(').next().unwrap().to_owned());
            }
            marked &= attribute;
        }
    }
    tests
}

#[test]
fn h_every_requirement_that_is_built_is_named_by_a_test() {
    let tests = tests();
    assert!(tests.len() > 100, "{tests:?}");
    let named = |id: &&&str| tests.iter().any(|test| test.starts_with(&format!("{id}_")));
    let missing: Vec<_> = BUILT.iter().filter(|id| !named(id)).collect();
    assert!(missing.is_empty(), "no test is named after {missing:?}");
}
