//! What the documents name is there.

use ledger_tests::repository::{files, root};

/// Paths that a document may name because running something makes them.
const MADE: &[&str] = &[".ledger", ".dev/", "target/"];

/// Every word of a text that looks like a path of this tree: in backticks or as a link's target.
fn paths(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let linked = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    quoted.chain(linked).filter(|word| is_path(word)).collect()
}

fn is_path(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let is_file = [".md", ".rs", ".toml", ".sql", ".sh", ".json"].iter();
    word.chars().all(plain)
        && !word.starts_with('/')
        && !word.starts_with("..")
        && !word.ends_with(".md.")
        && (word.contains('/') || is_file.clone().any(|end| word.ends_with(end)))
}

#[test]
fn h_every_path_that_a_document_names_is_there() {
    let readme = root().join("README.md");
    assert!(readme.is_file(), "there is no README.md");
    let top: Vec<String> = std::fs::read_dir(root())
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    let mut named = 0;
    for (document, text) in files("", "md") {
        let folder = root().join(&document).parent().unwrap().to_owned();
        for path in paths(&text) {
            let made = MADE.iter().any(|made| path.starts_with(made));
            let first = path.split('/').next().unwrap();
            // A word with a slash in it may be something else, such as a media type.
            let ours = path.starts_with("./") || top.iter().any(|own| own == first);
            if made || !ours {
                continue;
            }
            let there = root().join(path).exists() || folder.join(path).exists();
            assert!(there, "{document} names {path}, which is not there");
            named += 1;
        }
    }
    assert!(named > 5, "only {named} paths were found");
}

#[test]
fn h_every_target_of_make_that_a_document_names_is_there() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    for (document, text) in files("", "md") {
        let quoted = text.split('`').skip(1).step_by(2);
        for target in quoted.filter_map(|words| words.strip_prefix("make ")) {
            let target = target.split([' ', '\n']).next().unwrap();
            assert!(
                targets.contains(&target),
                "{document} names `make {target}`"
            );
        }
    }
}
