//! Whole objects: common traits of kinds, lists, and the two encodings of an object with its `apiVersion` and `kind`: JSON, and the Protobuf envelope.
//!
//! Typed objects do not carry `apiVersion` and `kind` as fields: both follow from the Rust type and
//! the naming profile, and are added and checked here.

use crate::codec::json::{JsonKey, Written};
use crate::codec::{Object, json};
use crate::meta::v1::{ListMeta, ObjectMeta, PartialObjectMetadata};
use crate::names::Names;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::marker::PhantomData;

/// A message with an `apiVersion` and a `kind`.
///
/// The four codec functions at its end are the same for every kind; the generated kinds state them
/// once more so that they are compiled in this crate and not in each crate that uses them.
pub trait Kind: Object + fmt::Debug + Clone + PartialEq + Send + Sync + 'static {
    /// The group without the API domain: empty for core, `apps`, `coordination`,
    /// `rbac.authorization`. [`Names::group`] gives the full name.
    const GROUP: &'static str;
    /// For example `v1`.
    const VERSION: &'static str;
    /// For example `Pod`; for a [`List`], just `List`.
    const KIND: &'static str;

    /// The full kind: `Pod`, `PodList`.
    fn kind_name() -> Cow<'static, str> {
        Cow::Borrowed(Self::KIND)
    }

    /// `apiVersion` and kind in this naming profile.
    fn type_meta(names: &Names) -> TypeMeta {
        TypeMeta {
            api_version: names.api_version(Self::GROUP, Self::VERSION),
            kind: Self::kind_name().into_owned(),
        }
    }

    #[doc(hidden)]
    fn write_typed(typed: &TypedObject<'_, Self>) -> Result<Vec<u8>, serde_json::Error> {
        write_typed(typed)
    }

    #[doc(hidden)]
    fn read_typed(json: &[u8]) -> Result<TypedRead<Self>, serde_json::Error> {
        read_typed_slice(json)
    }

    #[doc(hidden)]
    fn read_typed_value(json: serde_json::Value) -> Result<TypedRead<Self>, serde_json::Error> {
        read_typed(json)
    }

    #[doc(hidden)]
    fn write_protobuf(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    #[doc(hidden)]
    fn read_protobuf(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode(bytes)
    }
}

/// The codec functions of [`Kind`] for one kind.
macro_rules! codec_of_kind {
    () => {
        fn write_typed(
            typed: &crate::object::TypedObject<'_, Self>,
        ) -> Result<Vec<u8>, serde_json::Error> {
            crate::object::write_typed(typed)
        }

        fn read_typed(json: &[u8]) -> Result<crate::object::TypedRead<Self>, serde_json::Error> {
            crate::object::read_typed_slice(json)
        }

        fn read_typed_value(
            json: serde_json::Value,
        ) -> Result<crate::object::TypedRead<Self>, serde_json::Error> {
            crate::object::read_typed(json)
        }

        fn write_protobuf(&self) -> Vec<u8> {
            prost::Message::encode_to_vec(self)
        }

        fn read_protobuf(bytes: &[u8]) -> Result<Self, DecodeError> {
            <Self as prost::Message>::decode(bytes)
        }
    };
}
pub(crate) use codec_of_kind;

/// A kind with a path in the API.
pub trait Resource: Kind {
    /// The name in paths, for example `pods`.
    const PLURAL: &'static str;
    /// Whether it is namespaced.
    const NAMESPACED: bool;

    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;
    /// The object's metadata, mutable.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
}

