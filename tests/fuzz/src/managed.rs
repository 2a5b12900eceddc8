//! Owners of fields: sets of field paths, `metadata.managedFields`, and what writes make of them.

use apiserver_managed_fields::{FieldPath, FieldSet, ManagedFields};
use apiserver_schema::Value;
use apiserver_schema::value::{parse_json, write_json};

fn parse(text: &[u8]) -> Option<Value> {
    parse_json(text, &mut Vec::new()).ok()
}

fn json_len(value: &Value) -> usize {
    let mut text = Vec::new();
    write_json(&mut text, value);
    text.len()
}

/// Entries that were read or made are written, and read alike.
fn rewritten(managed: &ManagedFields) {
    let written = managed.encode().unwrap_or_else(|error| panic!("{error}: {managed:?}"));
    let again = ManagedFields::decode(written.as_ref());
    assert_eq!(again.as_ref(), Ok(managed));
    assert_eq!(again.and_then(|again| again.encode()), Ok(written));
}

/// Members of all owners.
fn count(managed: &ManagedFields) -> usize {
    managed.iter().map(|(_, owned)| owned.fields.len()).sum()
}

/// `fieldsV1`.
pub mod field_set {
    use super::*;

    /// Reads two lines as sets: they are written alike, have their paths, and keep the rules of sets.
    pub fn check(bytes: &[u8]) {
        let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
        let mut next = || lines.next().and_then(|line| FieldSet::from_json(line).ok());
        let Some(set) = next() else { return };
        let json = set.to_json();
        let again = FieldSet::from_json(&json);
        assert_eq!(again.as_ref(), Ok(&set), "{}", String::from_utf8_lossy(&json));
        assert_eq!(again.map(|again| again.to_json()), Ok(json));
        let paths = set.paths();
        assert!(paths.len() == set.len() && paths.len() <= bytes.len());
        assert!(paths.iter().all(|path| set.contains(path)));
        paths.iter().for_each(|path| drop(path.to_string()));
        assert_eq!(paths.into_iter().collect::<FieldSet>(), set);
        assert!(set.leaves().difference(&set).is_empty());
        let Some(other) = next() else { return };
        let (all, both, rest) =
            (set.union(&other), set.intersection(&other), set.difference(&other));
        assert_eq!(all.len() + both.len(), set.len() + other.len());
        assert_eq!(rest.len() + both.len(), set.len());
        assert_eq!(rest.union(&both), set);
        assert_eq!(all.difference(&other), rest);
        assert!(set.recursive_difference(&other).difference(&rest).is_empty());
    }

    /// Each kind of a path's element.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "{\"f:metadata\":{\"f:labels\":{\".\":{},\"f:app\":{}}},\"f:spec\":{\"f:replicas\":{}}}\n{\"f:spec\":{}}",
            "{\"f:containers\":{\"k:{\\\"name\\\":\\\"c\\\",\\\"port\\\":80}\":{\".\":{},\"f:image\":{}}}}\n{\"f:containers\":{\"i:0\":{}}}",
            "{\"f:finalizers\":{\"v:\\\"a\\\"\":{},\"v:1.5e3\":{},\"v:null\":{}},\"x:new\":{\"f:a\":{}}}\n{}",
        ])
    }
}

/// `metadata.managedFields`.
pub mod managed_fields {
    use apiserver_managed_fields::{
        ManagedFieldsOperation, ReplicasPaths, owners_of_scale, owners_of_scaled,
        upgrade_client_side_apply,
    };

    use super::*;

    const VERSION: &str = "apps/v1";

    /// Reads the bytes as entries: they are written alike, go through a Scale unchanged, and become those of server-side apply.
    pub fn check(bytes: &[u8]) {
        let Some(value) = parse(bytes) else { return };
        let Ok(mut managed) = ManagedFields::decode(Some(&value)) else { return };
        rewritten(&managed);
        let replicas = FieldPath::fields(&["spec", "replicas"]);
        let paths = ReplicasPaths::from([(VERSION.to_owned(), replicas)]);
        let scale = owners_of_scale(&managed, &paths);
        let back = owners_of_scaled(&managed, scale, VERSION, &paths);
        let stays = |owned: &apiserver_managed_fields::Owned| {
            owned.api_version == VERSION && !owned.fields.is_empty()
        };
        assert!(managed.iter().filter(|(_, owned)| stays(owned)).eq(back.iter()));
        let before = count(&managed);
        let (updater, annotation) = ("kubectl-client-side-apply", "last-applied");
        upgrade_client_side_apply(&mut managed, updater, "kubectl", "", annotation);
        assert!(count(&managed) <= before);
        let is_old = |(owner, _): (&apiserver_managed_fields::Owner, _)| {
            owner.operation == ManagedFieldsOperation::Update
                && owner.manager == updater
                && owner.subresource.is_empty()
        };
        assert!(!managed.iter().any(is_old), "{managed:?}");
        rewritten(&managed);
    }

