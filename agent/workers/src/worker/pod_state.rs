//! What a pod's task knows of its pod and has decided about it. Pure: the time is an argument, and
//! nothing here calls the runtime, the journal or the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_pod::desired::DesiredPod;
use agent_pod::lifecycle;
use agent_pod::observed::{InstanceState, Now, ObservedContainer, ObservedPod, ObservedVolumes};
use agent_pod::plan::{Action, Plan};
use agent_pod::record::PodRecord;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::runtime::PodOnNode;

use crate::action_result::{self, ActionFailure, ActionResult, step};

/// Pause before a failed relist is repeated.
const RELIST_RETRY: Duration = Duration::from_secs(1);

/// The state from which a pod is planned.
pub struct PodState {
    /// What there is of the pod on the node.
    pub seen: ObservedPod,
    /// What a restart must not forget.
    pub memory: PodRecord,
    /// Whether nothing of the pod is left.
    pub forgotten: bool,
    /// Counts changes of the runtime's state, so that an older relist is discarded.
    epoch: u64,
    relist_again: bool,
    relist_not_before: Duration,
    /// Whether a failed call may nevertheless have created or started something.
    is_uncertain: bool,
}

/// What is to be done about a relist.
#[derive(Debug, PartialEq, Eq)]
pub enum RelistStep {
    /// None is needed, or an operation must end first.
    Nothing,
    /// It is due at this time since boot.
    Wait(Duration),
    /// It starts now, in this epoch.
    Start(u64),
}

impl PodState {
    pub fn new(seen: ObservedPod, memory: PodRecord) -> Self {
        Self {
            seen,
            memory,
            forgotten: false,
            epoch: 0,
            relist_again: false,
            relist_not_before: Duration::ZERO,
            is_uncertain: false,
        }
    }

    /// Plans from the whole state; `has_starts`: operations in flight may start something.
    pub fn plan(&mut self, want: &DesiredPod, has_starts: bool, now: Now) -> Plan {
        self.seen.unsure = self.is_uncertain || has_starts;
        lifecycle::plan(want, &self.seen, &self.memory, now)
    }

    /// Notes that an action starts: one that fails half-way leaves something to clean up as well.
    pub fn begin_action(&mut self, action: &Action) {
        match action {
            Action::MountVolumes if self.seen.volumes == ObservedVolumes::Absent => {
                self.seen.volumes = ObservedVolumes::Unverified;
            }
            Action::CreateSandbox { .. } => self.seen.cgroup = true,
            _ => {}
        }
    }

    /// Applies what the runtime reports.
    pub fn apply_event(&mut self, event: RuntimeEvent) {
        match event {
            RuntimeEvent::Container { container, .. } => {
                action_result::update_instance(&mut self.seen, container);
            }
            RuntimeEvent::Sandbox { sandbox, .. } => {
                action_result::update_sandbox(&mut self.seen, sandbox);
            }
            RuntimeEvent::Missed => self.relist_again = true,
        }
        self.runtime_changed();
    }

