//! Descriptors in the form the codecs walk: JSON order with inlined messages opened up, Protobuf order with them nested.

use crate::value::{Key, Value};

mod compile;

pub(crate) use compile::compile;

/// Index of a [`Shape`] in [`Shapes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShapeId(u16);

/// The messages that a set of kinds is made of.
#[derive(Debug, Default)]
pub struct Shapes {
    shapes: Vec<Shape>,
}

impl Shapes {
    /// The shape that `id` names.
    pub fn get(&self, id: ShapeId) -> &Shape {
        &self.shapes[usize::from(id.0)] // ids are made by `compile`, for this vector only
    }
}

/// One message.
#[derive(Debug, Default)]
pub struct Shape {
    /// Name of the message.
    pub name: &'static str,
    /// Group of the message without the domain; `meta` for what all groups share.
    pub group: &'static str,
    /// Version of the message.
    pub version: &'static str,
    /// Fields in the order JSON is written; those of inlined messages stand where the message is inlined.
    pub fields: Vec<Field>,
    /// Indexes into `fields`, by name.
    by_name: Vec<u16>,
    /// What Protobuf writes, in ascending field number.
    pub(crate) wire: Vec<WireField>,
}

impl Shape {
    /// The field called `name` in JSON.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let by_name = |&at: &u16| self.fields[usize::from(at)].name.as_ref().cmp(name);
        let at = self.by_name.binary_search_by(by_name).ok()?;
        self.fields.get(usize::from(self.by_name[at]))
    }

    /// What Protobuf field `number` is.
    pub(crate) fn wire_field(&self, number: u32) -> Option<WireField> {
        let at = self.wire.binary_search_by_key(&number, |wire| wire.number).ok()?;
        self.wire.get(at).copied()
    }
}

/// One field, as JSON sees it.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name in JSON.
    pub name: Key,
    /// What it holds.
    pub ty: Type,
    /// Whether absence is told apart from a zero value.
    pub presence: Presence,
    /// Whether JSON leaves an empty value out.
    pub omit_empty: bool,
    /// Whether an object without it is incomplete; documents for clients say so, decoding does not ask.
    pub required: bool,
    /// How a strategic merge patch treats it.
    pub patch: PatchStrategy,
}

/// Whether absence means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Absent and zero are the same; Protobuf always writes it, JSON unless `omit_empty`.
    Plain,
    /// Absent and zero differ; written when set.
    Optional,
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Lists are merged by this key instead of being replaced; empty for a list of primitives that is merged as a set.
    pub merge_key: Option<&'static str>,
    /// Keys absent from a `$retainKeys` list are dropped.
    pub retain_keys: bool,
}

/// What a field, a list item or a map value holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// `true` or `false`.
    Bool,
    /// A number that fits 32 bits.
    Int32,
    /// A number that fits 64 bits.
    Int64,
    /// A floating-point number.
    Double,
    /// Text.
    String,
    /// Bytes, base64 text in JSON.
    Bytes,
    /// RFC 3339 in seconds, UTC; `null` when zero.
    Time,
    /// RFC 3339 in microseconds, UTC; `null` when zero.
    MicroTime,
    /// A decimal with a suffix, in its canonical form.
    Quantity,
    /// A 32-bit number or text.
    IntOrString,
    /// Any JSON, kept as it came; a message with one `bytes` field in Protobuf.
    Raw,
    /// One of the fields of the message, told apart in JSON by its shape (object, list or boolean).
    Union(ShapeId),
    /// Another message.
    Message(ShapeId),
    /// A list.
    List(Box<Type>),
    /// A list that is a message of its own in Protobuf, items in field 1.
    WrappedList(Box<Type>),
    /// A map from text.
    Map(Box<Type>),
}

impl Type {
    /// The name used in messages about a wrong type.
    pub fn name(&self) -> &'static str {
        match self {
            Type::Bool => "bool",
            Type::Int32 => "int32",
            Type::Int64 => "int64",
            Type::Double => "float64",
            Type::String => "string",
            Type::Bytes => "base64 text",
            Type::Time | Type::MicroTime => "RFC 3339 time",
            Type::Quantity => "quantity",
            Type::IntOrString => "int32 or string",
            Type::Raw => "any value",
            Type::Union(_) => "object, array or bool",
            Type::Message(_) | Type::Map(_) => "object",
            Type::List(_) | Type::WrappedList(_) => "array",
        }
    }
}

impl Field {
    /// Whether `value` is worth an entry in a tree: a plain field at zero is the same as none.
    pub(crate) fn is_stored(&self, value: &Value) -> bool {
        if self.presence == Presence::Optional {
            return true;
        }
        match (&self.ty, value) {
            (Type::List(_) | Type::WrappedList(_) | Type::Bytes, empty) if empty.is_empty() => {
                !self.omit_empty
            }
            (Type::Quantity, Value::String(text)) => text != "0",
            (Type::IntOrString, Value::String(_)) | (Type::Raw, _) => true,
            (_, value) => !value.is_empty(),
        }
    }
}

/// One Protobuf field of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireField {
    /// Field number.
    pub(crate) number: u32,
    /// What it carries.
    pub(crate) slot: Slot,
}

/// What a Protobuf field carries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// The JSON field at this index.
    Field(u16),
    /// A message whose fields JSON shows one level up.
    Inline(ShapeId),
}
