//! The established definitions: their kinds, with rules that are compiled again when a definition changes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use apiserver_custom_resources::{
    Column, Conversion, DefinitionVersion, SchemaFieldPath, Scope, read_definition,
};
use apiserver_schema::custom::{
    CustomColumn, CustomNames, CustomVersion, ScalePaths, SelectableField,
};
use apiserver_schema::{Engine, Kind, Map, Object, Value};
use tokio_util::sync::CancellationToken;

use super::rules::SchemaRules;
use super::{Converter, DefinedVersion, ServedDefinition, Source, is_true};
use crate::auth::ObjectIndex;
use crate::dial_policy::DialPolicy;

/// The established definitions, by name.
pub struct EstablishedDefinitions {
    engine: Arc<Engine>,
    /// Where conversion webhooks may be.
    dial: Arc<DialPolicy>,
    by_name: BTreeMap<String, Arc<ServedDefinition>>,
    /// How many versions were read so far.
    count: u64,
}

impl EstablishedDefinitions {
    /// None.
    pub fn new(engine: Arc<Engine>, dial: Arc<DialPolicy>) -> Self {
        Self { engine, dial, by_name: BTreeMap::new(), count: 0 }
    }

    /// The definition of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<ServedDefinition>> {
        self.by_name.get(name)
    }

    /// All definitions.
    pub fn all(&self) -> impl Iterator<Item = &Arc<ServedDefinition>> {
        self.by_name.values()
    }
}

impl ObjectIndex for EstablishedDefinitions {
    const PREFIX: &'static str = "/apiextensions/customresourcedefinitions/";

    fn emptied(&self) -> Self {
        Self { count: self.count, ..Self::new(self.engine.clone(), self.dial.clone()) }
    }

    fn set(&mut self, object: &Object) {
        if !is_true(object, "Established") {
            return self.remove(object);
        }
        let source = Source {
            uid: object.uid().to_owned(),
            generation: object.generation(),
            accepted: object.status().and_then(|status| status.map("acceptedNames")).cloned(),
            terminating: is_true(object, "Terminating"),
        };
        let before = self.by_name.remove(object.name());
        let after = match &before {
            Some(before) if before.source == source => before.clone(),
            _ => Arc::new(self.definition(object, source, before.as_deref())),
        };
        before.iter().for_each(|before| clear(before, &after.versions));
        self.by_name.insert(object.name().to_owned(), after);
    }

    fn remove(&mut self, object: &Object) {
        if let Some(gone) = self.by_name.remove(object.name()) {
            clear(&gone, &[]);
        }
    }

    fn succeed(&mut self, before: &Self) {
        for (name, definition) in &before.by_name {
            let kept = self.by_name.get(name).map_or(&[][..], |after| &after.versions);
            clear(definition, kept);
        }
    }
}

/// Takes the rules from the kinds of `before` that are not among `kept`.
fn clear(before: &ServedDefinition, kept: &[DefinedVersion]) {
    for version in &before.versions {
        let stays = kept.iter().any(|other| Arc::ptr_eq(&other.kind, &version.kind));
        if let (false, Some(custom)) = (stays, version.kind.custom()) {
            custom.set(None);
        }
    }
}

impl EstablishedDefinitions {
    /// Reads a definition. One that cannot be read is not served.
    fn definition(
        &mut self,
        object: &Object,
        source: Source,
        before: Option<&ServedDefinition>,
    ) -> ServedDefinition {
        let group = object.str_at(&["spec", "group"]).to_owned();
        match read_definition(&Value::Map(object.fields.clone())) {
            Ok(read) => {
                let (converter, names) =
                    (before.and_then(|b| b.converter.as_ref()), self.engine.names());
                let converter =
                    Converter::from_conversion(&read.conversion, converter, names, &self.dial);
                let versions = self.versions(&read, &source, before);
                ServedDefinition { group, versions, converter, source }
            }
            Err(error) => {
                let definition = object.name();
                tracing::error!(%error, definition, "a CustomResourceDefinition is not served because its schema is invalid; correct the schema");
                ServedDefinition { group, versions: Vec::new(), converter: None, source }
            }
        }
    }

