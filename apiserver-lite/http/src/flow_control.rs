//! Priority and fairness of one request: the flow schema that takes it, its seat, and the headers that name both.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use apiserver_auth::User;
use apiserver_core::flow_control::{ClassifiedRequest, FlowControl, HeldSeat};
use apiserver_core::request::{Query, Verb};
use apiserver_core::status::ApiError;
use apiserver_flow_control::{DigestTarget, RequestDigest};
use http::{HeaderName, Response};
use proto_api::names::Names;
use proto_daemon::connections::OpenRequest;
use proto_daemon::go_duration;

use crate::body::ResponseBody;
use crate::labels::RequestKind;
use crate::overload::{Overload, too_many};
use crate::routes::RequestTarget;

/// Longest wait for a seat: as in Kubernetes a quarter of the time that a request has, which is a minute or less (`?timeout=`).
const WAIT_MAX: Duration = Duration::from_secs(15);

/// Priority and fairness of the requests of a server.
pub struct RequestFlows {
    control: Arc<FlowControl>,
    /// Of the flow schema and its level.
    headers: [HeaderName; 2],
}

impl RequestFlows {
    /// `names` are those of the headers.
    #[must_use]
    pub fn new(names: &Names, control: Arc<FlowControl>) -> Self {
        let header = |what: &str, otherwise| {
            HeaderName::try_from(names.flow_control_header(what))
                .unwrap_or(HeaderName::from_static(otherwise))
        };
        let headers = [
            header("FlowSchema", "flow-schema-uid"),
            header("PriorityLevel", "priority-level-uid"),
        ];
        Self { control, headers }
    }

    /// The configuration, with its seats.
    #[must_use]
    pub fn control(&self) -> Arc<FlowControl> {
        self.control.clone()
    }

    /// What takes a request. Of streams only the start of watches is counted.
    pub fn classify(
        &self,
        kind: RequestKind,
        target: &RequestTarget,
        user: &User,
        method: &str,
    ) -> Option<ClassifiedRequest> {
        let (verb, about) = match target {
            RequestTarget::NonResource(path) => (method, DigestTarget::Path(path)),
            RequestTarget::Resource(request) => {
                if kind == RequestKind::LongRunning && request.verb != Verb::Watch {
                    return None;
                }
                let about = DigestTarget::Resource {
                    group: &request.group,
                    resource: &request.resource,
                    subresource: &request.subresource,
                    namespace: &request.namespace,
                };
                (request.verb.as_str(), about)
            }
        };
        let request = RequestDigest { user: &user.name, groups: &user.groups, verb, target: about };
        Some(self.control.classify(&request))
    }

    /// Names what took a request in its response.
    pub fn add_flow_headers(
        &self,
        classified: &ClassifiedRequest,
        response: &mut Response<ResponseBody>,
    ) {
        for (header, uid) in self.headers.iter().zip(classified.uids()) {
            if let Some(uid) = uid {
                response.headers_mut().insert(header.clone(), uid);
            }
        }
    }
}

/// A seat for a request, once one is free. No client deadline runs meanwhile.
///
/// # Errors
/// 429 if it cannot wait, or waits too long.
pub async fn seat(
    overload: &Overload,
    user: &User,
    classified: Option<&ClassifiedRequest>,
    request: Option<&OpenRequest>,
    query: &Query,
) -> Result<Option<HeldSeat>, ApiError> {
    let Some(classified) = classified else { return Ok(None) };
    let mut seat = pin!(classified.seat(wait_max(query)));
    let taken = match futures_util::poll!(&mut seat) {
        Poll::Ready(taken) => taken,
        Poll::Pending => {
            let _share = overload.share_of_waiting(user)?;
            let _waits = request.map(OpenRequest::wait);
            seat.await
        }
    };
    taken.map(Some).map_err(|_| too_many())
}

fn wait_max(query: &Query) -> Duration {
    let time = query.text("timeout").and_then(|text| go_duration::parse(text).ok());
    time.map_or(WAIT_MAX, |time| WAIT_MAX.min(time / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_a_quarter_of_its_time_and_not_for_longer_than_the_server_says() {
        for (query, expected) in [
            ("", 15_000),
            ("timeout=10s", 2_500),
            ("timeout=60s", 15_000),
            ("timeout=1h", 15_000),
            ("timeout=0s", 0),
            ("timeout=-1s", 15_000),
            ("timeout=soon", 15_000),
        ] {
            let wait = wait_max(&Query::parse(query));
            assert_eq!(wait, Duration::from_millis(expected), "{query}");
        }
    }
}
