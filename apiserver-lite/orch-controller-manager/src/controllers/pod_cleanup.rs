//! Pods that their node's agent will never remove, or must not keep: pods of vanished nodes, pods deleted
//! before they had a node, pods that a node's taints drive away, and ended pods when there are too many.

use std::time::Duration;

use proto_api::Time;
use proto_api::core::v1::{Node, ObjectReference, Pod, Taint, Toleration};
use proto_client::ObjectKey;
use proto_client::events::EventKind;
use proto_client::events::correlate::EventReport;
use serde_json::json;

use super::Plan;
use super::addresses::{has_ended, is_ready, is_terminating};
use crate::api_writes::{ObjectKind, Part, Write};

/// How long a node may be missing before its pods go: it may only be registering anew.
pub const QUARANTINE: Duration = Duration::from_secs(40);

/// Where the pod's node is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// It has none yet.
    Unscheduled,
    /// It exists.
    On(&'a Node),
    /// The map has not shown it for so long.
    Missing(Duration),
    /// The server, asked, has no such node.
    Absent,
}

/// When it is, as far as a pod's time on its node is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// What others read.
    pub wall: Time,
    /// The same when the pod's taints were looked at first.
    pub first: Time,
    /// What has gone by since then, whatever became of the clock on the wall.
    pub elapsed: Duration,
}

impl Clocks {
    /// For what is looked at first.
    pub fn at(wall: Time) -> Self {
        Self { wall, first: wall, elapsed: Duration::ZERO }
    }
}

/// What is to be done with one pod.
pub fn plan(pod: &Pod, place: Place<'_>, now: Clocks) -> Plan {
    match place {
        Place::Unscheduled if is_terminating(pod) => Plan::of([delete(pod, Some(0))]),
        Place::Unscheduled => Plan::default(),
        Place::Absent => Plan::of([delete(pod, Some(0))]),
        Place::Missing(missing) => {
            Plan { again_in: Some(QUARANTINE.saturating_sub(missing)), ..Plan::default() }
        }
        Place::On(node) => on_node(pod, node, now),
    }
}

/// The oldest ended pods, so many that `threshold` remain; 0 keeps all.
pub fn plan_ended<P: AsRef<Pod>>(pods: &[P], threshold: usize) -> Plan {
    let mut ended: Vec<&Pod> = pods
        .iter()
        .map(AsRef::as_ref)
        .filter(|pod| has_ended(pod) && !is_terminating(pod))
        .collect();
    let excess = if threshold == 0 { 0 } else { ended.len().saturating_sub(threshold) };
    if excess == 0 {
        return Plan::default();
    }
    ended.sort_by_key(|pod| (pod.metadata.creation_timestamp.unix(), pod.metadata.name.clone()));
    Plan::of(ended.into_iter().take(excess).map(|pod| delete(pod, Some(0))))
}

fn on_node(pod: &Pod, node: &Node, now: Clocks) -> Plan {
    if is_terminating(pod) && is_off(node) {
        return Plan::of([delete(pod, Some(0))]);
    }
    if is_terminating(pod) || has_ended(pod) {
        return Plan::default();
    }
    let mut plan = Plan::default();
    let unknown =
        |c: &proto_api::core::v1::NodeCondition| c.type_ == "Ready" && c.status == "Unknown";
    if is_ready(pod) && node.status.conditions.iter().any(unknown) {
        plan.writes.push(not_ready(pod, now.wall));
        let message = "Node is not ready".to_owned();
        plan.said.push(said(pod, EventKind::Warning, "NodeNotReady", message));
    }
    match stay(&node.spec.taints, &pod.spec.tolerations, bound_at(pod), now) {
        Stay::Forever => {}
        Stay::For(rest) => plan.look_again_in(rest),
        Stay::No => {
            plan.writes.push(delete(pod, None));
            let message = format!("Marking for deletion Pod {}", ObjectKey::of(&pod.metadata));
            plan.said.push(said(pod, EventKind::Normal, "TaintManagerEviction", message));
        }
    }
    plan
}

/// An event about the pod.
fn said(pod: &Pod, kind: EventKind, reason: &'static str, message: String) -> EventReport {
    let metadata = &pod.metadata;
    let about = ObjectReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    };
    EventReport { about, kind, reason: reason.into(), message }
}

/// Whether a user has said that a node that is silent is off: nobody is left there to end its pods.
fn is_off(node: &Node) -> bool {
    // The key is under the domain of the naming profile.
    let off =
        |taint: &Taint| taint.key.starts_with("node.") && taint.key.ends_with("/out-of-service");
    let ready = node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    !ready && node.spec.taints.iter().any(off)
}

/// How long a pod may stay on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Forever,
    For(Duration),
    No,
}

/// When the pod came to its node, in seconds since the epoch; its creation if nobody said.
fn bound_at(pod: &Pod) -> i64 {
    let scheduled = pod.status.conditions.iter().find(|c| c.type_ == "PodScheduled");
    let told = scheduled.and_then(|condition| condition.last_transition_time.unix());
    told.or(pod.metadata.creation_timestamp.unix()).unwrap_or(0)
}

