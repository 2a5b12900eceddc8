//! Creation and start: sandbox, volumes, images, and containers in their order.

use std::time::Duration;

use crate::backoff::RetryStep;
use crate::desired::{ConfigState, ContainerRole, DesiredContainer, PullPolicy};
use crate::observed::{
    InstanceState, ObservedContainer, ObservedImage, ObservedPod, ObservedSandbox, ObservedVolumes,
};
use crate::plan::{Action, PlanDraft, PodStage, StopReason};
use crate::record::{Admission, ContainerRecord, PodRecord, PostStart};

/// Interval between lookups of an absent image that may not be pulled.
const ABSENT_IMAGE_RECHECK: Duration = Duration::from_secs(10);

/// No sandbox is ready: stops what is left of the previous one, then creates the next, with volumes and image lookups in
/// parallel.
pub(crate) fn prepare(next: &mut PlanDraft<'_>, record: &PodRecord) {
    if record.admission != Some(Admission::Admitted) {
        next.add_action(Action::Admit);
        return;
    }
    mount(next, record);
    for container in next.desired.init.iter().chain(&next.desired.containers) {
        inspect(next, record, container);
    }
    if stop_remains(next, record) || !next.may_try(&RetryStep::Sandbox, record) {
        return;
    }
    let attempt = record.sandbox_attempt.map_or(0, |a| a.saturating_add(1));
    next.add_action(Action::CreateSandbox { attempt });
}

/// Stops what is left of a lost sandbox; returns whether there was anything.
fn stop_remains(next: &mut PlanDraft<'_>, record: &PodRecord) -> bool {
    let observed = next.observed;
    let mut remains = false;
    let may_try = next.may_try(&RetryStep::Cleanup, record);
    for instance in observed.live() {
        remains = true;
        if may_try {
            let deadline = next.stop_deadline(instance, StopReason::SandboxLost);
            next.stop(instance, deadline, StopReason::SandboxLost);
        }
    }
    for sandbox in &observed.sandboxes {
        if !remains && !record.sandboxes_stopped.contains(&sandbox.attempt) {
            remains = true;
            if may_try {
                let (id, attempt) = (sandbox.id.clone(), sandbox.attempt);
                next.add_action(Action::StopSandbox { id, attempt });
            }
        }
    }
    remains
}

/// A sandbox is ready: starts the next init container, or all containers, and the sidecars alongside.
pub(crate) fn advance(next: &mut PlanDraft<'_>, record: &PodRecord, stage: PodStage) {
    let observed = next.observed;
    let Some(sandbox) = observed.ready_sandbox() else { return };
    mount(next, record);
    let desired = next.desired;
    match stage {
        PodStage::Initializing => initialize(next, record, sandbox),
        _ => run(next, record, sandbox),
    }
    // Ephemeral containers do not wait for init containers.
    for container in &desired.ephemeral {
        advance_container(next, record, container, sandbox);
    }
    prune(next, record);
}

/// Starts the next init container after the sidecars before it have started up; sidecars keep running.
fn initialize(next: &mut PlanDraft<'_>, record: &PodRecord, sandbox: &ObservedSandbox) {
    let desired = next.desired;
    for container in &desired.init {
        let past = record.lets_successors_start(container, sandbox.attempt);
        if container.role == ContainerRole::Sidecar || !past {
            advance_container(next, record, container, sandbox);
        }
        if !past {
            break;
        }
    }
    // Images of later containers are looked up while init containers run.
    for container in desired.init.iter().chain(&desired.containers) {
        inspect(next, record, container);
    }
}

fn run(next: &mut PlanDraft<'_>, record: &PodRecord, sandbox: &ObservedSandbox) {
    let desired = next.desired;
    for container in desired.sidecars() {
        advance_container(next, record, container, sandbox);
    }
    let mut held_up = false;
    for container in &desired.containers {
        let known = record.containers.get(&container.name);
        let new = known.is_none_or(|m| m.attempt.is_none());
        if !(held_up && new) {
            advance_container(next, record, container, sandbox);
        }
        held_up |= delays_successors(next, record, container);
    }
}

/// Whether later containers have to wait with their first start because the `postStart` hook of this one is due and can still
/// run.
fn delays_successors(
    next: &PlanDraft<'_>,
    record: &PodRecord,
    container: &DesiredContainer,
) -> bool {
    if container.post_start.is_none() || container.config != ConfigState::Ready {
        return false;
    }
    let failing =
        [RetryStep::Image(container.image.clone()), RetryStep::Container(container.name.clone())];
    if failing.iter().any(|step| record.last_failure(step).is_some()) {
        return false;
    }
    let known = record.containers.get(&container.name).cloned().unwrap_or_default();
    match next.observed.newest(&container.name).map(|instance| &instance.state) {
        None | Some(InstanceState::Created) => known.ended.is_none(),
        Some(InstanceState::Running { .. }) => known.health.post_start == PostStart::Due,
        Some(InstanceState::Exited(_) | InstanceState::Unknown) => false,
    }
}

