//! Table rows of pods: the status column is computed from phase, containers and deletion.

use std::collections::BTreeSet;

use super::{Cells, age, count, or_none};
use crate::object::Object;
use crate::scalar::seconds_of;
use crate::value::{Map, Value};

pub(super) fn cells(pod: &Object, now: i64, cells: &mut Cells) {
    let empty = Map::new();
    let (spec, status) = (pod.spec().unwrap_or(&empty), pod.status().unwrap_or(&empty));
    let summary = summarize(pod, spec, status);
    cells.set("Ready", format!("{}/{}", summary.ready, spec.list("containers").len()));
    cells.set("Status", summary.reason);
    cells.set(
        "Restarts",
        match &summary.last_restart {
            Some(time) => {
                Value::from(format!("{} ({} ago)", summary.restarts, age(Some(time), now)))
            }
            None => Value::Int(summary.restarts),
        },
    );
    let ip = status.maps("podIPs").next().map_or(status.str("podIP"), |ip| ip.str("ip"));
    cells.set("IP", or_none(ip));
    cells.set("Node", or_none(spec.str("nodeName")));
    cells.set("Nominated Node", or_none(status.str("nominatedNodeName")));
    cells.set("Readiness Gates", readiness_gates(spec, status));
}

/// Summary of a pod's containers.
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<Value>,
}

fn summarize(pod: &Object, spec: &Map, status: &Map) -> Summary {
    let phase = [status.str("reason"), status.str("phase")];
    let reason = phase.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
    let mut summary =
        Summary { reason: reason.to_owned(), ready: 0, restarts: 0, last_restart: None };
    if !summary.initializing(spec, status) {
        summary.running(status);
    }
    if pod.deletion_timestamp().is_some() {
        let lost = status.str("reason") == "NodeLost";
        summary.reason = if lost { "Unknown" } else { "Terminating" }.to_owned();
    }
    summary
}

impl Summary {
    /// Summarizes the init containers; true if one has not succeeded yet, whose state is the reason.
    fn initializing(&mut self, spec: &Map, status: &Map) -> bool {
        let total = spec.list("initContainers").len();
        for (at, container) in status.maps("initContainerStatuses").enumerate() {
            self.add_restarts(container);
            let state = ContainerState::read(container);
            self.reason = match state {
                ContainerState::Terminated { code: 0, .. } => continue,
                ContainerState::Terminated { reason, .. } if !reason.is_empty() => {
                    format!("Init:{reason}")
                }
                ContainerState::Terminated { signal, .. } if signal != 0 => {
                    format!("Init:Signal:{signal}")
                }
                ContainerState::Terminated { code, .. } => format!("Init:ExitCode:{code}"),
                ContainerState::Waiting(reason) if !matches!(reason, "" | "PodInitializing") => {
                    format!("Init:{reason}")
                }
                _ => format!("Init:{at}/{total}"),
            };
            return true;
        }
        false
    }

    /// Summarizes the containers; the reason is that of the first one that has one.
    fn running(&mut self, status: &Map) {
        self.restarts = 0;
        let mut any_running = false;
        let containers: Vec<&Map> = status.maps("containerStatuses").collect();
        for container in containers.into_iter().rev() {
            self.add_restarts(container);
            match ContainerState::read(container) {
                ContainerState::Waiting(reason) if !reason.is_empty() => {
                    self.reason = reason.to_owned()
                }
                ContainerState::Terminated { reason, .. } if !reason.is_empty() => {
                    self.reason = reason.to_owned();
                }
                ContainerState::Terminated { signal, .. } if signal != 0 => {
                    self.reason = format!("Signal:{signal}");
                }
                ContainerState::Terminated { code, .. } => self.reason = format!("ExitCode:{code}"),
                ContainerState::Running if container.is_true("ready") => {
                    any_running = true;
                    self.ready = self.ready.saturating_add(1);
                }
                _ => {}
            }
        }
        if self.reason == "Completed" && any_running {
            let ready = status.maps("conditions").any(|condition| {
                condition.str("type") == "Ready" && condition.str("status") == "True"
            });
            self.reason = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }

    fn add_restarts(&mut self, container: &Map) {
        self.restarts = self.restarts.saturating_add(count(Some(container), "restartCount"));
        let ended = container.at(&["lastState", "terminated", "finishedAt"]);
        if ended.and_then(seconds_of) > self.last_restart.as_ref().and_then(seconds_of) {
            self.last_restart = ended.cloned();
        }
    }
}

/// State of a container for the table.
enum ContainerState<'a> {
    Waiting(&'a str),
    Running,
    Terminated { code: i64, signal: i64, reason: &'a str },
    Unknown,
}

impl<'a> ContainerState<'a> {
    fn read(container: &'a Map) -> Self {
        let Some(state) = container.map("state") else { return ContainerState::Unknown };
        if let Some(ended) = state.map("terminated") {
            return ContainerState::Terminated {
                code: count(Some(ended), "exitCode"),
                signal: count(Some(ended), "signal"),
                reason: ended.str("reason"),
            };
        }
        match state.map("waiting") {
            Some(waiting) => ContainerState::Waiting(waiting.str("reason")),
            None if state.contains("running") => ContainerState::Running,
            None => ContainerState::Unknown,
        }
    }
}

fn readiness_gates(spec: &Map, status: &Map) -> String {
    let gates = spec.list("readinessGates").len();
    if gates == 0 {
        return "<none>".to_owned();
    }
    let holding: BTreeSet<&str> = status
        .maps("conditions")
        .filter(|condition| condition.str("status") == "True")
        .map(|condition| condition.str("type"))
        .collect();
    let open =
        spec.maps("readinessGates").filter(|gate| holding.contains(gate.str("conditionType")));
    format!("{}/{gates}", open.count())
}
