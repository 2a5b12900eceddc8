//! Errors of requests; each names its request.

use std::time::Duration;

use proto_api::meta::v1::Status;
use proto_api::object::DecodeObjectError;

use crate::transport::TransportError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with an error.
    #[error("{request}: {}", describe(.status))]
    Api {
        /// Method and path.
        request: String,
        /// The server's Status; `code` is always set.
        status: Box<Status>,
        /// How long to wait before a retry (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The server could not be reached, or the connection broke before the response.
    #[error("{request}: no response")]
    Transport {
        /// Method and path.
        request: String,
        /// Why.
        #[source]
        cause: TransportError,
    },
    /// The connection broke within the response.
    #[error("{request}: the connection ended within the response")]
    Read {
        /// Method and path.
        request: String,
        /// Why.
        #[source]
        cause: hyper::Error,
    },
    /// No complete response in time.
    #[error("{request}: no response within {} s", .deadline.as_secs())]
    Deadline {
        /// Method and path.
        request: String,
        /// The time given.
        deadline: Duration,
    },
    /// The response is longer than the limit.
    #[error("{request}: response is longer than {len_max} bytes")]
    TooLong {
        /// Method and path.
        request: String,
        /// The bound.
        len_max: usize,
    },
    /// The response cannot be decoded.
    #[error("{request}: cannot decode the response")]
    Decode {
        /// Method and path.
        request: String,
        /// What is wrong with it.
        #[source]
        cause: DecodeError,
    },
    /// The object cannot be written as a body.
    #[error("{request}: cannot encode the object")]
    Encode {
        /// Method and path.
        request: String,
        /// Why.
        #[source]
        cause: serde_json::Error,
    },
    /// The bearer token's file cannot be read.
    #[error("{request}: cannot read the token")]
    Token {
        /// Method and path.
        request: String,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

/// Why a response cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Its object is malformed, or of another kind.
    #[error(transparent)]
    Object(#[from] DecodeObjectError),
    /// It is not JSON.
    #[error("malformed JSON")]
    Json(#[from] serde_json::Error),
    /// It is not Protobuf.
    #[error("malformed Protobuf")]
    Protobuf(#[from] prost::DecodeError),
    /// Neither JSON nor Protobuf.
    #[error("unexpected content type {0:?}")]
    ContentType(String),
    /// A watch event without an object, or of a type that does not exist.
    #[error("watch event has an unknown type or no object: {0:?}")]
    WatchEvent(String),
    /// A watch event longer than the limit.
    #[error("watch event is longer than {0} bytes")]
    WatchEventTooLong(usize),
}

fn describe(status: &Status) -> String {
    match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("status {}", status.code),
        ("", reason) => format!("{reason} ({})", status.code),
        (message, _) => format!("{message} ({})", status.code),
    }
}

impl ClientError {
    /// The HTTP status, if there was a response.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { status, .. } => u16::try_from(status.code).ok(),
            _ => None,
        }
    }

    /// The machine-readable reason, for example `NotFound`; empty when there is none.
    pub fn reason(&self) -> &str {
        match self {
            Self::Api { status, .. } => &status.reason,
            _ => "",
        }
    }

    /// What the server said, without the request: for conditions and events, whose readers did not send it. The whole error where the
    /// server said nothing.
    pub fn server_message(&self) -> String {
        match self {
            Self::Api { status, .. } if !status.message.is_empty() => status.message.clone(),
            Self::Api { status, .. } => describe(status),
            _ => self.to_string(),
        }
    }

    /// The object, its kind or its namespace does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// An object of that name already exists.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    /// The object's uid or resource version is not the one of the request.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409) && !self.is_already_exists()
    }

    /// The version or the page has expired: list again.
    pub fn is_gone(&self) -> bool {
        self.code() == Some(410) || matches!(self.reason(), "Expired" | "Gone")
    }

    /// The identity may not do this.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether the same request may succeed later without a change. What the server
    /// refused for a reason stays refused.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Transport { .. }
            | Self::Read { .. }
            | Self::Deadline { .. }
            | Self::Token { .. } => true,
            Self::Api { status, .. } => matches!(status.code, 401 | 408 | 429 | 500..=599),
            Self::TooLong { .. } | Self::Decode { .. } | Self::Encode { .. } => false,
        }
    }

    /// The server's `Retry-After`, from the header or from `details.retryAfterSeconds` of the Status.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api { retry_after, status, .. } => retry_after.or_else(|| {
                let secs = status.details.as_ref()?.retry_after_seconds;
                u64::try_from(secs).ok().filter(|secs| *secs > 0).map(Duration::from_secs)
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: i32, reason: &str, message: &str) -> ClientError {
        let status =
            Status { code, reason: reason.into(), message: message.into(), ..Status::default() };
        ClientError::Api { request: "GET /x".into(), status: Box::new(status), retry_after: None }
    }

    #[test]
    fn errors_are_classified_by_status() {
        assert!(api(404, "NotFound", "").is_not_found());
        assert!(api(409, "Conflict", "").is_conflict());
        assert!(api(409, "AlreadyExists", "").is_already_exists());
        assert!(!api(409, "AlreadyExists", "").is_conflict());
        assert!(api(410, "Expired", "").is_gone());
        assert!(api(503, "ServiceUnavailable", "").is_retryable());
        assert!(!api(422, "Invalid", "").is_retryable());
    }

    #[test]
    fn the_text_has_the_request_and_what_the_server_said() {
        assert_eq!(
            api(404, "NotFound", "pods \"a\" not found").to_string(),
            "GET /x: pods \"a\" not found (404)"
        );
        assert_eq!(api(500, "", "").to_string(), "GET /x: status 500");
    }
}
