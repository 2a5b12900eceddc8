//! Structures of the built-in kinds, from their descriptors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use apiserver_schema::{Kind, Value};
use proto_api::schema::{self, FieldDescriptor, MessageDescriptor, MessageId, Topology};

use super::{Atom, KeyField, MapType, Relation, Scalar, Structure, TypeId, Types};

/// The structures of all built-in kinds. They share their types: make them once per process.
#[derive(Debug)]
pub struct BuiltInStructures {
    types: Arc<Vec<Atom>>,
    kinds: HashMap<(&'static str, &'static str, &'static str), TypeId>,
}

impl Default for BuiltInStructures {
    fn default() -> Self {
        BuiltInStructures::new()
    }
}

impl BuiltInStructures {
    /// Compiles the descriptors.
    pub fn new() -> Self {
        BuiltInStructures::with_markers(Markers::default())
    }

    /// Compiles the descriptors with the markers of another release.
    pub(crate) fn with_markers(markers: Markers) -> Self {
        let mut compiler = Compiler { markers, ..Compiler::default() };
        let kinds = schema::kinds()
            .iter()
            .map(|kind| ((kind.group, kind.version, kind.kind), compiler.message(kind.message)));
        let kinds = kinds.collect();
        compiler.finish();
        BuiltInStructures { types: Arc::new(compiler.types.atoms), kinds }
    }

    /// The structure of a kind by group (without its domain), version and name.
    pub fn find(&self, short_group: &str, version: &str, kind: &str) -> Option<Structure> {
        let kind = schema::kind(short_group, version, kind)?;
        let root = *self.kinds.get(&(kind.group, kind.version, kind.kind))?;
        Some(Structure::new(Arc::clone(&self.types), root))
    }

    /// The structure of a kind of the engine.
    pub fn structure(&self, kind: &Kind) -> Option<Structure> {
        self.find(kind.short_group, kind.version(), kind.kind())
    }
}

/// Deviations from the markers of the descriptors.
#[derive(Debug, Default)]
pub(crate) struct Markers {
    /// Messages that are split by field although the descriptors mark them as atomic.
    pub(crate) granular: &'static [&'static str],
    /// Fields, as `Message.field`, that are split by key although the descriptors mark them as atomic.
    pub(crate) granular_fields: &'static [&'static str],
}

#[derive(Default)]
struct Compiler {
    markers: Markers,
    types: Types,
    messages: HashMap<MessageId, TypeId>,
    scalars: HashMap<&'static str, TypeId>,
    queue: Vec<MessageId>,
}

/// The types of `ObjectMeta` for other structures; they are added to `types`.
pub(super) fn object_meta(types: &mut Types) -> TypeId {
    let mut compiler = Compiler { types: std::mem::take(types), ..Compiler::default() };
    let id = match schema::message_id("meta", "v1", "ObjectMeta") {
        Some(message) => compiler.message(message),
        None => compiler.types.deduced(),
    };
    compiler.finish();
    *types = compiler.types;
    id
}

impl Compiler {
    /// The type of a message, which is compiled later, because messages contain each other.
    fn message(&mut self, message: MessageId) -> TypeId {
        if let Some(&id) = self.messages.get(&message) {
            return id;
        }
        if message.get().union {
            return self.types.untyped();
        }
        let id = self.types.push(Atom::default());
        self.messages.insert(message, id);
        self.queue.push(message);
        id
    }

    fn finish(&mut self) {
        while let Some(message) = self.queue.pop() {
            let atom = Atom::map(self.fields(message.get()));
            let id = self.messages[&message]; // it was queued with its id
            self.types.set(id, atom);
        }
    }

