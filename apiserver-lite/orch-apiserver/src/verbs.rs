//! The verbs of the API, over any kind. Each takes a [`RequestContext`] and returns a [`VerbResponse`]. No HTTP types: requests
//! arrive parsed (`crate::request`), responses are encoded by `crate::http`.

mod create;
mod delete;
mod options;
mod page;
mod patch;
mod propagate;
mod read;
mod selection;
mod update;
mod update_common;
mod watch;

use std::sync::Arc;

use apiserver_schema::list::ListMeta;
use apiserver_schema::{Kind, Object};

use crate::auth::User;
use crate::key;
use crate::record::StoredObject;
use crate::registry::versions;
use crate::request::{Accepted, Query, RequestInfo};
use crate::server::Server;
use crate::status::{About, ApiError};

pub use create::{create, create_object, random_suffix};
pub use delete::{about_deleted, delete, delete_collection, delete_object};
pub use options::{DeleteOptions, Effects, GRACE_SECS_MAX, Propagation};
pub use patch::patch;
pub use read::{get, list};
pub use selection::{Selection, labels_match};
pub use update::update;
pub use update_common::{
    CONFLICT_TRIES, UpdateAttempt, about_kind, commit_update, decode, decode_as, invalid,
    write_failed,
};
pub use watch::{Bookmarks, LENGTH_MAX, WatchStart, watch, watch_event};

/// An authorized request to a resource.
pub struct RequestContext<'a> {
    /// The server.
    pub server: &'a Server,
    /// Verb, resource, namespace and name; the same value that was authorized.
    pub request: &'a RequestInfo,
    /// Kind in the version in which the objects are stored.
    pub kind: Arc<Kind>,
    /// Kind in the version that the client requested; differs for a few resources.
    pub requested_version: Arc<Kind>,
    /// The authenticated (or impersonated) user.
    pub user: &'a User,
    /// Query parameters.
    pub query: &'a Query,
    /// The representation that the client accepts.
    pub accepted: Accepted,
}

/// The result of a verb.
pub enum VerbResponse {
    /// A stored object.
    Stored {
        /// HTTP status code.
        code: u16,
        /// The object.
        record: Arc<StoredObject>,
    },
    /// An object that is not in the store: the result of a dry run, or a virtual resource.
    Object {
        /// HTTP status code.
        code: u16,
        /// The object.
        object: Box<Object>,
    },
    /// A collection, or one page of it.
    List {
        /// Kind of the items.
        kind: Arc<Kind>,
        /// Revision, continue token and remaining count.
        meta: ListMeta,
        /// The items.
        items: Vec<Arc<StoredObject>>,
    },
    /// A stream of watch events.
    Watch(Box<WatchStart>),
    /// The object was removed; the response is a Status that names it.
    Deleted {
        /// The deleted object.
        record: Arc<StoredObject>,
    },
    /// Success without an object.
    Success {
        /// HTTP status code.
        code: u16,
    },
}

/// The result of a verb and the warnings for the client.
pub struct VerbOutput {
    /// The result.
    pub response: VerbResponse,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

impl VerbOutput {
    /// The output with its objects converted from `stored` to `shown`, the requested version of the kind.
    #[must_use]
    pub fn as_version(mut self, stored: &Arc<Kind>, shown: &Arc<Kind>) -> Self {
        if Arc::ptr_eq(stored, shown) {
            return self;
        }
        match &mut self.response {
            VerbResponse::Stored { record, .. } => *record = record.as_version(shown),
            VerbResponse::Object { object, .. } if Arc::ptr_eq(&object.kind, stored) => {
                **object = versions::convert(object, shown);
            }
            VerbResponse::List { kind, items, .. } => {
                kind.clone_from(shown);
                items.iter_mut().for_each(|record| *record = record.as_version(shown));
            }
            VerbResponse::Watch(start) => start.kind.clone_from(shown),
            VerbResponse::Object { .. }
            | VerbResponse::Deleted { .. }
            | VerbResponse::Success { .. } => {}
        }
        self
    }
}

impl From<VerbResponse> for VerbOutput {
    fn from(response: VerbResponse) -> Self {
        Self { response, warnings: Vec::new() }
    }
}

impl RequestContext<'_> {
    /// Group, resource and name for the `details` of a Status.
    #[must_use]
    pub fn about(&self) -> About<'_> {
        self.request.about()
    }

    /// The store's key of the requested object.
    #[must_use]
    pub fn key(&self) -> String {
        key::object(&self.kind, &self.request.namespace, &self.request.name)
    }

    /// The store's key prefix of the requested collection.
    #[must_use]
    pub fn prefix(&self) -> String {
        key::prefix(&self.kind, &self.request.namespace)
    }

    /// The current version of the requested object.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub fn current(&self) -> Result<Arc<StoredObject>, ApiError> {
        self.server
            .find(&self.kind, &self.request.namespace, &self.request.name)
            .ok_or_else(|| ApiError::not_found(self.about()))
    }

    /// Whether the request is a dry run; also checks `fieldManager`.
    ///
    /// # Errors
    /// 422 for an unknown `dryRun` or an invalid `fieldManager`.
    pub fn effects(&self) -> Result<Effects, ApiError> {
        options::check_field_manager(self.query)?;
        options::effects(self.query.all("dryRun"))
    }
}
