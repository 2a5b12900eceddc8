//! Rules of the specification name tests that exist: the check of `hack/spec-coverage`.

use std::fs;
use std::process::{Command, Output};

use crate::root;

fn spec_coverage(arguments: &[&str]) -> Output {
    let mut script = Command::new(root().join("hack/spec-coverage"));
    script.args(arguments).output().expect("hack/spec-coverage")
}

#[test]
fn proofs_of_the_specification_exist() {
    let checked = spec_coverage(&[]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn a_row_without_its_test_is_found() {
    let good = "tests/tidy/spec_coverage.rs::a_row_without_its_test_is_found";
    let conformance =
        "conformance: [k8s.io] Pods should get a host IP [NodeConformance] [Conformance]";
    for (proof, note, is_fine) in [
        (good, "", true),
        (conformance, "", true),
        ("tests/e2e/pods.rs::a_deleted_pod_leaves_nothing", "", true),
        ("apiserver-lite/orch-apiserver/tests/api/rbac.tsv: jane GET /api 200", "", true),
        ("", "missing: it is not here", true),
        ("tests/tidy/spec_coverage.rs::spec_coverage", "", false),
        ("tests/tidy/spec_coverage.rs::no_such_test", "", false),
        ("tests/e2e/pods.rs::pod", "", false),
        ("conformance: Pods should fly", "", false),
        ("apiserver-lite/orch-apiserver/tests/api/rbac.tsv: jack GET /api 200", "", false),
        ("", "", false),
        ("", "someday", false),
    ] {
        let file = std::env::temp_dir().join(format!("spec-coverage-{}.tsv", std::process::id()));
        fs::write(&file, format!("Section\t1\tA rule\t{proof}\t{note}\n")).expect("written");
        let checked = spec_coverage(&[file.to_str().expect("a path in UTF-8")]);
        let told = String::from_utf8_lossy(&checked.stderr);
        assert_eq!(checked.status.success(), is_fine, "{proof:?} {note:?}: {told}");
        assert!(is_fine || told.contains("spec-coverage-"), "the row is named: {told}");
        fs::remove_file(&file).expect("removed");
    }
}
