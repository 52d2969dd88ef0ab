//! The working tree, for tests of the house rules.

use std::path::{Path, PathBuf};

/// The folder that holds the workspace's manifest.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_owned()
}

/// Every file that belongs to the project, below a folder of the tree, with its path from the root.
pub fn files(below: &str, extension: &str) -> Vec<(String, String)> {
    let (root, mut found) = (root(), Vec::new());
    let mut folders = vec![root.join(below)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().filter_map(Result::ok) {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let ours = !name.starts_with('.') && name != "target" && name != "node_modules";
            if ours && entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if ours && path.extension().is_some_and(|own| own == extension) {
                let shown = path
                    .strip_prefix(&root)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                let text = std::fs::read_to_string(&path);
                found.push((shown, text.unwrap_or_default()));
            }
        }
    }
    found.sort();
    found
}
