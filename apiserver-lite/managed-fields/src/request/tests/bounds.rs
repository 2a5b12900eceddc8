//! Tests: work is in proportion to the object and its entries, and what is stored can be read again.

use std::collections::BTreeMap;

use apiserver_schema::{Map, Value};
use proto_api::Time;

use super::{LAST_APPLIED, json};
use crate::element::{FieldPath, PathElement};
use crate::entries::{MAX_SENT_ENTRIES, ManagedFields, Operation, Owned, Owner};
use crate::request::Request;
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
    let entries = managed.encode().expect("entries");
    tree.as_map_mut().expect("a map").map_or_insert("metadata").insert("managedFields", entries);
    tree
}

/// Entries of `owners` managers by this operation, which own these keys of the map.
fn entries(
    owners: usize,
    operation: Operation,
    keys: impl Fn(usize) -> std::ops::Range<usize>,
) -> ManagedFields {
    let path = |key: usize| {
        FieldPath(vec![PathElement::field("map"), PathElement::field(format!("k{key}"))])
    };
    let owners = (0..owners).map(|at| {
        let owner = Owner::new(&format!("m{at:04}"), operation, VERSION, "");
        let fields = keys(at).map(path).collect();
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
    for operation in [Operation::Apply, Operation::Update] {
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
