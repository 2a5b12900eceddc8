//! Schemas of messages.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::OpenApiVersion;
use super::descriptions::Descriptions;
use super::extensions::{self, Descriptors};
use crate::engine::Engine;
use crate::object::Kind;
use crate::shape::{Field, Shape, ShapeId, Shapes, Type};
use crate::value::{Key, Map, Value};

/// The schemas of `kinds` and of all messages they contain, by name.
pub(super) fn definitions<'a>(
    engine: &Engine,
    version: OpenApiVersion,
    kinds: impl IntoIterator<Item = &'a Arc<Kind>>,
) -> Map {
    let kinds: Vec<&Arc<Kind>> = kinds.into_iter().collect();
    let writer = Writer::new(engine, version);
    let texts = Texts { descriptions: Descriptions::new(), descriptors: Descriptors::new() };
    let mut entries = Vec::new();
    let mut seen = BTreeSet::new();
    for kind in &kinds {
        let mut queue = vec![kind.root];
        while let Some(id) = queue.pop() {
            if !seen.insert(id) {
                continue;
            }
            let shape = kind.shapes.get(id);
            let mut schema = writer.message(&texts, &kind.shapes, shape, &mut queue);
            let named = |kind: &&&Arc<Kind>| kind.root == id && !kind.type_meta_json.is_empty();
            let served = kinds.iter().filter(named).find(|kind| kind.resource.is_some());
            let served = served.map(|kind| kind.as_ref());
            if let Some(text) = texts.descriptions.message(shape, served) {
                schema.insert("description", text);
            }
            let own: Vec<Value> = kinds.iter().filter(named).map(|kind| gvk(kind)).collect();
            if !own.is_empty() {
                schema.insert("x-kubernetes-group-version-kind", own);
            }
            entries.push((Key::Owned(writer.name(shape)), Value::Map(schema)));
        }
    }
    Map::from_entries(entries)
}

/// A reference to the schema of `kind`.
pub(super) fn reference(engine: &Engine, version: OpenApiVersion, kind: &Kind) -> Value {
    let writer = Writer::new(engine, version);
    match kind.custom() {
        Some(_) => writer.reference_to(&custom_name(kind)),
        None => writer.reference(kind.shapes.get(kind.root)),
    }
}

/// A reference to the schema of a kind's lists.
pub(super) fn list_reference(engine: &Engine, version: OpenApiVersion, kind: &Arc<Kind>) -> Value {
    if kind.custom().is_some() {
        return Writer::new(engine, version).reference_to(&custom_list_name(kind));
    }
    let list = engine.kind(&kind.group, kind.version(), &kind.list_kind());
    reference(engine, version, list.unwrap_or(kind))
}

/// The name of a custom kind's schema: `com.example.v1.Backup` for one of the group `example.com`.
pub(super) fn custom_name(kind: &Kind) -> String {
    format!("{}.{}.{}", reversed(&kind.group), kind.version(), kind.kind())
}

/// The name of the schema of a custom kind's lists.
pub(super) fn custom_list_name(kind: &Kind) -> String {
    format!("{}.{}.{}", reversed(&kind.group), kind.version(), kind.list_kind())
}

/// The value of `x-kubernetes-group-version-kind`.
pub(super) fn gvk(kind: &Kind) -> Value {
    let entries =
        [("group", kind.group.as_str()), ("kind", kind.kind()), ("version", kind.version())];
    Value::Map(Map::from_iter(entries))
}

/// What is said of messages besides their shapes.
struct Texts {
    descriptions: Descriptions,
    descriptors: Descriptors,
}

pub(super) struct Writer {
    version: OpenApiVersion,
    prefix: String,
}

impl Writer {
    pub(super) fn new(engine: &Engine, version: OpenApiVersion) -> Self {
        Self { version, prefix: reversed(engine.names().group_domain()) }
    }

    /// `io.k8s.api.apps.v1.Deployment`.
    fn name(&self, shape: &Shape) -> String {
        let prefix = &self.prefix;
        let group = match shape.group {
            "" => "core",
            group => group.split('.').next().unwrap_or(group),
        };
        let home = match group {
            "apiextensions" => "apiextensions-apiserver.pkg.apis",
            "apiregistration" => "kube-aggregator.pkg.apis",
            "meta" => "apimachinery.pkg.apis",
            "metrics" => "metrics.pkg.apis",
            _ => "api",
        };
        format!("{prefix}.{home}.{group}.{}.{}", shape.version, shape.name)
    }

    fn reference(&self, shape: &Shape) -> Value {
        self.reference_to(&self.name(shape))
    }

    /// A reference to a message that all groups share, with a description.
    pub(super) fn shared_reference(&self, message: &str, description: &str) -> Value {
        let name = format!("{}.apimachinery.pkg.apis.meta.v1.{message}", self.prefix);
        match self.reference_to(&name) {
            Value::Map(reference) => {
                Value::Map(self.described(reference, Some(description.to_owned())))
            }
            other => other,
        }
    }

    /// A reference to the schema of this name.
    pub(super) fn reference_to(&self, name: &str) -> Value {
        let place = match self.version {
            OpenApiVersion::V2 => "#/definitions/",
            OpenApiVersion::V3 => "#/components/schemas/",
        };
        Value::Map(Map::from_iter([("$ref", format!("{place}{name}"))]))
    }

