//! What follows when an action has completed or failed: the observed state, the record, events and logs.

use std::time::Duration;

use agent_clock as clock;
use agent_pod::desired::DesiredPod;
use agent_pod::events;
use agent_pod::plan::Action;

use super::{Worker, name};
use crate::action_result::ActionFailure;
use crate::action_result::{self, ActionResult, step};

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
                self.mark_uncertain(action, result.shows_state());
                self.action_succeeded(want, action, result, took);
            }
            Err(failure) => {
                self.shared.step_failed(&self.pod(), action, took, &failure.message);
                let told = failure.result.shows_state();
                if let ActionResult::Instance(instance) = failure.result {
                    action_result::update_instance(&mut self.seen, *instance);
                }
                if let Action::RunPostStart { container, id } = action {
                    // Already reported as an event; the instance is stopped because of it.
                    self.memory.record_post_start(container, id, false);
                    return;
                }
                if let Action::CreateContainer { container, .. } = action {
                    // The image may have been removed meanwhile: it is inspected again.
                    if let Some(c) = want.container(container) {
                        self.seen.images.remove(&c.image);
                    }
                }
                self.mark_uncertain(action, told);
                self.action_failed(want, action, failure.reason, &failure.message);
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
        action_result::apply(&mut self.seen, &mut self.memory, action, result);
        self.shared.step_done(&pod, action, took);
        tracing::debug!(pod = %name(&pod), ?action, ?took, "action completed");
        self.forgotten |= *action == Action::Forget;
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
        self.memory.record_failure(step(action), reason, message, clock::boot());
        if let Action::CreateSandbox { attempt } = action {
            self.memory.record_spoilt_sandbox(*attempt);
        }
    }
}
