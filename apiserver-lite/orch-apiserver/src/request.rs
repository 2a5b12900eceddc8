//! A parsed request, without HTTP types: verb, resource, query and accepted representation. `http` makes it, `verbs`,
//! `admission` and `registry` read it.

mod accepted;
mod query;

use crate::auth::Subject;
use crate::status::About;

pub use accepted::{Accepted, Encoding, MetaVersion, Representation};
pub use query::{Query, decode as decode_percent};

/// Largest request body, in bytes.
pub const BODY_LEN_MAX: usize = 3 << 20;

/// A request to a resource, as authorizers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// What is to be done.
    pub verb: Verb,
    /// API group as it stands in the path; empty for the core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace; empty for cluster-scoped resources and collections of all namespaces.
    pub namespace: String,
    /// Resource in the plural.
    pub resource: String,
    /// Subresource; empty for none.
    pub subresource: String,
    /// Object name; empty for collections.
    pub name: String,
    /// What follows the subresource `proxy`, with its leading slash as far as there is one.
    pub rest: String,
}

impl RequestInfo {
    /// What authorizers decide about.
    #[must_use]
    pub fn subject(&self) -> Subject<'_> {
        Subject::Resource {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    /// What statuses name.
    #[must_use]
    pub fn about(&self) -> About<'_> {
        About { group: &self.group, kind: &self.resource, name: &self.name }
    }
}

/// Verbs of resource requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Follow a collection.
    Watch,
    /// Make an object, or use a subresource that acts.
    Create,
    /// Replace an object.
    Update,
    /// Change an object.
    Patch,
    /// Remove an object.
    Delete,
    /// Remove a collection's objects.
    DeleteCollection,
}

impl Verb {
    /// As authorizers and discovery spell it.
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
