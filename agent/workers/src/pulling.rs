//! Pulls a container's image; the progress of a slow pull is reported as events.

use agent_images::{PROGRESS_AFTER, missing_secrets};
use agent_pod::desired::find_container;
use agent_pod::events;
use agent_pod::observed::ObservedImage;

use super::action_context::ActionContext;
use super::action_result::{ActionFailure, ActionResult};
use super::pod_context::PodContext;

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
    let missing = missing_secrets(&context.pod, &context.objects);
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        shared.warn(&context.pod, "FailedToRetrieveImagePullSecret", message);
    }
    let report = |message| {
        shared.reports.event(&context.pod, events::pull_progress(&context.pod, container, message));
    };
    let pull = shared.images.pull(image, &context.pod, &context.objects);
    let pulled = shared.images.report_progress(image, PROGRESS_AFTER, pull, report).await;
    let id = pulled.map_err(|e| ActionFailure::new(e.reason, e.message))?;
    Ok(ActionResult::Image(ObservedImage::Present { id }))
}
