//! What follows when an action has completed or failed: the pod's state, events and logs.

use std::time::Duration;

use agent_clock as clock;
use agent_interfaces::{MountedVolumes, VolumeError};
use agent_pod::desired::{DesiredPod, Presence};
use agent_pod::events;
use agent_pod::observed::ObservedVolumes;
use agent_pod::plan::Action;

use super::{Worker, name};
use crate::action_result::{ActionFailure, ActionResult};

impl Worker {
    pub(super) fn action_done(
        &mut self,
        want: &DesiredPod,
        action: &Action,
        result: Result<ActionResult, ActionFailure>,
        took: Duration,
    ) {
        match result {
            Ok(result) => {
                self.state.mark_uncertain(action, result.shows_state());
                self.action_succeeded(want, action, result, took);
            }
            Err(failure) => {
                self.shared.step_failed(&self.pod(), action, took, &failure.message);
                let (reason, message) = (failure.reason, failure.message.clone());
                if self.state.apply_failure(want, action, failure) {
                    self.action_failed(want, action, reason, &message);
                }
            }
        }
    }

    pub(super) fn action_succeeded(
        &mut self,
        want: &DesiredPod,
        action: &Action,
        result: ActionResult,
        took: Duration,
    ) {
        let pod = self.pod();
        if let Action::CreateContainer { container, .. } = action {
            self.report_present_image(want, container);
        }
        if let Some(event) =
            events::action_succeeded(want, action, &proto_daemon::go_duration::format(took))
        {
            self.shared.reports.event(&pod, event);
        }
        self.state.action_succeeded(action, result);
        self.shared.step_done(&pod, action, took);
        tracing::debug!(pod = %name(&pod), ?action, ?took, "action completed");
    }

    pub(super) fn action_failed(
        &mut self,
        want: &DesiredPod,
        action: &Action,
        reason: &str,
        message: &str,
    ) {
        let pod = self.pod();
        tracing::warn!(pod = %name(&pod), ?action, error = message, "action failed; it is planned again after its back-off");
        if let Some(event) = events::action_failed(want, action, reason, message) {
            self.shared.reports.event(&pod, event);
        }
        self.state.action_failed(action, reason, message, clock::boot());
    }

    pub(super) fn volumes_set_up(
        &mut self,
        want: &DesiredPod,
        result: Result<MountedVolumes, VolumeError>,
    ) {
        let action = Action::MountVolumes;
        match result {
            Ok(mounted) => {
                self.volumes.record_mounted(mounted);
                self.action_succeeded(want, &action, ActionResult::Nothing, Duration::ZERO);
            }
            Err(failure) if self.state.seen.volumes == ObservedVolumes::Mounted => {
                // The volumes stay as they are after a failed refresh.
                tracing::warn!(pod = %name(&self.pod()), error = failure.message, "cannot refresh volumes; containers keep the previous content until a retry succeeds");
                self.report_failed_volumes(&failure);
                self.volumes.record_failed(clock::boot());
            }
            Err(failure) => {
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

    fn report_present_image(&self, want: &DesiredPod, container: &str) {
        let Some(container) = want.container(container) else { return };
        let known = self.state.memory.containers.get(&container.name);
        let pulled = known.is_some_and(|m| m.has_pulled(&container.image));
        if !pulled {
            let event = events::image_present(want, &container.name, &container.image);
            self.shared.reports.event(&self.pod(), event);
        }
    }
}
