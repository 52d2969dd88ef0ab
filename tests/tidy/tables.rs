//! A table is written by one crate, and `migrations/README.md` says by which (STYLE 14).

use std::collections::{BTreeMap, BTreeSet};

use ledger_tests::repository::{files, root};

/// Each table with the crates that may write it: its owner first.
fn owners() -> BTreeMap<String, String> {
    let readme = std::fs::read_to_string(root().join("migrations/README.md")).unwrap();
    let mut owners = BTreeMap::new();
    for line in readme.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = line.trim_matches('|').split('|');
        let (tables, by) = (cells.next().unwrap(), cells.next().unwrap());
        let owner = by.split('`').nth(1).unwrap().to_owned();
        for table in tables.split('`').skip(1).step_by(2) {
            owners.insert(table.to_owned(), owner.clone());
        }
    }
    owners
}

/// The names after these words.
fn after<'a>(text: &'a str, words: &str) -> BTreeSet<&'a str> {
    let name = |rest: &'a str| {
        let rest = rest.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    };
    text.split(words).skip(1).map(name).collect()
}

#[test]
fn h_every_table_has_an_owner() {
    let owners = owners();
    let mut tables = BTreeSet::new();
    for (path, text) in files("migrations", "sql") {
        // The page to read is made of the others, and partitions are named by a format.
        if path != "migrations/schema.sql" {
            let made = after(&text, "CREATE TABLE ").into_iter();
            tables.extend(made.filter(|name| !name.is_empty()).map(str::to_owned));
            for dropped in after(&text, "DROP TABLE ") {
                tables.remove(dropped);
            }
        }
    }
    let listed = owners.keys().cloned().collect();
    assert_eq!(
        tables, listed,
        "tables, against the list in migrations/README.md"
    );
}

#[test]
fn h_a_table_is_written_by_its_owner_alone() {
    let owners = owners();
    for (path, text) in files("", "rs") {
        let (crate_name, rest) = path.split_once('/').unwrap_or((path.as_str(), ""));
        let is_product = rest.starts_with("src/") && !rest.contains("tests");
        if !is_product {
            continue;
        }
        // What follows is for tests, which may plant what they like.
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for words in ["INSERT INTO ", "UPDATE ", "DELETE FROM ", "TRUNCATE "] {
            for table in after(product, words) {
                let owner = owners.get(table);
                assert!(
                    owner.is_none_or(|owner| owner == crate_name),
                    "{path} writes {table}, which is {owner:?}'s"
                );
            }
        }
    }
}
