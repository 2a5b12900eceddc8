//! Tests: texts of conflicts are bounded.

use super::{Conflicts, MAX_LISTED, MAX_PATH_TEXT};
use crate::element::FieldPath;
use crate::entries::{ManagedFieldsOperation, Owner};
use crate::set::FieldSet;

fn applier(name: &str) -> Owner {
    Owner::new(name, ManagedFieldsOperation::Apply, "", "")
}

fn keys(count: usize) -> FieldSet {
    (0..count).map(|at| FieldPath::fields(&["data", &format!("k{at:06}")])).collect()
}

/// The first line with the count, the number of paths, the last line, and the number of causes.
fn summary(sets: impl IntoIterator<Item = (Owner, FieldSet)>) -> (String, usize, String, usize) {
    let conflicts = Conflicts::new(sets);
    let message = conflicts.to_string();
    let first = message.lines().next().unwrap_or_default().to_owned();
    let last = message.lines().last().unwrap_or_default().to_owned();
    let paths = message.lines().filter(|line| line.starts_with("- ")).count();
    (first, paths, last, conflicts.causes().len())
}

#[test]
fn a_hundred_paths_are_listed_and_the_rest_counted() {
    let first =
        |count: usize| format!(r#"Apply failed with {count} conflicts: conflicts with "a":"#);
    let of_one = |count: usize| summary([(applier("a"), keys(count))]);
    assert_eq!(of_one(100), (first(100), 100, "- .data.k000099".to_owned(), 100));
    assert_eq!(of_one(101), (first(101), 100, "... and 1 more".to_owned(), 100));
    let many = 250_000;
    assert_eq!(of_one(many), (first(many), 100, "... and 249900 more".to_owned(), 100));
    // The bound is that of all owners together, and an owner without a listed path is not named.
    let two = summary([(applier("a"), keys(60)), (applier("b"), keys(60))]);
    assert_eq!(two, (first(120), 100, "... and 20 more".to_owned(), 100));
    let sets = [(applier("a"), keys(MAX_LISTED)), (applier("b"), keys(1))];
    assert!(!Conflicts::new(sets.clone()).to_string().contains("\"b\""));
    assert_eq!(summary(sets), (first(101), 100, "... and 1 more".to_owned(), 100));
}

#[test]
fn long_paths_are_cut() {
    let long = "é".repeat(MAX_PATH_TEXT);
    let conflicts = Conflicts::new([(
        applier("a"),
        [FieldPath::fields(&["d", &long])].into_iter().collect::<FieldSet>(),
    )]);
    let causes = conflicts.causes();
    assert_eq!(causes.len(), 1);
    // `.d.` has three bytes: a character that would be cut is left out.
    let want = format!(".d.{}...", "é".repeat((MAX_PATH_TEXT - 3) / 2));
    assert_eq!(causes.first().map(|cause| cause.field.clone()), Some(want.clone()));
    let message = format!(r#"Apply failed with 1 conflict: conflict with "a": {want}"#);
    assert_eq!(conflicts.to_string(), message);
}
