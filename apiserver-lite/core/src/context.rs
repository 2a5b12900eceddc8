//! What a verb is called with: the request, the kind, the user and the server.

use std::sync::Arc;

use apiserver_audit::Trail;
use apiserver_schema::{Kind, Object};

use crate::conversion;
use crate::key;
use crate::options::{self, Effects};
use crate::record::StoredObject;
use crate::request::{Accepted, Query, RequestInfo};
use crate::request_notes::RequestNotes;
use crate::server::Server;
use crate::status::{ApiError, StatusTarget};
use crate::webhook_call::Asker;
use apiserver_auth::User;

/// An authorized request to a resource.
pub struct RequestContext<'a> {
    pub server: &'a Server,
    /// Verb, resource, namespace and name; the same value that was authorized.
    pub request: &'a RequestInfo,
    /// Kind in the version in which the objects are stored.
    pub kind: Arc<Kind>,
    /// Kind in the version that the client requested; differs for a few resources.
    pub requested_version: Arc<Kind>,
    /// The authenticated (or impersonated) user.
    pub user: &'a User,
    /// The header `User-Agent`: the manager of the fields that it writes, if the query names none.
    pub user_agent: &'a str,
    /// Query parameters.
    pub query: &'a Query,
    /// The representation that the client accepts.
    pub accepted: Accepted,
    /// What the steps of the request leave besides its result. Unset for the server's own writes, for which no webhook is called: they must succeed before
    /// anything else does.
    pub notes: Option<&'a RequestNotes>,
    /// What the audit log records of the request.
    pub audit: &'a Trail,
}

impl RequestContext<'_> {
    /// Whose request webhooks are asked about.
    #[must_use]
    pub fn asker(&self) -> Asker<'_> {
        Asker::new(self.server, &self.user.name)
    }

    /// Group, resource and name for the `details` of a Status.
    #[must_use]
    pub fn about(&self) -> StatusTarget<'_> {
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

    /// The requested object as it is stored.
    ///
    /// # Errors
    /// 404 if it does not exist, 500 if it cannot be decrypted.
    pub fn stored(&self) -> Result<Arc<StoredObject>, ApiError> {
        let found = self.server.find(&self.kind, &self.request.namespace, &self.request.name);
        let found = found.ok_or_else(|| ApiError::not_found(self.about()))?;
        found.check_readable()?;
        Ok(found)
    }

    /// The requested object; one of a custom kind in the version of the request.
    ///
    /// # Errors
    /// 404 if it does not exist, 500 if it cannot be decrypted or converted.
    pub async fn current(&self) -> Result<Arc<StoredObject>, ApiError> {
        self.show(self.stored()?).await
    }

    /// An object of the requested kind, if it exists; one of a custom kind in the version of the request.
    ///
    /// # Errors
    /// 500 if it cannot be converted.
    pub async fn find(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<StoredObject>>, ApiError> {
        match self.server.find(&self.kind, namespace, name) {
            Some(found) => self.show(found).await.map(Some),
            None => Ok(None),
        }
    }

    async fn show(&self, record: Arc<StoredObject>) -> Result<Arc<StoredObject>, ApiError> {
        match self.kind.custom() {
            Some(_) => conversion::show_one(self.asker(), &self.kind, record).await,
            None => Ok(record),
        }
    }

    /// Whether the request is a dry run; also checks `fieldManager`.
    ///
    /// # Errors
    /// 422 for an unknown `dryRun` or an invalid `fieldManager`.
    pub(crate) fn effects(&self) -> Result<Effects, ApiError> {
        options::check_field_manager(self.query)?;
        options::effects(self.query.all("dryRun"))
    }
}

/// Group, kind and name of an object, for Statuses that name the kind.
#[must_use]
pub(crate) fn about_kind(object: &Object) -> StatusTarget<'_> {
    StatusTarget { group: &object.kind.group, kind: object.kind.kind(), name: object.name() }
}
