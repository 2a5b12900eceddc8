//! Tests: work is in proportion to the object and its entries, and what is stored can be read again.

use std::collections::BTreeMap;

use apiserver_schema::{Map, Value};
use proto_api::Time;

use super::{LAST_APPLIED, json};
use crate::element::{FieldPath, PathElement};
use crate::entries::{
    EntryError, MAX_ENTRIES, MAX_SENT_ENTRIES, MAX_SENT_PATHS, ManagedFields,
    ManagedFieldsOperation, Owned, Owner,
};
use crate::request::{ApplyError, Request};
use crate::set::{FieldsError, MAX_DEPTH, MAX_PATHS};
use crate::testing::structure;
use crate::versions::{ResetFields, SingleVersion};

const VERSION: &str = "t/v1";

/// A kind, and what requests of it need.
struct Kind {
    versions: SingleVersion,
    reset: ResetFields,
    empty: Value,
}

impl Kind {
    fn new() -> Kind {
        let versions = SingleVersion { api_version: VERSION.to_owned(), structure: structure() };
        Kind { versions, reset: ResetFields::new(), empty: json("{}") }
    }

    fn by<'a>(&'a self, manager: &'a str) -> Request<'a> {
        Request {
            versions: &self.versions,
            reset: &self.reset,
            api_version: VERSION,
            subresource: "",
            manager,
            empty: &self.empty,
            now: Time::from_unix(1),
            last_applied: LAST_APPLIED,
        }
    }
}

