//! The kinds that CustomResourceDefinitions add: they follow the stored definitions, so that a request sees every definition that was answered before it.

use std::sync::{Arc, OnceLock};

use apiserver_custom_resources::Structural;
use apiserver_managed_fields::Structure;
use apiserver_schema::{Engine, Kind, Map, Object};
use apiserver_store::Store;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::auth::{IndexError, StoreIndex};
use crate::config::Config;
use crate::dial_policy::DialPolicy;
use crate::record::StoredObject;

mod converter;
mod established;
pub mod names;
mod rules;
pub mod strategy;

pub(crate) use converter::Converter;
use established::EstablishedDefinitions;

/// Group of definitions, without its domain.
pub const GROUP: &str = "apiextensions";
/// Resource of definitions.
pub const RESOURCE: &str = "customresourcedefinitions";

/// The established definitions of a server.
pub struct Definitions(StoreIndex<EstablishedDefinitions>);

/// A definition whose kind is served.
pub struct ServedDefinition {
    /// Group of the kind.
    pub group: String,
    pub versions: Vec<DefinedVersion>,
    /// The webhook that converts objects between them, if there is one.
    pub(crate) converter: Option<Arc<Converter>>,
    source: Source,
}

/// A version of a definition.
pub struct DefinedVersion {
    /// The kind in this version.
    pub kind: Arc<Kind>,
    /// Whether it is served.
    pub served: bool,
    /// Cancelled when the version is not served any more.
    ended: Arc<DropGuard>,
    schema: Arc<Structural>,
    /// Whether unknown fields are kept.
    preserve: bool,
    /// The structure of its objects for field ownership, made when it is first needed.
    structure: OnceLock<Structure>,
}

impl DefinedVersion {
    /// The structure of its objects.
    #[must_use]
    pub fn structure(&self) -> Structure {
        // A schema that has no structure was refused when the definition was written.
        let made = || Structure::from_openapi(&self.schema.source(), self.preserve);
        self.structure.get_or_init(|| made().unwrap_or_else(|_| Structure::deduced())).clone()
    }

    /// Cancelled when the version is not served any more.
    #[must_use]
    pub fn ended(&self) -> CancellationToken {
        self.ended.token().clone()
    }
}

/// What a definition is made from: as long as it is the same, so are the rules.
#[derive(PartialEq)]
struct Source {
    uid: String,
    generation: i64,
    accepted: Option<Map>,
    terminating: bool,
}

impl Definitions {
    /// Reads the definitions of `store` and follows their changes. `config` is that of the server, with the port that it listens on.
    ///
    /// # Errors
    /// The store cannot be watched.
    pub fn follow(
        store: &Store<StoredObject>,
        engine: &Arc<Engine>,
        config: &Config,
    ) -> Result<Self, IndexError> {
        let dial = Arc::new(DialPolicy::new(config));
        Ok(Self(StoreIndex::follow(store, EstablishedDefinitions::new(engine.clone(), dial))?))
    }

    /// The definition of a resource, if it is established.
    #[must_use]
    pub fn find(&self, group: &str, plural: &str) -> Option<Arc<ServedDefinition>> {
        let name = format!("{plural}.{group}");
        self.0.read(|established| established.get(&name).cloned())
    }

    /// The kind of a served resource.
    #[must_use]
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let found = self.find(group, plural)?;
        let version = found.versions.iter().find(|v| v.kind.version() == version)?;
        version.served.then(|| version.kind.clone())
    }

    /// Cancelled when `kind` is not served any more; `None` for a built-in kind.
    #[must_use]
    pub fn end_of(&self, kind: &Kind) -> Option<CancellationToken> {
        kind.custom()?;
        let found = self.find(&kind.group, kind.plural());
        let versions = found.iter().flat_map(|definition| &definition.versions);
        let mut served = versions.filter(|version| version.served);
        let ended = served.find(|version| std::ptr::eq(version.kind.as_ref(), kind));
        Some(ended.map_or_else(ended_already, DefinedVersion::ended))
    }

    /// Reads the changes of definitions since the last request.
    pub fn catch_up(&self) {
        self.0.read(|_| ());
    }

    /// All established definitions, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<ServedDefinition>> {
        self.0.read(|established| established.all().cloned().collect())
    }

    /// The served kinds, by definition.
    #[must_use]
    pub fn served_kinds(&self) -> Vec<Arc<Kind>> {
        let all = self.all();
        let versions = all.iter().flat_map(|definition| &definition.versions);
        versions.filter(|version| version.served).map(|version| version.kind.clone()).collect()
    }
}

