//! The table of field ownership: each row a state, a write, and what follows.

use super::Stored;

/// A ConfigMap whose key `k` was applied by `a` with value 1.
fn owned_by_a() -> Stored {
    let mut object = Stored::new("v1", "ConfigMap");
    object.apply("a", r#"{"data":{"k":"1"}}"#, false).expect("a first apply");
    object
}

#[test]
fn another_value_without_force_is_a_conflict_and_changes_nothing() {
    let mut object = owned_by_a();
    let before = (object.owners(), object.at(&["data"]));
    let error = object.apply("b", r#"{"data":{"k":"2"}}"#, false).expect_err("a conflict");
    assert_eq!(error, r#"Apply failed with 1 conflict: conflict with "a": .data.k"#);
    assert_eq!((object.owners(), object.at(&["data"])), before);
}

#[test]
fn another_value_with_force_takes_the_field() {
    let mut object = owned_by_a();
    object.apply("c", r#"{"data":{"k":"1"}}"#, false).expect("the same value");
    object.apply("b", r#"{"data":{"k":"2"}}"#, true).expect("by force");
    assert_eq!(object.at(&["data"]), r#"{"k":"2"}"#);
    assert_eq!(object.owners(), [r#"b Apply 3 {"f:data":{"f:k":{}}}"#]);
}

#[test]
fn the_same_value_shares_the_field_until_one_changes_it() {
    let mut object = owned_by_a();
    assert_eq!(object.apply("b", r#"{"data":{"k":"1"}}"#, false), Ok(false));
    // As in Kubernetes, an apply that changes no value sets no time.
    let shared = [r#"a Apply 1 {"f:data":{"f:k":{}}}"#, r#"b Apply - {"f:data":{"f:k":{}}}"#];
    assert_eq!(object.owners(), shared);
    let error = object.apply("a", r#"{"data":{"k":"2"}}"#, false).expect_err("a conflict");
    assert_eq!(error, r#"Apply failed with 1 conflict: conflict with "b": .data.k"#);
    let error = object.apply("c", r#"{"data":{"k":"2"}}"#, false).expect_err("a conflict");
    let both = "Apply failed with 2 conflicts: conflicts with \"a\":\n- .data.k\nconflicts with \"b\":\n- .data.k";
    assert_eq!(error, both);
}

#[test]
fn fields_removed_from_an_applied_object_are_deleted_unless_another_manager_owns_them() {
    let mut object = owned_by_a();
    object.apply("a", r#"{"data":{"other":"1"}}"#, false).expect("no conflict");
    assert_eq!(object.at(&["data"]), r#"{"other":"1"}"#);
    // With another owner it stays.
    let mut object = owned_by_a();
    object.apply("b", r#"{"data":{"k":"1"}}"#, false).expect("the same value");
    object.apply("a", r#"{"data":{"other":"1"}}"#, false).expect("no conflict");
    assert_eq!(object.at(&["data"]), r#"{"k":"1","other":"1"}"#);
    let owners = [r#"a Apply 3 {"f:data":{"f:other":{}}}"#, r#"b Apply - {"f:data":{"f:k":{}}}"#];
    assert_eq!(object.owners(), owners);
    // And so does what was changed by an update.
    let mut object = owned_by_a();
    object.merge("u", r#"{"data":{"k":"2"}}"#);
    object.apply("a", "{}", false).expect("no conflict");
    assert_eq!(object.at(&["data"]), r#"{"k":"2"}"#);
}

#[test]
fn a_deleted_field_has_its_default_again() {
    let mut object = Stored::new("apps/v1", "Deployment");
    let config = |replicas: &str| {
        format!(
            r#"{{"spec":{{{replicas}"selector":{{"matchLabels":{{"a":"b"}}}},"template":{{"metadata":{{"labels":{{"a":"b"}}}},"spec":{{"containers":[{{"name":"c","image":"i"}}]}}}}}}}}"#
        )
    };
    object.apply("a", &config(r#""replicas":3,"#), false).expect("a first apply");
    assert_eq!(object.at(&["spec", "replicas"]), "3");
    object.apply("a", &config(""), false).expect("no conflict");
    // The tree has no value, for defaults to fill in.
    assert_eq!(object.at(&["spec", "replicas"]), "null");
    let defaulted = {
        let mut new = object.server.decode(object.tree.as_ref().expect("a tree"));
        object.server.engine.default(&mut new);
        new.spec().and_then(|spec| spec.int("replicas"))
    };
    assert_eq!(defaulted, Some(1));
}

#[test]
fn any_other_write_owns_what_it_changes_without_conflicts() {
    let mut object = owned_by_a();
    object.merge("u", r#"{"data":{"k":"2","new":"1"}}"#);
    assert_eq!(object.owners(), [r#"u Update 2 {"f:data":{"f:k":{},"f:new":{}}}"#]);
    let error = object.apply("a", r#"{"data":{"k":"1"}}"#, false).expect_err("a conflict");
    assert_eq!(error, r#"Apply failed with 1 conflict: conflict with "u" using v1: .data.k"#);
    // A create owns all of the object but what identifies it.
    let mut object = Stored::new("v1", "ConfigMap");
    object.merge("u", r#"{"metadata":{"name":"x","labels":{"l":"1"}},"data":{"k":"1"}}"#);
    let all =
        r#"u Update 1 {"f:data":{".":{},"f:k":{}},"f:metadata":{"f:labels":{".":{},"f:l":{}}}}"#;
    assert_eq!(object.owners(), [all]);
}

#[test]
fn one_empty_entry_resets_the_owners_and_an_empty_list_does_not() {
    let reset = r#"{"metadata":{"managedFields":[{}]}}"#;
    let mut object = owned_by_a();
    object.merge("u", reset);
    assert!(object.owners().is_empty());
    let mut object = owned_by_a();
    object.merge("u", r#"{"metadata":{"managedFields":[{}]},"data":{"new":"1"}}"#);
    assert_eq!(object.owners(), [r#"u Update 2 {"f:data":{"f:new":{}}}"#]);
    let mut object = owned_by_a();
    let before = object.owners();
    object.merge("u", r#"{"metadata":{"managedFields":[]}}"#);
    assert_eq!(object.owners(), before);
    object.merge("u", r#"{"metadata":{"managedFields":null}}"#);
    assert_eq!(object.owners(), before);
}