    /// The schema of a message; referenced messages are added to `queue`.
    fn message(
        &self,
        texts: &Texts,
        shapes: &Shapes,
        shape: &Shape,
        queue: &mut Vec<ShapeId>,
    ) -> Map {
        let message = texts.descriptors.find(shape);
        let properties = shape.fields.iter().map(|field| {
            let descriptor = message.and_then(|message| message.field(&field.name));
            let mut schema = self.field(shapes, field, queue);
            extensions::add_values(&mut schema, shape, field);
            descriptor.into_iter().for_each(|field| extensions::add_topology(&mut schema, field));
            let default = extensions::default_of(field, descriptor);
            self.add_default(&mut schema, default);
            let text = texts.descriptions.field(shapes, shape, field);
            (field.name.clone(), Value::Map(self.described(schema, text)))
        });
        let mut schema = Map::from_iter([("type", "object")]);
        let properties = Map::from_entries(properties.collect());
        if !properties.is_empty() {
            schema.insert("properties", properties);
        }
        let required: Vec<Value> = shape
            .fields
            .iter()
            .filter(|field| field.required)
            .map(|field| Value::from(field.name.as_ref()))
            .collect();
        if !required.is_empty() {
            schema.insert("required", required);
        }
        message.into_iter().for_each(|of| extensions::add_message_topology(&mut schema, of));
        schema
    }

    /// Adds a default to a schema of OpenAPI v3; as in Kubernetes v2 has none, because older clients take `default` beside `$ref` for an error.
    fn add_default(&self, schema: &mut Map, default: Option<Value>) {
        if let (OpenApiVersion::V3, Some(default)) = (self.version, default) {
            schema.insert("default", default);
        }
    }

    /// Adds a description. OpenAPI v3 allows no sibling of `$ref`, so a reference with any is wrapped.
    fn described(&self, mut schema: Map, text: Option<String>) -> Map {
        if let Some(text) = text {
            schema.insert("description", text);
        }
        if self.version == OpenApiVersion::V3
            && schema.len() > 1
            && let Some(reference) = schema.remove("$ref")
        {
            let reference = Map::from_iter([("$ref", reference)]);
            schema.insert("allOf", vec![Value::Map(reference)]);
        }
        schema
    }

    fn field(&self, shapes: &Shapes, field: &Field, queue: &mut Vec<ShapeId>) -> Map {
        let mut schema = self.value(shapes, &field.ty, queue);
        let merge = field.patch.merge_key.map(|_| "merge");
        let retain = field.patch.retain_keys.then_some("retainKeys");
        let strategy: Vec<&str> = merge.into_iter().chain(retain).collect();
        if !strategy.is_empty() {
            schema.insert("x-kubernetes-patch-strategy", strategy.join(","));
        }
        if let Some(key) = field.patch.merge_key.filter(|key| !key.is_empty()) {
            schema.insert("x-kubernetes-patch-merge-key", key);
        }
        schema
    }

    /// The schema of an item of a list, or of a value of a map.
    fn element(&self, shapes: &Shapes, ty: &Type, queue: &mut Vec<ShapeId>) -> Map {
        let mut schema = self.value(shapes, ty, queue);
        self.add_default(&mut schema, extensions::zero_of(ty));
        self.described(schema, None)
    }

    fn value(&self, shapes: &Shapes, ty: &Type, queue: &mut Vec<ShapeId>) -> Map {
        let plain = |name: &str| Map::from_iter([("type", name)]);
        let formatted =
            |name: &str, format: &str| Map::from_iter([("type", name), ("format", format)]);
        match ty {
            Type::Bool => plain("boolean"),
            Type::Int32 => formatted("integer", "int32"),
            Type::Int64 => formatted("integer", "int64"),
            Type::Double => formatted("number", "double"),
            Type::String | Type::Quantity | Type::Duration => plain("string"),
            Type::Bytes => formatted("string", "byte"),
            Type::Time | Type::MicroTime => formatted("string", "date-time"),
            Type::IntOrString => formatted("string", "int-or-string"),
            Type::Raw | Type::FieldSet => plain("object"),
            Type::Union(shape) => {
                let alternatives = &shapes.get(*shape).fields;
                for alternative in alternatives {
                    self.value(shapes, &alternative.ty, queue); // what it refers to needs a schema
                }
                Map::new()
            }
            Type::Message(shape) => {
                queue.push(*shape);
                match self.reference(shapes.get(*shape)) {
                    Value::Map(reference) => reference,
                    _ => Map::new(),
                }
            }
            Type::List(item) | Type::WrappedList(item) => {
                let mut schema = plain("array");
                schema.insert("items", self.element(shapes, item, queue));
                schema
            }
            Type::Map(item) => {
                let mut schema = plain("object");
                schema.insert("additionalProperties", self.element(shapes, item, queue));
                schema
            }
        }
    }
}

/// With what names of built-in schemas start: `io.k8s.`.
pub(super) fn own_prefix(engine: &Engine) -> String {
    format!("{}.", reversed(engine.names().group_domain()))
}

/// `io.k8s` for `k8s.io`.
fn reversed(domain: &str) -> String {
    domain.rsplit('.').collect::<Vec<_>>().join(".")
}
