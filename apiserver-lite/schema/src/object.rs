//! An object: its kind and its tree, with accessors for metadata, spec and status.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use proto_api::names::Names;
use proto_api::schema;

use crate::shape::{ShapeId, Shapes};
use crate::value::{Map, UNIT, Value, weigh};

pub mod custom;

use custom::{CustomKind, CustomVersion, SUBRESOURCE_VERBS, VERBS};

/// A kind in one version of its group.
pub struct Kind {
    /// API group, domain included; empty for the core group.
    pub group: String,
    /// API group without its domain, the same in every naming profile; [`CUSTOM`](custom::CUSTOM) for custom kinds.
    pub short_group: &'static str,
    pub(crate) version: Cow<'static, str>,
    pub(crate) kind: Cow<'static, str>,
    pub(crate) names: &'static Names,
    /// `apiVersion` of objects of this kind.
    pub api_version: String,
    /// The resource of a built-in kind, if it is served.
    pub resource: Option<&'static schema::ResourceDescriptor>,
    /// Set if a definition has added the kind.
    pub(crate) custom: Option<CustomKind>,
    pub(crate) shapes: Arc<Shapes>,
    pub(crate) root: ShapeId,
    /// `"kind":"…","apiVersion":"…"`, with which JSON objects of the kind start; empty for messages without these fields.
    pub(crate) type_meta_json: String,
}

/// `apiVersion` and kind: the shapes of all kinds are not part of it.
impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)
    }
}

impl Kind {
    /// Version, for example `v1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Kind, for example `Pod`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The naming profile of its group.
    pub fn names(&self) -> &'static Names {
        self.names
    }

    /// What is special to a kind that a definition has added.
    pub fn custom(&self) -> Option<&CustomKind> {
        self.custom.as_ref()
    }

    /// The present version of a custom kind's definition.
    pub fn custom_version(&self) -> Option<Arc<CustomVersion>> {
        self.custom.as_ref()?.current()
    }

    /// Kind of its lists, for example `PodList`.
    pub fn list_kind(&self) -> String {
        match self.custom_version() {
            Some(version) => version.list_kind.clone(),
            None => format!("{}List", self.kind),
        }
    }

    /// Plural resource name, for example `pods`; empty for a kind without a resource.
    pub fn plural(&self) -> &str {
        match &self.custom {
            Some(custom) => &custom.plural,
            None => self.resource.map_or("", |resource| resource.plural),
        }
    }

    /// Whether objects of the kind live in a namespace.
    pub fn namespaced(&self) -> bool {
        match &self.custom {
            Some(custom) => custom.namespaced,
            None => self.resource.is_some_and(|resource| resource.namespaced),
        }
    }

    /// The verbs of the resource, or of a subresource; `None` if there is none of this name.
    pub fn verbs(&self, subresource: &str) -> Option<&'static [&'static str]> {
        if let Some(custom) = &self.custom {
            let version = custom.current()?;
            return match subresource {
                "" => Some(VERBS),
                "status" if version.has_status => Some(SUBRESOURCE_VERBS),
                "scale" if version.scale.is_some() => Some(SUBRESOURCE_VERBS),
                _ => None,
            };
        }
        let resource = self.resource?;
        match subresource {
            "" => Some(resource.verbs),
            name => resource.subresource(name).map(|subresource| subresource.verbs),
        }
    }

    /// Whether the response to a delete is the object and not a Status.
    pub fn is_returned_on_delete(&self) -> bool {
        match (self.short_group, self.kind()) {
            ("", name) => matches!(
                name,
                "Pod"
                    | "PodTemplate"
                    | "PersistentVolume"
                    | "PersistentVolumeClaim"
                    | "ResourceQuota"
                    | "Service"
                    | "ServiceAccount"
            ),
            ("storage", name) => name != "CSIStorageCapacity",
            _ => false,
        }
    }

    /// Whether the status is written only through the subresource `status`.
    pub fn has_status(&self) -> bool {
        self.verbs("status").is_some()
    }

    /// Kind and group for messages: `Deployment.apps`, or `Pod` in the core group.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.kind.to_string()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    /// Resource and group for messages: `deployments.apps`, or `pods` in the core group.
    pub fn qualified_resource(&self) -> String {
        if self.group.is_empty() {
            self.plural().to_owned()
        } else {
            format!("{}.{}", self.plural(), self.group)
        }
    }

    /// Whether the kind has the top-level field `name`.
    pub fn has_field(&self, name: &str) -> bool {
        self.shapes.get(self.root).field(name).is_some()
    }

    /// Whether this is `kind` in the group `short_group` (without its domain), in any version.
    pub fn is(&self, short_group: &str, kind: &str) -> bool {
        self.short_group == short_group && self.kind == kind
    }
}