/// Whether a container ended and is not restarted in this sandbox.
fn is_over(
    next: &PlanDraft<'_>,
    known: &ContainerRecord,
    container: &DesiredContainer,
    sandbox: &ObservedSandbox,
) -> bool {
    // An init container that succeeded in a lost sandbox runs again in the new one.
    let again = container.role == ContainerRole::Init && known.succeeded_elsewhere(sandbox.attempt);
    known.is_over(next.desired.restart_policy_of(container.role)) && !again
}

fn mount(next: &mut PlanDraft<'_>, record: &PodRecord) {
    if next.observed.volumes != ObservedVolumes::Mounted
        && next.may_try(&RetryStep::Volumes, record)
    {
        next.add_action(Action::MountVolumes);
    }
}

fn inspect(next: &mut PlanDraft<'_>, record: &PodRecord, container: &DesiredContainer) {
    let step = RetryStep::Image(container.image.clone());
    if !next.observed.images.contains_key(&container.image) && next.may_try(&step, record) {
        next.add_action(Action::InspectImage { image: container.image.clone() });
    }
}

/// Plans the next action for one container.
fn advance_container(
    next: &mut PlanDraft<'_>,
    record: &PodRecord,
    container: &DesiredContainer,
    sandbox: &ObservedSandbox,
) {
    let observed = next.observed;
    let known = record.containers.get(&container.name).cloned().unwrap_or_default();
    let over = is_over(next, &known, container, sandbox);
    let Some(newest) = observed.newest(&container.name) else {
        if !over {
            create_when_due(next, record, container, &known, sandbox);
        }
        return;
    };
    match &newest.state {
        InstanceState::Running { .. } if newest.sandbox_id != sandbox.id => {
            replace_instance(next, record, newest, StopReason::SandboxLost);
        }
        InstanceState::Running { .. } if !known.is_made_from(newest, container) => {
            replace_instance(next, record, newest, StopReason::DefinitionChanged);
        }
        InstanceState::Running { .. } => handle_running(next, record, newest, &known),
        InstanceState::Unknown => replace_instance(next, record, newest, StopReason::StateUnknown),
        InstanceState::Created
            if newest.sandbox_id == sandbox.id && known.is_made_from(newest, container) =>
        {
            if next.may_try(&RetryStep::Container(container.name.clone()), record) {
                let hook = container.post_start.is_some();
                let (container, id) = (container.name.clone(), newest.id.clone());
                next.add_action(Action::StartContainer { container, id, hook });
            }
        }
        InstanceState::Created => {
            if next.may_try(&RetryStep::Cleanup, record) {
                next.remove(newest);
            }
        }
        InstanceState::Exited(_) if over => {}
        InstanceState::Exited(_) => create_when_due(next, record, container, &known, sandbox),
    }
}

/// Handles a running instance: runs its `postStart` hook, or stops it after a failed probe or hook.
fn handle_running(
    next: &mut PlanDraft<'_>,
    record: &PodRecord,
    instance: &ObservedContainer,
    known: &ContainerRecord,
) {
    let health = &known.health;
    if health.id != instance.id {
        return;
    }
    if let Some(reason) = health.doomed {
        replace_instance(next, record, instance, StopReason::Unhealthy(reason));
    } else if health.post_start == PostStart::Due {
        let (container, id) = (instance.name.clone(), instance.id.clone());
        next.add_action(Action::RunPostStart { container, id });
    }
}

/// Stops an instance that has to be replaced although its pod continues.
fn replace_instance(
    next: &mut PlanDraft<'_>,
    record: &PodRecord,
    instance: &ObservedContainer,
    why: StopReason,
) {
    if next.may_try(&RetryStep::Cleanup, record) {
        let deadline = next.stop_deadline(instance, why);
        next.stop(instance, deadline, why);
    }
}

