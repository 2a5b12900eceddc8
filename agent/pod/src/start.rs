//! What is made and started while a pod is alive: sandbox, volumes, images, containers in their order.

use std::time::Duration;

use crate::backoff::Step;
use crate::lifecycle::{Action, Next, Stage, StopWhy};
use crate::memory::{Admission, ContainerMemory, Memory};
use crate::seen::{ContainerSeen, ImageSeen, InstanceState, PodSeen, SandboxSeen, VolumesSeen};
use crate::want::{Config, ContainerWant, PullPolicy};

/// How often an image that may not be pulled is looked for again.
const ABSENT_IMAGE_RECHECK: Duration = Duration::from_secs(10);

/// No sandbox is ready: stop what is left of the last one, then make the next, with volumes and image lookups beside it.
pub(crate) fn prepare(next: &mut Next<'_>, memory: &Memory) {
    if memory.admission != Some(Admission::Admitted) {
        next.act(Action::Admit);
        return;
    }
    mount(next, memory);
    for container in next.want.init.iter().chain(&next.want.containers) {
        inspect(next, memory, container);
    }
    if stop_remains(next, memory) || !next.may_try(&Step::Sandbox, memory) {
        return;
    }
    let attempt = memory.sandbox_attempt.map_or(0, |a| a.saturating_add(1));
    next.act(Action::CreateSandbox { attempt });
}

/// Stops what remains of a lost sandbox; tells whether there is anything.
fn stop_remains(next: &mut Next<'_>, memory: &Memory) -> bool {
    let seen = next.seen;
    let mut remains = false;
    let may_try = next.may_try(&Step::Cleanup, memory);
    for instance in seen.live() {
        remains = true;
        if may_try {
            let deadline = next.stop_deadline(StopWhy::SandboxLost);
            next.stop(&instance.name, &instance.id, deadline, StopWhy::SandboxLost);
        }
    }
    for sandbox in &seen.sandboxes {
        if !remains && !memory.sandboxes_stopped.contains(&sandbox.attempt) {
            remains = true;
            if may_try {
                let (id, attempt) = (sandbox.id.clone(), sandbox.attempt);
                next.act(Action::StopSandbox { id, attempt });
            }
        }
    }
    remains
}

/// A sandbox is ready: bring up the next init container, or all containers.
pub(crate) fn advance(next: &mut Next<'_>, memory: &Memory, stage: Stage) {
    let seen = next.seen;
    let Some(sandbox) = seen.ready_sandbox() else { return };
    mount(next, memory);
    let want = next.want;
    if stage == Stage::Initializing {
        let current = want.init.iter().find(|c| {
            !memory.containers.get(&c.name).is_some_and(|m| m.succeeded_in(sandbox.attempt))
        });
        if let Some(container) = current {
            let known = memory.containers.get(&container.name);
            // What succeeded in a sandbox that is gone runs again in this one.
            let over = known.is_some_and(|m| {
                m.is_over(want.restart_policy.of_init()) && !m.succeeded_elsewhere(sandbox.attempt)
            });
            drive(next, memory, container, over, sandbox);
        }
        // The images of what comes later are looked up while the init containers run.
        for container in want.init.iter().chain(&want.containers) {
            inspect(next, memory, container);
        }
    } else {
        for container in &want.containers {
            let known = memory.containers.get(&container.name);
            let over = known.is_some_and(|m| m.is_over(want.restart_policy));
            drive(next, memory, container, over, sandbox);
        }
    }
    prune(next, memory);
}

fn mount(next: &mut Next<'_>, memory: &Memory) {
    if next.seen.volumes != VolumesSeen::Mounted && next.may_try(&Step::Volumes, memory) {
        next.act(Action::MountVolumes);
    }
}

fn inspect(next: &mut Next<'_>, memory: &Memory, container: &ContainerWant) {
    let step = Step::Image(container.image.clone());
    if !next.seen.images.contains_key(&container.image) && next.may_try(&step, memory) {
        next.act(Action::InspectImage { image: container.image.clone() });
    }
}

/// Brings one container one step further; `over` when it ended and does not run again.
fn drive(
    next: &mut Next<'_>,
    memory: &Memory,
    container: &ContainerWant,
    over: bool,
    sandbox: &SandboxSeen,
) {
    let seen = next.seen;
    let known = memory.containers.get(&container.name).cloned().unwrap_or_default();
    let Some(newest) = seen.newest(&container.name) else {
        if !over {
            create_when_due(next, memory, container, &known, sandbox);
        }
        return;
    };
    match &newest.state {
        InstanceState::Running { .. } if newest.sandbox_id != sandbox.id => {
            retire(next, memory, newest, StopWhy::SandboxLost);
        }
        InstanceState::Running { .. } if newest.hash != container.hash => {
            retire(next, memory, newest, StopWhy::DefinitionChanged);
        }
        InstanceState::Running { .. } => {}
        InstanceState::Unknown => retire(next, memory, newest, StopWhy::StateUnknown),
        InstanceState::Created
            if newest.sandbox_id == sandbox.id && newest.hash == container.hash =>
        {
            if next.may_try(&Step::Container(container.name.clone()), memory) {
                let (container, id) = (container.name.clone(), newest.id.clone());
                next.act(Action::StartContainer { container, id });
            }
        }
        InstanceState::Created => {
            if next.may_try(&Step::Cleanup, memory) {
                next.act(Action::RemoveContainer { id: newest.id.clone() });
            }
        }
        InstanceState::Exited(_) if over => {}
        InstanceState::Exited(_) => create_when_due(next, memory, container, &known, sandbox),
    }
}