/// An object whose tree conforms to its kind's descriptor. `apiVersion` and `kind` are not in the tree.
#[derive(Clone, Debug)]
pub struct Object {
    pub kind: Arc<Kind>,
    /// Its tree.
    pub fields: Map,
}

/// Equal when kind and tree are equal: an update without changes is detected with it.
impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        (&self.kind.api_version, self.kind.kind()) == (&other.kind.api_version, other.kind.kind())
            && self.fields == other.fields
    }
}

impl Object {
    /// An empty object of `kind`.
    pub fn new(kind: Arc<Kind>) -> Self {
        Object { kind, fields: Map::new() }
    }

    /// The bytes of memory that the tree takes, about, without its texts.
    pub fn tree_len(&self) -> usize {
        weigh(&self.fields).saturating_mul(UNIT)
    }

    /// `metadata`, if set.
    pub fn metadata(&self) -> Option<&Map> {
        self.fields.map("metadata")
    }

    /// `metadata`, inserted if missing.
    pub fn metadata_mut(&mut self) -> &mut Map {
        self.fields.map_or_insert("metadata")
    }

    /// A string field of the metadata; empty if unset.
    pub fn meta_str(&self, field: &str) -> &str {
        self.metadata().map_or("", |metadata| metadata.str(field))
    }

    /// Sets a string field of the metadata; an empty string removes it.
    pub fn set_meta_str(&mut self, field: &'static str, text: &str) {
        let metadata = self.metadata_mut();
        if text.is_empty() {
            metadata.remove(field);
        } else {
            metadata.insert(field, text);
        }
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.meta_str("name")
    }

    /// `metadata.namespace`.
    pub fn namespace(&self) -> &str {
        self.meta_str("namespace")
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.meta_str("uid")
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> &str {
        self.meta_str("resourceVersion")
    }

    /// `metadata.generation`; 0 if unset.
    pub fn generation(&self) -> i64 {
        self.metadata().and_then(|metadata| metadata.int("generation")).unwrap_or(0)
    }

    /// Sets `metadata.generation`.
    pub fn set_generation(&mut self, generation: i64) {
        self.metadata_mut().insert("generation", generation);
    }

    /// `metadata.deletionTimestamp` as RFC 3339 text, if deletion was requested.
    pub fn deletion_timestamp(&self) -> Option<&str> {
        self.metadata()?.get("deletionTimestamp")?.as_str()
    }

    /// `metadata.finalizers`.
    pub fn finalizers(&self) -> impl Iterator<Item = &str> {
        let list = self.metadata().map(|metadata| metadata.list("finalizers"));
        let list = list.unwrap_or_default().iter().inspect(|_| proto_api::count_steps!(1));
        list.filter_map(Value::as_str)
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> BTreeMap<String, String> {
        string_map(self.metadata().and_then(|metadata| metadata.map("labels")))
    }

    /// `metadata.annotations`.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        string_map(self.metadata().and_then(|metadata| metadata.map("annotations")))
    }

    /// The string at `path`; empty if unset.
    pub fn str_at(&self, path: &[&str]) -> &str {
        self.fields.str_at(path)
    }

    /// `spec`, if set.
    pub fn spec(&self) -> Option<&Map> {
        self.fields.map("spec")
    }

    /// `status`, if set.
    pub fn status(&self) -> Option<&Map> {
        self.fields.map("status")
    }
}

fn string_map(map: Option<&Map>) -> BTreeMap<String, String> {
    let entries = map.into_iter().flat_map(Map::iter);
    entries.filter_map(|(key, value)| Some((key.to_owned(), value.as_str()?.to_owned()))).collect()
}
