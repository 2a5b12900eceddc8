//! Kinds that CustomResourceDefinitions add while the server runs.
//!
//! An object of such a kind has the metadata of every object; all other fields are checked by the rules of its version, which another crate
//! makes from the definition. A [`Kind`](crate::Kind) lives as long as something refers to it; an update of the definition replaces its rules,
//! and objects that are stored already are read by the new ones.

pub(crate) mod codec;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use crate::field_errors::FieldErrors;
use crate::object::{Kind, Object};
use crate::value::{Map, Value};

/// `short_group` of all custom kinds: no rule of a built-in kind applies to them, whatever their group and name are.
pub const CUSTOM: &str = "*";

/// What a version of a definition says about the fields of its objects. Trees have no `apiVersion` and `kind`.
pub trait CustomRules: Send + Sync {
    /// Removes the fields that the schema does not have, and adds their paths to `unknown`.
    fn prune(&self, fields: &mut Map, unknown: &mut Vec<String>);

    /// Sets the defaults of unset fields.
    fn default(&self, fields: &mut Map);

    /// Validates an object; `old` is the stored version of an update. The metadata is checked elsewhere.
    fn validate(&self, new: &Object, old: Option<&Object>) -> FieldErrors;

    /// The cells of the object's row in a table, one for each of [`CustomVersion::columns`]. `now` is the Unix time of ages.
    fn cells(&self, object: &Object, now: i64) -> Vec<Value>;

    /// The schema of its objects in OpenAPI v2, or v3; `None` if it has none.
    fn open_api(&self, v2: bool) -> Option<Map>;
}

/// A column of a custom kind's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomColumn {
    /// The heading.
    pub name: String,
    /// `string`, `integer`, `boolean`, `date` or `number`.
    pub value: String,
    /// Its format, or empty.
    pub format: String,
    /// What it shows.
    pub description: String,
    /// 0 always shown, 1 with `-o wide`.
    pub priority: i64,
}

/// Where the subresource `scale` finds its values: names of fields from the root of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScalePaths {
    /// The wanted replicas.
    pub spec_replicas: Vec<String>,
    /// The present replicas.
    pub status_replicas: Vec<String>,
    /// The selector as text; empty if there is none.
    pub label_selector: Vec<String>,
}

/// A field of a custom kind that field selectors may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    /// Its name in selectors, such as `spec.color`.
    pub name: String,
    /// Names of fields from the root of an object.
    pub path: Vec<String>,
}

/// A version of a definition as it is now.
pub struct CustomVersion {
    /// Differs between all versions of all definitions that a server has read: what is made by these rules is valid for this number only.
    pub number: u64,
    /// Name of the version in which objects are stored.
    pub storage_version: String,
    /// Whether a webhook converts objects between versions. Else versions differ in their name only.
    pub has_webhook: bool,
    /// Whether its objects are not created any more, because the definition is being deleted.
    pub terminating: bool,
    /// Name for one.
    pub singular: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    /// Whether it has the subresource `status`.
    pub has_status: bool,
    /// The subresource `scale`, if it has one.
    pub scale: Option<ScalePaths>,
    /// The columns of its table.
    pub columns: Vec<CustomColumn>,
    /// Fields that field selectors may use besides the name and the namespace.
    pub selectable_fields: Vec<SelectableField>,
    /// Warning for its users, if it is deprecated.
    pub deprecation: Option<String>,
    /// The rules of its objects.
    pub rules: Box<dyn CustomRules>,
}

/// What is special to a custom kind.
pub struct CustomKind {
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
    current: RwLock<Option<Arc<CustomVersion>>>,
}

impl fmt::Debug for CustomKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)
    }
}

impl CustomKind {
    pub(crate) fn new(plural: &str, namespaced: bool) -> Self {
        Self { plural: plural.to_owned(), namespaced, current: RwLock::default() }
    }

    /// The version as it is now; `None` while no definition has it.
    pub fn current(&self) -> Option<Arc<CustomVersion>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the version, or removes it.
    pub fn set(&self, version: Option<Arc<CustomVersion>>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = version;
    }
}

/// The names of a custom kind in one version, all of which its definition keeps.
#[derive(Clone, Copy, Debug)]
pub struct CustomNames<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    /// Plural name of the resource.
    pub plural: &'a str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

/// The custom kinds that something refers to: a definition, or an object.
#[derive(Default)]
pub(crate) struct CustomKinds(Mutex<HashMap<String, Weak<Kind>>>);

