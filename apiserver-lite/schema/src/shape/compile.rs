//! Compiles the descriptor tables of `proto_api::schema` into shapes.

use std::collections::HashMap;

use proto_api::schema::{self, MessageId};

use super::{Field, PatchStrategy, Presence, Shape, ShapeId, Shapes, Slot, Type, WireField};
use crate::value::Key;

/// Compiles `roots` and all messages they contain; returns the shapes and the shape of each root.
pub(crate) fn compile(
    roots: impl IntoIterator<Item = MessageId>,
) -> (Shapes, HashMap<MessageId, ShapeId>) {
    let mut compiler = Compiler::default();
    for root in roots {
        compiler.reserve(root);
    }
    while let Some(message) = compiler.queue.pop() {
        let shape = compiler.shape(message.get());
        let id = compiler.ids[&message]; // reserved when it was queued
        compiler.shapes[usize::from(id.0)] = shape;
    }
    (Shapes { shapes: compiler.shapes }, compiler.ids)
}

#[derive(Default)]
struct Compiler {
    shapes: Vec<Shape>,
    ids: HashMap<MessageId, ShapeId>,
    queue: Vec<MessageId>,
}

impl Compiler {
    /// The id of `message`, assigned before it is compiled, because messages refer to each other.
    fn reserve(&mut self, message: MessageId) -> ShapeId {
        if let Some(&id) = self.ids.get(&message) {
            return id;
        }
        let id = ShapeId(self.shapes.len() as u16); // there are fewer messages than MessageId's own 16 bits
        self.shapes.push(Shape::default());
        self.ids.insert(message, id);
        self.queue.push(message);
        id
    }

    fn shape(&mut self, message: &'static schema::MessageDescriptor) -> Shape {
        let mut shape = Shape {
            name: message.name,
            group: message.group,
            version: message.version,
            ..Shape::default()
        };
        if message.is_kind {
            // Embedded objects (claim templates) may have `kind` and `apiVersion`, in JSON only.
            shape.fields.extend(["kind", "apiVersion"].map(json_only_text));
        }
        for field in message.fields {
            let slot = match field.value {
                schema::Value::Message(inlined) if field.inline => {
                    let inlined_id = self.reserve(inlined);
                    let opened = self.shape(inlined.get());
                    shape.fields.extend(opened.fields);
                    Slot::Inline(inlined_id)
                }
                _ => {
                    let at = shape.fields.len() as u16; // no message has nearly as many
                    let compiled = self.field(field);
                    shape.fields.push(compiled);
                    Slot::Field(at)
                }
            };
            if field.number > 0 {
                shape.wire.push(WireField { number: field.number, slot });
            }
        }
        shape.wire.sort_by_key(|wire| wire.number);
        shape.by_name = (0..shape.fields.len() as u16).collect();
        let names = &shape.fields;
        shape.by_name.sort_by(|&a, &b| names[usize::from(a)].name.cmp(&names[usize::from(b)].name));
        shape
    }

    fn field(&mut self, field: &'static schema::FieldDescriptor) -> Field {
        let value = self.value(field.value);
        let ty = match field.shape {
            schema::Shape::Plain | schema::Shape::Pointer => value,
            schema::Shape::List => Type::List(Box::new(value)),
            schema::Shape::Map => Type::Map(Box::new(value)),
        };
        // Of the entries of managed fields alone, those of templates among them.
        let ty = match (ty, field.json) {
            (Type::Raw, "fieldsV1") => Type::FieldSet,
            (ty, _) => ty,
        };
        let presence = match field.shape {
            schema::Shape::Pointer => Presence::Optional,
            _ => Presence::Plain,
        };
        let merge_key = field.patch_merge.then(|| field.patch_merge_key.unwrap_or_default());
        Field {
            name: Key::Borrowed(field.json),
            ty,
            presence,
            omit_empty: field.omit_empty,
            required: !field.optional && !field.omit_empty,
            patch: PatchStrategy { merge_key, retain_keys: field.patch_retain_keys },
        }
    }

    fn value(&mut self, value: schema::Value) -> Type {
        match value {
            schema::Value::String => Type::String,
            schema::Value::Bool => Type::Bool,
            schema::Value::Int32 => Type::Int32,
            schema::Value::Int64 => Type::Int64,
            schema::Value::Double => Type::Double,
            schema::Value::Bytes => Type::Bytes,
            schema::Value::Time => Type::Time,
            schema::Value::MicroTime => Type::MicroTime,
            schema::Value::Duration => Type::Duration,
            schema::Value::Quantity => Type::Quantity,
            schema::Value::IntOrString => Type::IntOrString,
            schema::Value::Raw | schema::Value::Any => Type::Raw,
            schema::Value::StringList => Type::WrappedList(Box::new(Type::String)),
            schema::Value::Message(message) if message.get().union => {
                Type::Union(self.reserve(message))
            }
            schema::Value::Message(message) => Type::Message(self.reserve(message)),
        }
    }
}

/// A string field without a Protobuf field.
fn json_only_text(name: &'static str) -> Field {
    Field {
        name: Key::Borrowed(name),
        ty: Type::String,
        presence: Presence::Plain,
        omit_empty: true,
        required: false,
        patch: PatchStrategy::default(),
    }
}
