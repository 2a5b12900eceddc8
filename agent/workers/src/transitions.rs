//! The transitions between two states of a pod, one line in the log each. Pure.

use std::fmt;

use agent_pod::desired::find_container;
use proto_api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

/// A change of a pod that is logged at info level.
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
                let reason = OneLine(reason);
                write!(f, "container {container} has exited with code {code} ({reason})")
            }
            Self::Waits(container, why) => {
                write!(f, "container {container} is waiting{}", Why(why))
            }
        }
    }
}

/// Reason and message as the rest of a sentence.
struct Why<'a>(&'a [&'a str; 2]);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.iter().filter(|part| !part.is_empty());
        parts.try_for_each(|part| write!(f, ": {}", OneLine(part)))
    }
}

/// Longest reason or message that is logged, in characters; runtimes put whole outputs into them.
const TEXT_LEN_MAX: usize = 256;

/// A text from outside as a part of one line: its start, control characters escaped.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.chars();
        for c in rest.by_ref().take(TEXT_LEN_MAX) {
            match c {
                // Line and paragraph separators, and what turns the direction of the text.
                c if c.is_control()
                    || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
                {
                    write!(f, "{}", c.escape_default())?;
                }
                c => write!(f, "{c}")?,
            }
        }
        if rest.next().is_some() { f.write_str("...") } else { Ok(()) }
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
        found.extend(container_transitions(known, container, pod));
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

/// The transitions of the first status that is computed of a pod, since the status that its source
/// has. Without one (a static pod without an API server), a status that shows instances is where
/// the log begins: they were started by an earlier agent, which has logged it.
pub fn first_transitions<'a>((pod, status): (&'a Pod, &'a PodStatus)) -> Vec<Transition<'a>> {
    let has_run = |status: &ContainerStatus| {
        status.state.running.is_some() || newest_exits(status).next().is_some()
    };
    if pod.status == PodStatus::default() && statuses(status).any(has_run) {
        return Vec::new();
    }
    transitions((pod, &pod.status), (pod, status))
}

/// The exit that the status did not show before, then what the container does now.
fn container_transitions<'a>(
    before: Option<&ContainerStatus>,
    now: &'a ContainerStatus,
    pod: &Pod,
) -> impl Iterator<Item = Transition<'a>> {
    exit(before, now).into_iter().chain(present_state(before, now, pod))
}

/// The newest exit, in `state`, or in `lastState` once the container waits or runs again, unless
/// it was known from either.
fn exit<'a>(before: Option<&ContainerStatus>, now: &'a ContainerStatus) -> Option<Transition<'a>> {
    let ended = newest_exits(now).next()?;
    let mut known = before.into_iter().flat_map(newest_exits);
    let is_known = known.any(|known| known.container_id == ended.container_id);
    (!is_known).then_some(Transition::Ended(&now.name, ended.exit_code, &ended.reason))
}

fn newest_exits(status: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    [&status.state, &status.last_state].into_iter().filter_map(|state| state.terminated.as_ref())
}

fn present_state<'a>(
    before: Option<&ContainerStatus>,
    now: &'a ContainerStatus,
    pod: &Pod,
) -> Option<Transition<'a>> {
    let state = &now.state;
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
        assert_eq!(lines(&creating, &pulling), ["container c is waiting: ErrImagePull: not found"]);
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
    fn a_restart_is_logged_with_its_count() {
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

    #[test]
    fn an_exit_is_logged_once_whether_in_state_or_last_state() {
        let exit = |id: &str, code: i32| serde_json::json!({"terminated": {"exitCode": code, "reason": "Error", "containerID": id}});
        let with = |state: serde_json::Value, last: serde_json::Value, id: &str, restarts: i32| {
            let mut json = status("Running", "False", state);
            let container = &mut json["status"]["containerStatuses"][0];
            container["lastState"] = last;
            container["containerID"] = id.into();
            container["restartCount"] = restarts.into();
            json
        };
        let none = || serde_json::json!({});
        let running = || serde_json::json!({"running": {}});
        let crashing = || serde_json::json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let first = with(running(), none(), "containerd://1", 0);
        let ended = with(exit("containerd://1", 7), none(), "containerd://1", 0);
        let waits = with(crashing(), exit("containerd://1", 7), "containerd://1", 0);
        let second = with(running(), exit("containerd://1", 7), "containerd://2", 1);
        let waits_again = with(crashing(), exit("containerd://2", 9), "containerd://2", 1);
        let third = with(running(), exit("containerd://2", 9), "containerd://3", 2);
        let loop_of = "container c is waiting: CrashLoopBackOff: back-off";
        let seventh = "container c has exited with code 7 (Error)";
        let ninth = "container c has exited with code 9 (Error)";
        assert_eq!(lines(&first, &waits), [seventh, loop_of]);
        assert_eq!(lines(&first, &ended), [seventh]);
        assert_eq!(lines(&ended, &waits), [loop_of]);
        assert_eq!(lines(&waits, &second), ["container c has started again, restart 1"]);
        assert_eq!(lines(&second, &waits_again), [ninth, loop_of]);
        let restarted = [ninth, "container c has started again, restart 2"];
        assert_eq!(lines(&second, &third), restarted);
    }

    #[test]
    fn a_text_from_outside_stays_in_its_line_and_is_bounded() {
        let running = status("Running", "False", serde_json::json!({"running": {}}));
        let reason = format!("Error\nINFO pod is ready\u{1b}[2J\u{2028}{}", "x".repeat(9000));
        let state = serde_json::json!({"terminated": {"exitCode": 1, "reason": reason, "containerID": "containerd://1"}});
        let mut ended = status("Failed", "False", state);
        ended["status"]["message"] = "over\r\nINFO".into();
        ended["status"]["reason"] = "Evicted".into();
        let logged = lines(&running, &ended);
        let line = &logged[0];
        let start =
            r"container c has exited with code 1 (Error\nINFO pod is ready\u{1b}[2J\u{2028}xxx";
        assert!(line.starts_with(start) && line.ends_with("xxx...)"), "{line}");
        assert!(line.chars().count() < 400, "{} characters", line.chars().count());
        assert_eq!(logged[1], r"pod is Failed: Evicted: over\r\nINFO");
    }

    #[test]
    fn transitions_under_an_earlier_agent_are_not_logged_again() {
        let first = |shown: &serde_json::Value, computed: &serde_json::Value| {
            let status = pod(computed.clone()).status;
            let known = pod(shown.clone());
            let found = first_transitions((&known, &status));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let manifest = serde_json::json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c"}]}});
        let running = status("Running", "True", serde_json::json!({"running": {}}));
        let mut loops = status(
            "Running",
            "False",
            serde_json::json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        );
        loops["status"]["containerStatuses"][0]["lastState"] =
            serde_json::json!({"terminated": {"exitCode": 1, "containerID": "containerd://1"}});
        for known in [&running, &loops] {
            assert_eq!(first(&manifest, known), [""; 0]);
        }
        let refused = serde_json::json!({"status": {"phase": "Failed", "reason": "OutOfcpu"}});
        assert_eq!(first(&manifest, &refused), ["pod is Failed: OutOfcpu"]);
        // The API server has the status that an earlier agent wrote: only transitions since then are logged.
        let mut of_api = manifest.clone();
        of_api["status"] = serde_json::json!({"phase": "Pending"});
        let started = ["container c has started", "pod is Running", "pod is ready"];
        assert_eq!(first(&of_api, &running), started);
    }
}
