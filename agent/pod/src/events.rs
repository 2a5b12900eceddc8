//! Events of a pod: which actions are reported to users, and the reason and message of each.

use std::borrow::Cow;

use proto_api::core::v1::Pod;

use crate::backoff::RetryStep;
use crate::desired::{ContainerRole, DesiredPod, RestartPolicy};
use crate::handler::Handler;
use crate::plan::{Action, StopReason};
use crate::probe::{ProbeKind, ProbeOutcome};
use crate::record::{KillReason, PodRecord};

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    /// `Warning`: a user may have to act.
    Warning,
}

/// An event to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// Type of the event.
    pub severity: Severity,
    /// Reason, such as `BackOff`.
    pub reason: Cow<'static, str>,
    /// Message for users.
    pub message: String,
    /// `fieldPath` of the involved object, `spec.containers{name}`; empty for the whole pod.
    pub field_path: String,
}

/// Most bytes of an event's message. Messages repeat what pods and containers say, and thousands of events may wait to be sent.
const MESSAGE_LEN_MAX: usize = 4 << 10;

impl PodEvent {
    /// An event about the whole pod.
    pub fn new(
        severity: Severity,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        let (reason, mut message) = (reason.into(), message.into());
        message.truncate(message.floor_char_boundary(MESSAGE_LEN_MAX));
        // Not what was cut off: it may be long.
        message.shrink_to_fit();
        Self { severity, reason, message, field_path: String::new() }
    }

    fn at(mut self, desired: &DesiredPod, container: &str) -> Self {
        let list = match desired.container(container).map(|c| c.role) {
            Some(ContainerRole::Init | ContainerRole::Sidecar) => "initContainers",
            Some(ContainerRole::Ephemeral) => "ephemeralContainers",
            Some(ContainerRole::Main) | None => "containers",
        };
        self.field_path = format!("spec.{list}{{{container}}}");
        self
    }
}

/// Event for the start of an action. Only the first attempt of a sandbox is reported.
pub fn action_started(
    desired: &DesiredPod,
    record: &PodRecord,
    action: &Action,
) -> Option<PodEvent> {
    use Severity::Normal;
    match action {
        Action::PullImage { image, container } => {
            let message = format!("Pulling image {image:?}");
            Some(PodEvent::new(Normal, "Pulling", message).at(desired, container))
        }
        Action::StopContainer { container, why, .. } => {
            let message = match why {
                StopReason::DefinitionChanged => {
                    format!("Container {container} definition changed, will be restarted")
                }
                StopReason::PodEnds | StopReason::SandboxLost | StopReason::StateUnknown => {
                    format!("Stopping container {container}")
                }
                StopReason::Unhealthy(reason) => unhealthy(desired, container, *reason),
            };
            Some(PodEvent::new(Normal, "Killing", message).at(desired, container))
        }
        Action::CreateSandbox { attempt }
            if *attempt > 0 && record.last_failure(&RetryStep::Sandbox).is_none() =>
        {
            let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
            Some(PodEvent::new(Normal, "SandboxChanged", message))
        }
        _ => None,
    }
}

fn unhealthy(desired: &DesiredPod, container: &str, reason: KillReason) -> String {
    let probe = match reason {
        KillReason::Liveness => "liveness",
        KillReason::Startup => "startup",
        KillReason::PostStart => return "FailedPostStartHook".to_owned(),
    };
    let policy = desired.container(container).map(|c| desired.restart_policy_of(c.role));
    let next = if policy == Some(RestartPolicy::Never) { "" } else { ", will be restarted" };
    format!("Container {container} failed {probe} probe{next}")
}

