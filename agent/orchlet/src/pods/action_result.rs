//! What an operation or an event changes in what is seen and remembered of a pod. Pure.

use agent_pod::backoff::Step;
use agent_pod::observed::{
    ContainerSeen, ImageSeen, InstanceState, PodSeen, SandboxSeen, VolumesSeen,
};
use agent_pod::plan::Action;
use agent_pod::record::{Admission, Memory};

/// What a finished action brought, beside having worked.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Nothing more.
    Nothing,
    /// The node's answer.
    Answer(Admission),
    /// A sandbox.
    Sandbox(SandboxSeen),
    /// What became of an image.
    Image(ImageSeen),
    /// An instance as it is now.
    Instance(Box<ContainerSeen>),
    /// The instance was started at that time, nanoseconds since 1970; how it is now could not be seen.
    Started(i64),
    /// The instance is not there any more.
    Vanished,
}

impl Effect {
    /// Whether it says how what was acted on is now.
    pub fn tells(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Started(_))
    }
}

/// The step that an action belongs to, for its back-off.
pub fn step(action: &Action) -> Step {
    match action {
        Action::MountVolumes => Step::Volumes,
        Action::CreateSandbox { .. } => Step::Sandbox,
        Action::InspectImage { image } | Action::PullImage { image, .. } => {
            Step::Image(image.clone())
        }
        Action::CreateContainer { container, .. }
        | Action::StartContainer { container, .. }
        | Action::RunPostStart { container, .. } => Step::Container(container.clone()),
        Action::ReportDeleted => Step::Report,
        Action::Admit
        | Action::StopContainer { .. }
        | Action::RemoveContainer { .. }
        | Action::StopSandbox { .. }
        | Action::RemoveSandbox { .. }
        | Action::UnmountVolumes
        | Action::RemoveCgroup
        | Action::Forget => Step::Cleanup,
    }
}

