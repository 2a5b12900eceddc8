//! Errors of the API: a [`Status`] for each reason, with the code and message that clients of Kubernetes match.
//!
//! Groups are full names here (`coordination.orch.io`), as they appear in messages.

use crate::meta::v1::{Status, StatusCause, StatusDetails};
use std::fmt;

/// The reason of a failure; each has an HTTP status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// 401: the client is not authenticated.
    Unauthorized,
    /// 403: the client is not allowed.
    Forbidden,
    /// 404.
    NotFound,
    /// 409: an object of this name exists.
    AlreadyExists,
    /// 409: the object has changed since it was read.
    Conflict,
    /// 410: it no longer exists.
    Gone,
    /// 422: the object breaks a rule; the causes name the fields.
    Invalid,
    /// 500: try again later.
    ServerTimeout,
    /// 504: not completed within the requested time; it may still complete.
    Timeout,
    /// 429: try again after the given time.
    TooManyRequests,
    /// 400: the request is invalid.
    BadRequest,
    /// 405: the resource has no such verb.
    MethodNotAllowed,
    /// 406: no media type that the client accepts.
    NotAcceptable,
    /// 413: the body is too large.
    RequestEntityTooLarge,
    /// 415: a body of an unknown media type.
    UnsupportedMediaType,
    /// 500: an internal error.
    InternalError,
    /// 410: the requested revision has been compacted; list again.
    Expired,
    /// 503: the server is not ready.
    ServiceUnavailable,
}

impl Reason {
    const ALL: [Reason; 18] = [
        Reason::Unauthorized,
        Reason::Forbidden,
        Reason::NotFound,
        Reason::AlreadyExists,
        Reason::Conflict,
        Reason::Gone,
        Reason::Invalid,
        Reason::ServerTimeout,
        Reason::Timeout,
        Reason::TooManyRequests,
        Reason::BadRequest,
        Reason::MethodNotAllowed,
        Reason::NotAcceptable,
        Reason::RequestEntityTooLarge,
        Reason::UnsupportedMediaType,
        Reason::InternalError,
        Reason::Expired,
        Reason::ServiceUnavailable,
    ];

    /// The HTTP status code.
    pub fn code(self) -> u16 {
        match self {
            Reason::BadRequest => 400,
            Reason::Unauthorized => 401,
            Reason::Forbidden => 403,
            Reason::NotFound => 404,
            Reason::MethodNotAllowed => 405,
            Reason::NotAcceptable => 406,
            Reason::AlreadyExists | Reason::Conflict => 409,
            Reason::Gone | Reason::Expired => 410,
            Reason::RequestEntityTooLarge => 413,
            Reason::UnsupportedMediaType => 415,
            Reason::Invalid => 422,
            Reason::TooManyRequests => 429,
            Reason::InternalError | Reason::ServerTimeout => 500,
            Reason::ServiceUnavailable => 503,
            Reason::Timeout => 504,
        }
    }