    fn versions(
        &mut self,
        read: &apiserver_custom_resources::Definition,
        source: &Source,
        before: Option<&ServedDefinition>,
    ) -> Vec<DefinedVersion> {
        let storage = read.storage_version().map_or("", |version| version.name.as_str()).to_owned();
        let mut versions = Vec::new();
        for version in &read.versions {
            let names = CustomNames {
                group: &read.group,
                version: &version.name,
                kind: &read.names.kind,
                plural: &read.names.plural,
                namespaced: read.scope == Scope::Namespaced,
            };
            let Some(kind) = self.engine.custom_kind(&names) else { continue };
            self.count = self.count.saturating_add(1);
            let current = CustomVersion {
                number: self.count,
                storage_version: storage.clone(),
                has_webhook: read.conversion != Conversion::None,
                deprecation: version.warning(&read.group, &read.names.kind),
                ..current(source, version)
            };
            if let Some(custom) = kind.custom() {
                custom.set(Some(Arc::new(current)));
            }
            let kept = before.filter(|_| version.served);
            let kept = kept.and_then(|before| served_before(before, &kind));
            let ended = kept.map(|version| version.ended.clone());
            versions.push(DefinedVersion {
                kind,
                served: version.served,
                ended: ended.unwrap_or_else(|| Arc::new(CancellationToken::new().drop_guard())),
                schema: version.schema.clone(),
                preserve: read.preserve_unknown_fields,
                structure: OnceLock::new(),
            });
        }
        versions
    }
}

fn served_before<'a>(before: &'a ServedDefinition, kind: &Arc<Kind>) -> Option<&'a DefinedVersion> {
    before.versions.iter().find(|version| version.served && Arc::ptr_eq(&version.kind, kind))
}

/// A version, but for its number and what the definition says of all versions.
fn current(source: &Source, version: &DefinitionVersion) -> CustomVersion {
    let empty = Map::new();
    let accepted = source.accepted.as_ref().unwrap_or(&empty);
    CustomVersion {
        number: 0,
        storage_version: String::new(),
        has_webhook: false,
        terminating: source.terminating,
        singular: accepted.str("singular").to_owned(),
        list_kind: accepted.str("listKind").to_owned(),
        short_names: texts(accepted.list("shortNames")),
        categories: texts(accepted.list("categories")),
        has_status: version.subresources.status,
        scale: version.subresources.scale.as_ref().map(scale_paths),
        columns: columns(&version.columns),
        selectable_fields: selectable_fields(version),
        deprecation: None,
        rules: Box::new(SchemaRules {
            schema: version.schema.clone(),
            columns: version.columns.clone(),
            selectable: version.selectable_fields.iter().map(selector_name).collect(),
        }),
    }
}

fn texts(values: &[Value]) -> Vec<String> {
    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn selector_name(field: &SchemaFieldPath) -> String {
    field.selector_name().to_owned()
}

fn selectable_fields(version: &DefinitionVersion) -> Vec<SelectableField> {
    let fields = version.selectable_fields.iter();
    fields
        .map(|field| SelectableField { name: selector_name(field), path: field.names().to_vec() })
        .collect()
}

fn scale_paths(scale: &apiserver_custom_resources::ScalePaths) -> ScalePaths {
    ScalePaths {
        spec_replicas: scale.spec_replicas.clone(),
        status_replicas: scale.status_replicas.clone(),
        label_selector: scale.label_selector.clone(),
    }
}

/// The columns of a version's table: the name, then its own.
fn columns(version: &[Column]) -> Vec<CustomColumn> {
    let name = CustomColumn {
        name: "Name".to_owned(),
        value: "string".to_owned(),
        format: "name".to_owned(),
        description: String::new(),
        priority: 0,
    };
    let own = version.iter().map(|column| CustomColumn {
        name: column.name.clone(),
        value: column.value.clone(),
        format: column.format.clone(),
        description: column.description.clone(),
        priority: column.priority,
    });
    std::iter::once(name).chain(own).collect()
}
