//! API errors: [`ApiError`] wraps a `Status` with Kubernetes' codes, reasons and messages. Every Status of a failed request is
//! made here.

use proto_api::meta::v1::{Status, StatusCause, StatusDetails};
use proto_api::status::{GroupResource, Reason};

/// The `Status` of a failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    status: Box<Status>,
    source: ErrorSource,
}

/// Who has made an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorSource {
    Server,
    /// An admission webhook chose code and reason: they say nothing about the store.
    Webhook,
}

/// The object or resource of a Status: `pods "web-1"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusTarget<'a> {
    /// API group; empty for the core.
    pub group: &'a str,
    /// Plural resource, or the kind where Kubernetes puts the kind (validation errors).
    pub kind: &'a str,
    /// Object name; empty for collections.
    pub name: &'a str,
}

/// One cause of a 422: a field and why it is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// Machine-readable reason such as `FieldValueInvalid`.
    pub reason: String,
    /// Message without the field's path.
    pub message: String,
    /// Path such as `spec.ports[0].nodePort`.
    pub field: String,
}

impl FieldProblem {
    /// `Invalid value`: `field` holds `value`, and `detail` says what is wrong.
    pub fn invalid(field: impl Into<String>, value: impl std::fmt::Display, detail: &str) -> Self {
        Self {
            reason: "FieldValueInvalid".to_owned(),
            message: format!("Invalid value: {value}: {detail}"),
            field: field.into(),
        }
    }

    /// `Forbidden`: `field` may not be set, as `detail` explains.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self {
            reason: "FieldValueForbidden".to_owned(),
            message: format!("Forbidden: {detail}"),
            field: field.into(),
        }
    }

    /// `Required value`: `field` is missing; `detail` may be empty.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        Self { reason: "FieldValueRequired".to_owned(), message, field: field.into() }
    }
}

impl ApiError {
    /// A Status with this code and reason, for failures without a constructor of their own.
    pub fn new(code: i32, reason: &str, message: impl Into<String>) -> Self {
        let status = Status {
            code,
            reason: reason.to_owned(),
            ..Status::failure(Reason::InternalError, message)
        };
        status.into()
    }

