//! The Bind extension point, and the report of a pod that cannot be bound.

use std::time::Instant;

use apiserver_clock::now;
use futures_util::future::join_all;
use proto_api::core::v1::{Binding, ObjectReference, Pod, PodCondition};
use proto_api::event_report::EventKind;
use proto_api::meta::v1::ObjectMeta;
use proto_api::{ObjectKey, Time};
use proto_client::{ClientError, Patch, WriteParams};
use proto_daemon::exit::chain;
use serde_json::{Value, json};

use super::preempt::Nomination;
use super::{Placement, Scheduler, Tally};
use crate::backoff_queue::Failure;
use crate::extenders::ExtenderError;
use crate::metrics::Attempt;
use apiserver_scheduling::nodes::NodeLoad;
use apiserver_scheduling::pod_info::PodInfo;
use apiserver_scheduling::resource_amounts::add;

impl Scheduler {
    /// Binds pods to the nodes selected for them, all at the same time: the API server makes them durable together. One that fails is taken off its node.
    pub(super) async fn bind_all(
        &mut self,
        placed: Vec<Placement>,
        loads: &mut [NodeLoad],
        tally: &mut Tally,
    ) {
        let binding = placed.iter().map(|placed| self.bind(&placed.pod, &placed.assigned.node));
        let answers = join_all(binding).await;
        for (Placement { pod, nth, assigned, begun }, answer) in placed.into_iter().zip(answers) {
            let node = &assigned.node;
            if let Err(error) = answer {
                tracing::warn!(pod = %pod.key, uid = pod.uid, node, error = chain(&error), "cannot bind the pod; retried after its back-off");
                if let Some(load) = loads.get_mut(nth) {
                    *load = load.without(|other| other.uid == pod.uid);
                }
                // Pods for which there was no room beside it may fit now.
                self.backoff.note_cluster_change();
                if error.is_refusal() {
                    let (reason, stays) = (FailureReason::SchedulerError, Nomination::Unchanged);
                    self.report_failure(&pod, reason, &chain(&error), stays).await;
                }
                self.note_failure(&pod, Failure::Error, begun, tally);
                continue;
            }
            self.counters.count_attempt(&pod.scheduler, Attempt::Scheduled, begun.elapsed());
            add(&mut tally.bound, 1);
            let failed = self.backoff.remove(&pod.key);
            let (failures, since) = failed.unwrap_or((0, begun));
            self.counters.observe_bound(failures.saturating_add(1), since.elapsed());
            let message = format!("Successfully assigned {} to {node}", pod.key);
            self.record(&pod, &pod.reference, EventKind::Normal, "Scheduled", &message);
            tracing::info!(pod = %pod.key, uid = pod.uid, node, "pod bound");
            self.assumed.insert(pod.uid.clone(), (assigned, Instant::now()));
        }
    }

    /// Writes the binding, or lets an extender do it.
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), BindError> {
        if let Some(bound) = self.extenders.bind(pod, node).await {
            return bound.map_err(BindError::Extender);
        }
        let ObjectKey { namespace, name } = &pod.key;
        let metadata = ObjectMeta {
            name: name.clone(),
            namespace: namespace.clone(),
            uid: pod.uid.clone(),
            ..ObjectMeta::default()
        };
        let target = ObjectReference {
            kind: "Node".to_owned(),
            name: node.to_owned(),
            ..ObjectReference::default()
        };
        let binding = Binding { metadata, target };
        let pods = self.client.within::<Pod>(namespace);
        pods.post_sub(name, "binding", &binding).await.map_err(BindError::Api)
    }

    /// Records FailedScheduling, and writes the pod's nomination and the condition PodScheduled unless they are so already.
    pub(super) async fn report_failure(
        &self,
        pod: &PodInfo,
        reason: FailureReason,
        why: &str,
        nomination: Nomination,
    ) {
        self.record(pod, &pod.reference, EventKind::Warning, "FailedScheduling", why);
        let mut status = serde_json::Map::new();
        if let Some(condition) = failure_condition(pod.unscheduled.as_ref(), reason, why, now()) {
            status.insert("conditions".to_owned(), json!([condition]));
        }
        if let Nomination::Node(node) = nomination {
            let node = if node.is_empty() { Value::Null } else { Value::String(node) };
            status.insert("nominatedNodeName".to_owned(), node);
        }
        if status.is_empty() {
            return;
        }
        let patch = Patch::Strategic(json!({ "metadata": { "uid": pod.uid }, "status": status }));
        let api = self.client.within::<Pod>(&pod.key.namespace);
        if let Err(error) = api.patch_status(&pod.key.name, &patch, &WriteParams::default()).await {
            tracing::debug!(pod = %pod.key, uid = pod.uid, error = chain(&error), "cannot write the pod's condition PodScheduled");
        }
    }
}