/// Takes in an action that worked.
pub fn done(seen: &mut PodSeen, memory: &mut Memory, action: &Action, effect: Effect) {
    memory.forget_trouble(&step(action));
    match action {
        Action::MountVolumes => seen.volumes = VolumesSeen::Mounted,
        Action::UnmountVolumes => seen.volumes = VolumesSeen::Absent,
        Action::RemoveCgroup => seen.cgroup = false,
        Action::CreateSandbox { .. } => {
            seen.cgroup = true;
            memory.sandbox_made();
        }
        Action::PullImage { container, image } => memory.pulled(container, image),
        Action::RunPostStart { container, id } => memory.post_started(container, id, true),
        Action::RemoveContainer { id, .. } => seen.containers.retain(|c| c.id != *id),
        Action::StopSandbox { id, attempt } => {
            for sandbox in seen.sandboxes.iter_mut().filter(|s| s.id == *id) {
                sandbox.ready = false;
            }
            memory.sandbox_stopped(*attempt);
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
    match (effect, action) {
        (Effect::Answer(answer), _) => memory.admission = Some(answer),
        (Effect::Sandbox(sandbox), _) => sandbox_changed(seen, sandbox),
        (Effect::Instance(instance), _) => instance_changed(seen, *instance),
        (
            Effect::Image(image),
            Action::InspectImage { image: name } | Action::PullImage { image: name, .. },
        ) => {
            seen.images.insert(name.clone(), image);
        }
        (Effect::Started(started_at), Action::StartContainer { id, .. }) => {
            let known = seen.containers.iter_mut().find(|c| c.id == *id);
            if let Some(known) = known.filter(|c| c.state == InstanceState::Created) {
                known.state = InstanceState::Running { started_at };
            }
        }
        (Effect::Vanished, Action::StopContainer { id, .. }) => {
            seen.containers.retain(|c| c.id != *id);
        }
        (Effect::Image(_) | Effect::Started(_) | Effect::Vanished | Effect::Nothing, _) => {}
    }
}

/// Takes in a sandbox as it is now. One that is not ready never becomes ready again.
pub fn sandbox_changed(seen: &mut PodSeen, sandbox: SandboxSeen) {
    match seen.sandboxes.iter_mut().find(|s| s.id == sandbox.id) {
        Some(known) => {
            let ready = known.ready && sandbox.ready;
            *known = SandboxSeen { ready, ..sandbox };
        }
        None => seen.sandboxes.push(sandbox),
    }
}

/// Takes in an instance as it is now. News that overtook older news is not taken back: an ended instance stays ended.
pub fn instance_changed(seen: &mut PodSeen, instance: ContainerSeen) {
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

    fn instance(state: InstanceState) -> ContainerSeen {
        ContainerSeen {
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
        let mut seen = PodSeen::default();
        instance_changed(&mut seen, instance(InstanceState::Created));
        let exit = Exit { code: 3, ..Exit::default() };
        instance_changed(&mut seen, instance(InstanceState::Exited(exit.clone())));
        instance_changed(&mut seen, instance(InstanceState::Running { started_at: 1 }));
        assert_eq!(seen.containers.len(), 1);
        assert_eq!(seen.containers[0].exit(), Some(&exit));
    }

    #[test]
    fn an_instance_that_is_not_there_is_not_stopped_again() {
        let mut seen = PodSeen::default();
        instance_changed(&mut seen, instance(InstanceState::Running { started_at: 1 }));
        let stop = Action::StopContainer {
            container: "c".into(),
            id: "x".into(),
            deadline: Duration::ZERO,
            why: agent_pod::plan::StopWhy::PodEnds,
            hook: false,
        };
        done(&mut seen, &mut Memory::default(), &stop, Effect::Vanished);
        assert!(seen.containers.is_empty());
    }

    #[test]
    fn what_was_started_and_could_not_be_seen_is_not_started_again() {
        let start = Action::StartContainer { container: "c".into(), id: "x".into(), hook: false };
        let exited = InstanceState::Exited(Exit::default());
        let table = [
            (InstanceState::Created, InstanceState::Running { started_at: 7 }),
            (InstanceState::Running { started_at: 1 }, InstanceState::Running { started_at: 1 }),
            (exited.clone(), exited),
        ];
        for (known, expect) in table {
            let mut seen = PodSeen::default();
            instance_changed(&mut seen, instance(known));
            done(&mut seen, &mut Memory::default(), &start, Effect::Started(7));
            assert_eq!(seen.containers[0].state, expect);
        }
        assert!(!Effect::Started(7).tells(), "it is looked at");
    }

    #[test]
    fn what_could_not_be_made_in_a_sandbox_is_tried_at_once_in_the_next() {
        let mut memory = Memory::default();
        let (container, image) = (Step::Container("c".into()), Step::Image("i".into()));
        for step in [&container, &image] {
            memory.failed(
                step.clone(),
                "CreateContainerError",
                "sandbox is not ready",
                Duration::ZERO,
            );
        }
        let make = Action::CreateSandbox { attempt: 1 };
        done(&mut PodSeen::default(), &mut memory, &make, Effect::Nothing);
        assert!(memory.trouble(&container).is_none());
        assert!(memory.trouble(&image).is_some(), "another sandbox makes no image");
    }

    #[test]
    fn a_removed_sandbox_takes_its_instances_along() {
        let mut seen = PodSeen::default();
        let mut memory = Memory::default();
        let sandbox = SandboxSeen { id: "s".into(), ..SandboxSeen::default() };
        sandbox_changed(&mut seen, sandbox);
        instance_changed(&mut seen, instance(InstanceState::Created));
        let remove = Action::RemoveSandbox { id: "s".into() };
        done(&mut seen, &mut memory, &remove, Effect::Nothing);
        assert!(seen.sandboxes.is_empty() && seen.containers.is_empty());
    }
}
