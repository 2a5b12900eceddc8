//! Types of expressions, those of schemas with the most elements that their values may have.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Largest request, in bytes: what no limit of a schema bounds has at most as many elements as fit in it.
pub(crate) const REQUEST_MAX: u64 = 3 * 1024 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct SizedType {
    pub(crate) ty: Ty,
    /// Most elements of a list or map, or bytes of a text.
    pub(crate) max: u64,
    /// Fewest bytes of a value in JSON.
    pub(crate) least: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Ty {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Duration,
    Timestamp,
    List(Arc<SizedType>),
    Map(Arc<SizedType>, Arc<SizedType>),
    /// Fields by their escaped names.
    Object(Arc<BTreeMap<String, SizedType>>),
    Url,
    Type,
    Ip,
    /// A block of addresses.
    Cidr,
    Quantity,
    /// A named format of texts.
    Format,
    /// A value that may be missing.
    Optional(Arc<SizedType>),
    /// Questions about what a user may do, and their answers.
    Access(Access),
}

/// A step from the variable `authorizer` to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Authorizer,
    Path,
    Group,
    Resource,
    Decision,
}

impl SizedType {
    pub(crate) fn new(ty: Ty, max: u64, least: u64) -> Self {
        SizedType { ty, max, least }
    }

    /// A type of values without elements, or of unknown size.
    pub(crate) fn plain(ty: Ty) -> Self {
        SizedType::new(ty, REQUEST_MAX, 1)
    }

    pub(crate) fn list(item: SizedType, max: u64) -> Self {
        SizedType::new(Ty::List(Arc::new(item)), max, 2)
    }

    pub(crate) fn optional(value: SizedType) -> Self {
        let (max, least) = (value.max, value.least);
        SizedType::new(Ty::Optional(Arc::new(value)), max, least)
    }

    /// The type of what is a value of this type or of a fitting one: as large as either, inside as well.
    pub(crate) fn or(&self, other: &SizedType) -> Self {
        // What has no elements says nothing about those of the other.
        let inner = |left: &Arc<SizedType>, right: &Arc<SizedType>| {
            if Arc::ptr_eq(left, right) || other.max == 0 {
                Arc::clone(left)
            } else if self.max == 0 {
                Arc::clone(right)
            } else {
                Arc::new(left.or(right))
            }
        };
        let ty = match (&self.ty, &other.ty) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => Ty::Dyn,
            (Ty::List(left), Ty::List(right)) => Ty::List(inner(left, right)),
            (Ty::Map(key, value), Ty::Map(other_key, other_value)) => {
                Ty::Map(inner(key, other_key), inner(value, other_value))
            }
            (Ty::Optional(left), Ty::Optional(right)) => Ty::Optional(Arc::new(left.or(right))),
            (left, _) => left.clone(),
        };
        SizedType::new(ty, self.max.max(other.max), self.least.min(other.least))
    }
}

impl Access {
    /// The name of the type in messages, as in Kubernetes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Access::Authorizer => "kubernetes.authorization.Authorizer",
            Access::Path => "kubernetes.authorization.PathCheck",
            Access::Group => "kubernetes.authorization.GroupCheck",
            Access::Resource => "kubernetes.authorization.ResourceCheck",
            Access::Decision => "kubernetes.authorization.Decision",
        }
    }
}

impl Ty {
    /// Whether a value of either type can be used as the other.
    pub(crate) fn fits(&self, other: &Ty) -> bool {
        match (self, other) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => true,
            (Ty::List(left), Ty::List(right)) => left.ty.fits(&right.ty),
            (Ty::Map(key, value), Ty::Map(other_key, other_value)) => {
                key.ty.fits(&other_key.ty) && value.ty.fits(&other_value.ty)
            }
            (Ty::Optional(left), Ty::Optional(right)) => left.ty.fits(&right.ty),
            (Ty::Access(left), Ty::Access(right)) => left == right,
            // Objects of one schema.
            (Ty::Object(left), Ty::Object(right)) => Arc::ptr_eq(left, right),
            (Ty::Null, other) | (other, Ty::Null) if other.is_comparable_to_null() => true,
            (left, right) => std::mem::discriminant(left) == std::mem::discriminant(right),
        }
    }

    /// Whether null may stand beside values of the type, none of which it is equal to.
    fn is_comparable_to_null(&self) -> bool {
        let is_library = matches!(self, Ty::Ip | Ty::Cidr | Ty::Quantity | Ty::Format);
        is_library || matches!(self, Ty::Object(_) | Ty::Duration | Ty::Timestamp | Ty::Optional(_))
    }

    /// Whether values of the type have parts.
    pub(crate) fn is_composite(&self) -> bool {
        matches!(self, Ty::List(_) | Ty::Map(..) | Ty::Object(_) | Ty::Optional(_))
    }

    /// A letter for the type, as in signatures.
    pub(crate) fn letter(&self) -> char {
        match self {
            Ty::Dyn => '*',
            Ty::Null => 'n',
            Ty::Bool => 'B',
            Ty::Int => 'i',
            Ty::Uint => 'u',
            Ty::Double => 'd',
            Ty::Text => 's',
            Ty::Bytes => 'b',
            Ty::Duration => 'D',
            Ty::Timestamp => 'T',
            Ty::List(_) => 'l',
            Ty::Map(..) => 'm',
            Ty::Object(_) => 'o',
            Ty::Url => 'U',
            Ty::Type => 't',
            Ty::Ip => 'a',
            Ty::Cidr => 'c',
            Ty::Quantity => 'Q',
            Ty::Format => 'F',
            Ty::Optional(_) => 'O',
            Ty::Access(Access::Authorizer) => 'A',
            Ty::Access(Access::Path) => 'P',
            Ty::Access(Access::Group) => 'G',
            Ty::Access(Access::Resource) => 'R',
            Ty::Access(Access::Decision) => 'C',
        }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ty::Dyn => f.write_str("dyn"),
            Ty::Null => f.write_str("null"),
            Ty::Bool => f.write_str("bool"),
            Ty::Int => f.write_str("int"),
            Ty::Uint => f.write_str("uint"),
            Ty::Double => f.write_str("double"),
            Ty::Text => f.write_str("string"),
            Ty::Bytes => f.write_str("bytes"),
            Ty::Duration => f.write_str("google.protobuf.Duration"),
            Ty::Timestamp => f.write_str("google.protobuf.Timestamp"),
            Ty::List(item) => write!(f, "list({})", item.ty),
            Ty::Map(key, value) => write!(f, "map({}, {})", key.ty, value.ty),
            Ty::Object(_) => f.write_str("object"),
            Ty::Url => f.write_str("kubernetes.URL"),
            Ty::Type => f.write_str("type"),
            Ty::Ip => f.write_str("net.IP"),
            Ty::Cidr => f.write_str("net.CIDR"),
            Ty::Quantity => f.write_str("kubernetes.Quantity"),
            Ty::Format => f.write_str("kubernetes.NamedFormat"),
            Ty::Optional(value) => write!(f, "optional_type({})", value.ty),
            Ty::Access(access) => f.write_str(access.name()),
        }
    }
}