/// Event for a probe result, if users should see it.
pub fn probe_result(
    desired: &DesiredPod,
    container: &str,
    kind: ProbeKind,
    outcome: &ProbeOutcome,
) -> Option<PodEvent> {
    let title = kind.title();
    let (reason, message) = match outcome {
        ProbeOutcome::Success => return None,
        ProbeOutcome::Warning(text) => ("ProbeWarning", format!("{title} probe warning: {text}")),
        ProbeOutcome::Failure(text) => ("Unhealthy", format!("{title} probe failed: {text}")),
        ProbeOutcome::Error(text) => ("Unhealthy", format!("{title} probe errored: {text}")),
    };
    Some(PodEvent::new(Severity::Warning, reason, message).at(desired, container))
}

/// The lifecycle hooks of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    PostStart,
    PreStop,
}

/// Event for a hook that failed with `error`; `output` is the output of its command.
pub fn hook_failed(
    desired: &DesiredPod,
    container: &str,
    hook: Hook,
    error: &str,
    output: &str,
) -> PodEvent {
    let found = desired.container(container);
    let (reason, handler) = match hook {
        Hook::PostStart => ("FailedPostStartHook", found.and_then(|c| c.post_start.as_ref())),
        Hook::PreStop => ("FailedPreStopHook", found.and_then(|c| c.pre_stop.as_ref())),
    };
    let what = match handler {
        Some(Handler::Exec(command)) => format!("Exec lifecycle hook ([{}])", command.join(" ")),
        Some(Handler::Http(get)) => format!("HTTP lifecycle hook ({})", get.path),
        _ => "lifecycle hook".to_owned(),
    };
    let DesiredPod { namespace, name, uid, .. } = desired;
    let message = format!(
        "{what} for Container {container:?} in Pod \"{name}_{namespace}({uid})\" failed - error: {error}, message: {output:?}"
    );
    PodEvent::new(Severity::Warning, reason, message).at(desired, container)
}

/// Event for a pod that exceeded its active deadline.
pub fn deadline_exceeded() -> PodEvent {
    let message = "Pod was active on the node longer than the specified deadline".to_owned();
    PodEvent::new(Severity::Normal, "DeadlineExceeded", message)
}

/// Event for an action that succeeded. `took` is the formatted duration of a pull.
pub fn action_succeeded(desired: &DesiredPod, action: &Action, took: &str) -> Option<PodEvent> {
    use Severity::Normal;
    let event = match action {
        Action::PullImage { image, container } => {
            let message = format!("Successfully pulled image {image:?} in {took}");
            PodEvent::new(Normal, "Pulled", message).at(desired, container)
        }
        Action::CreateContainer { container, .. } => {
            PodEvent::new(Normal, "Created", format!("Created container {container}"))
                .at(desired, container)
        }
        Action::StartContainer { container, .. } => {
            PodEvent::new(Normal, "Started", format!("Started container {container}"))
                .at(desired, container)
        }
        _ => return None,
    };
    Some(event)
}

/// Progress event of a slow image pull for a container of `pod`.
pub fn pull_progress(pod: &Pod, container: &str, message: String) -> PodEvent {
    let first = pod.spec.init_containers.iter().any(|c| c.name == container);
    let list = match pod.spec.containers.iter().any(|c| c.name == container) {
        true => "containers",
        false if first => "initContainers",
        false => "ephemeralContainers",
    };
    let field_path = format!("spec.{list}{{{container}}}");
    PodEvent { field_path, ..PodEvent::new(Severity::Normal, "Pulling", message) }
}

/// Event for a container whose image is already on the node.
pub fn image_present(desired: &DesiredPod, container: &str, image: &str) -> PodEvent {
    let message = format!("Container image {image:?} already present on machine");
    PodEvent::new(Severity::Normal, "Pulled", message).at(desired, container)
}