/// Creates the next instance after its back-off, once its volumes, configuration and image are available.
fn create_when_due(
    next: &mut PlanDraft<'_>,
    record: &PodRecord,
    container: &DesiredContainer,
    known: &ContainerRecord,
    sandbox: &ObservedSandbox,
) {
    let longest = next.desired.crash_delay_max;
    if is_backing_off(known, sandbox, longest, next.now) {
        next.request_wake(known.backoff.next_start(longest));
        return;
    }
    let image_id = image(next, record, container, known);
    let ready =
        next.observed.volumes == ObservedVolumes::Mounted && container.config == ConfigState::Ready;
    let Some(image_id) = image_id.filter(|_| ready) else { return };
    if next.may_try(&RetryStep::Container(container.name.clone()), record) {
        next.add_action(Action::CreateContainer {
            container: container.name.clone(),
            attempt: known.next_attempt(),
            sandbox_id: sandbox.id.clone(),
            image_id,
        });
    }
}

/// Whether the next instance still has to wait. There is no back-off after a changed definition or for a rerun in a new sandbox.
pub(crate) fn is_backing_off(
    known: &ContainerRecord,
    sandbox: &ObservedSandbox,
    longest: Duration,
    now: Duration,
) -> bool {
    if known.ended.is_none() {
        return false;
    }
    let replaced = known.replaced == known.attempt;
    let rerun = known.succeeded_elsewhere(sandbox.attempt);
    !replaced && !rerun && now < known.backoff.next_start(longest)
}

/// Runtime id of the container's image, if its next instance may use it.
pub(crate) fn usable_image<'a>(
    observed: &'a ObservedPod,
    container: &DesiredContainer,
    known: &ContainerRecord,
) -> Option<&'a str> {
    let Some(ObservedImage::Present { id }) = observed.images.get(&container.image) else {
        return None;
    };
    let usable = container.pull != PullPolicy::Always || known.has_pulled(&container.image);
    usable.then_some(id.as_str())
}

/// The same; plans the missing lookup or pull.
fn image(
    next: &mut PlanDraft<'_>,
    record: &PodRecord,
    container: &DesiredContainer,
    known: &ContainerRecord,
) -> Option<String> {
    if let Some(id) = usable_image(next.observed, container, known) {
        return Some(id.to_owned());
    }
    match (container.pull, next.observed.images.get(&container.image)) {
        (PullPolicy::Never, Some(ObservedImage::Absent { at })) => {
            let again = at.saturating_add(ABSENT_IMAGE_RECHECK);
            if next.now >= again {
                next.add_action(Action::InspectImage { image: container.image.clone() });
            } else {
                next.request_wake(again);
            }
        }
        (PullPolicy::IfNotPresent | PullPolicy::Never, None) => inspect(next, record, container),
        (PullPolicy::Always | PullPolicy::IfNotPresent | PullPolicy::Never, _) => {
            pull(next, record, container);
        }
    }
    None
}

fn pull(next: &mut PlanDraft<'_>, record: &PodRecord, container: &DesiredContainer) {
    let step = RetryStep::Image(container.image.clone());
    if let Some(trouble) = record.last_failure(&step) {
        // The shown reason changes from the error to `ImagePullBackOff`.
        let turns = trouble.shows_error_until();
        if next.now < turns {
            next.request_wake(turns);
        }
    }
    let planned = next
        .actions
        .iter()
        .any(|a| matches!(a, Action::PullImage { image, .. } if *image == container.image));
    if !planned && next.may_try(&step, record) {
        let (image, container) = (container.image.clone(), container.name.clone());
        next.add_action(Action::PullImage { image, container });
    }
}

/// Removes exited instances beyond the number to keep, and empty lost sandboxes.
fn prune(next: &mut PlanDraft<'_>, record: &PodRecord) {
    if !next.may_try(&RetryStep::Cleanup, record) {
        return;
    }
    let observed = next.observed;
    // The newest, and earlier ones for their logs.
    let kept = usize::try_from(next.desired.dead_kept).unwrap_or(usize::MAX).saturating_add(1);
    for container in next.desired.all_containers() {
        let mut instances: Vec<&ObservedContainer> =
            observed.containers.iter().filter(|c| c.name == container.name).collect();
        instances.sort_by_key(|c| std::cmp::Reverse(c.attempt));
        for old in instances.into_iter().skip(kept).filter(|c| !c.is_live()) {
            next.remove(old);
        }
    }
    let newest = observed.newest_sandbox().map(|s| s.attempt);
    for sandbox in observed.sandboxes.iter().filter(|s| Some(s.attempt) != newest) {
        let (id, attempt) = (sandbox.id.clone(), sandbox.attempt);
        if sandbox.ready || !record.sandboxes_stopped.contains(&attempt) {
            next.add_action(Action::StopSandbox { id, attempt });
        } else if observed.containers.iter().all(|c| c.sandbox_id != sandbox.id) {
            next.add_action(Action::RemoveSandbox { id });
        }
    }
}
