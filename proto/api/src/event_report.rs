//! An event as a component reports it, and the reference to the object that it is about.

use std::borrow::Cow;

use crate::core::v1::ObjectReference;
use crate::names::Names;
use crate::object::Resource;

/// Normal or Warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// Information.
    Normal,
    /// A problem.
    Warning,
}

impl EventKind {
    /// The value of the field `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event as a component reports it, before correlation.
#[derive(Clone, Debug, PartialEq)]
pub struct EventReport {
    /// The object.
    pub about: ObjectReference,
    /// Normal or Warning.
    pub kind: EventKind,
    /// One word that programs match.
    pub reason: Cow<'static, str>,
    /// A sentence for people.
    pub message: String,
}

/// The reference to an object that an event is about.
pub fn reference<T: Resource>(object: &T, names: &Names) -> ObjectReference {
    let metadata = object.metadata();
    ObjectReference {
        api_version: names.api_version(T::GROUP, T::VERSION),
        kind: T::KIND.to_owned(),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: String::new(),
    }
}