/// Why a pod could not be bound.
#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error(transparent)]
    Api(ClientError),
    #[error(transparent)]
    Extender(ExtenderError),
}

impl BindError {
    /// Whether the pod is there and has no node: without an answer it may be bound, and its condition must not say otherwise. 404 and 409 are of pods that
    /// are gone or bound.
    fn is_refusal(&self) -> bool {
        let code = match self {
            Self::Extender(ExtenderError::Answer(_)) => return true,
            Self::Extender(ExtenderError::Call { cause, .. }) | Self::Api(cause) => cause.code(),
            Self::Extender(_) => None,
        };
        code.is_some_and(|code| !matches!(code, 404 | 409 | 504))
    }
}

/// Why a pod was not scheduled, as its condition PodScheduled says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureReason {
    /// No node is feasible.
    Unschedulable,
    /// A node was selected, and a step after that failed.
    SchedulerError,
}

/// The condition PodScheduled to write; none if `current` says the same.
fn failure_condition(
    current: Option<&PodCondition>,
    reason: FailureReason,
    why: &str,
    now: Time,
) -> Option<Value> {
    let reason = match reason {
        FailureReason::Unschedulable => "Unschedulable",
        FailureReason::SchedulerError => "SchedulerError",
    };
    if current.is_some_and(|found| found.reason == reason && found.message == why) {
        return None;
    }
    let since = current.map(|found| found.last_transition_time).filter(|time| time.is_set());
    Some(json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": why,
        "lastProbeTime": null,
        "lastTransitionTime": since.unwrap_or(now),
    }))
}

#[cfg(test)]
mod tests {
    use apiserver_scheduling::extenders::ExtenderAnswerError;

    use super::*;

    #[test]
    fn only_refused_bindings_are_reported() {
        let status = |code: i32| {
            let status = proto_api::meta::v1::Status { code, ..Default::default() };
            let (request, retry_after) = (String::new(), None);
            BindError::Api(ClientError::Api { request, status: Box::new(status), retry_after })
        };
        for (code, expected) in [(403, true), (500, true), (404, false), (409, false), (504, false)]
        {
            assert_eq!(status(code).is_refusal(), expected, "{code}");
        }
        let deadline = std::time::Duration::from_secs(5);
        let late = ClientError::Deadline { request: String::new(), deadline };
        assert!(!BindError::Api(late).is_refusal(), "it may be bound");
        let reported = ExtenderAnswerError::Reported("no slot".into());
        assert!(BindError::Extender(reported.into()).is_refusal());
    }

    #[test]
    fn a_condition_is_written_when_its_reason_or_message_changes() {
        let now = Time::from_unix(100);
        let current = PodCondition {
            reason: "Unschedulable".into(),
            message: "no".into(),
            last_transition_time: Time::from_unix(10),
            ..PodCondition::default()
        };
        let written = |current: Option<&PodCondition>, reason, why| {
            let condition = failure_condition(current, reason, why, now)?;
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            Some([text("reason"), text("message"), text("lastTransitionTime")])
        };
        let (no_node, failed) = (FailureReason::Unschedulable, FailureReason::SchedulerError);
        let (then, now) = ("1970-01-01T00:00:10Z", "1970-01-01T00:01:40Z");
        let expected = |all: [&str; 3]| Some(all.map(str::to_owned));
        assert_eq!(written(None, no_node, "no"), expected(["Unschedulable", "no", now]));
        assert_eq!(written(Some(&current), no_node, "no"), None);
        assert_eq!(
            written(Some(&current), no_node, "other"),
            expected(["Unschedulable", "other", then])
        );
        assert_eq!(written(Some(&current), failed, "no"), expected(["SchedulerError", "no", then]));
    }
}
