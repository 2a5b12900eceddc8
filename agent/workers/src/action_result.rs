//! Applies results of actions and runtime events to the observed and remembered state of a pod.
//! Pure.

use std::error::Error;

use agent_pod::backoff::RetryStep;
use agent_pod::observed::{
    InstanceState, ObservedContainer, ObservedImage, ObservedPod, ObservedSandbox, ObservedVolumes,
};
use agent_pod::plan::Action;
use agent_pod::record::{Admission, PodRecord};
use agent_runtime::RuntimeError;
use proto_daemon::exit::chain;

/// Why an action failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionFailure {
    /// The `reason` of the waiting container.
    pub reason: &'static str,
    /// The message for statuses and events.
    pub message: String,
    /// The result of the part that took effect.
    pub result: ActionResult,
}

impl ActionFailure {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), result: ActionResult::Nothing }
    }

    /// With the error and its causes as the message.
    pub(super) fn caused_by(reason: &'static str, error: &(dyn Error + 'static)) -> Self {
        Self::new(reason, chain(error))
    }

    pub(super) fn runtime(reason: &'static str, error: &RuntimeError) -> Self {
        // The text goes to statuses and events; with ids in it, repeated failures would not be
        // aggregated.
        Self::new(reason, error.message())
    }
}

/// The result of a successful action.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionResult {
    /// No further state.
    Nothing,
    /// The node's admission decision.
    Admission(Admission),
    /// The sandbox that was created.
    Sandbox(ObservedSandbox),
    /// Whether the image is present.
    Image(ObservedImage),
    /// The container's present state.
    Instance(Box<ObservedContainer>),
    /// The container was started at that time (nanoseconds since 1970); its state could not be read
    /// afterwards.
    Started(i64),
    /// The container no longer exists.
    Vanished,
}

impl ActionResult {
    /// Whether the result includes the object's present state.
    pub fn shows_state(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Started(_))
    }
}

/// The step that an action belongs to for back-off.
pub fn step(action: &Action) -> RetryStep {
    match action {
        Action::MountVolumes => RetryStep::Volumes,
        Action::CreateSandbox { .. } => RetryStep::Sandbox,
        Action::InspectImage { image } | Action::PullImage { image, .. } => {
            RetryStep::Image(image.clone())
        }
        Action::CreateContainer { container, .. }
        | Action::StartContainer { container, .. }
        | Action::RunPostStart { container, .. } => RetryStep::Container(container.clone()),
        Action::ReportDeleted => RetryStep::Report,
        Action::Admit
        | Action::StopContainer { .. }
        | Action::RemoveContainer { .. }
        | Action::StopSandbox { .. }
        | Action::RemoveSandbox { .. }
        | Action::UnmountVolumes
        | Action::RemoveCgroup
        | Action::Forget => RetryStep::Cleanup,
    }
}

/// Applies a successful action.
pub fn apply(
    seen: &mut ObservedPod,
    memory: &mut PodRecord,
    action: &Action,
    result: ActionResult,
) {
    memory.clear_failure(&step(action));
    match action {
        Action::MountVolumes => seen.volumes = ObservedVolumes::Mounted,
        Action::UnmountVolumes => seen.volumes = ObservedVolumes::Absent,
        Action::RemoveCgroup => seen.cgroup = false,
        Action::CreateSandbox { .. } => {
            seen.cgroup = true;
            memory.record_new_sandbox();
        }
        Action::PullImage { container, image } => memory.record_pull(container, image),
        Action::RunPostStart { container, id } => memory.record_post_start(container, id, None),
        Action::RemoveContainer { id, .. } => seen.containers.retain(|c| c.id != *id),
        Action::StopSandbox { id, attempt } => {
            for sandbox in seen.sandboxes.iter_mut().filter(|s| s.id == *id) {
                sandbox.ready = false;
            }
            memory.record_stopped_sandbox(*attempt);
        }
        Action::RemoveSandbox { id } => {
            seen.sandboxes.retain(|s| s.id != *id);
            seen.containers.retain(|c| c.sandbox_id != *id);
        }
        Action::ReportDeleted => memory.reported = true,
        Action::Admit
        | Action::InspectImage { .. }
        | Action::CreateContainer { .. }
        | Action::StartContainer { .. }
        | Action::StopContainer { .. }
        | Action::Forget => {}
    }
    match (result, action) {
        (ActionResult::Admission(answer), _) => memory.admission = Some(answer),
        (ActionResult::Sandbox(sandbox), _) => update_sandbox(seen, sandbox),
        (ActionResult::Instance(instance), _) => update_instance(seen, *instance),
        (
            ActionResult::Image(image),
            Action::InspectImage { image: name } | Action::PullImage { image: name, .. },
        ) => {
            seen.images.insert(name.clone(), image);
        }
        (ActionResult::Started(started_at), Action::StartContainer { id, .. }) => {
            let known = seen.containers.iter_mut().find(|c| c.id == *id);
            if let Some(known) = known.filter(|c| c.state == InstanceState::Created) {
                known.state = InstanceState::Running { started_at };
            }
        }
        (ActionResult::Vanished, Action::StopContainer { id, .. }) => {
            seen.containers.retain(|c| c.id != *id);
        }
        (
            ActionResult::Image(_)
            | ActionResult::Started(_)
            | ActionResult::Vanished
            | ActionResult::Nothing,
            _,
        ) => {}
    }
}

