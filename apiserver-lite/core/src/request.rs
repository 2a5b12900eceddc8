//! A parsed request, without HTTP types: verb, resource, query and accepted representation. `http` makes it, `verbs`,
//! `admission` and `registry` read it.

mod query;
mod representation;

use crate::status::StatusTarget;
use apiserver_auth::AccessTarget;

pub use query::Query;
pub use representation::{Accepted, Encoding, MetaVersion, Representation};

/// Largest request body, in bytes.
pub const BODY_LEN_MAX: usize = 3 << 20;

/// A request to a resource (`RequestInfo` in kube-apiserver).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    pub verb: Verb,
    /// API group of the path, domain included; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace; empty for cluster-scoped resources and requests across all namespaces.
    pub namespace: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Subresource; empty for none.
    pub subresource: String,
    /// Object name; empty for collections.
    pub name: String,
    /// The path behind the subresource `proxy`, or behind any of another API server, with its leading slash if there is one.
    pub rest: String,
}

impl RequestInfo {
    /// The request's resource for authorizers.
    #[must_use]
    pub fn subject(&self) -> AccessTarget<'_> {
        self.subject_named(None)
    }

    /// The request's resource for authorizers, with the name of the only object that a collection's selector matches.
    #[must_use]
    pub fn subject_named<'a>(&'a self, selected: Option<&'a str>) -> AccessTarget<'a> {
        AccessTarget::Resource {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: selected.unwrap_or(&self.name),
        }
    }

    /// Group, resource and name for the details of a Status.
    #[must_use]
    pub fn about(&self) -> StatusTarget<'_> {
        StatusTarget { group: &self.group, kind: &self.resource, name: &self.name }
    }
}

/// Verb of a resource request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Watch a collection or an object.
    Watch,
    /// Create an object, or post to a subresource such as `eviction`.
    Create,
    /// Replace an object.
    Update,
    /// Patch an object.
    Patch,
    /// Delete an object.
    Delete,
    /// Delete the objects of a collection.
    DeleteCollection,
}

impl Verb {
    /// The verb in lower case, as in authorization and discovery.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}