    /// 400 `BadRequest`.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Status::bad_request(message).into()
    }

    /// 401 `Unauthorized`.
    #[must_use]
    pub fn unauthorized() -> Self {
        Status::unauthorized().into()
    }

    /// 403: `pods "x" is forbidden: why`.
    #[must_use]
    pub fn forbidden(about: StatusTarget<'_>, why: &str) -> Self {
        Status::forbidden(about.resource(), about.name, why).into()
    }

    /// 403 for a create in a namespace that is being deleted.
    #[must_use]
    pub(crate) fn namespace_terminating(
        about: StatusTarget<'_>,
        why: &str,
        namespace: &str,
    ) -> Self {
        Self::forbidden(about, why).because(StatusCause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        })
    }

    /// 404: `pods "x" not found`.
    #[must_use]
    pub fn not_found(about: StatusTarget<'_>) -> Self {
        Status::not_found(about.resource(), about.name).into()
    }

    /// 404 for a path that no resource or page is served at.
    #[must_use]
    pub fn no_such_resource() -> Self {
        Status::failure(Reason::NotFound, "the server could not find the requested resource").into()
    }

    /// 405 `MethodNotAllowed`.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        let text = "the server does not allow this method on the requested resource";
        Status::failure(Reason::MethodNotAllowed, text).into()
    }

    /// 405 for a create of a kind whose definition is being deleted.
    #[must_use]
    pub fn definition_ends() -> Self {
        let text = "create not allowed while custom resource definition is terminating";
        Status::failure(Reason::MethodNotAllowed, text).into()
    }

    /// 406 `NotAcceptable`, listing the served media types.
    #[must_use]
    pub fn not_acceptable(protobuf: &str) -> Self {
        Status::not_acceptable(&["application/json", "application/yaml", protobuf]).into()
    }

    /// 406 `NotAcceptable` for a kind that is not served in Protobuf.
    #[must_use]
    pub fn no_protobuf() -> Self {
        Status::not_acceptable(&["application/json", "application/yaml"]).into()
    }

    /// 408 `Timeout`: the client did not send its request in time.
    #[must_use]
    pub fn request_timeout(message: &str) -> Self {
        Self::new(408, "Timeout", message)
    }

    /// 409 `AlreadyExists`.
    #[must_use]
    pub(crate) fn already_exists(about: StatusTarget<'_>) -> Self {
        Status::already_exists(about.resource(), about.name).into()
    }

    /// 409 `Conflict`: `Operation cannot be fulfilled on pods "x": why`.
    #[must_use]
    pub(crate) fn conflict(about: StatusTarget<'_>, why: &str) -> Self {
        Status::conflict(about.resource(), about.name, why).into()
    }

    /// 409 `Conflict`: a field of the object's metadata is not what the request requires.
    #[must_use]
    pub(crate) fn precondition_failed(
        about: StatusTarget<'_>,
        field: &str,
        wanted: &str,
        found: &str,
    ) -> Self {
        let why = format!(
            "Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
        );
        Self::conflict(about, &why)
    }

    /// 409 `Conflict`: the object was modified after the client read it.
    #[must_use]
    pub fn modified(about: StatusTarget<'_>) -> Self {
        Status::modified(about.resource(), about.name).into()
    }

    /// 410 `Expired`: the requested revision is compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Status::expired(message).into()
    }

    /// 413 `RequestEntityTooLarge`.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        Status::request_entity_too_large(limit).into()
    }

    /// 415 `UnsupportedMediaType`, listing the supported media types.
    #[must_use]
    pub fn unsupported_media_type(served: &[&str]) -> Self {
        Status::unsupported_media_type(served).into()
    }

    /// 422 `Invalid`: `Pod "x" is invalid: field: problem`; `about.kind` is the kind, not the resource.
    #[must_use]
    pub fn invalid(about: StatusTarget<'_>, problems: &[FieldProblem]) -> Self {
        let causes = problems.iter().map(|problem| StatusCause {
            reason: problem.reason.clone(),
            message: problem.message.clone(),
            field: problem.field.clone(),
        });
        Status::invalid(about.resource(), about.name, causes.collect()).into()
    }

    /// 429 `TooManyRequests` with a `Retry-After` of `seconds`.
    pub fn too_many_requests(message: impl Into<String>, seconds: i32) -> Self {
        Status::too_many_requests(message, seconds).into()
    }

    /// 429 of an eviction that a disruption budget forbids, with a `Retry-After` of `retry_secs` if it is not 0.
    pub(crate) fn disruption_budget(detail: impl Into<String>, retry_secs: i32) -> Self {
        let text = "Cannot evict pod as it would violate the pod's disruption budget.";
        let reason = "DisruptionBudget".to_owned();
        let cause = StatusCause { reason, message: detail.into(), ..StatusCause::default() };
        let status = match retry_secs {
            0 => Status::failure(Reason::TooManyRequests, text),
            seconds => Status::too_many_requests(text, seconds),
        };
        Self::from(status).because(cause)
    }

    /// 500 `InternalError`.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Status::internal_error(&message.to_string()).into()
    }

    /// 503 `ServiceUnavailable`.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Status::service_unavailable(message).into()
    }

    /// 504 `Timeout`: the requested revision is newer than the current one.
    #[must_use]
    pub(crate) fn revision_too_large(asked: u64, current: u64) -> Self {
        let text = format!("Too large resource version: {asked}, current: {current}");
        let mut error = Self::from(Status::failure(Reason::Timeout, text)).because(StatusCause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            ..StatusCause::default()
        });
        error.status.details.get_or_insert_default().retry_after_seconds = 1;
        error
    }

    /// With another cause.
    #[must_use]
    pub(crate) fn because(mut self, cause: StatusCause) -> Self {
        self.status.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// The denial of an admission webhook, which goes to the client as it is.
    #[must_use]
    pub(crate) fn denied(status: Status) -> Self {
        Self { status: Box::new(status), source: ErrorSource::Webhook }
    }

    /// Whether this server says that an object of the name exists.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.is_of_server(409) && self.status.reason == "AlreadyExists"
    }

    /// Whether this server says that the object has changed, or is not the one that was meant.
    #[must_use]
    pub(crate) fn is_conflict(&self) -> bool {
        self.is_of_server(409) && self.status.reason == "Conflict"
    }

    /// Whether this server says that the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is_of_server(404)
    }

    fn is_of_server(&self, code: u16) -> bool {
        self.source == ErrorSource::Server && self.code() == code
    }

    /// HTTP status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        u16::try_from(self.status.code).unwrap_or(500)
    }

    /// The Status that the client receives.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Value of `Retry-After`, if the Status has one.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<i32> {
        self.status.retry_after_secs()
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.status.message)
    }
}