/// The condition of this type is true.
#[must_use]
pub fn is_true(definition: &Object, condition: &str) -> bool {
    let mut conditions =
        definition.status().into_iter().flat_map(|status| status.maps("conditions"));
    conditions.any(|have| have.str("type") == condition && have.str("status") == "True")
}

fn ended_already() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use apiserver_schema::{Format, Strictness};
    use apiserver_store::{Write, WriteCondition};
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::key;
    use crate::record::Draft;
    use crate::server::Server;

    /// A definition of `plural`, established, with the version v1 served or not.
    fn definition(server: &Server, plural: &str, served: bool) -> Object {
        let json = format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
                "metadata":{{"name":"{plural}.example.com","generation":{}}},
                "spec":{{"group":"example.com","scope":"Cluster","names":{{"plural":"{plural}","kind":"Kind"}},
                    "versions":[
                        {{"name":"v1","served":{served},"storage":true,"schema":{{"openAPIV3Schema":{{"type":"object"}}}}}},
                        {{"name":"v2","served":true,"storage":false,"schema":{{"openAPIV3Schema":{{"type":"object"}}}}}}]}},
                "status":{{"acceptedNames":{{"plural":"{plural}","kind":"Kind","listKind":"KindList"}},
                    "conditions":[{{"type":"Established","status":"True"}}]}}}}"#,
            1 + i32::from(served),
        );
        let strict = Strictness::Strict;
        server.engine.decode_any(Format::Json, json.as_bytes(), strict).expect("valid").object
    }

    async fn put(server: &Server, definition: Object) {
        let key = key::object(&definition.kind, "", definition.name());
        let draft = Draft::new(&server.engine, definition);
        let write = Write::Put { key, expect: WriteCondition::Anything, draft };
        server.store.write(write).await.expect("written");
    }

    async fn delete(server: &Server, plural: &str) {
        let kind = server.kind(GROUP, RESOURCE).expect("a kind");
        let key = key::object(kind, "", &format!("{plural}.example.com"));
        server
            .store
            .write(Write::Delete { key, expect: WriteCondition::Present })
            .await
            .expect("deleted");
    }

    #[tokio::test]
    async fn requests_see_the_last_definition() {
        let server = Server::for_tests(Names::new(Profile::Kubernetes));
        let find = |version: &str| server.resource("example.com", version, "things");
        assert!(find("v1").is_none());
        put(&server, definition(&server, "things", true)).await;
        let (first, second) = (find("v1").expect("served"), find("v2").expect("served"));
        assert_eq!(
            (first.plural(), first.namespaced(), first.list_kind()),
            ("things", false, "KindList".to_owned())
        );
        let of = |kind: &Kind| server.definitions.end_of(kind).expect("custom");
        let (first_ended, second_ended) = (of(&first), of(&second));
        assert!(!first_ended.is_cancelled());
        put(&server, definition(&server, "things", false)).await;
        assert!(find("v1").is_none());
        assert!(Arc::ptr_eq(&find("v2").expect("served"), &second), "kinds stay");
        assert!(first_ended.is_cancelled() && !second_ended.is_cancelled());
        assert!(first.custom_version().is_some(), "objects may be stored in it");
        delete(&server, "things").await;
        assert!(find("v2").is_none() && second_ended.is_cancelled());
        assert!(second.custom_version().is_none());
        assert!(of(&second).is_cancelled());
    }

    #[tokio::test]
    async fn nothing_is_left_of_definitions_that_went() {
        let server = Server::for_tests(Names::new(Profile::Kubernetes));
        let mut kinds: Vec<Weak<Kind>> = Vec::new();
        for nth in 0..20 {
            let plural = format!("things{nth}");
            put(&server, definition(&server, &plural, true)).await;
            let kind = server.resource("example.com", "v1", &plural).expect("served");
            kinds.push(Arc::downgrade(&kind));
            delete(&server, &plural).await;
        }
        assert!(server.definitions.served_kinds().is_empty());
        assert!(kinds.iter().all(|kind| kind.upgrade().is_none()));
    }
}