/// The metadata of objects of any kind; the requested path decides which.
impl Resource for PartialObjectMetadata {
    const PLURAL: &'static str = "";
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A list of objects of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct List<T> {
    /// The list's resource version and continue token.
    pub metadata: ListMeta,
    /// The objects; an empty list is `[]` in JSON, never `null`.
    pub items: Vec<T>,
}

/// Why a text or a message is not an object of the expected kind.
#[derive(Debug, thiserror::Error)]
pub enum DecodeObjectError {
    /// The JSON is malformed or does not match the type.
    #[error("cannot decode {kind} from JSON")]
    Json {
        /// The expected kind.
        kind: String,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The Protobuf is malformed.
    #[error("cannot decode {kind} from Protobuf")]
    Protobuf {
        /// The expected kind.
        kind: String,
        /// Where and why.
        #[source]
        source: DecodeError,
    },
    /// The Protobuf does not start with the four bytes of the envelope.
    #[error("cannot decode {kind}: the Protobuf envelope is missing")]
    NoEnvelope {
        /// The expected kind.
        kind: String,
    },
    /// It is an object of another kind.
    #[error("expected {want}, got {got}")]
    WrongKind {
        /// The expected `apiVersion` and kind.
        want: String,
        /// The received `apiVersion` and kind.
        got: String,
    },
}

/// Writes the object as JSON, `kind` and `apiVersion` first.
///
/// # Errors
/// When the object embeds bytes that are not JSON.
pub fn to_json<T: Kind>(object: &T, names: &Names) -> Result<Vec<u8>, serde_json::Error> {
    T::write_typed(&TypedObject::new(object, names))
}

/// The object as a JSON tree, `kind` and `apiVersion` first.
///
/// # Errors
/// When the object embeds bytes that are not JSON.
pub fn to_json_value<T: Kind>(
    object: &T,
    names: &Names,
) -> Result<serde_json::Value, serde_json::Error> {
    serde_json::from_slice(&to_json(object, names)?)
}

/// Reads an object from JSON. `apiVersion` and `kind` may be absent; if present, they must match.
///
/// # Errors
/// [`DecodeObjectError::Json`], whose source names the field, and [`DecodeObjectError::WrongKind`].
pub fn from_json<T: Kind>(json: &[u8], names: &Names) -> Result<T, DecodeObjectError> {
    T::read_typed(json).map_err(json_error::<T>)?.check(names)
}

/// Reads an object from a JSON tree; see [`from_json`].
///
/// # Errors
/// As [`from_json`].
pub fn from_json_value<T: Kind>(
    json: serde_json::Value,
    names: &Names,
) -> Result<T, DecodeObjectError> {
    T::read_typed_value(json).map_err(json_error::<T>)?.check(names)
}

/// The four bytes before every object in Protobuf.
pub const ENVELOPE_PREFIX: &[u8; 4] = b"k8s\0";

/// The message after the prefix: the object's type, and the object as bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    /// `apiVersion` and `kind`.
    #[prost(message, required, tag = "1")]
    pub type_meta: TypeMeta,
    /// The object.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub raw: Option<Vec<u8>>,
    /// How `raw` is compressed; empty for not at all.
    #[prost(string, required, tag = "3")]
    pub content_encoding: String,
    /// The media type of `raw`; empty for Protobuf.
    #[prost(string, required, tag = "4")]
    pub content_type: String,
}

/// The type of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeMeta {
    /// Group and version.
    #[prost(string, required, tag = "1")]
    pub api_version: String,
    #[prost(string, required, tag = "2")]
    pub kind: String,
}

impl Envelope {
    /// Reads prefix and envelope; `None` without the prefix.
    ///
    /// # Errors
    /// When the message after the prefix is malformed.
    pub fn read(bytes: &[u8]) -> Option<Result<Envelope, DecodeError>> {
        bytes.strip_prefix(ENVELOPE_PREFIX).map(Envelope::decode)
    }
}

/// Writes the object as Protobuf in its envelope.
pub fn to_protobuf_envelope<T: Kind>(object: &T, names: &Names) -> Vec<u8> {
    let envelope = Envelope {
        type_meta: T::type_meta(names),
        raw: Some(object.write_protobuf()),
        content_encoding: String::new(),
        content_type: String::new(),
    };
    let mut out = Vec::with_capacity(ENVELOPE_PREFIX.len().saturating_add(envelope.encoded_len()));
    out.extend_from_slice(ENVELOPE_PREFIX);
    envelope.encode_raw(&mut out);
    out
}

/// Reads an object from Protobuf in its envelope. `apiVersion` and `kind` may be empty; if not, they must match.
///
/// # Errors
/// All but [`DecodeObjectError::Json`].
pub fn from_protobuf_envelope<T: Kind>(
    bytes: &[u8],
    names: &Names,
) -> Result<T, DecodeObjectError> {
    let kind = || T::kind_name().into_owned();
    let source_of = |source| DecodeObjectError::Protobuf { kind: kind(), source };
    let envelope = Envelope::read(bytes).ok_or(DecodeObjectError::NoEnvelope { kind: kind() })?;
    let Envelope { type_meta, raw, .. } = envelope.map_err(source_of)?;
    let object = T::read_protobuf(&raw.unwrap_or_default()).map_err(source_of)?;
    TypedRead { type_meta, object }.check(names)
}

fn json_error<T: Kind>(source: serde_json::Error) -> DecodeObjectError {
    DecodeObjectError::Json { kind: T::kind_name().into_owned(), source }
}

/// An object with its type, for writing.
#[doc(hidden)]
#[derive(Debug)]
pub struct TypedObject<'a, T> {
    type_meta: TypeMeta,
    object: &'a T,
}

impl<'a, T: Kind> TypedObject<'a, T> {
    fn new(object: &'a T, names: &Names) -> TypedObject<'a, T> {
        TypedObject { type_meta: T::type_meta(names), object }
    }
}

impl<T: Kind> Serialize for TypedObject<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("kind", &self.type_meta.kind)?;
        map.serialize_entry("apiVersion", &self.type_meta.api_version)?;
        self.object.write_fields(&mut map)?;
        map.end()
    }
}

