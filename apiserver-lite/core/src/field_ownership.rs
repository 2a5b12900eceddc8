//! The structures of all kinds for field ownership (`apiserver_managed_fields`), with the versions in which each is served.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_managed_fields::{
    BuiltInStructures, ConvertError, SingleVersion, Structure, Versions,
};
use apiserver_schema::{Engine, Kind, Strictness, Value};
use proto_api::names::Names;

use crate::versions::{convert, stored_kind};

/// The structures of all kinds.
pub struct FieldOwnership {
    /// By the `apiVersion` in which objects are stored, and kind.
    kinds: BTreeMap<(String, String), KindVersions>,
    scale: Option<SingleVersion>,
}

#[derive(Default)]
struct KindVersions {
    kinds: Vec<Arc<Kind>>,
    structures: BTreeMap<String, Structure>,
}

impl FieldOwnership {
    /// The structures of the engine's kinds.
    #[must_use]
    pub fn new(engine: &Engine, names: &Names) -> Self {
        let built_in = BuiltInStructures::new();
        let mut kinds: BTreeMap<_, KindVersions> = BTreeMap::new();
        for kind in engine.kinds().iter().filter(|kind| kind.resource.is_some()) {
            let Some(structure) = built_in.structure(kind) else { continue };
            let stored = stored_kind(engine, names, kind);
            let of_kind =
                kinds.entry((stored.api_version.clone(), stored.kind().to_owned())).or_default();
            of_kind.structures.insert(kind.api_version.clone(), structure);
            of_kind.kinds.push(kind.clone());
        }
        let scale = engine.kind("autoscaling", "v1", "Scale").and_then(|kind| {
            let (api_version, structure) = (kind.api_version.clone(), built_in.structure(kind)?);
            Some(SingleVersion { api_version, structure })
        });
        Self { kinds, scale }
    }

    /// The version of scales, which are not stored.
    pub(crate) fn scale(&self) -> Option<&SingleVersion> {
        self.scale.as_ref()
    }

    /// The versions of a kind, by the kind in which it is stored; `None` for kinds that are not stored.
    pub(crate) fn versions<'a>(
        &'a self,
        engine: &'a Engine,
        stored: &Kind,
    ) -> Option<ServedVersions<'a>> {
        let versions = self.kinds.get(&(stored.api_version.clone(), stored.kind().to_owned()))?;
        Some(ServedVersions { engine, versions })
    }
}

/// The versions of one kind, with what converts between them.
pub(crate) struct ServedVersions<'a> {
    engine: &'a Engine,
    versions: &'a KindVersions,
}

impl ServedVersions<'_> {
    /// The `apiVersion` of each.
    pub(crate) fn api_versions(&self) -> impl Iterator<Item = &str> {
        self.versions.structures.keys().map(String::as_str)
    }

    fn kind(&self, api_version: &str) -> Result<&Arc<Kind>, ConvertError> {
        let found = self.versions.kinds.iter().find(|kind| kind.api_version == api_version);
        found.ok_or_else(|| ConvertError::new(format!("version {api_version} is not served")))
    }
}

impl Versions for ServedVersions<'_> {
    fn structure(&self, api_version: &str) -> Option<&Structure> {
        self.versions.structures.get(api_version)
    }

    fn convert<'t>(
        &self,
        tree: &'t Value,
        from: &str,
        to: &str,
    ) -> Result<Cow<'t, Value>, ConvertError> {
        if from == to {
            return Ok(Cow::Borrowed(tree));
        }
        let (from, to) = (self.kind(from)?, self.kind(to)?);
        let object = self.engine.object_of(from, tree.clone(), Strictness::Ignore);
        let object = object.map_err(ConvertError::new)?.object;
        Ok(Cow::Owned(self.engine.written_document(&convert(&object, to))))
    }
}
