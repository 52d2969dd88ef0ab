//! The program that the other tests start is the one whose source is here.

use ledger_tests::binary::newer_sources;

#[test]
fn h_the_program_under_test_is_as_new_as_its_sources() {
    let newer = newer_sources();
    assert!(
        newer.is_empty(),
        "changed since `command-ledger` was built, so it is not what was tested; build it again \
         (`make test` does): {newer:?}"
    );
}
