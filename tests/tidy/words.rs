//! Nothing is left to be done later in silence, and no lint is silenced without a reason.

use ledger_tests::repository::files;

/// In two parts, so that this file does not name what it looks for.
const LEFT_OPEN: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];
/// In a path that `mktemp` fills in, they are no words.
const MKTEMP: &str = "mktemp";
const EXPECTED: &str = concat!("#[exp", "ect(");
const SILENCED: &[&str] = &[concat!("#[all", "ow("), concat!("#![all", "ow(")];

#[test]
fn h_no_file_says_that_something_is_left_to_do() {
    let kinds = ["rs", "md", "sql", "toml", "sh", "json"];
    for (path, text) in kinds.iter().flat_map(|kind| files("", kind)) {
        for (number, line) in (1..).zip(text.lines()) {
            let word = LEFT_OPEN.iter().find(|word| line.contains(**word));
            let word = word.filter(|_| !line.contains(MKTEMP));
            assert!(word.is_none(), "{path}:{number}: {line}");
        }
    }
}

#[test]
fn h_no_lint_is_silenced_without_a_reason() {
    for (path, text) in files("", "rs") {
        for (number, line) in (1..).zip(text.lines()) {
            let silenced = SILENCED.iter().any(|word| line.contains(word));
            assert!(
                !silenced,
                "{path}:{number}: say `expect`, with a reason: {line}"
            );
        }
        for attribute in text.split(EXPECTED).skip(1) {
            let inside = attribute.split(")]").next().unwrap();
            assert!(
                inside.contains("reason ="),
                "{path}: an expectation without a reason"
            );
        }
    }
}
