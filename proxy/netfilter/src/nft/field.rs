//! Encodes and decodes objects from one list of their fields and attributes.

use super::numbers::{
    BitwiseOp, ByteorderOp, CmpOp, CtKey, DynsetOp, FibFlags, FibResult, HashKind, HookPoint,
    LookupFlags, MetaKey, NatFlags, NatKind, NumgenKind, PayloadBase, RejectKind, SetFlags,
    TableFlags,
};
use super::value::{Data, Reg, Value, Verdict};
use crate::wire::{Attribute, Attributes, WireError, Writer};

/// An object with fields as attributes.
pub(crate) trait Object: Sized {
    /// Appends every field that is set.
    fn write(&self, writer: &mut Writer);
    /// Decodes every field; unknown attributes are skipped.
    fn read(attributes: Attributes<'_>) -> Result<Self, WireError>;
}

/// A type that is encoded as one attribute.
pub(crate) trait Field: Sized {
    /// Appends attribute `kind`.
    fn put(&self, writer: &mut Writer, kind: u16);
    /// Decodes an attribute.
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError>;
    /// The value of a missing attribute, if the attribute is optional.
    fn absent() -> Option<Self> {
        None
    }
}

/// Declares an object: a struct, and its [`Object`] and [`Field`] from one list of attribute numbers.
macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $kind:expr,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $crate::nft::field::Object for $name {
            fn write(&self, writer: &mut $crate::wire::Writer) {
                $($crate::nft::field::Field::put(&self.$field, writer, $kind);)*
            }

            fn read(
                attributes: $crate::wire::Attributes<'_>,
            ) -> Result<Self, $crate::wire::WireError> {
                $(let mut $field = None;)*
                for attribute in attributes {
                    let attribute = attribute?;
                    match attribute.kind {
                        $($kind => {
                            let what = concat!(stringify!($name), ".", stringify!($field));
                            $field = Some(<$type as $crate::nft::field::Field>::take(attribute, what)?);
                        })*
                        _ => {}
                    }
                }
                Ok(Self {$(
                    $field: $field.or_else(<$type as $crate::nft::field::Field>::absent).ok_or(
                        $crate::wire::WireError::Missing {
                            object: stringify!($name),
                            attribute: stringify!($field),
                        },
                    )?,
                )*})
            }
        }

        impl $crate::nft::field::Field for $name {
            fn put(&self, writer: &mut $crate::wire::Writer, kind: u16) {
                writer.nest(kind, |w| $crate::nft::field::Object::write(self, w));
            }

            fn take(
                attribute: $crate::wire::Attribute<'_>,
                _what: &'static str,
            ) -> Result<Self, $crate::wire::WireError> {
                $crate::nft::field::Object::read(attribute.nested())
            }
        }
    )*};
}
pub(crate) use attributes;

impl Field for u8 {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.attribute(kind, &[*self]);
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        attribute.array::<1>(what).map(|[byte]| byte)
    }
}

impl Field for u16 {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.attribute(kind, &self.to_be_bytes());
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        attribute.array(what).map(Self::from_be_bytes)
    }
}

impl Field for u32 {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.attribute(kind, &self.to_be_bytes());
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        attribute.array(what).map(Self::from_be_bytes)
    }
}

impl Field for i32 {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.attribute(kind, &self.to_be_bytes());
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        attribute.array(what).map(Self::from_be_bytes)
    }
}

impl Field for u64 {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.attribute(kind, &self.to_be_bytes());
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        attribute.array(what).map(Self::from_be_bytes)
    }
}

impl Field for String {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.name(kind, self);
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        attribute.name(what).map(Self::from)
    }
}

/// Bytes that only `nft list` reads.
impl Field for Vec<u8> {
    fn put(&self, writer: &mut Writer, kind: u16) {
        if !self.is_empty() {
            writer.attribute(kind, self);
        }
    }
    fn take(attribute: Attribute<'_>, _what: &'static str) -> Result<Self, WireError> {
        Ok(attribute.payload.to_vec())
    }
    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, writer: &mut Writer, kind: u16) {
        T::put(self, writer, kind);
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        T::take(attribute, what).map(Self::new)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, writer: &mut Writer, kind: u16) {
        if let Some(field) = self {
            field.put(writer, kind);
        }
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        T::take(attribute, what).map(Some)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// 32-bit integers. Some have a value that equals a missing attribute; it is not encoded, as in the kernel.
macro_rules! number_fields {
    ($($name:ident $(= $absent:expr)?,)*) => {$(
        impl Field for $name {
            fn put(&self, writer: &mut Writer, kind: u16) {
                if Self::absent() != Some(*self) {
                    self.0.put(writer, kind);
                }
            }
            fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
                u32::take(attribute, what).map(Self)
            }
            $(fn absent() -> Option<Self> {
                Some($absent)
            })?
        }
    )*};
}

number_fields! {
    MetaKey, PayloadBase, CmpOp, NatKind, NatFlags = NatFlags(0), CtKey, FibResult, FibFlags, NumgenKind,
    HashKind = HashKind::JENKINS, DynsetOp, RejectKind, ByteorderOp,
    BitwiseOp = BitwiseOp::MASK_XOR, LookupFlags = LookupFlags::PRESENT, TableFlags = TableFlags::NONE,
    SetFlags = SetFlags(0), HookPoint,
}

impl Field for Reg {
    fn put(&self, writer: &mut Writer, kind: u16) {
        self.number().put(writer, kind);
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        Self::from_number(u32::take(attribute, what)?).ok_or(WireError::Value { what })
    }
}

/// `NFTA_DATA_VALUE` inside the attribute.
impl Field for Value {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.nest(kind, |w| w.attribute(1, self.bytes()));
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        match Data::take(attribute, what)? {
            Data::Value(value) => Ok(value),
            Data::Verdict(_) => Err(WireError::Value { what }),
        }
    }
}

/// `NFTA_DATA_VALUE` or `NFTA_DATA_VERDICT` inside the attribute.
impl Field for Data {
    fn put(&self, writer: &mut Writer, kind: u16) {
        match self {
            Self::Value(value) => value.put(writer, kind),
            Self::Verdict(verdict) => writer.nest(kind, |w| {
                w.nest(2, |w| {
                    verdict.code().put(w, 1);
                    if let Some(chain) = verdict.chain() {
                        w.name(2, chain);
                    }
                });
            }),
        }
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        let inner = attribute.nested().next().ok_or(WireError::Value { what })??;
        match inner.kind {
            1 => Ok(Self::Value(Value::new(inner.payload))),
            2 => read_verdict(inner, what).map(Self::Verdict),
            _ => Err(WireError::Value { what }),
        }
    }
}

fn read_verdict(attribute: Attribute<'_>, what: &'static str) -> Result<Verdict, WireError> {
    let (mut code, mut chain) = (None, None);
    for inner in attribute.nested() {
        let inner = inner?;
        match inner.kind {
            1 => code = Some(i32::take(inner, what)?),
            2 => chain = Some(String::take(inner, what)?),
            _ => {}
        }
    }
    code.and_then(|code| Verdict::from_code(code, chain)).ok_or(WireError::Value { what })
}

/// A list whose items are attributes with number 1 (`NFTA_LIST_ELEM`).
impl<T: Item> Field for Vec<T> {
    fn put(&self, writer: &mut Writer, kind: u16) {
        if !self.is_empty() {
            writer.nest(kind, |w| self.iter().for_each(|item| item.put(w, 1)));
        }
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        attribute.nested().map(|item| T::take(item?, what)).collect()
    }
    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// A field of lists; distinguishes byte strings from lists.
pub(crate) trait Item: Field {}