/// Applies a sandbox's present state. A sandbox that is not ready never becomes ready again.
pub fn update_sandbox(seen: &mut ObservedPod, sandbox: ObservedSandbox) {
    match seen.sandboxes.iter_mut().find(|s| s.id == sandbox.id) {
        Some(known) => {
            let ready = known.ready && sandbox.ready;
            *known = ObservedSandbox { ready, ..sandbox };
        }
        None => seen.sandboxes.push(sandbox),
    }
}

/// Applies a container's present state. Events may arrive out of order: an exited container stays
/// exited.
pub fn update_instance(seen: &mut ObservedPod, instance: ObservedContainer) {
    let age = |state: &InstanceState| match state {
        InstanceState::Created => 0,
        InstanceState::Unknown => 1,
        InstanceState::Running { .. } => 2,
        InstanceState::Exited(_) => 3,
    };
    match seen.containers.iter_mut().find(|c| c.id == instance.id) {
        Some(known) if age(&known.state) <= age(&instance.state) && known.exit().is_none() => {
            *known = instance;
        }
        Some(_) => {}
        None => seen.containers.push(instance),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agent_pod::observed::Exit;

    use super::*;

    fn instance(state: InstanceState) -> ObservedContainer {
        ObservedContainer {
            id: "x".into(),
            name: "c".into(),
            attempt: 0,
            sandbox_id: "s".into(),
            image: "i".into(),
            image_id: "i".into(),
            hash: "h".into(),
            message_file: None,
            state,
        }
    }

    #[test]
    fn an_exit_that_overtakes_the_start_stays() {
        let mut seen = ObservedPod::default();
        update_instance(&mut seen, instance(InstanceState::Created));
        let exit = Exit { code: 3, ..Exit::default() };
        update_instance(&mut seen, instance(InstanceState::Exited(exit.clone())));
        update_instance(&mut seen, instance(InstanceState::Running { started_at: 1 }));
        assert_eq!(seen.containers.len(), 1);
        assert_eq!(seen.containers[0].exit(), Some(&exit));
    }

    #[test]
    fn an_instance_that_is_not_there_is_not_stopped_again() {
        let mut seen = ObservedPod::default();
        update_instance(&mut seen, instance(InstanceState::Running { started_at: 1 }));
        let stop = Action::StopContainer {
            container: "c".into(),
            id: "x".into(),
            deadline: Duration::ZERO,
            why: agent_pod::plan::StopReason::PodEnds,
            hook: false,
        };
        apply(&mut seen, &mut PodRecord::default(), &stop, ActionResult::Vanished);
        assert!(seen.containers.is_empty());
    }

    #[test]
    fn a_started_container_with_unknown_state_is_not_started_again() {
        let start = Action::StartContainer { container: "c".into(), id: "x".into(), hook: false };
        let exited = InstanceState::Exited(Exit::default());
        let table = [
            (InstanceState::Created, InstanceState::Running { started_at: 7 }),
            (InstanceState::Running { started_at: 1 }, InstanceState::Running { started_at: 1 }),
            (exited.clone(), exited),
        ];
        for (known, expect) in table {
            let mut seen = ObservedPod::default();
            update_instance(&mut seen, instance(known));
            apply(&mut seen, &mut PodRecord::default(), &start, ActionResult::Started(7));
            assert_eq!(seen.containers[0].state, expect);
        }
        assert!(!ActionResult::Started(7).shows_state(), "it is looked at");
    }

    #[test]
    fn container_creation_is_retried_at_once_in_a_new_sandbox() {
        let mut memory = PodRecord::default();
        let (container, image) = (RetryStep::Container("c".into()), RetryStep::Image("i".into()));
        for step in [&container, &image] {
            memory.record_failure(
                step.clone(),
                "CreateContainerError",
                "sandbox is not ready",
                Duration::ZERO,
            );
        }
        let make = Action::CreateSandbox { attempt: 1 };
        apply(&mut ObservedPod::default(), &mut memory, &make, ActionResult::Nothing);
        assert!(memory.last_failure(&container).is_none());
        assert!(memory.last_failure(&image).is_some(), "another sandbox makes no image");
    }

    #[test]
    fn a_removed_sandbox_takes_its_instances_along() {
        let mut seen = ObservedPod::default();
        let mut memory = PodRecord::default();
        let sandbox = ObservedSandbox { id: "s".into(), ..ObservedSandbox::default() };
        update_sandbox(&mut seen, sandbox);
        update_instance(&mut seen, instance(InstanceState::Created));
        let remove = Action::RemoveSandbox { id: "s".into() };
        apply(&mut seen, &mut memory, &remove, ActionResult::Nothing);
        assert!(seen.sandboxes.is_empty() && seen.containers.is_empty());
    }
}
