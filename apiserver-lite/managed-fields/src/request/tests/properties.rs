//! Properties of random writes: applies are idempotent, writes without changes change no owner, owners own what they wrote.

use apiserver_schema::{Map, Value};
use proptest::prelude::*;
use proto_api::Time;

use super::{LAST_APPLIED, json};
use crate::entries::{ManagedFields, ManagedFieldsOperation, Owner};
use crate::request::{Applied, Request};
use crate::testing::{structure, tree};
use crate::versions::{ResetFields, SingleVersion};

const VERSION: &str = "t/v1";

/// The tree as an object that exists.
fn object(tree: Value) -> Value {
    let mut tree = tree;
    let map = tree.as_map_mut().expect("a map");
    map.insert("apiVersion", VERSION);
    map.insert("kind", "T");
    map.map_or_insert("metadata").insert("uid", "u");
    tree
}

fn with_entries(mut tree: Value, entries: Option<Value>) -> Value {
    if let Some(entries) = entries {
        let map = tree.as_map_mut().expect("a map");
        map.map_or_insert("metadata").insert("managedFields", entries);
    }
    tree
}

fn entries(managed: Option<&Value>) -> ManagedFields {
    ManagedFields::decode(managed).expect("entries")
}

fn request<'a>(
    versions: &'a SingleVersion,
    reset: &'a ResetFields,
    empty: &'a Value,
    manager: &'a str,
) -> Request<'a> {
    Request {
        versions,
        reset,
        api_version: VERSION,
        subresource: "",
        manager,
        empty,
        now: Time::from_unix(1),
        last_applied: LAST_APPLIED,
    }
}

proptest! {
    #[test]
    fn random_writes(live in tree(), config in tree(), changed in tree()) {
        let versions = SingleVersion { api_version: VERSION.to_owned(), structure: structure() };
        let (reset, empty) = (ResetFields::new(), json("{}"));
        let by = |manager: &'static str| request(&versions, &reset, &empty, manager);
        let structure = &versions.structure;

        // A create owns all fields of the object.
        let mut new = object(live);
        new.as_map_mut().expect("a map").map_or_insert("metadata").remove("uid");
        let created = by("creator").create(new.clone()).expect("owners");
        let live = with_entries(object(new), created.clone());
        let owned: usize = entries(created.as_ref()).iter().map(|(_, owned)| owned.fields.len()).sum();
        let declared = structure.with_declared(&structure.fields_of(&live));
        prop_assert!(owned <= declared.len());

        // An apply by force owns what it names, and nobody else owns another value.
        let config = { let mut config = object(config); config.as_map_mut().expect("a map").remove("metadata"); config };
        let Applied { tree: merged, managed_fields, .. } =
            by("applier").apply(live.clone(), config.clone(), true).expect("by force");
        let applier = Owner::new("applier", ManagedFieldsOperation::Apply, VERSION, "");
        let managed = entries(managed_fields.as_ref());
        let mut named = structure.fields_of(&config);
        let identity = structure.fields_of(&json(r#"{"apiVersion":"t/v1","kind":"T"}"#));
        named = named.difference(&identity);
        prop_assert_eq!(managed.get(&applier).map(|owned| owned.fields.clone()).unwrap_or_default(), named);

        // The same apply again changes nothing, without force.
        let stored = with_entries(merged.clone(), managed_fields.clone());
        let again = by("applier").apply(stored.clone(), config, false).expect("no conflict");
        prop_assert!(!again.changed);
        prop_assert_eq!(entries(again.managed_fields.as_ref()), managed.clone());

        // A write of the same object changes no owner; a change is owned by its writer and by nobody else.
        let same = by("writer").update(stored.clone(), merged.clone()).expect("owners");
        prop_assert_eq!(entries(same.as_ref()), managed.clone());
        let changed = object(changed);
        let after = by("writer").update(stored, changed.clone()).expect("owners");
        let compare = structure.compare(&merged, &changed);
        let written = compare.added.union(&compare.modified);
        if managed.is_empty() {
            prop_assert!(after.is_none());
            return Ok(());
        }
        let after = entries(after.as_ref());
        for (owner, owned) in after.iter() {
            let is_writer = owner.manager == "writer";
            let theirs = owned.fields.intersection(&written);
            prop_assert_eq!(if is_writer { theirs.len() } else { written.len() - theirs.len() }, written.len());
            prop_assert!(owned.fields.intersection(&compare.removed).is_empty());
        }
        prop_assert_eq!(after.iter().any(|(owner, _)| owner.manager == "writer"), !written.is_empty());
    }
}

#[test]
fn an_empty_object_is_created_without_owners() {
    let versions = SingleVersion { api_version: VERSION.to_owned(), structure: structure() };
    let (reset, empty) = (ResetFields::new(), Value::Map(Map::new()));
    let request = request(&versions, &reset, &empty, "m");
    let new = json(r#"{"apiVersion":"t/v1","kind":"T","metadata":{"name":"x"}}"#);
    assert_eq!(request.create(new), Ok(None));
}
