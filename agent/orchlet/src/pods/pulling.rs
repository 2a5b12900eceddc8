//! A pod's image is pulled; while that takes long its users are told how far it is.

use std::time::Duration;

use agent_pod::desired::container_of;
use agent_pod::events;
use agent_pod::observed::ImageSeen;
use agent_runtime::runtime::Arrivals;
use proto_api::core::v1::Pod;

use super::act::{Failure, warn};
use super::action_context::Scene;
use super::action_result::Effect;
use super::pod_context::Parts;
use crate::images::{self, PullError};

/// How long a pull takes before something is said of it; then twice as long each time.
const SAID_AFTER: Duration = Duration::from_secs(15);
/// Longest time between two words.
const SAID_EVERY_MAX: Duration = Duration::from_secs(480);

/// The image that is there meanwhile without a registry, imported by an operator, unless it is to be pulled always.
async fn imported(parts: &Parts, scene: &Scene, image: &str, container: &str) -> Option<String> {
    let always =
        container_of(&scene.pod, container).is_some_and(|c| c.image_pull_policy == "Always");
    if always || !parts.images.is_imported(image) {
        return None;
    }
    parts.runtime.image(image).await.ok()?.map(|image| image.id)
}

/// Pulls the image of a container.
pub(super) async fn pull(
    parts: &Parts,
    scene: &Scene,
    image: &str,
    container: &str,
) -> Result<Effect, Failure> {
    if let Some(id) = imported(parts, scene, image, container).await {
        return Ok(Effect::Image(ImageSeen::Present { id }));
    }
    let missing = images::missing_secrets(&scene.pod, &scene.sources);
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        warn(parts, &scene.pod, "FailedToRetrieveImagePullSecret", message);
    }
    let pull = parts.images.pull(image, &scene.pod, &scene.sources);
    let pulled = watched(parts, &scene.pod, (image, container), SAID_AFTER, pull).await;
    let id = pulled.map_err(|e| Failure::new(e.reason, e.message))?;
    Ok(Effect::Image(ImageSeen::Present { id }))
}

/// Waits for a pull; from `said_after` on says how far it is.
pub async fn watched(
    parts: &Parts,
    pod: &Pod,
    (image, container): (&str, &str),
    said_after: Duration,
    pull: impl Future<Output = Result<String, PullError>>,
) -> Result<String, PullError> {
    tokio::pin!(pull);
    let (mut waited, mut pause) = (Duration::ZERO, said_after);
    loop {
        // Cancel safe: the pull goes on where it is.
        tokio::select! {
            biased;
            pulled = &mut pull => return pulled,
            () = tokio::time::sleep(pause) => {}
        }
        waited = waited.saturating_add(pause);
        pause = waited.min(SAID_EVERY_MAX);
        // A runtime that does not say is asked again next time.
        let arrivals = parts.runtime.arrivals().await.unwrap_or_default();
        let message = progress(image, waited, arrivals, parts.images.pulls());
        parts.reports.event(pod, events::pull_goes_on(pod, container, message));
    }
}

/// How far a pull is. The runtime tells of all pulls together. Pure.
fn progress(image: &str, waited: Duration, arrivals: Arrivals, pulls: usize) -> String {
    let begin = format!("Pulling image {image:?} for {} s", waited.as_secs());
    if arrivals.parts == 0 {
        return format!(
            "{begin}: nothing is on its way; it waits for its turn or the registry, or is being unpacked"
        );
    }
    let mib =
        |bytes: u64| format!("{}.{}", bytes >> 20, (bytes & 0xf_ffff).saturating_mul(10) >> 20);
    let of = if pulls > 1 { format!(", of {pulls} images together") } else { String::new() };
    let Arrivals { parts, bytes, total } = arrivals;
    format!("{begin}: {} of {} MiB have come of {parts} layers{of}", mib(bytes), mib(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_pull() {
        let said = |arrivals, pulls| progress("a:1", Duration::from_secs(30), arrivals, pulls);
        let arrivals = Arrivals { parts: 2, bytes: (3 << 20) + (1 << 19), total: 10 << 20 };
        let begin = "Pulling image \"a:1\" for 30 s: ";
        assert_eq!(said(arrivals, 1), format!("{begin}3.5 of 10.0 MiB have come of 2 layers"));
        assert!(said(arrivals, 3).ends_with("of 2 layers, of 3 images together"));
        assert!(said(Arrivals::default(), 1).starts_with(&format!("{begin}nothing is on its way")));
    }
}
