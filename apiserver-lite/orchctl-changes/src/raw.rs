//! `--raw`: a request to any path of the server, with a file as its body; the answer is printed as it is.

use std::process::ExitCode;

use bytes::Bytes;
use http::Request;
use orchctl_client::manifests::{self, FileFlags};
use orchctl_client::{CommandError, Output, Session, check_raw_path};

use crate::results::ResultFlags;

/// Whether a request of this kind needs a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Without one it would say nothing.
    Required,
    /// It may have one.
    Optional,
}

/// The body of the request: the one file that is named, or standard input.
///
/// # Errors
/// When flags do not go together with `--raw`, or the file cannot be read.
pub fn read_body(
    path: &str,
    files: &FileFlags,
    body: Body,
    output: &mut Output,
) -> Result<Bytes, CommandError> {
    let wrong = |text: &str| Err(CommandError::with_text(text));
    check_raw_path(path)?;
    if files.recursive {
        return wrong("--raw and --recursive are mutually exclusive");
    }
    match files.filename.as_slice() {
        [] if body == Body::Optional => Ok(Bytes::new()),
        [name] if name.starts_with("http://") || name.starts_with("https://") => {
            wrong("--raw cannot read from a url")
        }
        [name] => manifests::read_bytes(name, output),
        _ => wrong("--raw can only use a single local file or stdin"),
    }
}

/// Refuses flags about what is printed: the answer need not be an object.
///
/// # Errors
/// When there are some.
pub fn check_results(results: &ResultFlags) -> Result<(), CommandError> {
    match results.print.text() {
        Some(_) => Err(CommandError::with_text("--raw and --output are mutually exclusive")),
        None => Ok(()),
    }
}

/// Sends the request, and prints the answer.
///
/// # Errors
/// The server refuses, or cannot be reached.
pub async fn send(
    session: &Session,
    request: Request<Bytes>,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let answer = session.call(request).await?;
    output.out.write_all(&answer.body)?;
    Ok(ExitCode::SUCCESS)
}
