//! Tests: writes as a server tracks them.

use std::sync::Arc;

use apiserver_schema::{Engine, Format, Kind, Object, PatchType, Strictness, Value};
use proto_api::Time;
use proto_api::names::{Names, Profile};

use super::Request;
use crate::entries::ManagedFields;
use crate::structure::BuiltInStructures;
use crate::testing::json;
use crate::versions::{ResetFields, SingleVersion};

mod bounds;
mod custom;
mod layers;
mod ownership;
mod properties;
mod recorded;

/// A kind with all that requests need.
struct Server {
    engine: Engine,
    kind: Arc<Kind>,
    versions: SingleVersion,
    reset: ResetFields,
    empty: Value,
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Server {
    fn new(
        api_version: &str,
        kind: &str,
        built_in: &BuiltInStructures,
        reset: ResetFields,
    ) -> Server {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = Arc::clone(engine.kind_of(api_version, kind).expect("a kind"));
        let structure = built_in.structure(&kind).expect("a structure");
        let versions = SingleVersion { api_version: api_version.to_owned(), structure };
        let empty = engine.written_document(&Object::new(Arc::clone(&kind)));
        Server { engine, kind, versions, reset, empty }
    }

    fn request<'a>(&'a self, manager: &'a str, subresource: &'a str, now: Time) -> Request<'a> {
        Request {
            versions: &self.versions,
            reset: &self.reset,
            api_version: &self.versions.api_version,
            subresource,
            manager,
            empty: &self.empty,
            now,
            last_applied: LAST_APPLIED,
        }
    }

    fn decode(&self, value: &Value) -> Object {
        let text = text(Some(value));
        let decoded =
            self.engine.decode(&self.kind, Format::Json, text.as_bytes(), Strictness::Ignore);
        decoded.expect("an object").object
    }

    fn written(&self, object: &Object) -> Value {
        self.engine.written_document(object)
    }
}

fn text(value: Option<&Value>) -> String {
    crate::testing::text(value.unwrap_or(&Value::Null))
}

/// One object on a server: writes and what they leave.
struct Stored {
    server: Server,
    /// The stored object as clients read it, with its entries; `None` before it is created.
    tree: Option<Value>,
    /// The subresource of the next writes.
    subresource: &'static str,
    seconds: i64,
}

impl Stored {
    fn new(api_version: &str, kind: &str) -> Stored {
        Stored::resetting(api_version, kind, ResetFields::new())
    }

    fn resetting(api_version: &str, kind: &str, reset: ResetFields) -> Stored {
        let server = Server::new(api_version, kind, &BuiltInStructures::new(), reset);
        Stored { server, tree: None, subresource: "", seconds: 0 }
    }

    fn live(&self) -> Value {
        self.tree.clone().unwrap_or_else(|| self.server.empty.clone())
    }

    /// Stores a tree with entries, and with a uid as the server gives one.
    fn store(&mut self, tree: Value, managed_fields: Option<Value>) {
        let mut object = self.server.decode(&tree);
        object.set_meta_str("uid", "u");
        crate::times::set_managed_fields(&mut object, managed_fields);
        self.tree = Some(self.server.written(&object));
    }

    /// Applies a configuration, in short: fields besides apiVersion, kind and name.
    fn apply(&mut self, manager: &str, config: &str, force: bool) -> Result<bool, String> {
        self.seconds += 1;
        let mut config = json(config);
        let map = config.as_map_mut().expect("a map");
        map.insert("apiVersion", self.server.versions.api_version.as_str());
        map.insert("kind", self.server.kind.kind());
        map.map_or_insert("metadata").insert("name", "x");
        let live = self.live();
        let now = Time::from_unix(self.seconds);
        let request = self.server.request(manager, self.subresource, now);
        let applied = request.apply(live, config, force).map_err(|error| error.to_string())?;
        let changed = applied.changed;
        self.store(applied.tree, applied.managed_fields);
        Ok(changed)
    }

    /// Changes the object by a merge patch.
    fn merge(&mut self, manager: &str, patch: &str) {
        self.seconds += 1;
        let live = self.live();
        let before = self.server.decode(&live);
        let engine = &self.server.engine;
        let patched = engine.patch(&before, PatchType::Merge, patch.as_bytes(), Strictness::Ignore);
        let new = self.server.written(&patched.expect("a patch").expect("an object").object);
        let now = Time::from_unix(self.seconds);
        let request = self.server.request(manager, self.subresource, now);
        let entries = request.update(live, new.clone()).expect("owners");
        self.store(new, entries);
    }

    /// The owners, each as `manager operation second fields`; `/subresource` follows the manager.
    fn owners(&self) -> Vec<String> {
        let tree = self.tree.as_ref().and_then(Value::as_map).expect("an object");
        let managed = ManagedFields::decode(tree.at(&["metadata", "managedFields"]));
        let managed = managed.expect("entries");
        let owners = managed.iter().map(|(owner, owned)| {
            let subresource = match owner.subresource.as_str() {
                "" => String::new(),
                name => format!("/{name}"),
            };
            let fields = crate::testing::fields(&owned.fields);
            let second = owned.time.unix().map_or("-".to_owned(), |second| second.to_string());
            format!("{}{subresource} {} {second} {fields}", owner.manager, owner.operation.text())
        });
        owners.collect()
    }

    /// A part of the object.
    fn at(&self, path: &[&str]) -> String {
        text(self.tree.as_ref().and_then(Value::as_map).and_then(|map| map.at(path)))
    }
}
