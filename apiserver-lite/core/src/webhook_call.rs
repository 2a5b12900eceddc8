//! The call of a webhook at a URL or at a Service: where it goes, and what is said when there is no answer.

use std::time::Duration;

use bytes::Bytes;
use proto_client::ClientError;

use crate::server::Server;
use crate::service_endpoints::endpoints_of;
use crate::webhooks::{CallError, CallTarget, Remote};

/// Why there is no answer.
pub struct NoAnswer {
    /// For the client of the request.
    pub reason: String,
    /// Status code of the failure in metrics.
    pub code: i32,
}

/// Posts a review and gives the body of the answer.
///
/// # Errors
/// There is no answer within `time`, or none with a status below 300.
pub async fn post_review<W: CallTarget>(
    server: &Server,
    remote: &Remote<W>,
    review: Bytes,
    time: Duration,
) -> Result<Bytes, NoAnswer> {
    let post = |why: &str| format!("Post {:?}: {why}", remote.url(time));
    let address = match remote.service() {
        None => None,
        Some((namespace, name, port)) => {
            let found = endpoints_of(server, namespace, name, &port.to_string());
            let addresses = found.map_err(|error| {
                let missing = || format!("service {name:?} not found");
                let why = if error.is_not_found() { missing() } else { error.to_string() };
                NoAnswer { reason: post(&why), code: 503 }
            })?;
            remote.choose(addresses)
        }
    };
    remote.call(address, review, time).await.map_err(|error| {
        let reason = match &error {
            CallError::Client(ClientError::Api { status, .. }) if !status.message.is_empty() => {
                status.message.clone()
            }
            error => post(&error.text()),
        };
        NoAnswer { reason, code: error.code() }
    })
}
