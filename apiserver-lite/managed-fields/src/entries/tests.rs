//! Tests: entries are read strictly and written in Kubernetes' order.

use proptest::prelude::*;
use proto_api::Time;

use super::{
    EntryError, MAX_ENTRIES, MAX_NAME, MAX_SUBRESOURCE, ManagedFields, ManagedFieldsOperation,
    Owned, Owner,
};
use crate::element::{FieldPath, PathElement};
use crate::set::{FieldSet, FieldsError, MAX_DEPTH, MAX_PATHS};
use crate::testing::{json, text};

fn decode(entries: &str) -> Result<ManagedFields, EntryError> {
    ManagedFields::decode(Some(&json(entries)))
}

/// An entry with one field more than a complete one, or another value of it.
fn entry(other: &str) -> String {
    let mut entry = json(
        r#"{"manager":"m","operation":"Update","apiVersion":"v1","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}}}"#,
    );
    let map = entry.as_map_mut().expect("a map");
    for (key, value) in json(other).as_map().expect("a map").iter() {
        map.insert(key.to_owned(), value.clone());
    }
    text(&entry)
}

#[test]
fn entries_are_checked() {
    assert!(decode(&format!("[{}]", entry("{}"))).is_ok());
    let rows = [
        (r#"{"operation":"Sideways"}"#, "operation must be `Apply` or `Update`"),
        (r#"{"operation":""}"#, "operation must be `Apply` or `Update`"),
        (r#"{"apiVersion":""}"#, "apiVersion must not be empty"),
        (r#"{"fieldsType":""}"#, "missing fieldsType in managed fields entry 1"),
        (
            r#"{"fieldsType":"FieldsV2"}"#,
            r#"invalid fieldsType "FieldsV2" in managed fields entry 1"#,
        ),
        (r#"{"time":"yesterday"}"#, "time in managed fields entry 1 is not an RFC 3339 time"),
        (
            r#"{"fieldsV1":{"a":{}}}"#,
            r#"managed fields entry 1: fieldsV1: key must be 2 characters long: "a""#,
        ),
        (
            r#"{"fieldsV1":[]}"#,
            r#"managed fields entry 1: fieldsV1: "fieldsV1" is array, expected an object"#,
        ),
    ];
    for (other, want) in rows {
        let error = decode(&format!("[{},{}]", entry("{}"), entry(other))).expect_err(other);
        assert_eq!(error.to_string(), want);
    }
    let long = format!(r#"{{"manager":"{}"}}"#, "m".repeat(129));
    let error = decode(&format!("[{}]", entry(&long))).expect_err("too long");
    assert_eq!(error.to_string(), "manager in managed fields entry 0 must have at most 128 bytes");
    assert!(decode("{}").is_err() && decode("[1]").is_err());
    let many = vec!["{}"; MAX_ENTRIES + 1].join(",");
    assert_eq!(decode(&format!("[{many}]")), Err(EntryError::TooMany(MAX_ENTRIES + 1)));
}

#[test]
fn entries_are_sorted_by_operation_time_and_name() {
    let all = [
        entry(r#"{"manager":"b"}"#),
        entry(r#"{"manager":"a","subresource":"status"}"#),
        entry(r#"{"manager":"a"}"#),
        entry(r#"{"manager":"a","apiVersion":"apps/v1"}"#),
        entry(r#"{"manager":"z","time":"2019-01-01T00:00:00Z"}"#),
        entry(r#"{"manager":"untimed","time":null}"#),
        entry(r#"{"manager":"late","operation":"Apply","time":"2021-01-01T00:00:00Z"}"#),
        entry(r#"{"manager":"","operation":"Apply"}"#),
    ];
    let managed = decode(&format!("[{}]", all.join(","))).expect("entries");
    let encoded = managed.encode().expect("bounds").expect("entries");
    let names = encoded.as_list().expect("a list").iter().map(|entry| {
        let entry = entry.as_map().expect("a map");
        format!("{} {} {}", entry.str("manager"), entry.str("apiVersion"), entry.str("subresource"))
    });
    let names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
    assert_eq!(
        names,
        [" v1", "late v1", "untimed v1", "z v1", "a apps/v1", "a v1", "a v1 status", "b v1"]
    );
    // Text and tree are those of a server: a time that is not set is left out.
    assert!(!text(&encoded).contains("null"));
    assert_eq!(ManagedFields::decode(Some(&encoded)), Ok(managed));
    assert_eq!(ManagedFields::default().encode(), Ok(None));
}

#[test]
fn an_applier_is_one_owner_in_all_versions() {
    let apply =
        |version: &str| entry(&format!(r#"{{"operation":"Apply","apiVersion":"{version}"}}"#));
    let managed = decode(&format!("[{},{}]", apply("v1"), apply("v2"))).expect("entries");
    let owner = Owner::new("m", ManagedFieldsOperation::Apply, "v3", "");
    assert_eq!(managed.get(&owner).map(|owned| owned.api_version.as_str()), Some("v2"));
    assert_eq!(managed.iter().count(), 1);
    let update = Owner::new("m", ManagedFieldsOperation::Update, "v1", "");
    assert_eq!(update.identifier(), br#"{"manager":"m","operation":"Update","apiVersion":"v1"}"#);
}

/// An owner whose names and paths may be just too long.
fn owner() -> impl Strategy<Value = (Owner, Owned)> {
    let about = |most: usize| {
        prop_oneof![20 => 0..9usize, 1 => most - 1..most + 2].prop_map(|len| "n".repeat(len))
    };
    let operation =
        prop_oneof![Just(ManagedFieldsOperation::Apply), Just(ManagedFieldsOperation::Update)];
    let version = about(MAX_SUBRESOURCE);
    let depths = prop::collection::vec(
        prop_oneof![20 => 1..4usize, 1 => MAX_DEPTH - 1..MAX_DEPTH + 2],
        1..3,
    );
    let names = (about(MAX_NAME), operation, version, about(MAX_SUBRESOURCE));
    (names, depths).prop_map(|((manager, operation, api_version, subresource), depths)| {
        let path = |depth: usize| FieldPath(vec![PathElement::field("f"); depth]);
        let fields: FieldSet = depths.into_iter().map(path).collect();
        let owner = Owner::new(&manager, operation, &api_version, &subresource);
        (owner, Owned { fields, api_version, time: Time::UNSET })
    })
}

proptest! {
    /// Nothing is encoded that cannot be read again, and nothing is refused that could be.
    #[test]
    fn encoded_managed_fields_can_be_decoded(owners in prop::collection::vec(owner(), 0..4)) {
        let managed = ManagedFields { owners: owners.into_iter().collect() };
        let read = ManagedFields::decode(managed.encode_unchecked().as_ref());
        prop_assert_eq!(managed.encode().is_ok(), read.is_ok());
        if let Ok(encoded) = managed.encode() {
            prop_assert_eq!(ManagedFields::decode(encoded.as_ref()), Ok(managed));
        }
    }
}

#[test]
fn as_much_is_encoded_as_can_be_read() {
    let check = |owners: usize, keys: usize| {
        let owners = (0..owners).map(|at| {
            let path = |key: usize| FieldPath(vec![PathElement::field(format!("k{key}"))]);
            let fields = (0..keys).map(path).collect();
            let owner = Owner::new(&format!("m{at}"), ManagedFieldsOperation::Update, "v1", "");
            (owner, Owned { fields, api_version: "v1".to_owned(), time: Time::UNSET })
        });
        let managed = ManagedFields { owners: owners.collect() };
        let read = ManagedFields::decode(managed.encode_unchecked().as_ref());
        let encoded = managed.encode();
        assert_eq!(encoded.is_ok(), read.is_ok());
        encoded.map(drop)
    };
    assert_eq!(check(MAX_ENTRIES, 1), Ok(()));
    assert_eq!(check(MAX_ENTRIES + 1, 1), Err(EntryError::TooMany(MAX_ENTRIES + 1)));
    assert_eq!(check(2, MAX_PATHS / 2), Ok(()));
    let error = FieldsError::TooMany;
    assert_eq!(check(2, MAX_PATHS / 2 + 1), Err(EntryError::Fields { at: 1, error }));
}