pub(crate) fn write_typed<T: Kind>(
    typed: &TypedObject<'_, T>,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(1024);
    typed.serialize(&mut serde_json::Serializer::with_formatter(&mut out, HtmlSafe))?;
    Ok(out)
}

/// An object with the type that it declares.
#[doc(hidden)]
#[derive(Debug)]
pub struct TypedRead<T> {
    type_meta: TypeMeta,
    object: T,
}

impl<T: Kind> TypedRead<T> {
    fn check(self, names: &Names) -> Result<T, DecodeObjectError> {
        let (want, got) = (T::type_meta(names), self.type_meta);
        let fits = |got: &str, want: &str| got.is_empty() || got == want;
        if fits(&got.api_version, &want.api_version) && fits(&got.kind, &want.kind) {
            return Ok(self.object);
        }
        Err(DecodeObjectError::WrongKind {
            want: format!("{} {}", want.api_version, want.kind),
            got: format!("{} {}", got.api_version, got.kind),
        })
    }
}

pub(crate) fn read_typed_slice<T: Kind>(json: &[u8]) -> Result<TypedRead<T>, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let typed = read_typed(&mut reader)?;
    reader.end()?;
    Ok(typed)
}

pub(crate) fn read_typed<'de, T, D>(from: D) -> Result<TypedRead<T>, D::Error>
where
    T: Kind,
    D: Deserializer<'de>,
{
    from.deserialize_map(TypedVisitor(PhantomData)).map_err(json::unmarked)
}

struct TypedVisitor<T>(PhantomData<T>);

impl<'de, T: Kind> Visitor<'de> for TypedVisitor<T> {
    type Value = TypedRead<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object of kind {}", T::kind_name())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TypedRead<T>, A::Error> {
        let mut read = TypedRead { type_meta: TypeMeta::default(), object: T::default() };
        while let Some(JsonKey(name)) = map.next_key()? {
            match &*name {
                "apiVersion" => read.type_meta.api_version = json::read(&mut map, "apiVersion")?,
                "kind" => read.type_meta.kind = json::read(&mut map, "kind")?,
                name => {
                    if !read.object.read_field(name, &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
        }
        Ok(read)
    }
}

/// Writes JSON that is safe in HTML, as the API does: `<`, `>`, `&` and the two line separators of JavaScript are escaped.
struct HtmlSafe;

impl serde_json::ser::Formatter for HtmlSafe {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        escape_html(writer, fragment)
    }

    fn write_raw_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        escape_html(writer, fragment)
    }
}

fn escape_html<W: ?Sized + io::Write>(writer: &mut W, text: &str) -> io::Result<()> {
    let mut rest = text;
    while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        let (before, from) = rest.split_at(at);
        writer.write_all(before.as_bytes())?;
        let mut chars = from.chars();
        if let Some(c) = chars.next() {
            write!(writer, "\\u{:04x}", u32::from(c))?;
        }
        rest = chars.as_str();
    }
    writer.write_all(rest.as_bytes())
}

impl<T: Kind> Kind for List<T> {
    const GROUP: &'static str = T::GROUP;
    const VERSION: &'static str = T::VERSION;
    const KIND: &'static str = "List";

    fn kind_name() -> Cow<'static, str> {
        Cow::Owned(format!("{}List", T::KIND))
    }
}

impl<T: Kind> Object for List<T> {
    const NAME: &'static str = "List";

    fn write_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        json::write_always(map, "metadata", &self.metadata)?;
        if self.items.is_empty() {
            map.serialize_entry("items", &[(); 0])
        } else {
            map.serialize_entry("items", &Written(&self.items))
        }
    }

    fn read_field<'de, A: MapAccess<'de>>(
        &mut self,
        key: &str,
        map: &mut A,
    ) -> Result<bool, A::Error> {
        match key {
            "metadata" => self.metadata = json::read(map, "metadata")?,
            "items" => self.items = json::read(map, "items")?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<T: Kind> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json::write_object(self, to)
    }
}

impl<'de, T: Kind> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        json::read_whole(from)
    }
}

impl<T: Kind> Message for List<T> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        crate::codec::Field::encode_field(&self.metadata, 1, buf);
        crate::codec::Field::encode_field(&self.items, 2, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        use crate::codec::protobuf::merge;
        match tag {
            1 => merge(&mut self.metadata, wire, buf, ctx, "List", "metadata"),
            2 => merge(&mut self.items, wire, buf, ctx, "List", "items"),
            _ => prost::encoding::skip_field(wire, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        use crate::codec::Field;
        self.metadata.field_len(1).saturating_add(self.items.field_len(2))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