impl std::error::Error for ApiError {}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        Self { status: Box::new(status), source: ErrorSource::Server }
    }
}

impl<'a> StatusTarget<'a> {
    fn resource(self) -> GroupResource<'a> {
        GroupResource { group: self.group, resource: self.kind }
    }
}

/// The Status of a successful request without an object in its response. `about` and `uid` become its `details`.
#[must_use]
pub fn success(code: u16, about: StatusTarget<'_>, uid: &str) -> Status {
    let details = StatusDetails {
        name: about.name.to_owned(),
        group: about.group.to_owned(),
        kind: about.kind.to_owned(),
        uid: uid.to_owned(),
        ..StatusDetails::default()
    };
    let details = (!about.kind.is_empty()).then_some(details);
    Status { code: i32::from(code), details, ..Status::success() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_messages_are_those_of_kubernetes() {
        let pod = StatusTarget { group: "", kind: "pods", name: "x" };
        let deployment = StatusTarget { group: "apps", kind: "deployments", name: "d" };
        assert_eq!(ApiError::not_found(pod).to_string(), "pods \"x\" not found");
        assert_eq!(
            ApiError::already_exists(deployment).to_string(),
            "deployments.apps \"d\" already exists"
        );
        assert_eq!(
            ApiError::modified(pod).to_string(),
            "Operation cannot be fulfilled on pods \"x\": the object has been modified; please apply your changes to the latest version and try again"
        );
        let late = ApiError::revision_too_large(9, 3);
        assert_eq!((late.code(), late.retry_after_seconds()), (504, Some(1)));
    }

    #[test]
    fn statuses_from_webhooks_are_not_taken_for_those_of_the_store() {
        let pod = StatusTarget { group: "", kind: "pods", name: "x" };
        let questions =
            [ApiError::is_not_found, ApiError::is_already_exists, ApiError::is_conflict];
        let made =
            [ApiError::not_found(pod), ApiError::already_exists(pod), ApiError::modified(pod)];
        for (at, error) in made.into_iter().enumerate() {
            let denial = ApiError::denied(error.status().clone());
            for (asked, question) in questions.iter().enumerate() {
                assert_eq!((question(&error), question(&denial)), (asked == at, false), "{error}");
            }
        }
    }

    #[test]
    fn invalid_lists_every_field() {
        let about = StatusTarget { group: "", kind: "Pod", name: "x" };
        let one = [FieldProblem::required("spec.containers", "")];
        assert_eq!(
            ApiError::invalid(about, &one).to_string(),
            "Pod \"x\" is invalid: spec.containers: Required value"
        );
        let two = [one[0].clone(), FieldProblem::invalid("a", "1", "no")];
        let error = ApiError::invalid(about, &two);
        assert_eq!(
            error.to_string(),
            "Pod \"x\" is invalid: [spec.containers: Required value, a: Invalid value: 1: no]"
        );
        assert_eq!(error.status().details.as_ref().unwrap().causes.len(), 2);
    }
}
