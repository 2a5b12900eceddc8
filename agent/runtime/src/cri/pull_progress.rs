//! Content that containerd is currently fetching for images. CRI reports nothing about a pull before its end.

use containerd_client::services::v1::ListStatusesRequest;
use containerd_client::services::v1::content_client::ContentClient;
use tonic::transport::Channel;

use super::{CRI_NAMESPACE, READ, call};
use crate::import::in_namespace;
use crate::runtime::{ArrivingParts, RefusalKind, RuntimeError};

/// The content being fetched for all pulls together; zeros if the runtime is not containerd.
///
/// # Errors
/// containerd does not respond.
pub(crate) async fn read_progress(channel: Channel) -> Result<ArrivingParts, RuntimeError> {
    let mut client = ContentClient::new(channel);
    let ask = |request: tonic::Request<ListStatusesRequest>| async move {
        client.list_statuses(in_namespace(request.into_inner(), CRI_NAMESPACE)).await
    };
    let asked = call("ListStatuses", "", READ, ListStatusesRequest::default(), ask).await;
    let answer = match asked {
        Err(error) if error.kind() == Some(RefusalKind::Unimplemented) => {
            return Ok(ArrivingParts::default());
        }
        answer => answer?,
    };
    let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
    let add = |sum: ArrivingParts, part: (i64, i64)| ArrivingParts {
        parts: sum.parts.saturating_add(1),
        bytes: sum.bytes.saturating_add(bytes(part.0)),
        total: sum.total.saturating_add(bytes(part.1)),
    };
    let parts = answer.statuses.iter().map(|status| (status.offset, status.total));
    Ok(parts.fold(ArrivingParts::default(), add))
}