/// An object with `size` keys of this value in its map.
fn object(size: usize, value: &str) -> Value {
    let keys: Map = (0..size).map(|at| (format!("k{at}"), Value::from(value))).collect();
    let mut tree = json(r#"{"apiVersion":"t/v1","kind":"T","metadata":{"uid":"u"}}"#);
    tree.as_map_mut().expect("a map").insert("map", Value::Map(keys));
    tree
}

fn with_entries(mut tree: Value, managed: &ManagedFields) -> Value {
    let entries = managed.encode().expect("bounds").expect("entries");
    tree.as_map_mut().expect("a map").map_or_insert("metadata").insert("managedFields", entries);
    tree
}

/// Entries of `owners` managers by this operation, which own these keys of the map.
fn entries(
    owners: usize,
    operation: ManagedFieldsOperation,
    keys: impl Fn(usize) -> std::ops::Range<usize>,
) -> ManagedFields {
    let path = |key: usize| {
        FieldPath(vec![PathElement::field("map"), PathElement::field(format!("k{key}"))])
    };
    let owners = (1..=owners).map(|at| {
        let owner = Owner::new(&format!("m{at:04}"), operation, VERSION, "");
        let fields = keys(at - 1).map(path).collect();
        let time = Time::from_unix(i64::try_from(at).expect("a time"));
        (owner, Owned { fields, api_version: VERSION.to_owned(), time })
    });
    ManagedFields { owners: owners.collect::<BTreeMap<_, _>>() }
}

/// A thousand small sets cost no more than their own fields: neither a large change nor the set of another owner is visited for each.
#[test]
fn work_is_in_proportion_to_fields_and_entries() {
    const KEYS: usize = 200_000;
    let kind = Kind::new();
    let live = object(KEYS, "a");
    let changed = object(KEYS, "b");
    let cost = |new: &Value, managed: &ManagedFields| {
        let (live, new) = (live.clone(), with_entries(new.clone(), managed));
        proto_api::steps::count_during(|| {
            let stored = kind.by("writer").update(live, new).expect("owners");
            assert!(stored.is_some());
        })
    };
    let one_key = |at: usize| at..at + 1;
    let oldest_has_most = |at: usize| if at == 0 { 1000..KEYS } else { at..at + 1 };
    let unchanged_but_one = {
        let mut tree = live.clone();
        tree.as_map_mut().expect("a map").insert("n", 1);
        tree
    };
    for operation in [ManagedFieldsOperation::Apply, ManagedFieldsOperation::Update] {
        for new in [&changed, &unchanged_but_one] {
            for keys in [&one_key as &dyn Fn(usize) -> std::ops::Range<usize>, &oldest_has_most] {
                let few = cost(new, &entries(12, operation, keys));
                let many = cost(new, &entries(MAX_SENT_ENTRIES, operation, keys));
                let owners = u64::try_from(MAX_SENT_ENTRIES).expect("a number");
                assert!(many < few + 60 * owners, "{few} steps grow to {many}");
            }
        }
    }
}

/// What is stored of the entries: it is read again.
fn stored(entries: Option<&Value>) -> ManagedFields {
    ManagedFields::decode(entries).expect("entries that can be read")
}

/// A configuration with one key of the map.
fn config(key: &str) -> Value {
    json(&format!(r#"{{"apiVersion":"t/v1","kind":"T","map":{{"{key}":"a"}}}}"#))
}

#[test]
fn entries_of_a_client_leave_room_for_other_writers() {
    let kind = Kind::new();
    let live = object(MAX_ENTRIES, "a");
    let of = |count: usize| entries(count, ManagedFieldsOperation::Apply, |at| at..at + 1);
    let before = entries(1, ManagedFieldsOperation::Update, |at| at..at + 1);
    let write = |count: usize| {
        let mut new = with_entries(live.clone(), &of(count));
        new.as_map_mut().expect("a map").insert("n", 1);
        let after = kind.by("writer").update(with_entries(live.clone(), &before), new);
        stored(after.expect("owners").as_ref()).iter().count()
    };
    assert_eq!(write(MAX_SENT_ENTRIES), MAX_SENT_ENTRIES + 1);
    // More are not taken over: the stored owner stays.
    assert_eq!(write(MAX_SENT_ENTRIES + 1), 2);
    assert_eq!(write(MAX_ENTRIES), 2);

    let write = |paths: usize| {
        let keys = entries(2, ManagedFieldsOperation::Apply, |_| 0..(paths - 2) / 2);
        let mut new = with_entries(live.clone(), &keys);
        new.as_map_mut().expect("a map").insert("n", 1);
        let after = kind.by("writer").update(with_entries(live.clone(), &before), new);
        let after = stored(after.expect("owners").as_ref());
        after.iter().filter(|(owner, _)| owner.operation == ManagedFieldsOperation::Apply).count()
    };
    assert_eq!((write(MAX_SENT_PATHS), write(MAX_SENT_PATHS + 2)), (2, 0));
}

#[test]
fn one_manager_too_many_cannot_apply() {
    let kind = Kind::new();
    let live = object(MAX_ENTRIES, "a");
    let of = |count: usize| entries(count, ManagedFieldsOperation::Apply, |at| at..at + 1);
    let apply = |count: usize, manager: &str| {
        let live = with_entries(live.clone(), &of(count));
        let applied = kind.by(manager).apply(live, config("k0"), false)?;
        Ok::<_, ApplyError>(stored(applied.managed_fields.as_ref()).iter().count())
    };
    assert_eq!(apply(MAX_SENT_ENTRIES - 1, "new"), Ok(MAX_SENT_ENTRIES));
    assert_eq!(apply(MAX_SENT_ENTRIES, "m0001"), Ok(MAX_SENT_ENTRIES));
    let error = apply(MAX_SENT_ENTRIES, "new").expect_err("too many");
    assert_eq!(error, ApplyError::Bounds(EntryError::TooManyAppliers(MAX_SENT_ENTRIES + 1)));
    let message = "cannot store the managed fields after this apply: 985 managers apply the object, at most 984 may; update the object with \
                   fewer entries in metadata.managedFields, or with `[{}]` to forget them all, and apply again";
    assert_eq!(error.to_string(), message);
    let error = apply(MAX_ENTRIES, "new").expect_err("too many");
    assert_eq!(error, ApplyError::Bounds(EntryError::TooManyAppliers(MAX_ENTRIES + 1)));

    // What to do helps: the object with fewer entries, or none.
    let one = of(1).encode().expect("bounds").expect("entries");
    for fewer in [json("[{}]"), one] {
        let set = |entries: Option<Value>| {
            let mut tree = live.clone();
            let metadata = tree.as_map_mut().expect("a map").map_or_insert("metadata");
            entries.map(|entries| metadata.insert("managedFields", entries));
            tree
        };
        let full = with_entries(live.clone(), &of(MAX_ENTRIES));
        let entries = kind.by("writer").update(full, set(Some(fewer))).expect("owners");
        assert!(kind.by("new").apply(set(entries), config("k0"), false).is_ok());
    }
}

#[test]
fn an_update_beyond_a_bound_leaves_no_entries() {
    let kind = Kind::new();
    let live = object(10, "a");
    let write = |managed: &ManagedFields| {
        let mut new = live.clone();
        new.as_map_mut().expect("a map").insert("n", 1);
        let entries = kind.by("writer").update(with_entries(live.clone(), managed), new);
        entries.expect("owners").map(|entries| stored(Some(&entries)).iter().count())
    };
    let appliers = |count: usize| entries(count, ManagedFieldsOperation::Apply, |at| at..at + 1);
    assert_eq!(write(&appliers(MAX_ENTRIES - 1)), Some(MAX_ENTRIES));
    assert_eq!(write(&appliers(MAX_ENTRIES)), None);
    // Each set has a step to the map, too, and that of the writer has one.
    let keys = |keys: usize| entries(2, ManagedFieldsOperation::Apply, |_| 0..keys);
    assert_eq!(write(&keys(MAX_PATHS / 2 - 2)), Some(3));
    assert_eq!(write(&keys(MAX_PATHS / 2 - 1)), None);
}

#[test]
fn an_apply_of_too_many_fields_in_all_is_refused() {
    let kind = Kind::new();
    let keys = MAX_PATHS / 3;
    let mut config = object(keys, "a");
    config.as_map_mut().expect("a map").remove("metadata");
    let mut live = object(keys, "a");
    live = with_entries(live, &entries(2, ManagedFieldsOperation::Apply, |_| 0..keys));
    let error = kind.by("third").apply(live, config, false).expect_err("too many");
    let ApplyError::Bounds(EntryError::Fields { error: FieldsError::TooMany, .. }) = error else {
        panic!("{error}");
    };
}

/// An object that cannot be tracked has no owners, and can be applied again and again.
#[test]
fn objects_that_are_too_deep_can_be_applied() {
    let kind = Kind::new();
    let mut live = object(1, "a");
    let deep = (0..=MAX_DEPTH).fold(Value::Int(1), |inner, _| Value::List(vec![inner]));
    live.as_map_mut().expect("a map").insert("raw", deep.clone());
    for key in ["k1", "k2"] {
        let applied = kind.by("m").apply(live.clone(), config(key), false).expect("an object");
        let map = applied.tree.as_map().expect("a map");
        assert_eq!(map.get("raw"), Some(&deep));
        let managed = stored(applied.managed_fields.as_ref());
        let fields = managed.iter().map(|(owner, owned)| {
            format!("{} {}", owner.manager, crate::testing::fields(&owned.fields))
        });
        let fields: Vec<String> = fields.collect();
        assert_eq!(fields, [format!(r#"m {{"f:map":{{"f:{key}":{{}}}}}}"#)]);
        live = with_entries(applied.tree, &managed);
        live.as_map_mut().expect("a map").map_or_insert("metadata").insert("uid", "u");
    }
}
