//! What descriptors say of fields beyond their types: how apply merges them, their defaults, their closed sets of values.

use std::collections::HashMap;

use proto_api::schema::{self, MessageDescriptor, Topology};

use crate::enums;
use crate::shape::{Field, Presence, Shape, Type};
use crate::value::{Map, Value};

const LIST_TYPE: &str = "x-kubernetes-list-type";
const MAP_TYPE: &str = "x-kubernetes-map-type";

/// The descriptors of messages by group, version and name.
pub(super) struct Descriptors(
    HashMap<(&'static str, &'static str, &'static str), &'static MessageDescriptor>,
);

impl Descriptors {
    pub(super) fn new() -> Self {
        let key = |message: &MessageDescriptor| (message.group, message.version, message.name);
        Self(schema::messages().iter().map(|message| (key(message), message)).collect())
    }

    pub(super) fn find(&self, shape: &Shape) -> Option<&'static MessageDescriptor> {
        self.0.get(&(shape.group, shape.version, shape.name)).copied()
    }
}

/// Adds how apply treats the fields of a message.
pub(super) fn add_message_topology(schema: &mut Map, message: &MessageDescriptor) {
    if message.atomic {
        schema.insert(MAP_TYPE, "atomic");
    }
}

/// Adds how apply treats the value of a field.
pub(super) fn add_topology(schema: &mut Map, field: &schema::FieldDescriptor) {
    // Bytes are a list in Kubernetes.
    let is_list = field.shape == schema::Shape::List || field.value == schema::Value::Bytes;
    match field.topology {
        Topology::Default => {}
        Topology::Atomic => {
            drop(schema.insert(if is_list { LIST_TYPE } else { MAP_TYPE }, "atomic"))
        }
        Topology::Granular => drop(schema.insert(MAP_TYPE, "granular")),
        Topology::ListSet => drop(schema.insert(LIST_TYPE, "set")),
        Topology::ListMap(keys) => {
            schema.insert(LIST_TYPE, "map");
            let keys: Vec<Value> = keys.iter().map(|key| Value::from(*key)).collect();
            schema.insert("x-kubernetes-list-map-keys", keys);
        }
    }
}

/// Adds the values of a field, or of the items of a list, if they are a closed set, and takes their type away if they are any JSON.
pub(super) fn add_values(schema: &mut Map, shape: &Shape, field: &Field) {
    let (ty, place) = match &field.ty {
        Type::List(item) => (&**item, schema.map_mut("items")),
        ty => (ty, Some(schema)),
    };
    let Some(place) = place else { return };
    // Elsewhere raw values are objects.
    if matches!(ty, Type::Raw) && shape.name == "JSONSchemaProps" {
        place.remove("type");
    }
    let Some(values) = enums::of_field(shape, &field.name) else { return };
    let mut values = values.to_vec();
    values.sort_unstable();
    let values: Vec<Value> = values.into_iter().map(Value::from).collect();
    place.insert("enum", values);
}

/// The value of an absent field, as Kubernetes shows it in OpenAPI v3: what the descriptor states, or nothing at all where absence and nothing are one.
pub(super) fn default_of(
    field: &Field,
    descriptor: Option<&schema::FieldDescriptor>,
) -> Option<Value> {
    if let (Type::String, Some(text)) = (&field.ty, descriptor.and_then(|field| field.default)) {
        return Some(Value::from(text));
    }
    let zero = zero_of(&field.ty).filter(|_| field.presence == Presence::Plain)?;
    (zero.as_map().is_some() || !field.omit_empty).then_some(zero)
}

/// The empty value of a type. Those that are messages in Kubernetes but texts here have none.
pub(super) fn zero_of(ty: &Type) -> Option<Value> {
    match ty {
        Type::Bool => Some(Value::from(false)),
        Type::Int32 | Type::Int64 | Type::Double => Some(Value::from(0)),
        Type::String => Some(Value::from("")),
        Type::Message(_) => Some(Value::Map(Map::new())),
        _ => None,
    }
}
