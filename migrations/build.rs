//! A new SQL file must be embedded again.
fn main() {
    println!("cargo:rerun-if-changed=.");
}
