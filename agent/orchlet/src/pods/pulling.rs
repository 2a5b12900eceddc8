//! Pulls a container's image; the progress of a slow pull is reported as events.

use std::time::Duration;

use agent_pod::desired::find_container;
use agent_pod::events;
use agent_pod::observed::ObservedImage;
use agent_runtime::runtime::ArrivingParts;
use proto_api::core::v1::Pod;

use super::act::{ActionFailure, warn};
use super::action_context::ActionContext;
use super::action_result::ActionResult;
use super::pod_context::PodContext;
use crate::images::{self, PullError};

/// Time until the first progress event, doubled for each further one.
const PROGRESS_AFTER: Duration = Duration::from_secs(15);
/// Longest time between progress events.
const PROGRESS_INTERVAL_MAX: Duration = Duration::from_secs(480);

/// The id of the image if an operator has imported it meanwhile, unless the pull policy is
/// `Always`.
async fn find_imported(
    shared: &PodContext,
    context: &ActionContext,
    image: &str,
    container: &str,
) -> Option<String> {
    let always =
        find_container(&context.pod, container).is_some_and(|c| c.image_pull_policy == "Always");
    if always || !shared.images.is_imported(image) {
        return None;
    }
    shared.runtime.image(image).await.ok()?.map(|image| image.id)
}

pub(super) async fn pull(
    shared: &PodContext,
    context: &ActionContext,
    image: &str,
    container: &str,
) -> Result<ActionResult, ActionFailure> {
    if let Some(id) = find_imported(shared, context, image, container).await {
        return Ok(ActionResult::Image(ObservedImage::Present { id }));
    }
    let missing = images::missing_secrets(&context.pod, &context.objects);
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        warn(shared, &context.pod, "FailedToRetrieveImagePullSecret", message);
    }
    let pull = shared.images.pull(image, &context.pod, &context.objects);
    let pulled =
        with_progress_events(shared, &context.pod, (image, container), PROGRESS_AFTER, pull).await;
    let id = pulled.map_err(|e| ActionFailure::new(e.reason, e.message))?;
    Ok(ActionResult::Image(ObservedImage::Present { id }))
}

/// Awaits a pull; after `progress_after` reports its progress.
pub async fn with_progress_events(
    shared: &PodContext,
    pod: &Pod,
    (image, container): (&str, &str),
    progress_after: Duration,
    pull: impl Future<Output = Result<String, PullError>>,
) -> Result<String, PullError> {
    tokio::pin!(pull);
    let (mut waited, mut pause) = (Duration::ZERO, progress_after);
    loop {
        // Cancel safe: the pull is polled again.
        tokio::select! {
            biased;
            pulled = &mut pull => return pulled,
            () = tokio::time::sleep(pause) => {}
        }
        waited = waited.saturating_add(pause);
        pause = waited.min(PROGRESS_INTERVAL_MAX);
        // If the runtime does not report, the next event asks again.
        let arrivals = shared.runtime.pull_progress().await.unwrap_or_default();
        let message = progress_message(image, waited, arrivals, shared.images.pulls());
        shared.reports.event(pod, events::pull_progress(pod, container, message));
    }
}

/// The progress of a pull as a message. The runtime reports all pulls together. Pure.
fn progress_message(
    image: &str,
    waited: Duration,
    arrivals: ArrivingParts,
    pulls: usize,
) -> String {
    let begin = format!("Pulling image {image:?} for {} s", waited.as_secs());
    if arrivals.parts == 0 {
        return format!(
            "{begin}: no data in transit; the pull is queued, waits for the registry or unpacks"
        );
    }
    let mib =
        |bytes: u64| format!("{}.{}", bytes >> 20, (bytes & 0xf_ffff).saturating_mul(10) >> 20);
    let of = if pulls > 1 { format!(", of {pulls} images being pulled") } else { String::new() };
    let ArrivingParts { parts, bytes, total } = arrivals;
    format!("{begin}: {} of {} MiB received of {parts} layers{of}", mib(bytes), mib(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_pull() {
        let said =
            |arrivals, pulls| progress_message("a:1", Duration::from_secs(30), arrivals, pulls);
        let arrivals = ArrivingParts { parts: 2, bytes: (3 << 20) + (1 << 19), total: 10 << 20 };
        let begin = "Pulling image \"a:1\" for 30 s: ";
        assert_eq!(said(arrivals, 1), format!("{begin}3.5 of 10.0 MiB received of 2 layers"));
        assert!(said(arrivals, 3).ends_with("of 2 layers, of 3 images being pulled"));
        assert!(
            said(ArrivingParts::default(), 1).starts_with(&format!("{begin}no data in transit"))
        );
    }
}
