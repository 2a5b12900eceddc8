//! Why a command failed, in the words that scripts know from kubectl.

use std::error::Error as _;
use std::io;

use proto_api::meta::v1::Status;
use proto_client::ClientError;
use proto_client::transport::{DialError, TransportError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The server rejected the request, or could not be reached.
    #[error("{}", describe(.0))]
    Client(#[from] ClientError),
    /// Anything else; the text says what, to which object, why.
    #[error("error: {0}")]
    Said(String),
    /// As [`CommandError::Said`], printed as it is.
    #[error("{0}")]
    Plain(String),
    /// Each is printed on a line.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<CommandError>),
    /// A stream of the program broke.
    #[error("error: {0}")]
    Io(#[from] io::Error),
}

impl CommandError {
    /// An error with this text.
    pub fn with_text(text: impl Into<String>) -> Self {
        Self::Said(text.into())
    }

    /// Nothing, one error, or all of them. A closed pipe counts only where nothing else went wrong.
    ///
    /// # Errors
    /// When there is at least one.
    pub fn collect(errors: Vec<CommandError>) -> Result<(), CommandError> {
        let (mut closed, mut others): (Vec<_>, Vec<_>) =
            errors.into_iter().partition(Self::is_broken_pipe);
        match others.len() {
            0 => closed.pop().map_or(Ok(()), Err),
            1 => Err(others.remove(0)),
            _ => Err(Self::Several(others)),
        }
    }

    /// Whether the server said that there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Client(error) if error.is_not_found())
    }

    /// Whether there was no connection to the server.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Client(ClientError::Transport { .. }))
    }

    /// Whether the output is a closed pipe, which is not an error of the command.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What the program prints about a failed request.
fn describe(error: &ClientError) -> String {
    match error {
        ClientError::Api { status, .. } => describe_status(status),
        ClientError::Transport { cause, .. } => describe_transport(cause),
        ClientError::Deadline { .. } => {
            format!("Unable to connect to the server: {error} (deadline exceeded while waiting)")
        }
        other => format!("error: {}", proto_daemon::exit::chain(other)),
    }
}

fn describe_status(status: &Status) -> String {
    match status.reason.as_str() {
        "Unauthorized" => "error: You must be logged in to the server (Unauthorized)".to_owned(),
        "Invalid" => describe_invalid(status),
        "" => format!("Error from server: {}", status.message),
        "NotFound" if status.details.is_none() => {
            "Error from server (NotFound): the server could not find the requested resource"
                .to_owned()
        }
        reason => format!("Error from server ({reason}): {}", status.message),
    }
}

/// An object that violates rules: the rules, one a line if there are several.
fn describe_invalid(status: &Status) -> String {
    let Some(details) = &status.details else {
        return format!("The request is invalid: {}", status.message);
    };
    let head = match (details.kind.as_str(), details.name.as_str()) {
        ("", _) => return format!("The request is invalid: {}", status.message),
        (kind, "") => format!("The {kind} is invalid"),
        (kind, name) => format!("The {kind} \"{name}\" is invalid"),
    };
    let causes: Vec<String> = details
        .causes
        .iter()
        .map(|cause| match cause.field.as_str() {
            "" => cause.message.clone(),
            field => format!("{field}: {}", cause.message),
        })
        .collect();
    match causes.as_slice() {
        [] => format!("{head}: {}", status.message),
        [one] => format!("{head}: {one}"),
        several => format!("{head}: \n* {}", several.join("\n* ")),
    }
}

fn describe_transport(error: &TransportError) -> String {
    if let TransportError::Connect { server, cause } = error
        && let DialError::Tcp(cause) = cause.as_ref()
        && cause.kind() == io::ErrorKind::ConnectionRefused
    {
        return format!(
            "The connection to the server {server} was refused - did you specify the right host or port?"
        );
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    format!("Unable to connect to the server: {text}")
}

#[cfg(test)]
mod tests {
    use proto_api::meta::v1::{StatusCause, StatusDetails};

    use super::*;

    fn text(reason: &str, message: &str, details: Option<StatusDetails>) -> String {
        let status = Status {
            reason: reason.into(),
            message: message.into(),
            code: 400,
            details,
            ..Status::default()
        };
        CommandError::from(ClientError::Api {
            request: "GET /x".into(),
            status: Box::new(status),
            retry_after: None,
        })
        .to_string()
    }

    #[test]
    fn errors_of_the_server_read_as_scripts_expect() {
        let pods = || Some(StatusDetails { kind: "pods".into(), ..StatusDetails::default() });
        assert_eq!(
            text("NotFound", "pods \"x\" not found", pods()),
            "Error from server (NotFound): pods \"x\" not found"
        );
        assert_eq!(
            text("NotFound", "404 page not found", None),
            "Error from server (NotFound): the server could not find the requested resource"
        );
        assert_eq!(text("", "broken", None), "Error from server: broken");
    }

    #[test]
    fn violated_rules_are_listed() {
        let cause = |field: &str, message: &str| StatusCause {
            field: field.into(),
            message: message.into(),
            ..StatusCause::default()
        };
        let details = |causes| {
            Some(StatusDetails {
                kind: "Pod".into(),
                name: "a".into(),
                causes,
                ..StatusDetails::default()
            })
        };
        let one = details(vec![cause("spec.x", "Required value")]);
        assert_eq!(text("Invalid", "m", one), "The Pod \"a\" is invalid: spec.x: Required value");
        let two = details(vec![cause("a", "b"), cause("c", "d")]);
        assert_eq!(text("Invalid", "m", two), "The Pod \"a\" is invalid: \n* a: b\n* c: d");
    }

    #[test]
    fn several_errors_are_several_lines() {
        let errors = vec![CommandError::with_text("a"), CommandError::Plain("b".into())];
        let error = CommandError::collect(errors).expect_err("two errors");
        assert_eq!(error.to_string(), "error: a\nb");
        assert!(CommandError::collect(Vec::new()).is_ok());
        let closed = || CommandError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        let error = CommandError::collect(vec![closed(), CommandError::with_text("a"), closed()]);
        assert_eq!(error.expect_err("one error").to_string(), "error: a");
        let error = CommandError::collect(vec![closed(), closed()]).expect_err("a closed pipe");
        assert!(error.is_broken_pipe(), "{error}");
    }
}
