//! Refreshes the volumes of a running pod when the objects that they are built from change.

use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_interfaces::{MountedVolumes, VolumeError};
use agent_pod::backoff::RetryStep;
use agent_pod::desired::{ConfigState, DesiredPod, Presence};
use agent_pod::events;
use agent_pod::observed::{ObservedImage, ObservedVolumes};
use agent_pod::plan::{Action, Plan, PodStage};
use proto_api::core::v1::Container;

use super::{OperationResult, Worker, name};
use crate::action_result::ActionResult;
use crate::in_flight::OperationKey;

/// Pause before a failed refresh is repeated, doubled with each further failure.
const REFRESH_RETRY: Duration = Duration::from_secs(2);
const REFRESH_RETRY_MAX: Duration = Duration::from_secs(60);

impl Worker {
    /// Marks the volumes stale after a change of their objects; an earlier failure does not delay
    /// the next refresh.
    pub(super) fn sources_changed(&mut self) {
        self.volumes_stale = true;
        let soon = clock::boot().saturating_add(REFRESH_RETRY);
        self.refresh_not_before = self.refresh_not_before.min(soon);
    }

    /// Refreshes volumes whose objects have changed or whose token is due. Returns when the next
    /// refresh is due.
    pub(super) fn refresh_volumes(&mut self, next: &Plan) -> Option<Duration> {
        let alive =
            matches!(next.stage, PodStage::Preparing | PodStage::Initializing | PodStage::Running);
        if !alive && self.seen.volumes == ObservedVolumes::Unverified {
            // A driver may never answer, and the pod no longer needs the volume.
            self.shared.volumes.give_up(&self.pod());
        }
        if !alive
            || self.seen.volumes != ObservedVolumes::Mounted
            || self.in_flight.has(&OperationKey::Volumes)
        {
            return None;
        }
        let now = clock::boot();
        let aged = self.mounted.refresh_at.is_some_and(|at| at <= now);
        if !self.volumes_stale && !aged {
            return self.mounted.refresh_at;
        }
        if now < self.refresh_not_before {
            return Some(self.refresh_not_before);
        }
        self.volumes_stale = false;
        let (shared, context) = (self.shared.clone(), self.action_context());
        self.spawn(OperationKey::Volumes, None, async move {
            OperationResult::Mounted(shared.volumes.set_up(&context.pod, &context.objects).await)
        });
        None
    }

    pub(super) fn volumes_set_up(
        &mut self,
        want: &DesiredPod,
        result: Result<MountedVolumes, VolumeError>,
    ) {
        match result {
            Ok(mounted) => {
                self.refresh_failures = 0;
                self.mounted = Arc::new(mounted);
                self.action_succeeded(
                    want,
                    &Action::MountVolumes,
                    ActionResult::Nothing,
                    Duration::ZERO,
                );
            }
            Err(failure) if self.seen.volumes == ObservedVolumes::Mounted => {
                // The volumes stay as they are after a failed refresh.
                tracing::warn!(pod = %name(&self.pod()), error = failure.message, "cannot refresh volumes; containers keep the previous content until a retry succeeds");
                self.report_failed_volumes(&failure);
                self.volumes_stale = true;
                let wait = REFRESH_RETRY
                    .saturating_mul(2_u32.saturating_pow(self.refresh_failures.min(8)));
                self.refresh_failures = self.refresh_failures.saturating_add(1);
                self.refresh_not_before = clock::boot().saturating_add(wait.min(REFRESH_RETRY_MAX));
            }
            Err(failure) => {
                let action = Action::MountVolumes;
                self.shared.step_failed(&self.pod(), &action, Duration::ZERO, &failure.message);
                self.action_failed(want, &action, "", &failure.message);
                // A pod being deleted no longer needs its volumes and may have released them.
                if want.presence == Presence::Present {
                    self.report_failed_volumes(&failure);
                }
            }
        }
    }

    fn report_failed_volumes(&self, failure: &VolumeError) {
        let event = events::volumes_failed(failure.step, &failure.message);
        self.shared.reports.event(&self.pod(), event);
    }

    /// Forgets pull failures of images that have been imported meanwhile.
    pub(super) fn forget_imported(&mut self) {
        let images = &self.shared.images;
        self.memory
            .troubles
            .retain(|t| !matches!(&t.step, RetryStep::Image(image) if images.is_imported(image)));
        self.seen.images.retain(|image, seen| {
            !(matches!(seen, ObservedImage::Absent { .. }) && images.is_imported(image))
        });
    }

    /// Whether all objects for a container's environment are known.
    pub(super) fn environment_state(&self, container: &Container) -> ConfigState {
        if !self.subscription.is_complete() {
            return ConfigState::Unknown;
        }
        match self.subscription.missing(&self.pod(), container) {
            None => ConfigState::Ready,
            Some(text) => ConfigState::Missing(text),
        }
    }
}
