//! Pulls a container's image; the progress of a slow pull is reported as events.

use agent_images::{PROGRESS_AFTER, missing_secrets};
use agent_pod::desired::find_container;
use agent_pod::events;
use agent_pod::observed::ObservedImage;

use super::action_context::ActionContext;
use super::action_result::{ActionFailure, ActionResult};
use super::pod_context::PodContext;

/// The id of the image if it was put on the node since it was missed, by whatever means, unless the pull policy is `Always`.
async fn find_present(
    shared: &PodContext,
    context: &ActionContext,
    image: &str,
    container: &str,
) -> Option<String> {
    let always =
        find_container(&context.pod, container).is_some_and(|c| c.image_pull_policy == "Always");
    if always {
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
    if let Some(id) = find_present(shared, context, image, container).await {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use agent_interfaces::testing::{Api, FakeHost};
    use agent_journal::Journal;
    use agent_pod::desired::PodSource;
    use agent_runtime::fake::FakeRuntime;
    use proto_api::core::v1::{Container, Pod};
    use tokio::sync::watch;

    use super::*;
    use crate::test_support::{TestContextParts, pod_context};

    /// What a pull of `image:1` gives with a pull policy, and the events about it.
    async fn pull_with(
        runtime: FakeRuntime,
        policy: &str,
    ) -> (Result<ActionResult, ActionFailure>, Vec<(String, String)>) {
        let dir = tempfile::tempdir().expect("tempdir");
        let (journal, _) = Journal::open(&dir.path().join("journal.redb"), "boot").expect("open");
        let api = Arc::<Api>::default();
        let shared = pod_context(TestContextParts {
            dir: dir.path(),
            runtime: Arc::new(runtime),
            reports: api.clone(),
            host: Arc::<FakeHost>::default(),
            journal,
        });
        let mut pod = Pod::default();
        let image_pull_policy = policy.to_owned();
        pod.spec.containers =
            vec![Container { name: "c".into(), image_pull_policy, ..Container::default() }];
        let context = ActionContext {
            pod: Arc::new(pod),
            source: PodSource::Api,
            objects: Arc::default(),
            services: Vec::new(),
            mounted: Arc::default(),
            pod_ips: Vec::new(),
            running: BTreeMap::new(),
            ending: watch::channel(None).1,
        };
        let pulled = pull(&shared, &context, "image:1", "c").await;
        let events = api.events.lock().expect("lock");
        assert!(events.iter().all(|event| event.reason == "Pulling"), "{events:?}");
        let shown = |event: &events::PodEvent| (event.field_path.clone(), event.message.clone());
        (pulled, events.iter().map(shown).collect())
    }

    /// The messages of events about a pull of this duration, and where they point.
    async fn events_of_pull(take: Duration) -> Vec<(String, String)> {
        let (runtime, _happened) = FakeRuntime::new();
        runtime.offer_image("image:1");
        runtime.slow_pulls(take);
        let (pulled, events) = pull_with(runtime, "").await;
        let Ok(ActionResult::Image(ObservedImage::Present { id })) = pulled else {
            panic!("{pulled:?}");
        };
        assert_eq!(id, "sha256:image:1");
        events
    }

    #[tokio::test]
    async fn an_image_that_was_loaded_meanwhile_is_not_pulled() {
        for policy in ["IfNotPresent", ""] {
            let (runtime, _happened) = FakeRuntime::new();
            // No registry has it.
            runtime.add_image("image:1");
            let (pulled, _) = pull_with(runtime, policy).await;
            assert!(
                matches!(&pulled, Ok(ActionResult::Image(ObservedImage::Present { .. }))),
                "{policy}: {pulled:?}"
            );
        }
        let (runtime, _happened) = FakeRuntime::new();
        runtime.add_image("image:1");
        let (pulled, _) = pull_with(runtime, "Always").await;
        assert!(pulled.is_err(), "{pulled:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_progress_of_a_slow_pull_is_reported_as_events() {
        assert_eq!(events_of_pull(Duration::from_secs(14)).await, []);
        let events = events_of_pull(Duration::from_secs(40)).await;
        let event = |secs: u32| {
            let message = format!(
                "Pulling image \"image:1\" for {secs} s: no data in transit; the pull is queued, waits for the registry or unpacks"
            );
            ("spec.containers{c}".to_owned(), message)
        };
        assert_eq!(events, [event(15), event(30)]);
    }
}
