//! The state of an object in two words: what of it is ready, and its status.

use serde_json::Value;

use crate::objects;

/// The state of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// `1/2`, `True`; empty for kinds that are never ready.
    pub ready: String,
    /// `Running`, `CrashLoopBackOff`, `Terminating`; empty if there is nothing to say.
    pub status: String,
}

/// The state of an object of any kind.
pub fn read_state(object: &Value) -> State {
    let group =
        objects::text_at(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let part = |ready: &str, all: &str, unset: i64| {
        format!("{}/{}", number(object, ready, 0), number(object, all, unset))
    };
    let mut state = match (group, objects::text_at(object, "/kind")) {
        ("", "Pod") => of_pod(object),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet") | ("", "ReplicationController") => {
            State { ready: part("/status/readyReplicas", "/spec/replicas", 1), ..State::default() }
        }
        ("apps", "DaemonSet") => State {
            ready: part("/status/numberReady", "/status/desiredNumberScheduled", 0),
            ..State::default()
        },
        ("batch", "Job") => State {
            ready: part("/status/succeeded", "/spec/completions", 1),
            status: ["Complete", "Failed", "Suspended"]
                .into_iter()
                .find(|kind| condition_status(object, kind) == "True")
                .unwrap_or_default()
                .to_owned(),
        },
        _ => of_any(object),
    };
    if !objects::text_at(object, "/metadata/deletionTimestamp").is_empty() {
        state.status = "Terminating".to_owned();
    }
    state
}

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut conditions = objects::list_at(object, "/status/conditions").iter();
    conditions.find(|one| objects::text_at(one, "/type") == kind)
}

/// The status of a condition; empty if there is none.
pub fn condition_status<'a>(object: &'a Value, kind: &str) -> &'a str {
    condition(object, kind).map_or("", |one| objects::text_at(one, "/status"))
}

/// A whole number at a JSON pointer.
pub fn number(object: &Value, pointer: &str, unset: i64) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(unset)
}

fn of_pod(pod: &Value) -> State {
    let statuses = objects::list_at(pod, "/status/containerStatuses");
    let ready = statuses.iter().filter(|one| one.get("ready") == Some(&Value::Bool(true)));
    let all = objects::list_at(pod, "/spec/containers").len();
    let reason = |one: &Value| {
        let texts = ["/state/waiting/reason", "/state/terminated/reason"];
        let mut texts = texts.map(|pointer| objects::text_at(one, pointer)).into_iter();
        texts.find(|reason| !reason.is_empty() && *reason != "Completed").map(str::to_owned)
    };
    let init = objects::list_at(pod, "/status/initContainerStatuses").iter();
    let init = init.clone().find_map(reason).filter(|reason| reason != "PodInitializing");
    let phase = match objects::text_at(pod, "/status/reason") {
        "" => objects::text_at(pod, "/status/phase"),
        reason => reason,
    };
    let status = init
        .map(|reason| format!("Init:{reason}"))
        .or_else(|| statuses.iter().find_map(reason))
        .unwrap_or_else(|| phase.to_owned());
    State { ready: format!("{}/{all}", ready.count()), status }
}

/// The condition `Ready` with its reason, else the phase.
fn of_any(object: &Value) -> State {
    let phase = objects::text_at(object, "/status/phase");
    match condition(object, "Ready") {
        None => State { ready: String::new(), status: phase.to_owned() },
        Some(ready) => {
            let status = objects::text_at(ready, "/status");
            let reason = objects::text_at(ready, "/reason");
            State {
                ready: status.to_owned(),
                status: if status == "True" { phase } else { reason }.to_owned(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_say_what_is_ready_in_their_own_ways() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let pod = |init: Value, state: Value| {
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{}, {}]},
                "status": {"phase": "Pending", "containerStatuses": [{"ready": true, "state": {"running": {}}}, {"state": state}],
                    "initContainerStatuses": [{"state": init}]}})
        };
        let apps = |kind: &str, status: Value| json!({"apiVersion": "apps/v1", "kind": kind, "spec": {"replicas": 3}, "status": status});
        for (object, ready, status) in [
            (pod(json!({}), json!({"running": {}})), "1/2", "Pending"),
            (pod(json!({}), waiting("CrashLoopBackOff")), "1/2", "CrashLoopBackOff"),
            (
                pod(waiting("ImagePullBackOff"), waiting("PodInitializing")),
                "1/2",
                "Init:ImagePullBackOff",
            ),
            (pod(json!({"terminated": {"reason": "Completed"}}), waiting("X")), "1/2", "X"),
            (apps("Deployment", json!({"readyReplicas": 1})), "1/3", ""),
            (apps("ReplicaSet", json!({})), "0/3", ""),
            (apps("DaemonSet", json!({"numberReady": 1, "desiredNumberScheduled": 2})), "1/2", ""),
            (
                json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"completions": 2},
                    "status": {"succeeded": 1, "conditions": [{"type": "Failed", "status": "True"}]}}),
                "1/2",
                "Failed",
            ),
            (
                json!({"apiVersion": "example.com/v1", "kind": "Widget",
                    "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Waiting"}]}}),
                "False",
                "Waiting",
            ),
            (
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Bound"}}),
                "",
                "Bound",
            ),
            (
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"deletionTimestamp": "x"}}),
                "",
                "Terminating",
            ),
        ] {
            let wanted = State { ready: ready.into(), status: status.into() };
            assert_eq!(read_state(&object), wanted, "{object}");
        }
    }
}
