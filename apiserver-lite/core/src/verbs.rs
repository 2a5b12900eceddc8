//! The verbs of the API, over any kind. Each takes a [`RequestContext`](crate::context::RequestContext) and returns a
//! [`VerbResponse`].

mod apply;
mod create;
mod delete;
mod initial_objects;
mod ownership;
mod page;
mod patch;
mod propagate;
mod quotas;
mod read;
mod selection;
mod update;
mod update_common;
mod watch;

use std::sync::Arc;

use apiserver_schema::list::ListMeta;
use apiserver_schema::{Kind, Object};

use crate::conversion;
use crate::record::StoredObject;
use crate::status::ApiError;
use crate::versions;
use crate::webhook_call::Asker;

pub use apply::apply;
pub(crate) use apply::check_identity;
pub use create::{create, create_object};
pub(crate) use delete::check_preconditions;
pub use delete::{about_deleted, delete, delete_collection, delete_object};
pub use initial_objects::InitialObjects;
pub(crate) use ownership::{AppliedTree, Owners, apply_scale};
pub use patch::patch;
pub(crate) use patch::{patch_error, patched_error};
pub use read::{be_current, get, list};
pub use selection::{Selection, labels_match};
pub(crate) use update::check_uid;
pub use update::update;
pub use update_common::{
    CONFLICT_TRIES, UpdateAttempt, commit_update, decode, decode_as, invalid, write_failed,
};
pub(crate) use update_common::{commit_owned, object_error, strictness};
pub use watch::{Bookmarks, LENGTH_MAX, WatchStart, watch, watch_event};

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
        object: Box<Object>,
    },
    /// A collection, or one page of it.
    List {
        /// Kind of the items.
        kind: Arc<Kind>,
        /// Revision, continue token and remaining count.
        meta: ListMeta,
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
    ///
    /// # Errors
    /// 500 if an object cannot be converted.
    pub async fn as_version(
        mut self,
        asker: Asker<'_>,
        stored: &Arc<Kind>,
        shown: &Arc<Kind>,
    ) -> Result<Self, ApiError> {
        if Arc::ptr_eq(stored, shown) && shown.custom().is_none() {
            return Ok(self);
        }
        match &mut self.response {
            VerbResponse::Stored { record, .. } => {
                conversion::show(asker, shown, std::slice::from_mut(record)).await?;
            }
            VerbResponse::Object { object, .. } if Arc::ptr_eq(&object.kind, stored) => {
                **object = versions::convert(object, shown);
            }
            VerbResponse::List { kind, items, .. } => {
                kind.clone_from(shown);
                conversion::show(asker, shown, items).await?;
            }
            VerbResponse::Watch(start) => start.kind.clone_from(shown),
            VerbResponse::Object { .. }
            | VerbResponse::Deleted { .. }
            | VerbResponse::Success { .. } => {}
        }
        Ok(self)
    }
}

impl From<VerbResponse> for VerbOutput {
    fn from(response: VerbResponse) -> Self {
        Self { response, warnings: Vec::new() }
    }
}
