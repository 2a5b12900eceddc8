//! Values of expressions. Those of an object are read in place.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;

use apiserver_schema::{Map, Value};
use ipnet::IpNet;
use proto_api::Quantity;

use super::access::{AccessQuestion, AccessVal};
use super::urls::Url;
use crate::errors::shortened;
use crate::node::{ListType, Node};

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    /// The budget is used up.
    Limit,
    /// It cannot be computed.
    Error(String),
    /// Nothing outside has answered this question yet.
    Unanswered(Box<AccessQuestion>),
}

impl Fail {
    pub(crate) fn error(text: impl Into<String>) -> Self {
        Fail::Error(shortened(text.into()))
    }

    pub(crate) fn no_overload() -> Self {
        Fail::error("no such overload")
    }

    /// Whether it ends the run, whatever other parts of the expression are.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Fail::Limit | Fail::Unanswered(_))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Rc<[u8]>),
    /// Nanoseconds.
    Duration(i64),
    /// Nanoseconds since 1970.
    Time(i128),
    List(Items<'a>),
    Map(Entries<'a>),
    Url(Rc<Url>),
    Type(&'static str),
    Ip(IpAddr),
    /// A block of addresses, with what is set beyond its prefix.
    Cidr(IpNet),
    Quantity(Rc<Quantity>),
    /// The name of a format.
    Format(&'static str),
    Optional(Option<Rc<Val<'a>>>),
    Access(Rc<AccessVal>),
}

#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Made(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Made(text) => text,
        }
    }
}

/// A list: of an object, with its schema, or made by an expression.
#[derive(Clone, Debug)]
pub(crate) enum Items<'a> {
    Tree(&'a [Value], Option<&'a Node>),
    /// A sum with a set or a list with keys is one, too: its schema.
    Made(Rc<Vec<Val<'a>>>, Option<&'a Node>),
}

impl<'a> Items<'a> {
    pub(crate) fn from_values(items: Vec<Val<'a>>) -> Self {
        Items::Made(Rc::new(items), None)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Items::Tree(items, _) => items.len(),
            Items::Made(items, _) => items.len(),
        }
    }

    /// The schema of a set or of a list with keys; `None` for another list.
    pub(crate) fn unordered(&self) -> Option<&'a Node> {
        let (Items::Tree(_, node) | Items::Made(_, node)) = self;
        node.filter(|node| node.list != ListType::Atomic)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Entries<'a> {
    Tree(&'a Map, Option<&'a Node>),
    Made(Rc<Vec<(Val<'a>, Val<'a>)>>),
}

impl Entries<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Entries::Tree(map, _) => map.len(),
            Entries::Made(entries) => entries.len(),
        }
    }
}

impl<'a> Val<'a> {
    pub(crate) fn text(text: impl Into<Rc<str>>) -> Self {
        Val::Text(Text::Made(text.into()))
    }

    pub(crate) fn list(items: Vec<Val<'a>>) -> Self {
        Val::List(Items::from_values(items))
    }

    pub(crate) fn optional(value: Option<Self>) -> Self {
        Val::Optional(value.map(Rc::new))
    }

    /// Elements or bytes; 1 for others.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Val::Text(text) => text.len() as u64,
            Val::Bytes(bytes) => bytes.len() as u64,
            Val::List(items) => items.len() as u64,
            Val::Map(entries) => entries.len() as u64,
            Val::Url(url) => url.text.len() as u64,
            Val::Access(access) => access.size(),
            _ => 1,
        }
    }

    /// What is read to count the elements: the bytes of a text, whose characters are counted; 1 for others.
    pub(crate) fn uncounted(&self) -> u64 {
        match self {
            Val::Text(text) => text.len() as u64,
            _ => 1,
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Val::Null => "null_type",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int",
            Val::Uint(_) => "uint",
            Val::Double(_) => "double",
            Val::Text(_) => "string",
            Val::Bytes(_) => "bytes",
            Val::Duration(_) => "google.protobuf.Duration",
            Val::Time(_) => "google.protobuf.Timestamp",
            Val::List(_) => "list",
            Val::Map(_) => "map",
            Val::Url(_) => "kubernetes.URL",
            Val::Type(_) => "type",
            Val::Ip(_) => "net.IP",
            Val::Cidr(_) => "net.CIDR",
            Val::Quantity(_) => "kubernetes.Quantity",
            Val::Format(_) => "kubernetes.NamedFormat",
            Val::Optional(_) => "optional_type",
            Val::Access(of) => of.access.name(),
        }
    }
}

/// The order of two scalars; `None` if they have none.
pub(crate) fn order(left: &Val<'_>, right: &Val<'_>) -> Option<Ordering> {
    match (left, right) {
        (Val::Bool(left), Val::Bool(right)) => Some(left.cmp(right)),
        (Val::Int(left), Val::Int(right)) => Some(left.cmp(right)),
        (Val::Uint(left), Val::Uint(right)) => Some(left.cmp(right)),
        (Val::Text(left), Val::Text(right)) => Some(left.deref().cmp(right.deref())),
        (Val::Bytes(left), Val::Bytes(right)) => Some(left.cmp(right)),
        (Val::Duration(left), Val::Duration(right)) => Some(left.cmp(right)),
        (Val::Time(left), Val::Time(right)) => Some(left.cmp(right)),
        (left, right) => number(left)?.partial_cmp(&number(right)?),
    }
}

fn number(value: &Val<'_>) -> Option<f64> {
    match value {
        Val::Int(number) => Some(*number as f64),
        Val::Uint(number) => Some(*number as f64),
        Val::Double(number) => Some(*number),
        _ => None,
    }
}