    fn fields(&mut self, message: &'static MessageDescriptor) -> MapType {
        let mut fields: Vec<(Cow<'static, str>, TypeId)> = Vec::new();
        if message.is_kind {
            let text = self.scalar(Scalar::Text);
            fields.extend(["kind", "apiVersion"].map(|name| (Cow::Borrowed(name), text)));
        }
        for inlined in message.inlined() {
            fields.extend(self.fields(inlined).fields);
        }
        for field in message.fields.iter().filter(|field| !field.inline) {
            let ty = self.field(message, field);
            fields.push((Cow::Borrowed(field.json), ty));
        }
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        let atomic = message.atomic && !self.markers.granular.contains(&message.name);
        MapType { atomic, fields, other: None }
    }

    fn field(
        &mut self,
        message: &'static MessageDescriptor,
        field: &'static FieldDescriptor,
    ) -> TypeId {
        let atomic = field.topology == Topology::Atomic && !self.is_granular(message, field);
        match (field.shape, field.value) {
            (schema::Shape::List, value) => {
                let item = self.value(value);
                self.types.push(Atom::list(relation(field), item))
            }
            (schema::Shape::Map, value) => {
                let other = Some(self.value(value));
                self.types.push(Atom::map(MapType { atomic, fields: Vec::new(), other }))
            }
            (_, schema::Value::Message(of)) if !of.get().union => {
                let granular = field.topology == Topology::Granular;
                if !atomic && !granular {
                    return self.message(of);
                }
                let mut fields = self.fields(of.get());
                fields.atomic = atomic;
                self.types.push(Atom::map(fields))
            }
            (_, value) => self.value(value),
        }
    }

    fn is_granular(&self, message: &MessageDescriptor, field: &FieldDescriptor) -> bool {
        let fits = |name: &&str| name.split_once('.') == Some((message.name, field.json));
        self.markers.granular_fields.iter().any(fits)
    }

    fn value(&mut self, value: schema::Value) -> TypeId {
        match value {
            schema::Value::String | schema::Value::Bytes => self.scalar(Scalar::Text),
            schema::Value::Bool => self.scalar(Scalar::Bool),
            schema::Value::Int32 | schema::Value::Int64 | schema::Value::Double => {
                self.scalar(Scalar::Number)
            }
            schema::Value::Time
            | schema::Value::MicroTime
            | schema::Value::Duration
            | schema::Value::Quantity
            | schema::Value::IntOrString => self.scalar(Scalar::Any),
            schema::Value::Raw | schema::Value::Any => self.types.untyped(),
            schema::Value::StringList => {
                let item = self.scalar(Scalar::Text);
                self.types.push(Atom::list(Relation::Atomic, item))
            }
            schema::Value::Message(message) => self.message(message),
        }
    }

    fn scalar(&mut self, scalar: Scalar) -> TypeId {
        let name = match scalar {
            Scalar::Number => "number",
            Scalar::Text => "text",
            Scalar::Bool => "bool",
            Scalar::Any => "any",
        };
        let types = &mut self.types;
        *self.scalars.entry(name).or_insert_with(|| types.push(Atom::scalar(scalar)))
    }
}

/// How a list is split: by its marker, without one by its strategy in strategic merge patches.
fn relation(field: &'static FieldDescriptor) -> Relation {
    let keys = |names: &[&'static str]| {
        Relation::Map(names.iter().map(|name| key_field(field, name)).collect())
    };
    match field.topology {
        Topology::ListMap(names) => keys(names),
        Topology::ListSet => Relation::Set,
        Topology::Default if field.patch_merge => match field.patch_merge_key {
            Some(name) => keys(&[name]),
            None => Relation::Set,
        },
        Topology::Default | Topology::Atomic | Topology::Granular => Relation::Atomic,
    }
}

fn key_field(list: &'static FieldDescriptor, name: &'static str) -> KeyField {
    let key = list.value.message().and_then(|message| message.field(name));
    KeyField { name: Cow::Borrowed(name), default: key.and_then(key_default) }
}

/// The value of a key field that is left out: its default, or the zero value where JSON always writes the field.
fn key_default(key: &'static FieldDescriptor) -> Option<Value> {
    if let Some(text) = key.default {
        return Some(Value::from(text));
    }
    if key.omit_empty || key.shape != schema::Shape::Plain {
        return None;
    }
    match key.value {
        schema::Value::String => Some(Value::from("")),
        schema::Value::Int32 | schema::Value::Int64 => Some(Value::Int(0)),
        _ => None,
    }
}