/// Event for an action that failed with `error`; `reason` is that of the waiting container. Failed
/// volumes have [`volumes_failed`].
pub fn action_failed(
    desired: &DesiredPod,
    action: &Action,
    reason: &str,
    error: &str,
) -> Option<PodEvent> {
    use Severity::Warning;
    let event = match action {
        Action::CreateSandbox { .. } => PodEvent::new(
            Warning,
            "FailedCreatePodSandBox",
            format!("Failed to create pod sandbox: {error}"),
        ),
        Action::InspectImage { image } => {
            let message = match reason {
                // The image was not looked up.
                "InvalidImageName" => error.to_owned(),
                _ => format!("Failed to inspect image {image:?}: {error}"),
            };
            PodEvent::new(Warning, "InspectFailed", message)
        }
        Action::PullImage { image, container } => {
            let message = format!("Failed to pull image {image:?}: {error}");
            PodEvent::new(Warning, "Failed", message).at(desired, container)
        }
        Action::CreateContainer { container, .. } | Action::StartContainer { container, .. } => {
            PodEvent::new(Warning, "Failed", format!("Error: {error}")).at(desired, container)
        }
        Action::StopContainer { .. } | Action::StopSandbox { .. } => {
            PodEvent::new(Warning, "FailedKillPod", format!("error killing pod: {error}"))
        }
        _ => return None,
    };
    Some(event)
}

/// The step at which the volumes of a pod failed; it selects the reason of the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeStep {
    /// The volume is not attached to the node.
    Attach,
    /// Its block device cannot be given to the pod.
    MapDevice,
    /// Its file system cannot be expanded.
    Expand,
    /// Anything else on the way to a mounted volume.
    #[default]
    Mount,
}

/// Event for volumes that could not be set up or refreshed.
pub fn volumes_failed(step: VolumeStep, error: &str) -> PodEvent {
    let reason = match step {
        VolumeStep::Attach => "FailedAttachVolume",
        VolumeStep::MapDevice => "FailedMapVolume",
        VolumeStep::Expand => "VolumeResizeFailed",
        VolumeStep::Mount => "FailedMount",
    };
    PodEvent::new(Severity::Warning, reason, error.to_owned())
}