/// The shortest time that any `NoExecute` taint leaves the pod. A taint that was there first begins to count when the
/// pod comes; one that is said to come later when it was looked at first.
fn stay(taints: &[Taint], tolerations: &[Toleration], bound_at: i64, now: Clocks) -> Stay {
    let first = now.first.unix().unwrap_or(0);
    let now = first.saturating_add(i64::try_from(now.elapsed.as_secs()).unwrap_or(i64::MAX));
    let mut shortest = Stay::Forever;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        // Of several that tolerate the taint, the first counts.
        let mut tolerating = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        let Some(toleration) = tolerating.next() else { return Stay::No };
        let Some(limit) = toleration.toleration_seconds else { continue };
        let added = taint.time_added.and_then(Time::unix).unwrap_or(first);
        let since = added.max(bound_at).min(first);
        let rest = since.saturating_add(limit.max(0)).saturating_sub(now);
        match u64::try_from(rest) {
            Ok(rest) if rest > 0 => {
                let rest = Duration::from_secs(rest);
                shortest = match shortest {
                    Stay::For(earlier) => Stay::For(earlier.min(rest)),
                    _ => Stay::For(rest),
                };
            }
            _ => return Stay::No,
        }
    }
    shortest
}

/// Whether the toleration is for this taint.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key =
        toleration.key.is_empty() && toleration.operator == "Exists" || toleration.key == taint.key;
    effect && key && (toleration.operator == "Exists" || toleration.value == taint.value)
}

/// The pod is not ready: its node is silent, and nobody else will say so.
fn not_ready(pod: &Pod, now: Time) -> Write {
    let mut conditions = pod.status.conditions.clone();
    for condition in conditions.iter_mut().filter(|condition| condition.type_ == "Ready") {
        condition.status = "False".to_owned();
        condition.last_transition_time = now;
    }
    let version = &pod.metadata.resource_version;
    Write::Patch {
        kind: ObjectKind::Pod,
        key: ObjectKey::of(&pod.metadata),
        part: Part::Status,
        patch: json!({
            "metadata": { "resourceVersion": version },
            "status": { "conditions": conditions },
        }),
    }
}