/// Stops an instance that must not run on though its pod does.
fn retire(next: &mut Next<'_>, memory: &Memory, instance: &ContainerSeen, why: StopWhy) {
    if next.may_try(&Step::Cleanup, memory) {
        let deadline = next.stop_deadline(why);
        next.stop(&instance.name, &instance.id, deadline, why);
    }
}

/// Creates the next instance once its back-off is over, its volumes, configuration and image are there.
fn create_when_due(
    next: &mut Next<'_>,
    memory: &Memory,
    container: &ContainerWant,
    known: &ContainerMemory,
    sandbox: &SandboxSeen,
) {
    if is_backing_off(known, sandbox, next.now) {
        next.wake(known.backoff.not_before);
        return;
    }
    let image_id = image(next, memory, container, known);
    let ready = next.seen.volumes == VolumesSeen::Mounted && container.config == Config::Ready;
    let Some(image_id) = image_id.filter(|_| ready) else { return };
    if next.may_try(&Step::Container(container.name.clone()), memory) {
        next.act(Action::CreateContainer {
            container: container.name.clone(),
            attempt: known.next_attempt(),
            sandbox_id: sandbox.id.clone(),
            image_id,
        });
    }
}

/// Whether the next instance still has to wait. A changed definition and a rerun in a new sandbox after success do not.
pub(crate) fn is_backing_off(
    known: &ContainerMemory,
    sandbox: &SandboxSeen,
    now: Duration,
) -> bool {
    if known.ended.is_none() {
        return false;
    }
    let replaced = known.replaced == known.attempt;
    let rerun = known.succeeded_elsewhere(sandbox.attempt);
    !replaced && !rerun && now < known.backoff.not_before
}

/// The runtime's id of the container's image if its next instance may use it.
pub(crate) fn usable_image<'a>(
    seen: &'a PodSeen,
    container: &ContainerWant,
    known: &ContainerMemory,
) -> Option<&'a str> {
    let Some(ImageSeen::Present { id }) = seen.images.get(&container.image) else { return None };
    let pulled = known.pulled_for == Some(known.next_attempt());
    (container.pull != PullPolicy::Always || pulled).then_some(id.as_str())
}

/// The same; plans the lookup or the pull that is missing.
fn image(
    next: &mut Next<'_>,
    memory: &Memory,
    container: &ContainerWant,
    known: &ContainerMemory,
) -> Option<String> {
    if let Some(id) = usable_image(next.seen, container, known) {
        return Some(id.to_owned());
    }
    match (container.pull, next.seen.images.get(&container.image)) {
        (PullPolicy::Never, Some(ImageSeen::Absent { at })) => {
            let again = *at + ABSENT_IMAGE_RECHECK;
            if next.now >= again {
                next.act(Action::InspectImage { image: container.image.clone() });
            } else {
                next.wake(again);
            }
        }
        (PullPolicy::IfNotPresent | PullPolicy::Never, None) => inspect(next, memory, container),
        (PullPolicy::Always | PullPolicy::IfNotPresent | PullPolicy::Never, _) => {
            pull(next, memory, container);
        }
    }
    None
}

fn pull(next: &mut Next<'_>, memory: &Memory, container: &ContainerWant) {
    let step = Step::Image(container.image.clone());
    if let Some(trouble) = memory.trouble(&step) {
        // The shown reason turns from the error to the back-off.
        let turns = crate::status::pull_reason_turns_at(trouble);
        if next.now < turns {
            next.wake(turns);
        }
    }
    let planned = next
        .actions
        .iter()
        .any(|a| matches!(a, Action::PullImage { image, .. } if *image == container.image));
    if !planned && next.may_try(&step, memory) {
        let (image, container) = (container.image.clone(), container.name.clone());
        next.act(Action::PullImage { image, container });
    }
}

/// Dead instances kept per container: the newest, and the one before it for its log.
const KEPT_INSTANCES: usize = 2;

/// Removes dead instances that nobody asks for any more, and lost sandboxes that hold nothing.
fn prune(next: &mut Next<'_>, memory: &Memory) {
    if !next.may_try(&Step::Cleanup, memory) {
        return;
    }
    let seen = next.seen;
    for (container, _) in next.want.all() {
        let mut instances: Vec<&ContainerSeen> =
            seen.containers.iter().filter(|c| c.name == container.name).collect();
        instances.sort_by_key(|c| std::cmp::Reverse(c.attempt));
        for old in instances.into_iter().skip(KEPT_INSTANCES).filter(|c| !c.is_live()) {
            next.act(Action::RemoveContainer { id: old.id.clone() });
        }
    }
    let newest = seen.newest_sandbox().map(|s| s.attempt);
    for sandbox in seen.sandboxes.iter().filter(|s| Some(s.attempt) != newest) {
        let (id, attempt) = (sandbox.id.clone(), sandbox.attempt);
        if sandbox.ready || !memory.sandboxes_stopped.contains(&attempt) {
            next.act(Action::StopSandbox { id, attempt });
        } else if seen.containers.iter().all(|c| c.sandbox_id != sandbox.id) {
            next.act(Action::RemoveSandbox { id });
        }
    }
}
