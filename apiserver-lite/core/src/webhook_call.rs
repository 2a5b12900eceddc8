//! The call of a webhook at a URL or at a Service: where it goes, and what is said when there is no answer.

use std::time::Duration;

use apiserver_auth::share_name;
use bytes::Bytes;
use proto_client::ClientError;

use crate::server::Server;
use crate::service_endpoints::endpoints_of;
use crate::status::ApiError;
use crate::webhooks::{CallError, CallTarget, Remote};

/// Whose request a webhook is asked about, and of which server.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    pub(crate) server: &'a Server,
    /// Under this name calls are counted: no user has more than a share of those of a webhook.
    user: &'a str,
}

impl<'a> Asker<'a> {
    /// For a request of this user.
    #[must_use]
    pub fn new(server: &'a Server, user: &'a str) -> Self {
        Self { server, user: share_name(user, server.names.system_namespace()) }
    }
}

/// Why there is no answer.
pub(crate) enum NoAnswer {
    /// The call failed.
    Failed {
        /// For the client of the request.
        reason: String,
        /// Status code of the failure in metrics.
        code: i32,
    },
    /// The user has too many calls of the webhook that have not ended: the request is refused with this 429, whatever is to
    /// become of requests whose webhook fails. A user who makes a webhook slow does not get past it.
    TooMany(ApiError),
}

/// Posts a review and gives the body of the answer.
///
/// # Errors
/// There is no answer within `time`, or none with a status below 300.
pub(crate) async fn ask<W: CallTarget>(
    asker: Asker<'_>,
    remote: &Remote<W>,
    review: Bytes,
    time: Duration,
) -> Result<Bytes, NoAnswer> {
    let post = |why: &str| format!("Post {:?}: {why}", remote.url(time));
    let address = match remote.service() {
        None => None,
        Some((namespace, name, port)) => {
            let found = endpoints_of(asker.server, namespace, name, &port.to_string());
            let addresses = found.map_err(|error| {
                let missing = || format!("service {name:?} not found");
                let why = if error.is_not_found() { missing() } else { error.to_string() };
                NoAnswer::Failed { reason: post(&why), code: 503 }
            })?;
            remote.choose(addresses)
        }
    };
    remote.call(asker.user, address, review, time).await.map_err(|error| {
        let reason = match &error {
            CallError::BusyForUser => {
                return NoAnswer::TooMany(ApiError::too_many_requests(post(&error.text()), 1));
            }
            CallError::Client(ClientError::Api { status, .. }) if !status.message.is_empty() => {
                status.message.clone()
            }
            error => post(&error.text()),
        };
        NoAnswer::Failed { reason, code: error.code() }
    })
}