fn delete(pod: &Pod, grace_secs: Option<i64>) -> Write {
    Write::Delete {
        kind: ObjectKind::Pod,
        key: ObjectKey::of(&pod.metadata),
        uid: pod.metadata.uid.clone(),
        grace_secs,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto_api::core::v1::NodeCondition;

    use super::*;
    use crate::controllers::addresses::examples::pod;

    const NOW: i64 = 1000;

    fn planned(pod: &Pod, place: Place<'_>) -> Plan {
        plan(pod, place, Clocks::at(Time::from_unix(NOW)))
    }

    fn grace(plan: &Plan) -> Vec<Option<i64>> {
        let grace = |write: &Write| match write {
            Write::Delete { grace_secs, .. } => *grace_secs,
            other => unreachable!("{other:?}"),
        };
        plan.writes.iter().map(grace).collect()
    }

    #[test]
    fn pods_that_no_agent_has() {
        let mut pod = pod(1);
        assert_eq!(planned(&pod, Place::Unscheduled), Plan::default());
        for (missing, rest) in [(0, 40), (10, 30), (40, 0), (1000, 0)] {
            let soon = planned(&pod, Place::Missing(Duration::from_secs(missing)));
            let rest = Some(Duration::from_secs(rest));
            assert_eq!(soon, Plan { again_in: rest, ..Plan::default() }, "only the server knows");
        }
        assert_eq!(grace(&planned(&pod, Place::Absent)), [Some(0)]);
        pod.metadata.deletion_timestamp = Some(Time::from_unix(1));
        assert_eq!(grace(&planned(&pod, Place::Unscheduled)), [Some(0)]);
        assert_eq!(grace(&planned(&pod, Place::On(&Node::default()))), []);
    }

    fn taint(effect: &str, since: i64) -> Taint {
        let time_added = Some(Time::from_unix(since));
        Taint { key: "k".into(), value: "v".into(), effect: effect.into(), time_added }
    }

    fn toleration(key: &str, operator: &str, value: &str, secs: Option<i64>) -> Toleration {
        Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: "NoExecute".into(),
            toleration_seconds: secs,
        }
    }

    #[test]
    fn taints_drive_pods_away() {
        let check = |taint: Taint, tolerations: &[Toleration], expect: Stay| {
            assert_eq!(stay(&[taint], tolerations, 0, Clocks::at(Time::from_unix(NOW))), expect);
        };
        let secs = |secs| Stay::For(Duration::from_secs(secs));
        check(taint("NoSchedule", NOW), &[], Stay::Forever);
        check(taint("NoExecute", NOW), &[], Stay::No);
        check(taint("NoExecute", NOW), &[toleration("k", "Equal", "v", None)], Stay::Forever);
        check(taint("NoExecute", NOW), &[toleration("k", "", "v", None)], Stay::Forever);
        check(taint("NoExecute", NOW), &[toleration("k", "Equal", "w", None)], Stay::No);
        check(taint("NoExecute", NOW), &[toleration("k", "Exists", "", Some(300))], secs(300));
        check(taint("NoExecute", NOW - 290), &[toleration("", "Exists", "", Some(300))], secs(10));
        check(taint("NoExecute", NOW - 300), &[toleration("k", "Exists", "", Some(300))], Stay::No);
        check(taint("NoExecute", NOW), &[toleration("k", "Exists", "", Some(0))], Stay::No);
        let both =
            [toleration("k", "Exists", "", Some(60)), toleration("", "Exists", "", Some(30))];
        check(taint("NoExecute", NOW), &both, secs(60));
        let ever = [toleration("", "Exists", "", None), toleration("k", "Exists", "", Some(30))];
        check(taint("NoExecute", NOW), &ever, Stay::Forever);
    }

    #[test]
    fn a_pod_that_comes_to_a_tainted_node_has_its_whole_time() {
        let (old, tolerations) =
            (taint("NoExecute", NOW - 1000), [toleration("k", "Exists", "", Some(300))]);
        let now = Clocks::at(Time::from_unix(NOW));
        let stayed = |ago| stay(std::slice::from_ref(&old), &tolerations, NOW - ago, now);
        assert_eq!(stayed(10), Stay::For(Duration::from_secs(290)));
        assert_eq!(stayed(300), Stay::No);
    }

    #[test]
    fn no_clock_gives_a_pod_more_time_or_less() {
        let tolerations = [toleration("k", "Exists", "", Some(300))];
        let stayed = |added: i64, bound_at: i64, wall: i64, elapsed: u64| {
            let (wall, first) = (Time::from_unix(wall), Time::from_unix(NOW));
            let now = Clocks { wall, first, elapsed: Duration::from_secs(elapsed) };
            stay(&[taint("NoExecute", added)], &tolerations, bound_at, now)
        };
        let secs = |secs| Stay::For(Duration::from_secs(secs));
        // Steps of the clock while the pod waits.
        for wall in [0, NOW - 1000, NOW + 1000, i64::MAX] {
            assert_eq!(stayed(NOW, 0, wall, 100), secs(200), "{wall}");
            assert_eq!(stayed(NOW - 50, 0, wall, 100), secs(150), "{wall}");
            assert_eq!(stayed(NOW, 0, wall, 300), Stay::No, "{wall}");
        }
        // Times that others have written.
        for future in [NOW + 1, NOW + 86_400, i64::MAX] {
            assert_eq!(stayed(future, 0, NOW, 100), secs(200), "{future}");
            assert_eq!(stayed(NOW, future, NOW, 100), secs(200), "{future}");
            assert_eq!(stayed(NOW, future, NOW, 300), Stay::No, "{future}");
        }
    }

    #[test]
    fn pods_of_a_silent_node_are_not_ready() {
        let mut node = Node::default();
        let (type_, status) = ("Ready".to_owned(), "Unknown".to_owned());
        node.status.conditions.push(NodeCondition { type_, status, ..NodeCondition::default() });
        let plan = planned(&pod(1), Place::On(&node));
        let [Write::Patch { part: Part::Status, patch, .. }] = &plan.writes[..] else {
            unreachable!("{plan:?}")
        };
        assert_eq!(patch["status"]["conditions"][0]["status"], "False");
        node.status.conditions[0].status = "True".into();
        assert_eq!(planned(&pod(1), Place::On(&node)), Plan::default());
    }

    #[test]
    fn a_node_that_is_off_ends_no_pods() {
        let (mut node, mut going) = (Node::default(), pod(1));
        going.metadata.deletion_timestamp = Some(Time::from_unix(1));
        assert_eq!(planned(&going, Place::On(&node)), Plan::default());
        node.spec
            .taints
            .push(Taint { key: "node.orch.io/out-of-service".into(), ..taint("NoExecute", NOW) });
        assert_eq!(planned(&going, Place::On(&node)).writes.len(), 1);
        let (type_, status) = ("Ready".to_owned(), "True".to_owned());
        node.status.conditions.push(NodeCondition { type_, status, ..NodeCondition::default() });
        assert_eq!(planned(&going, Place::On(&node)), Plan::default(), "it ends them itself");
    }

    #[test]
    fn the_oldest_ended_pods_go() {
        let pods: Vec<Arc<Pod>> = (1..=5)
            .map(|nth| {
                let mut pod = pod(nth);
                pod.metadata.creation_timestamp = Time::from_unix(i64::from(100 - nth));
                pod.status.phase = if nth == 5 { "Running" } else { "Succeeded" }.into();
                Arc::new(pod)
            })
            .collect();
        let gone = |threshold| {
            let name = |write: &Write| match write {
                Write::Delete { key, .. } => key.name.clone(),
                other => unreachable!("{other:?}"),
            };
            plan_ended(&pods, threshold).writes.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(gone(2), ["web-4", "web-3"]);
        assert!(gone(4).is_empty() && gone(0).is_empty());
    }
}
