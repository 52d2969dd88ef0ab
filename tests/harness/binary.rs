//! The program under test, as cargo has built it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

const NAME: &str = "command-ledger";
const FIX: &str = "build it beside the tests: `cargo build --package ledger-cli --bin \
                   command-ledger`; `make test` does";

/// The program, beside the test's own executable (`target/<profile>/command-ledger`).
pub fn command_ledger() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    // The test lies in `deps`.
    let path = own.parent().unwrap().parent().unwrap().join(NAME);
    assert!(path.is_file(), "{} is not there; {FIX}", path.display());
    path
}

/// What the program was built of and has changed since: then other code is tested than is read.
pub fn newer_sources() -> Vec<PathBuf> {
    let binary = command_ledger();
    let built = changed(&binary).unwrap();
    let list = std::fs::read_to_string(binary.with_extension("d"))
        .unwrap_or_else(|error| panic!("no list of sources ({error}); {FIX}"));
    let (_, sources) = list.split_once(": ").unwrap();
    // Cargo writes a space in a path as `\ `.
    let sources = sources.trim_end().replace("\\ ", "\0");
    let sources = sources.split(' ').map(|path| path.replace('\0', " "));
    let newer = |path: &PathBuf| changed(path).is_none_or(|at| at > built);
    sources.map(PathBuf::from).filter(newer).collect()
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}