    /// Notes a change of the runtime's state: a relist that began before is outdated.
    pub fn runtime_changed(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Applies the result of a successful action.
    pub fn action_succeeded(&mut self, action: &Action, result: ActionResult) {
        action_result::apply(&mut self.seen, &mut self.memory, action, result);
        self.forgotten |= *action == Action::Forget;
    }

    /// Records a failed action and its back-off.
    pub fn action_failed(&mut self, action: &Action, reason: &str, message: &str, now: Duration) {
        self.memory.record_failure(step(action), reason, message, now);
        if let Action::CreateSandbox { attempt } = action {
            self.memory.record_spoilt_sandbox(*attempt);
        }
    }

    /// Applies what a failed call shows all the same. Returns whether the failure is an action's
    /// that is planned again.
    pub fn apply_failure(
        &mut self,
        want: &DesiredPod,
        action: &Action,
        failure: ActionFailure,
    ) -> bool {
        let shows_state = failure.result.shows_state();
        if let ActionResult::Instance(instance) = failure.result {
            action_result::update_instance(&mut self.seen, *instance);
        }
        if let Action::RunPostStart { container, id } = action {
            // Already reported as an event; the instance is stopped because of it.
            self.memory.record_post_start(container, id, Some(&failure.message));
            return false;
        }
        if let Action::CreateContainer { container, .. } = action {
            // The image may have been removed meanwhile: it is inspected again.
            if let Some(c) = want.container(container) {
                self.seen.images.remove(&c.image);
            }
        }
        self.mark_uncertain(action, shows_state);
        true
    }

    /// A call that failed without showing the object's state may have taken effect nevertheless:
    /// the pod is relisted, and until then nothing counts as ended.
    pub fn mark_uncertain(&mut self, action: &Action, shows_state: bool) {
        if action.is_start() && !shows_state {
            self.is_uncertain = true;
            self.relist_again = true;
        }
    }

    /// Decides on a relist, which is needed when events may have been lost. `is_busy`: one is in
    /// flight, or an operation changes the runtime.
    pub fn next_relist(&mut self, is_busy: bool, now: Duration) -> RelistStep {
        if !self.relist_again || is_busy {
            return RelistStep::Nothing;
        }
        if now < self.relist_not_before {
            return RelistStep::Wait(self.relist_not_before);
        }
        self.relist_again = false;
        RelistStep::Start(self.epoch)
    }

    /// Whether the result of a relist that began in `epoch` still counts; otherwise the pod is
    /// relisted again.
    pub fn accepts_relist(&mut self, epoch: u64, changes_runtime: bool) -> bool {
        let is_current = epoch == self.epoch && !changes_runtime;
        self.relist_again |= !is_current;
        is_current
    }

    /// Applies the result of a relist.
    pub fn apply_relist(&mut self, on_node: PodOnNode) {
        self.seen.sandboxes = on_node.sandboxes;
        self.seen.containers = on_node.containers;
        self.is_uncertain = false;
    }

    /// Notes a failed relist.
    pub fn relist_failed(&mut self, now: Duration) {
        self.relist_again = true;
        self.relist_not_before = now.saturating_add(RELIST_RETRY);
    }

    /// Addresses of the sandbox.
    pub fn pod_ips(&self) -> Vec<String> {
        self.seen.ready_sandbox().map(|sandbox| sandbox.ips.clone()).unwrap_or_default()
    }

    /// CRI ids of the running containers, by container name.
    pub fn running_containers(&self) -> BTreeMap<String, String> {
        let is_running = |c: &&ObservedContainer| matches!(c.state, InstanceState::Running { .. });
        let running = self.seen.containers.iter().filter(is_running);
        running.map(|c| (c.name.clone(), c.id.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relist_waits_for_operations_and_counts_only_if_nothing_changed_meanwhile() {
        let secs = Duration::from_secs;
        let mut state = PodState::new(ObservedPod::default(), PodRecord::default());
        assert_eq!(state.next_relist(false, secs(1)), RelistStep::Nothing);
        state.apply_event(RuntimeEvent::Missed);
        assert_eq!(state.next_relist(true, secs(1)), RelistStep::Nothing);
        let RelistStep::Start(epoch) = state.next_relist(false, secs(1)) else {
            panic!("no relist");
        };
        assert_eq!(state.next_relist(false, secs(1)), RelistStep::Nothing, "one is enough");
        assert!(!state.accepts_relist(epoch, true), "an operation changes the runtime");
        state.runtime_changed();
        let RelistStep::Start(epoch) = state.next_relist(false, secs(2)) else {
            panic!("no relist");
        };
        state.runtime_changed();
        assert!(!state.accepts_relist(epoch, false), "the runtime has changed");
        let RelistStep::Start(epoch) = state.next_relist(false, secs(3)) else {
            panic!("no relist");
        };
        assert!(state.accepts_relist(epoch, false));
        assert_eq!(state.next_relist(false, secs(3)), RelistStep::Nothing);
        state.relist_failed(secs(3));
        assert_eq!(state.next_relist(false, secs(3)), RelistStep::Wait(secs(4)));
        assert!(matches!(state.next_relist(false, secs(4)), RelistStep::Start(_)));
    }

    #[test]
    fn a_start_whose_result_is_unknown_is_looked_up() {
        let mut state = PodState::new(ObservedPod::default(), PodRecord::default());
        let start = Action::CreateSandbox { attempt: 0 };
        state.mark_uncertain(&start, true);
        assert_eq!(state.next_relist(false, Duration::ZERO), RelistStep::Nothing);
        state.mark_uncertain(&start, false);
        assert!(matches!(state.next_relist(false, Duration::ZERO), RelistStep::Start(_)));
        assert!(state.is_uncertain);
        state.apply_relist(PodOnNode::default());
        assert!(!state.is_uncertain);
    }
}
