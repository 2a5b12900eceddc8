//! Compiled descriptors for the codecs: in JSON order with inlined messages flattened, and in Protobuf order with them nested.

use crate::value::{Key, Value};

mod compile;

pub(crate) use compile::compile;

/// Index of a [`Shape`] in [`Shapes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShapeId(u16);

/// The messages of a set of kinds.
#[derive(Debug, Default)]
pub struct Shapes {
    shapes: Vec<Shape>,
}

impl Shapes {
    /// The shape with this id.
    pub fn get(&self, id: ShapeId) -> &Shape {
        &self.shapes[usize::from(id.0)] // ids are made by `compile`, for this vector only
    }
}

/// The compiled descriptor of one message.
#[derive(Debug, Default)]
pub struct Shape {
    /// Name of the message.
    pub name: &'static str,
    /// Group of the message without its domain; `meta` for shared messages.
    pub group: &'static str,
    /// Version of the message.
    pub version: &'static str,
    /// Fields in JSON order; those of inlined messages stand in place of the message.
    pub fields: Vec<Field>,
    /// Indexes into `fields`, by name.
    by_name: Vec<u16>,
    /// Protobuf fields in ascending field number.
    pub(crate) wire: Vec<WireField>,
}

impl Shape {
    /// The field with the JSON name `name`.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let by_name = |&at: &u16| self.fields[usize::from(at)].name.as_ref().cmp(name);
        let at = self.by_name.binary_search_by(by_name).ok()?;
        self.fields.get(usize::from(self.by_name[at]))
    }

    /// The Protobuf field with this number.
    pub(crate) fn wire_field(&self, number: u32) -> Option<WireField> {
        let at = self.wire.binary_search_by_key(&number, |wire| wire.number).ok()?;
        self.wire.get(at).copied()
    }
}

/// A field in JSON.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name in JSON.
    pub name: Key,
    /// Type of its value.
    pub ty: Type,
    /// Whether absence differs from a zero value.
    pub presence: Presence,
    /// Whether JSON omits an empty value (`omitempty`).
    pub omit_empty: bool,
    /// Whether OpenAPI marks it as required; decoding does not check it.
    pub required: bool,
    /// Strategic merge patch strategy.
    pub patch: PatchStrategy,
}

/// Whether absence differs from a zero value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Absent and zero are equal; Protobuf always writes it, JSON unless `omit_empty`.
    Plain,
    /// Absent and zero differ; written when set.
    Optional,
}

/// Strategic merge patch strategy of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Merge key of a list; empty for a list of primitives that is merged as a set, `None` if the list is replaced.
    pub merge_key: Option<&'static str>,
    /// Whether `$retainKeys` applies: other keys are dropped.
    pub retain_keys: bool,
}

/// Type of a field, list item or map value.
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
    /// A length of time in canonical form, `1m30s`; a message with the nanoseconds in Protobuf.
    Duration,
    /// A quantity in canonical form.
    Quantity,
    /// A 32-bit number or text.
    IntOrString,
    /// Arbitrary JSON, kept unchanged; a message with one `bytes` field in Protobuf.
    Raw,
    /// The same for a set of fields (`fieldsV1`), which the tree has as text.
    FieldSet,
    /// One of the fields of the message, distinguished in JSON by its type (object, list or boolean).
    Union(ShapeId),
    /// Another message.
    Message(ShapeId),
    List(Box<Type>),
    /// A list that is a message of its own in Protobuf, items in field 1.
    WrappedList(Box<Type>),
    /// A map from text.
    Map(Box<Type>),
}

impl Type {
    /// Name of the type in error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Type::Bool => "bool",
            Type::Int32 => "int32",
            Type::Int64 => "int64",
            Type::Double => "float64",
            Type::String => "string",
            Type::Bytes => "base64 text",
            Type::Time | Type::MicroTime => "RFC 3339 time",
            Type::Duration => "duration",
            Type::Quantity => "quantity",
            Type::IntOrString => "int32 or string",
            Type::Raw | Type::FieldSet => "any value",
            Type::Union(_) => "object, array or bool",
            Type::Message(_) | Type::Map(_) => "object",
            Type::List(_) | Type::WrappedList(_) => "array",
        }
    }
}

impl Field {
    /// Whether a tree stores `value`: a plain field at its zero value is left out.
    pub(crate) fn is_stored(&self, value: &Value) -> bool {
        if self.presence == Presence::Optional {
            return true;
        }
        match (&self.ty, value) {
            (Type::List(_) | Type::WrappedList(_) | Type::Bytes, empty) if empty.is_empty() => {
                !self.omit_empty
            }
            (Type::Duration, Value::String(text)) => text != "0s",
            (Type::Quantity, Value::String(text)) => text != "0",
            (Type::IntOrString, Value::String(_)) | (Type::Raw | Type::FieldSet, _) => true,
            (_, value) => !value.is_empty(),
        }
    }
}

/// One Protobuf field of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireField {
    /// Field number.
    pub(crate) number: u32,
    /// Its content.
    pub(crate) slot: Slot,
}

/// Content of a Protobuf field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// The JSON field at this index.
    Field(u16),
    /// A message whose fields JSON flattens into its parent.
    Inline(ShapeId),
}