    /// Entries of each operation, with and without times and subresources.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            r#"[{"manager":"m","operation":"Apply","apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]"#,
            r#"[{"manager":"kubectl-client-side-apply","operation":"Update","apiVersion":"apps/v1","time":"2024-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}},"f:metadata":{"f:annotations":{"f:last-applied":{}}}}},{"manager":"m","operation":"Update","apiVersion":"v1","subresource":"status","fieldsType":"FieldsV1","fieldsV1":{"f:status":{".":{}}}}]"#,
        ])
    }
}

/// Applies and updates.
pub mod server_side_apply {
    use std::sync::OnceLock;

    use apiserver_managed_fields::{
        Applied, BuiltInStructures, MAX_PATHS, ManagedFieldsOperation, Owner, Request, ResetFields,
        SingleVersion, Structure,
    };
    use apiserver_schema::{Format, Object, Strictness};
    use proto_api::Time;

    use super::*;
    use crate::schema::engine;

    fn built_in() -> &'static BuiltInStructures {
        static ALL: OnceLock<BuiltInStructures> = OnceLock::new();
        ALL.get_or_init(BuiltInStructures::new)
    }

    /// The tree with entries, or without.
    fn with_entries(mut tree: Value, entries: Option<Value>) -> Value {
        if let Some(root) = tree.as_map_mut() {
            let metadata = root.map_or_insert("metadata");
            match entries {
                Some(entries) => drop(metadata.insert("managedFields", entries)),
                None => drop(metadata.remove("managedFields")),
            }
        }
        tree
    }

    /// The fields of a tree that have owners.
    fn owned_fields(structure: &Structure, tree: &Value) -> FieldSet {
        let metadata = [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        ];
        let metadata = metadata.map(|name| FieldPath::fields(&["metadata", name]));
        let roots = ["apiVersion", "kind", "metadata"].map(|name| FieldPath::fields(&[name]));
        let unowned: FieldSet = metadata.into_iter().chain(roots).collect();
        structure.fields_of(tree).difference(&unowned)
    }

    fn entries(value: Option<&Value>) -> ManagedFields {
        let managed = ManagedFields::decode(value).unwrap_or_else(|error| panic!("{error}"));
        rewritten(&managed);
        assert!(managed.iter().all(|(_, owned)| !owned.fields.is_empty()));
        assert!(count(&managed) <= MAX_PATHS);
        managed
    }

    /// An object, its entries, and what is written over it.
    struct Case<'a> {
        request: Request<'a>,
        structure: &'a Structure,
        live: Value,
        patch: Value,
    }

    impl Case<'_> {
        /// What was applied: its fields are the applier's, it is no larger than its parts, and the same again changes nothing.
        fn check_applied(&self, applied: Applied) {
            let Case { request, structure, live, patch } = self;
            let owner =
                Owner::new(request.manager, ManagedFieldsOperation::Apply, request.api_version, "");
            let managed = entries(applied.managed_fields.as_ref());
            let own = managed.get(&owner).map(|owned| owned.fields.clone()).unwrap_or_default();
            assert_eq!(own, owned_fields(structure, patch));
            assert!(json_len(&applied.tree) <= json_len(live) + json_len(patch) + 64);
            // Without owners, as after the entry of a version that is not served, the next apply is the first.
            if managed.iter().next().is_none() {
                return;
            }
            let stored = with_entries(applied.tree.clone(), applied.managed_fields);
            let again = request.apply(stored.clone(), patch.clone(), false);
            let again = again.unwrap_or_else(|error| panic!("applied again: {error}"));
            assert!(!again.changed, "applied again");
            assert_eq!(entries(again.managed_fields.as_ref()), managed);
            let other = Request { manager: "reader", ..*request };
            let same = other.update(stored, applied.tree);
            assert_eq!(same.map(|same| entries(same.as_ref())), Ok(managed));
        }

        /// A write of another object: what it changes has an owner.
        fn check_updated(&self, new: Value) {
            let writer = Request { manager: "writer", ..self.request };
            let Ok(Some(written)) = writer.update(self.live.clone(), new.clone()) else { return };
            let managed = entries(Some(&written));
            let before = with_entries(self.live.clone(), None);
            let compare = self.structure.compare(&before, &new);
            let mut left = owned_fields(self.structure, &new)
                .intersection(&compare.added.union(&compare.modified));
            managed.iter().for_each(|(_, owned)| left.subtract(&owned.fields));
            assert!(left.is_empty(), "without an owner: {:?}", left.paths());
        }
    }

    /// Reads a line of entries, a line with the object that has them, and the rest as what is applied to it and written over it.
    pub fn check(bytes: &[u8]) {
        let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
        let mut next = || lines.next().unwrap_or_default();
        let (managed, live, patch) = (next(), next(), next());
        let read = engine().decode_any(Format::Json, live, Strictness::Ignore);
        let patch = engine().parse_document(Format::Yaml, patch, Strictness::Warn);
        let (Ok(read), Ok((patch, _))) = (read, patch) else { return };
        let kind = &read.object.kind;
        let Some(structure) = built_in().structure(kind) else { return };
        let api_version = kind.api_version.clone();
        let versions = SingleVersion { api_version, structure };
        let live = with_entries(engine().written_document(&read.object), parse(managed));
        let (reset, empty) = (ResetFields::new(), Object::new(kind.clone()));
        let request = Request {
            versions: &versions,
            reset: &reset,
            api_version: &versions.api_version,
            subresource: "",
            manager: "fuzz",
            empty: &engine().written_document(&empty),
            now: Time::from_unix(1_800_000_000),
            last_applied: "kubectl.kubernetes.io/last-applied-configuration",
        };
        let case = Case { request, structure: &versions.structure, live, patch };
        for force in [false, true] {
            if let Ok(applied) = request.apply(case.live.clone(), case.patch.clone(), force) {
                case.check_applied(applied);
            }
        }
        let kubectl = Request { manager: "kubectl", ..request };
        let _ = kubectl.apply(case.live.clone(), case.patch.clone(), false);
        if let Ok(new) = engine().object_of(kind, case.patch.clone(), Strictness::Ignore) {
            case.check_updated(with_entries(engine().written_document(&new.object), None));
        }
    }

    /// Objects of several kinds, with owners and without, with applies that agree, conflict, add, and remove.
    pub fn seeds() -> Vec<Vec<u8>> {
        let entry = |manager: &str, version: &str, fields: &str| {
            format!(
                r#"{{"manager":"{manager}","operation":"Apply","apiVersion":"{version}","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
            )
        };
        let other = entry("other", "v1", r#"{"f:data":{"f:a":{},"f:b":{}}}"#);
        let own = entry("fuzz", "apps/v1", r#"{"f:spec":{"f:replicas":{},"f:paused":{}}}"#);
        let port = r#"{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}"#;
        let port = entry("kubectl", "v1", port);
        crate::texts(&[
            &format!(
                "[{other}]\n{}\n{}",
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","uid":"u","labels":{"a":"b"}},"data":{"a":"1","b":"2"}}"#,
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"1","b":"3","c":"4"}}"#,
            ),
            &format!(
                "[{own}]\n{}\n{}",
                r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"uid":"u"},"spec":{"replicas":2,"paused":true}}"#,
                "apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: 3\n  template:\n    spec:\n      containers:\n      - {name: a, env: [{name: x, value: y}]}\n",
            ),
            &format!(
                "[{port}]\n{}\n{}",
                r#"{"apiVersion":"v1","kind":"Service","metadata":{"uid":"u","finalizers":["x","y"]},"spec":{"ports":[{"port":80,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}}"#,
                r#"{"apiVersion":"v1","kind":"Service","metadata":{"finalizers":["z","x"]},"spec":{"ports":[{"port":53,"protocol":"UDP","name":"dns"}],"selector":null}}"#,
            ),
            "[{}]\n{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"uid\":\"u\"},\"data\":{\"a\":\"YQ==\"}}\n{apiVersion: v1, kind: Secret, stringData: {a: b}, data: {}}",
        ])
    }
}