    /// The word in [`Status::reason`].
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Unauthorized => "Unauthorized",
            Reason::Forbidden => "Forbidden",
            Reason::NotFound => "NotFound",
            Reason::AlreadyExists => "AlreadyExists",
            Reason::Conflict => "Conflict",
            Reason::Gone => "Gone",
            Reason::Invalid => "Invalid",
            Reason::ServerTimeout => "ServerTimeout",
            Reason::Timeout => "Timeout",
            Reason::TooManyRequests => "TooManyRequests",
            Reason::BadRequest => "BadRequest",
            Reason::MethodNotAllowed => "MethodNotAllowed",
            Reason::NotAcceptable => "NotAcceptable",
            Reason::RequestEntityTooLarge => "RequestEntityTooLarge",
            Reason::UnsupportedMediaType => "UnsupportedMediaType",
            Reason::InternalError => "InternalError",
            Reason::Expired => "Expired",
            Reason::ServiceUnavailable => "ServiceUnavailable",
        }
    }

    /// The reason with this word.
    pub fn parse(word: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A resource in messages: `pods`, `deployments.apps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupResource<'a> {
    /// The full name of the group; empty for core.
    pub group: &'a str,
    /// The plural name, or the kind in messages about kinds.
    pub resource: &'a str,
}

impl fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => f.write_str(self.resource),
            group => write!(f, "{}.{group}", self.resource),
        }
    }
}

impl Status {
    /// A failure with only a message.
    pub fn failure(reason: Reason, message: impl Into<String>) -> Status {
        Status {
            status: "Failure".to_owned(),
            message: message.into(),
            reason: reason.as_str().to_owned(),
            code: i32::from(reason.code()),
            ..Status::default()
        }
    }

    /// A success without an object.
    pub fn success() -> Status {
        Status { status: "Success".to_owned(), code: 200, ..Status::default() }
    }

    /// `pods "web" not found`.
    pub fn not_found(of: GroupResource<'_>, name: &str) -> Status {
        let message = format!("{of} {name:?} not found");
        Status::failure(Reason::NotFound, message).about(of, name)
    }

    /// `pods "web" already exists`.
    pub fn already_exists(of: GroupResource<'_>, name: &str) -> Status {
        let message = format!("{of} {name:?} already exists");
        Status::failure(Reason::AlreadyExists, message).about(of, name)
    }

    /// A generated name exists; the client may retry at once.
    pub fn generate_name_conflict(of: GroupResource<'_>, name: &str) -> Status {
        let message = format!(
            "{of} {name:?} already exists, the server was not able to generate a unique name for \
             the object"
        );
        Status::failure(Reason::AlreadyExists, message).about(of, name).retry_after(1)
    }

    /// `Operation cannot be fulfilled on pods "web": ` and why.
    pub fn conflict(of: GroupResource<'_>, name: &str, why: &str) -> Status {
        let message = format!("Operation cannot be fulfilled on {of} {name:?}: {why}");
        Status::failure(Reason::Conflict, message).about(of, name)
    }

    /// The conflict of an update whose `resourceVersion` is not the current one.
    pub fn modified(of: GroupResource<'_>, name: &str) -> Status {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Status::conflict(of, name, why)
    }

    /// `pods "web" is forbidden: ` and why; the name may be empty.
    pub fn forbidden(of: GroupResource<'_>, name: &str, why: &str) -> Status {
        let message = match (of.resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{of} is forbidden: {why}"),
            _ => format!("{of} {name:?} is forbidden: {why}"),
        };
        Status::failure(Reason::Forbidden, message).about(of, name)
    }

    /// The Status of a 401 response.
    pub fn unauthorized() -> Status {
        Status::failure(Reason::Unauthorized, "Unauthorized")
    }

    /// `Pod "web" is invalid: ` and the causes; `of` names the kind.
    pub fn invalid(of: GroupResource<'_>, name: &str, causes: Vec<StatusCause>) -> Status {
        let texts: Vec<String> = causes.iter().map(cause_text).collect();
        let all = match &texts[..] {
            [] => String::new(),
            [one] => format!(": {one}"),
            many => format!(": [{}]", many.join(", ")),
        };
        let message = format!("{of} {name:?} is invalid{all}");
        let mut status = Status::failure(Reason::Invalid, message).about(of, name);
        status.details.get_or_insert_default().causes = causes;
        status
    }

    /// The given message.
    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::failure(Reason::BadRequest, message)
    }

    /// `patch is not supported on resources of kind "pods"`.
    pub fn method_not_supported(of: GroupResource<'_>, action: &str) -> Status {
        let kind = of.to_string();
        let message = format!("{action} is not supported on resources of kind {kind:?}");
        Status::failure(Reason::MethodNotAllowed, message).about(of, "")
    }

    /// Lists the supported media types.
    pub fn not_acceptable(accepted: &[&str]) -> Status {
        let types = accepted.join(", ");
        let message = format!("only the following media types are accepted: {types}");
        Status::failure(Reason::NotAcceptable, message)
    }

    /// Lists the supported media types.
    pub fn unsupported_media_type(accepted: &[&str]) -> Status {
        let types = accepted.join(", ");
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             {types}"
        );
        Status::failure(Reason::UnsupportedMediaType, message)
    }

    /// `Request entity too large: ` and the limit.
    pub fn request_entity_too_large(limit_bytes: usize) -> Status {
        let message = format!("Request entity too large: limit is {limit_bytes}");
        Status::failure(Reason::RequestEntityTooLarge, message)
    }

    /// The requested revision has been compacted.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::failure(Reason::Expired, message)
    }

    /// The given message, and after how many seconds to retry.
    pub fn too_many_requests(message: impl Into<String>, retry_after_secs: i32) -> Status {
        Status::failure(Reason::TooManyRequests, message).retry_after(retry_after_secs)
    }

    /// `Timeout: ` and the message.
    pub fn timeout(message: &str, retry_after_secs: i32) -> Status {
        let message = format!("Timeout: {message}");
        Status::failure(Reason::Timeout, message).retry_after(retry_after_secs)
    }

    /// `The list operation against pods could not be completed at this time, please try again.`
    pub fn server_timeout(of: GroupResource<'_>, operation: &str, retry_after_secs: i32) -> Status {
        let message = format!(
            "The {operation} operation against {of} could not be completed at this time, please \
             try again."
        );
        Status::failure(Reason::ServerTimeout, message).about(of, "").retry_after(retry_after_secs)
    }

    /// The given message; the server is not ready.
    pub fn service_unavailable(message: impl Into<String>) -> Status {
        Status::failure(Reason::ServiceUnavailable, message)
    }

    /// `Internal error occurred: ` and what.
    pub fn internal_error(what: &str) -> Status {
        let message = format!("Internal error occurred: {what}");
        let mut status = Status::failure(Reason::InternalError, message);
        let cause = StatusCause { message: what.to_owned(), ..StatusCause::default() };
        status.details.get_or_insert_default().causes = vec![cause];
        status
    }

    /// The reason, if it is known.
    pub fn known_reason(&self) -> Option<Reason> {
        Reason::parse(&self.reason)
    }

    /// Whether it failed for this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.reason == reason.as_str()
    }

    /// After how many seconds to try again, if it says so.
    pub fn retry_after_secs(&self) -> Option<i32> {
        self.details.as_ref().map(|d| d.retry_after_seconds).filter(|secs| *secs > 0)
    }

    fn about(mut self, of: GroupResource<'_>, name: &str) -> Status {
        self.details = Some(StatusDetails {
            name: name.to_owned(),
            group: of.group.to_owned(),
            kind: of.resource.to_owned(),
            ..StatusDetails::default()
        });
        self
    }

    fn retry_after(mut self, secs: i32) -> Status {
        self.details.get_or_insert_default().retry_after_seconds = secs;
        self
    }
}

fn cause_text(cause: &StatusCause) -> String {
    match cause.field.as_str() {
        "" => cause.message.clone(),
        field => format!("{field}: {}", cause.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: GroupResource = GroupResource { group: "", resource: "pods" };
    const DEPLOYMENTS: GroupResource = GroupResource { group: "apps", resource: "deployments" };

    #[test]
    fn messages_and_codes() {
        let cases = [
            (Status::not_found(PODS, "web"), 404, r#"pods "web" not found"#),
            (Status::not_found(DEPLOYMENTS, "web"), 404, r#"deployments.apps "web" not found"#),
            (Status::already_exists(PODS, "web"), 409, r#"pods "web" already exists"#),
            (
                Status::modified(PODS, "web"),
                409,
                r#"Operation cannot be fulfilled on pods "web": the object has been modified; please apply your changes to the latest version and try again"#,
            ),
            (Status::forbidden(PODS, "", "no"), 403, "pods is forbidden: no"),
            (Status::forbidden(PODS, "web", "no"), 403, r#"pods "web" is forbidden: no"#),
            (Status::unauthorized(), 401, "Unauthorized"),
            (
                Status::method_not_supported(DEPLOYMENTS, "patch"),
                405,
                r#"patch is not supported on resources of kind "deployments.apps""#,
            ),
            (Status::timeout("slow", 2), 504, "Timeout: slow"),
            (Status::internal_error("disk"), 500, "Internal error occurred: disk"),
            (
                Status::request_entity_too_large(3_145_728),
                413,
                "Request entity too large: limit is 3145728",
            ),
        ];
        for (status, code, message) in cases {
            assert_eq!((status.code, status.message.as_str()), (code, message));
            assert_eq!(status.status, "Failure");
            assert_eq!(i32::from(status.known_reason().unwrap().code()), status.code);
        }
    }

    #[test]
    fn invalid_lists_its_causes() {
        let cause = |field: &str, message: &str| StatusCause {
            reason: "FieldValueRequired".to_owned(),
            message: message.to_owned(),
            field: field.to_owned(),
        };
        let kind = GroupResource { group: "", resource: "Pod" };
        let one = Status::invalid(kind, "web", vec![cause("spec.containers", "Required value")]);
        assert_eq!(one.message, r#"Pod "web" is invalid: spec.containers: Required value"#);
        assert_eq!(one.details.unwrap().causes.len(), 1);
        let two = vec![cause("a", "Required value"), cause("b", "Required value")];
        let two = Status::invalid(kind, "web", two);
        assert_eq!(two.message, r#"Pod "web" is invalid: [a: Required value, b: Required value]"#);
    }

    #[test]
    fn every_reason_is_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::parse("Other"), None);
        assert_eq!(Status::too_many_requests("wait", 7).retry_after_secs(), Some(7));
    }
}
