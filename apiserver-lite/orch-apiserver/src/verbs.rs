//! The verbs of the API, over any kind. Each takes a [`RequestContext`] and gives an [`VerbResponse`]; nothing here knows HTTP.

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

/// One authorized request to a resource.
pub struct RequestContext<'a> {
    /// The server.
    pub server: &'a Server,
    /// What is asked; the same value that was authorized.
    pub request: &'a RequestInfo,
    /// Kind under which the resource's objects are stored.
    pub kind: Arc<Kind>,
    /// Kind that the client knows them as: another version, for a few resources.
    pub requested_version: Arc<Kind>,
    /// Who asks.
    pub user: &'a User,
    /// Query parameters.
    pub query: &'a Query,
    /// What the client wants back.
    pub accepted: Accepted,
}

/// The outcome of a verb.
pub enum VerbResponse {
    /// A stored object.
    Stored {
        /// HTTP status code.
        code: u16,
        /// The object.
        record: Arc<StoredObject>,
    },
    /// An object that is not in the store: a dry run's, or a virtual resource's.
    Object {
        /// HTTP status code.
        code: u16,
        /// The object.
        object: Box<Object>,
    },
    /// A collection, or a chunk of one.
    List {
        /// Kind of the items.
        kind: Arc<Kind>,
        /// Revision and continuation.
        meta: ListMeta,
        /// The items.
        items: Vec<Arc<StoredObject>>,
    },
    /// A stream of changes.
    Watch(Box<WatchStart>),
    /// The object is gone; answered with a status that names it.
    Deleted {
        /// What was deleted.
        record: Arc<StoredObject>,
    },
    /// Success without an object.
    Success {
        /// HTTP status code.
        code: u16,
    },
}

/// An answer and what the client should be warned of.
pub struct VerbOutput {
    /// The answer.
    pub response: VerbResponse,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

impl VerbOutput {
    /// The outcome in the version of the kind that the client asked for.
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
    /// What statuses say the request is about: the resource.
    #[must_use]
    pub fn about(&self) -> About<'_> {
        self.request.about()
    }

    /// Key of the object that the request names.
    #[must_use]
    pub fn key(&self) -> String {
        key::object(&self.kind, &self.request.namespace, &self.request.name)
    }

    /// Key prefix of the collection that the request names.
    #[must_use]
    pub fn prefix(&self) -> String {
        key::prefix(&self.kind, &self.request.namespace)
    }

    /// The current version of the object that the request names.
    ///
    /// # Errors
    /// 404.
    pub fn current(&self) -> Result<Arc<StoredObject>, ApiError> {
        self.server
            .find(&self.kind, &self.request.namespace, &self.request.name)
            .ok_or_else(|| ApiError::not_found(self.about()))
    }

    /// What the request may do besides answering.
    ///
    /// # Errors
    /// 422 for an unknown `dryRun`, or a `fieldManager` that is none.
    pub fn effects(&self) -> Result<Effects, ApiError> {
        options::check_field_manager(self.query)?;
        options::effects(self.query.all("dryRun"))
    }
}