/// Events for a container that now waits for `reason`; reported when the reason changes.
pub fn container_waiting(
    desired: &DesiredPod,
    container: &str,
    reason: &str,
    message: &str,
) -> Vec<PodEvent> {
    use Severity::{Normal, Warning};
    let failed = |text: &str| PodEvent::new(Warning, "Failed", format!("Error: {text}"));
    let events = match reason {
        "CrashLoopBackOff" => {
            let (name, namespace, uid) = (&desired.name, &desired.namespace, &desired.uid);
            let message = format!(
                "Back-off restarting failed container {container} in pod {name}_{namespace}({uid})"
            );
            vec![PodEvent::new(Warning, "BackOff", message)]
        }
        "ImagePullBackOff" => {
            vec![PodEvent::new(Normal, "BackOff", message.to_owned()), failed(reason)]
        }
        "ErrImagePull" | "InvalidImageName" | "ImageInspectError" => vec![failed(reason)],
        "CreateContainerConfigError" => vec![failed(message)],
        "ErrImageNeverPull" => {
            let never = PodEvent::new(Warning, "ErrImageNeverPull", message.to_owned());
            vec![never, failed(reason)]
        }
        _ => Vec::new(),
    };
    events.into_iter().map(|event| event.at(desired, container)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::desired::PodSource;
    use proto_api::core::v1::{Container, Pod};

    fn desired() -> DesiredPod {
        let mut pod = Pod::default();
        pod.metadata.name = "p".into();
        pod.spec.containers = vec![Container { name: "c".into(), ..Container::default() }];
        pod.spec.init_containers = vec![Container { name: "i".into(), ..Container::default() }];
        DesiredPod::from_pod(&pod, PodSource::Api, "BestEffort", &[], |_| {
            crate::desired::ConfigState::Ready
        })
    }

    #[test]
    fn events_name_the_container_and_its_list() {
        let pull = |container: &str| Action::PullImage {
            image: "i:1".into(),
            container: container.into(),
        };
        let stop = Action::StopContainer {
            container: "c".into(),
            id: "x".into(),
            deadline: Duration::ZERO,
            why: StopReason::PodEnds,
            hook: false,
        };
        let cases = [
            (
                action_started(&desired(), &PodRecord::default(), &pull("c")),
                "Pulling",
                "spec.containers{c}",
            ),
            (
                action_started(&desired(), &PodRecord::default(), &pull("i")),
                "Pulling",
                "spec.initContainers{i}",
            ),
            (
                action_started(&desired(), &PodRecord::default(), &stop),
                "Killing",
                "spec.containers{c}",
            ),
            (Some(volumes_failed(VolumeStep::Mount, "no")), "FailedMount", ""),
            (Some(volumes_failed(VolumeStep::Attach, "no")), "FailedAttachVolume", ""),
            (Some(volumes_failed(VolumeStep::MapDevice, "no")), "FailedMapVolume", ""),
            (Some(volumes_failed(VolumeStep::Expand, "no")), "VolumeResizeFailed", ""),
            (
                container_waiting(&desired(), "c", "CrashLoopBackOff", "").pop(),
                "BackOff",
                "spec.containers{c}",
            ),
        ];
        for (event, reason, path) in cases {
            let event = event.expect("an event");
            assert_eq!((&*event.reason, event.field_path.as_str()), (reason, path));
        }
        assert_eq!(
            action_started(
                &desired(),
                &PodRecord::default(),
                &Action::CreateSandbox { attempt: 0 }
            ),
            None
        );
        assert_eq!(container_waiting(&desired(), "c", "ContainerCreating", ""), []);
        let inspect = Action::InspectImage { image: "a:1".to_owned() };
        let message = |reason, error| {
            action_failed(&desired(), &inspect, reason, error).expect("an event").message
        };
        assert_eq!(message("ImageInspectError", "no"), "Failed to inspect image \"a:1\": no");
        assert_eq!(message("InvalidImageName", "Failed to parse"), "Failed to parse");
    }

    #[test]
    fn messages_are_cut() {
        let event = PodEvent::new(Severity::Warning, "Failed", "ü".repeat(1 << 20));
        assert_eq!(event.message, "ü".repeat(MESSAGE_LEN_MAX / 2));
        assert!(event.message.capacity() <= MESSAGE_LEN_MAX);
    }

    #[test]
    fn events_of_waiting_containers_have_the_reasons_of_kubernetes() {
        let events_for = |reason: &str| {
            let events = container_waiting(&desired(), "c", reason, "why");
            events.into_iter().map(|e| (e.reason.into_owned(), e.message)).collect::<Vec<_>>()
        };
        let failed = |text: &str| ("Failed".to_owned(), format!("Error: {text}"));
        assert_eq!(events_for("ErrImagePull"), [failed("ErrImagePull")]);
        let back_off = ("BackOff".to_owned(), "why".to_owned());
        assert_eq!(events_for("ImagePullBackOff"), [back_off, failed("ImagePullBackOff")]);
        assert_eq!(events_for("InvalidImageName"), [failed("InvalidImageName")]);
        let never = ("ErrImageNeverPull".to_owned(), "why".to_owned());
        assert_eq!(events_for("ErrImageNeverPull"), [never, failed("ErrImageNeverPull")]);
        assert_eq!(events_for("CreateContainerConfigError"), [failed("why")]);
    }

    #[test]
    fn sandbox_changed_is_reported_once_although_the_next_sandbox_fails_repeatedly() {
        let mut record = PodRecord::default();
        let again = Action::CreateSandbox { attempt: 1 };
        let events_for = |record: &PodRecord| {
            action_started(&desired(), record, &again).map(|event| event.reason)
        };
        assert_eq!(events_for(&record).as_deref(), Some("SandboxChanged"));
        record.record_failure(RetryStep::Sandbox, "", "no network", Duration::ZERO);
        assert_eq!(events_for(&record), None);
    }
}