impl CustomKinds {
    /// The kind with these names, made if there is none.
    pub(crate) fn get(&self, names: &CustomNames<'_>, make: impl FnOnce() -> Kind) -> Arc<Kind> {
        let CustomNames { group, version, kind, plural, namespaced } = names;
        let identity = format!("{group}/{version}/{plural}/{kind}/{namespaced}");
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kinds.get(&identity).and_then(Weak::upgrade) {
            return found;
        }
        kinds.retain(|_, kind| kind.strong_count() > 0);
        let made = Arc::new(make());
        kinds.insert(identity, Arc::downgrade(&made));
        made
    }
}

#[cfg(test)]
impl CustomKinds {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Verbs of custom resources.
pub(crate) const VERBS: &[&str] =
    &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// Verbs of their subresources.
pub(crate) const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::engine::{Engine, Format, Strictness};

    fn names(version: &str) -> CustomNames<'_> {
        let (group, kind, plural) = ("example.com", "Backup", "backups");
        CustomNames { group, version, kind, plural, namespaced: true }
    }

    /// Drops the field `gone`.
    struct Rules;

    impl CustomRules for Rules {
        fn prune(&self, fields: &mut Map, unknown: &mut Vec<String>) {
            unknown.extend(fields.remove("gone").map(|_| "gone".to_owned()));
        }

        fn default(&self, fields: &mut Map) {
            fields.insert("kept", true);
        }

        fn validate(&self, _: &Object, _: Option<&Object>) -> FieldErrors {
            FieldErrors::default()
        }

        fn cells(&self, object: &Object, _: i64) -> Vec<Value> {
            vec![Value::from(object.name())]
        }

        fn open_api(&self, _: bool) -> Option<Map> {
            None
        }
    }

    fn version(number: u64) -> CustomVersion {
        CustomVersion {
            number,
            storage_version: "v2".to_owned(),
            has_webhook: false,
            terminating: false,
            singular: "backup".to_owned(),
            list_kind: "BackupList".to_owned(),
            short_names: Vec::new(),
            categories: Vec::new(),
            has_status: false,
            scale: None,
            columns: Vec::new(),
            selectable_fields: Vec::new(),
            deprecation: None,
            rules: Box::new(Rules),
        }
    }

    #[test]
    fn kinds_that_nothing_refers_to_are_freed() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kept = engine.custom_kind(&names("v1")).unwrap();
        for nth in 0..100 {
            let version = format!("v{nth}");
            let kind = engine.custom_kind(&names(&version)).unwrap();
            assert_eq!(Arc::ptr_eq(&kind, &kept), version == "v1");
            assert!(engine.custom.len() <= 2, "{}", engine.custom.len());
        }
    }

    #[test]
    fn a_custom_kind_is_no_built_in_one_whatever_its_names_are() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let (group, kind, plural) = ("rbac.authorization", "ClusterRole", "clusterroles");
        let names = CustomNames { group, version: "v1", kind, plural, namespaced: false };
        let role = engine.custom_kind(&names).unwrap();
        assert!(!role.is("rbac.authorization", "ClusterRole"));
        assert!(!role.is("", "ClusterRole"));
        assert_eq!(role.qualified_resource(), "clusterroles.rbac.authorization");
    }

    #[test]
    fn objects_are_stored_in_the_storage_version_as_they_are() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = engine.custom_kind(&names("v1")).unwrap();
        kind.custom().unwrap().set(Some(Arc::new(version(1))));
        let body = br#"{"apiVersion":"example.com/v1","kind":"Backup","metadata":{"name":"a","labels":{"b":"c"}},
            "z":{"b":null,"a":[1.5,{}]},"gone":1}"#;
        let decoded = engine.decode(&kind, Format::Json, body, Strictness::Warn).unwrap();
        assert_eq!(decoded.warnings, ["unknown field \"gone\""]);
        let refused = engine.decode(&kind, Format::Json, body, Strictness::Strict).unwrap_err();
        assert_eq!(refused.to_string(), "strict decoding error: unknown field \"gone\"");
        let object = engine.in_storage_version(decoded.object);
        let read = engine.decode_stored(&engine.encode_stored(&object)).unwrap();
        assert_eq!(read, object);
        assert_eq!(
            String::from_utf8(engine.encode_json(&read)).unwrap(),
            r#"{"apiVersion":"example.com/v2","kind":"Backup","metadata":{"labels":{"b":"c"},"name":"a"},"z":{"a":[1.5,{}],"b":null}}"#
        );
        let without_group = "{\"plural\":\"a\"}\n{\"kind\":\"A\",\"apiVersion\":\"v1\"}";
        for damaged in ["", "{}", "[]", "{}\n", "{}\n[]", "{}\n{}", without_group] {
            assert!(engine.decode_stored(damaged.as_bytes()).is_err(), "{damaged}");
        }
        let other = body.map(|byte| if byte == b'B' { b'C' } else { byte });
        engine.decode(&kind, Format::Json, &other, Strictness::Warn).unwrap_err();
    }
}
