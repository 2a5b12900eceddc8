//! The transitions between two states of a pod, one line in the log each. Pure.

use std::fmt;

use agent_pod::desired::find_container;
use proto_api::core::v1::{ContainerStatus, Pod, PodStatus};

/// A change that an operator looks for in the log.
#[derive(Debug, PartialEq)]
pub enum Transition<'a> {
    /// The API server or a static source deletes it; seconds of its grace period.
    Terminating(Option<i64>),
    /// Another phase, with reason and message if the pod has them.
    Phase(&'a str, [&'a str; 2]),
    /// The condition Ready, with the message if it is false.
    Ready(bool, &'a str),
    /// An instance runs: container, restarts before it.
    Started(&'a str, i32),
    /// An instance has ended: container, exit code, reason.
    Ended(&'a str, i32, &'a str),
    /// A container waits for something that may not come by itself: container, reason, message.
    Waits(&'a str, [&'a str; 2]),
}

impl fmt::Display for Transition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terminating(Some(grace)) => {
                write!(f, "pod is terminating, grace period {grace} s")
            }
            Self::Terminating(None) => f.write_str("pod is terminating"),
            Self::Phase(phase, why) => write!(f, "pod is {phase}{}", Why(why)),
            Self::Ready(true, _) => f.write_str("pod is ready"),
            Self::Ready(false, why) => write!(f, "pod is not ready{}", Why(&["", why])),
            Self::Started(container, 0) => write!(f, "container {container} has started"),
            Self::Started(container, restarts) => {
                write!(f, "container {container} has started again, restart {restarts}")
            }
            Self::Ended(container, code, reason) => {
                write!(f, "container {container} has exited with code {code} ({reason})")
            }
            Self::Waits(container, why) => write!(f, "container {container} waits{}", Why(why)),
        }
    }
}

/// Reason and message as the rest of a sentence.
struct Why<'a>(&'a [&'a str; 2]);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().filter(|part| !part.is_empty()).try_for_each(|part| write!(f, ": {part}"))
    }
}

/// The transitions from one state of a pod to another, in the order in which they are logged.
pub fn transitions<'a>(
    (pod_before, before): (&Pod, &PodStatus),
    (pod, status): (&'a Pod, &'a PodStatus),
) -> Vec<Transition<'a>> {
    let mut found = Vec::new();
    let meta = &pod.metadata;
    if meta.deletion_timestamp.is_some() && pod_before.metadata.deletion_timestamp.is_none() {
        found.push(Transition::Terminating(meta.deletion_grace_period_seconds));
    }
    for container in statuses(status) {
        let known = statuses(before).find(|known| known.name == container.name);
        found.extend(container_transition(known, container, pod));
    }
    if status.phase != before.phase && !status.phase.is_empty() {
        found.push(Transition::Phase(&status.phase, [&status.reason, &status.message]));
    }
    if let Some((is_ready, message)) = readiness(status)
        && readiness(before).map_or(is_ready, |(was_ready, _)| was_ready != is_ready)
    {
        found.push(Transition::Ready(is_ready, message));
    }
    found
}

fn container_transition<'a>(
    before: Option<&ContainerStatus>,
    now: &'a ContainerStatus,
    pod: &Pod,
) -> Option<Transition<'a>> {
    let state = &now.state;
    if let Some(ended) = &state.terminated {
        let known = before.and_then(|before| before.state.terminated.as_ref());
        let is_known = known.is_some_and(|known| known.container_id == ended.container_id);
        return (!is_known).then_some(Transition::Ended(&now.name, ended.exit_code, &ended.reason));
    }
    if state.running.is_some() {
        let is_known = before.is_some_and(|before| {
            before.state.running.is_some() && before.container_id == now.container_id
        });
        return (!is_known).then_some(Transition::Started(&now.name, now.restart_count));
    }
    let waiting = state.waiting.as_ref()?;
    let is_beginning =
        matches!(waiting.reason.as_str(), "" | "ContainerCreating" | "PodInitializing");
    let known = before.and_then(|before| before.state.waiting.as_ref());
    let is_known = known.is_some_and(|known| known.reason == waiting.reason);
    // A container that the spec no longer has waits for nothing.
    if is_beginning || is_known || find_container(pod, &now.name).is_none() {
        return None;
    }
    Some(Transition::Waits(&now.name, [&waiting.reason, &waiting.message]))
}

fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let own = status.init_container_statuses.iter().chain(&status.container_statuses);
    own.chain(&status.ephemeral_container_statuses)
}

/// Whether the pod is ready, and the message of the condition; `None` without the condition.
fn readiness(status: &PodStatus) -> Option<(bool, &str)> {
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
    Some((ready.status == "True", &ready.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> Pod {
        serde_json::from_value(json).expect("a pod")
    }

    fn lines(before: &serde_json::Value, after: &serde_json::Value) -> Vec<String> {
        let whole = |more: &serde_json::Value| {
            let mut json = serde_json::json!({
                "metadata": {"name": "web", "namespace": "a"},
                "spec": {"containers": [{"name": "c"}]},
            });
            let (known, more) =
                (json.as_object_mut().expect("object"), more.as_object().expect("object"));
            known.extend(more.clone());
            pod(json)
        };
        let (before, after) = (whole(before), whole(after));
        let found = transitions((&before, &before.status), (&after, &after.status));
        found.iter().map(ToString::to_string).collect()
    }

    fn status(phase: &str, ready: &str, state: serde_json::Value) -> serde_json::Value {
        serde_json::json!({"status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready, "message": if ready == "True" { "" } else { "containers with unready status: [c]" }}],
            "containerStatuses": [{"name": "c", "containerID": "containerd://1", "restartCount": 0, "ready": ready == "True",
                "image": "", "imageID": "", "state": state}],
        }})
    }

    #[test]
    fn each_transition_is_one_line() {
        let none = serde_json::json!({});
        let creating = status(
            "Pending",
            "False",
            serde_json::json!({"waiting": {"reason": "ContainerCreating"}}),
        );
        let pulling = status(
            "Pending",
            "False",
            serde_json::json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}}),
        );
        let running = status("Running", "True", serde_json::json!({"running": {}}));
        let ended = status(
            "Succeeded",
            "False",
            serde_json::json!({"terminated": {"exitCode": 0, "reason": "Completed", "containerID": "containerd://1"}}),
        );
        assert_eq!(lines(&none, &creating), ["pod is Pending"]);
        assert_eq!(lines(&creating, &pulling), ["container c waits: ErrImagePull: not found"]);
        let started = ["container c has started", "pod is Running", "pod is ready"];
        assert_eq!(lines(&creating, &running), started);
        let over = [
            "container c has exited with code 0 (Completed)",
            "pod is Succeeded",
            "pod is not ready: containers with unready status: [c]",
        ];
        assert_eq!(lines(&running, &ended), over);
        let mut deleted = running.clone();
        deleted["metadata"] = serde_json::json!({"name": "web", "namespace": "a",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        assert_eq!(lines(&running, &deleted), ["pod is terminating, grace period 30 s"]);
        for same in [&none, &creating, &pulling, &running, &ended] {
            assert_eq!(lines(same, same), [""; 0]);
        }
    }

    #[test]
    fn a_restart_is_told_with_its_number() {
        let running = |id: &str, restarts: i32| {
            let mut json = status("Running", "True", serde_json::json!({"running": {}}));
            let container = &mut json["status"]["containerStatuses"][0];
            container["containerID"] = id.into();
            container["restartCount"] = restarts.into();
            json
        };
        let again = lines(&running("containerd://1", 0), &running("containerd://2", 1));
        assert_eq!(again, ["container c has started again, restart 1"]);
    }
}
