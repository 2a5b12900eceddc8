//! The NoExecute taint manager of the node lifecycle controller: deletes pods that do not tolerate a taint of their node, or not for longer.

use std::time::Duration;

use apiserver_scheduling::taints::tolerates;
use proto_api::core::v1::{Node, ObjectReference, Pod, Taint, Toleration};
use proto_api::event_report::{EventKind, EventReport};
use proto_api::names::Names;
use proto_api::{ObjectKey, Time};

use crate::addresses::{is_terminating, pod_reference};
use crate::api_writes::{ApiWrite, ObjectKind};
use crate::disruption_target::Disruption;
use crate::node_lifecycle::{eviction_keys, evictions};
use crate::{Plan, owners};

/// The times from which the remaining toleration of a pod is computed.
#[derive(Clone, Copy, Debug)]
pub struct TaintAge {
    /// Wall-clock time at which the pod was first seen with these taints.
    pub first: Time,
    /// Monotonic time since then, independent of steps of the wall clock.
    pub elapsed: Duration,
}

#[cfg(test)]
impl TaintAge {
    /// For a pod that is seen with these taints for the first time.
    pub fn at(wall: Time) -> Self {
        Self { first: wall, elapsed: Duration::ZERO }
    }
}

/// What the last plan for a pod left to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Nothing.
    None,
    /// The eviction at the end of a toleration.
    Scheduled,
}

/// Whether a change of a pod calls for [`plan`]: its node or its tolerations differ, or it is deleted, which cancels a scheduled eviction. Its
/// status, which changes most often, does not matter.
pub fn is_affected(old: Option<&Pod>, new: Option<&Pod>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            old.metadata.uid != new.metadata.uid
                || old.spec.node_name != new.spec.node_name
                || old.spec.tolerations != new.spec.tolerations
        }
        (None, Some(pod)) | (Some(pod), None) => !pod.spec.node_name.is_empty(),
        (None, None) => false,
    }
}

/// The taints of a node that evict pods.
pub fn evicting_taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.taints.iter().filter(|taint| taint.effect == "NoExecute")
}

/// The event of a scheduled eviction that does not take place.
pub fn cancellation(about: ObjectReference) -> EventReport {
    let message = format!("Cancelling deletion of Pod {}/{}", about.namespace, about.name);
    eviction_event(about, TAINT_MANAGER, message)
}

/// The reason of the taint manager's events.
const TAINT_MANAGER: &str = "TaintManagerEviction";

fn eviction_event(about: ObjectReference, reason: &'static str, message: String) -> EventReport {
    EventReport { about, kind: EventKind::Normal, reason: reason.into(), message }
}

fn evict(pod: &Pod, reason: &'static str, message: String) -> Plan {
    let (key, uid) = (ObjectKey::from_metadata(&pod.metadata), pod.metadata.uid.clone());
    let write = ApiWrite::Delete { kind: ObjectKind::Pod, key, uid, grace_secs: None };
    let mut plan = Plan::from_writes([write]);
    plan.reports.push(eviction_event(pod_reference(pod), reason, message));
    plan
}

/// Plans the eviction of a pod by the taint manager, or without it after `timeout`.
pub fn plan_eviction(
    names: &Names,
    pod: &Pod,
    node: &Node,
    now: TaintAge,
    before: Eviction,
    timeout: Option<Duration>,
) -> Plan {
    match timeout {
        Some(timeout) => plan_by_timeout(names, pod, node, now, timeout),
        None => plan(pod, node, now, before),
    }
}

/// What the deletion of a pod by [`plan_eviction`] is.
pub fn disruption(timeout: Option<Duration>) -> Disruption {
    if timeout.is_some() { Disruption::NodeFailure } else { Disruption::Taint }
}

/// Plans the eviction of a pod from its node, now or when its toleration ends. One that has ended is evicted as well, as in Kubernetes.
pub fn plan(pod: &Pod, node: &Node, now: TaintAge, before: Eviction) -> Plan {
    let mut plan = Plan::default();
    if is_terminating(pod) {
        return plan;
    }
    match toleration_left(evicting_taints(node), &pod.spec.tolerations, bound_at(pod), now) {
        Tolerated::Forever if before == Eviction::Scheduled => {
            plan.reports.push(cancellation(pod_reference(pod)));
        }
        Tolerated::Forever => {}
        Tolerated::For(rest) => plan.requeue_in(rest),
        Tolerated::No => {
            let key = ObjectKey::from_metadata(&pod.metadata);
            return evict(pod, TAINT_MANAGER, format!("Marking for deletion Pod {key}"));
        }
    }
    plan
}

/// Plans the eviction of a pod without the taint manager: when its node has had a taint of failed nodes for `timeout`, whatever the pod tolerates. Pods of
/// DaemonSets stay. The nodes of a zone get these taints one after the other, which limits the rate of these evictions as well.
fn plan_by_timeout(
    names: &Names,
    pod: &Pod,
    node: &Node,
    now: TaintAge,
    timeout: Duration,
) -> Plan {
    let mut plan = Plan::default();
    if is_terminating(pod) || owners::controller(&pod.metadata, "DaemonSet").is_some() {
        return plan;
    }
    let toleration = Toleration {
        operator: "Exists".into(),
        toleration_seconds: Some(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX)),
        ..Toleration::default()
    };
    // Here it does not matter when the pod was bound.
    match toleration_left(evictions(&eviction_keys(names), node), &[toleration], i64::MIN, now) {
        Tolerated::Forever => {}
        Tolerated::For(rest) => plan.requeue_in(rest),
        Tolerated::No => {
            let (name, node) = (&pod.metadata.name, &pod.spec.node_name);
            let message = format!("Marking for deletion Pod {name} from Node {node}");
            return evict(pod, "NodeControllerEviction", message);
        }
    }
    plan
}

/// How long a pod tolerates the taints of its node from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tolerated {
    Forever,
    For(Duration),
    No,
}

/// When the pod was bound to its node, in seconds since 1970; its creation if no condition says so.
fn bound_at(pod: &Pod) -> i64 {
    let scheduled = pod.status.conditions.iter().find(|c| c.type_ == "PodScheduled");
    let since = scheduled.and_then(|condition| condition.last_transition_time.unix());
    since.or(pod.metadata.creation_timestamp.unix()).unwrap_or(0)
}

/// The shortest time for which the pod tolerates any of the evicting taints. It runs from the later of the taint's and the binding's time, but
/// from the first observation if those lie in the future.
fn toleration_left<'a>(
    taints: impl Iterator<Item = &'a Taint>,
    tolerations: &[Toleration],
    bound_at: i64,
    now: TaintAge,
) -> Tolerated {
    let first = now.first.unix().unwrap_or(0);
    let now = first.saturating_add(i64::try_from(now.elapsed.as_secs()).unwrap_or(i64::MAX));
    let mut shortest = Tolerated::Forever;
    for taint in taints {
        // If several tolerations match the taint, the first one counts.
        let mut tolerating = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        let Some(toleration) = tolerating.next() else { return Tolerated::No };
        let Some(limit) = toleration.toleration_seconds else { continue };
        let added = taint.time_added.and_then(Time::unix).unwrap_or(first);
        let since = added.max(bound_at).min(first);
        let rest = since.saturating_add(limit.max(0)).saturating_sub(now);
        match u64::try_from(rest) {
            Ok(rest) if rest > 0 => {
                let rest = Duration::from_secs(rest);
                shortest = match shortest {
                    Tolerated::For(earlier) => Tolerated::For(earlier.min(rest)),
                    _ => Tolerated::For(rest),
                };
            }
            _ => return Tolerated::No,
        }
    }
    shortest
}

#[cfg(test)]
mod tests {
    use proto_api::meta::v1::OwnerReference;
    use proto_api::names::Profile;

    use super::*;
    use crate::addresses::examples;

    const NOW: i64 = 1000;

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
        let check = |taint: Taint, tolerations: &[Toleration], expect: Tolerated| {
            let mut node = Node::default();
            node.spec.taints.push(taint);
            let now = TaintAge::at(Time::from_unix(NOW));
            assert_eq!(toleration_left(evicting_taints(&node), tolerations, 0, now), expect);
        };
        let secs = |secs| Tolerated::For(Duration::from_secs(secs));
        check(taint("NoSchedule", NOW), &[], Tolerated::Forever);
        check(taint("NoExecute", NOW), &[], Tolerated::No);
        check(taint("NoExecute", NOW), &[toleration("k", "Equal", "v", None)], Tolerated::Forever);
        check(taint("NoExecute", NOW), &[toleration("k", "", "v", None)], Tolerated::Forever);
        check(taint("NoExecute", NOW), &[toleration("k", "Equal", "w", None)], Tolerated::No);
        check(taint("NoExecute", NOW), &[toleration("k", "Exists", "", Some(300))], secs(300));
        check(taint("NoExecute", NOW - 290), &[toleration("", "Exists", "", Some(300))], secs(10));
        check(
            taint("NoExecute", NOW - 300),
            &[toleration("k", "Exists", "", Some(300))],
            Tolerated::No,
        );
        check(taint("NoExecute", NOW), &[toleration("k", "Exists", "", Some(0))], Tolerated::No);
        let both =
            [toleration("k", "Exists", "", Some(60)), toleration("", "Exists", "", Some(30))];
        check(taint("NoExecute", NOW), &both, secs(60));
        let ever = [toleration("", "Exists", "", None), toleration("k", "Exists", "", Some(30))];
        check(taint("NoExecute", NOW), &ever, Tolerated::Forever);
    }

    #[test]
    fn the_toleration_of_a_new_pod_starts_when_it_is_bound() {
        let (old, tolerations) =
            (taint("NoExecute", NOW - 1000), [toleration("k", "Exists", "", Some(300))]);
        let now = TaintAge::at(Time::from_unix(NOW));
        let left = |ago| toleration_left([&old].into_iter(), &tolerations, NOW - ago, now);
        assert_eq!(left(10), Tolerated::For(Duration::from_secs(290)));
        assert_eq!(left(300), Tolerated::No);
    }

    #[test]
    fn times_in_the_future_do_not_extend_a_toleration() {
        let tolerations = [toleration("k", "Exists", "", Some(300))];
        let left = |added: i64, bound_at: i64, elapsed: u64| {
            let (first, elapsed) = (Time::from_unix(NOW), Duration::from_secs(elapsed));
            let taints = [taint("NoExecute", added)];
            toleration_left(taints.iter(), &tolerations, bound_at, TaintAge { first, elapsed })
        };
        let secs = |secs| Tolerated::For(Duration::from_secs(secs));
        assert_eq!(left(NOW, 0, 100), secs(200));
        assert_eq!(left(NOW - 50, 0, 100), secs(150));
        assert_eq!(left(NOW, 0, 300), Tolerated::No);
        for future in [NOW + 1, NOW + 86_400, i64::MAX] {
            assert_eq!(left(future, 0, 100), secs(200), "{future}");
            assert_eq!(left(NOW, future, 100), secs(200), "{future}");
            assert_eq!(left(NOW, future, 300), Tolerated::No, "{future}");
        }
    }

    #[test]
    fn an_eviction_deletes_the_pod_and_has_an_event() {
        let mut node = Node::default();
        let now = TaintAge::at(Time::from_unix(NOW));
        let planned = |pod: &Pod, node: &Node| plan(pod, node, now, Eviction::None);
        let mut pod = examples::pod(1);
        assert_eq!(planned(&pod, &node), Plan::default());
        node.spec.taints.push(taint("NoExecute", NOW));
        let evicted = planned(&pod, &node);
        let [ApiWrite::Delete { grace_secs: None, .. }] = &evicted.writes[..] else {
            unreachable!("{evicted:?}")
        };
        let events = evicted.reports.iter().map(|event| (&*event.reason, &*event.message));
        let expected = ("TaintManagerEviction", "Marking for deletion Pod ns/web-1");
        assert_eq!(events.collect::<Vec<_>>(), [expected]);
        pod.metadata.deletion_timestamp = Some(Time::from_unix(NOW));
        assert_eq!(planned(&pod, &node), Plan::default());
    }

    #[test]
    fn a_scheduled_eviction_that_does_not_take_place_has_an_event() {
        let now = TaintAge::at(Time::from_unix(NOW));
        let (mut node, mut pod) = (Node::default(), examples::pod(1));
        let messages = |pod: &Pod, node: &Node, before| {
            let reports = plan(pod, node, now, before).reports.into_iter();
            reports.map(|event| event.message).collect::<Vec<_>>()
        };
        node.spec.taints.push(taint("NoExecute", NOW));
        pod.spec.tolerations = vec![toleration("k", "Exists", "", Some(300))];
        for before in [Eviction::None, Eviction::Scheduled] {
            let planned = plan(&pod, &node, now, before);
            assert_eq!(planned.requeue_after, Some(Duration::from_secs(300)), "{before:?}");
            assert_eq!(planned.reports, [], "{before:?}");
        }
        let untainted = Node::default();
        assert_eq!(messages(&pod, &untainted, Eviction::None), [""; 0]);
        let cancelled = ["Cancelling deletion of Pod ns/web-1"];
        assert_eq!(messages(&pod, &untainted, Eviction::Scheduled), cancelled);
        let mut terminating = pod.clone();
        terminating.metadata.deletion_timestamp = Some(Time::from_unix(NOW));
        assert_eq!(messages(&terminating, &untainted, Eviction::Scheduled), [""; 0]);
        pod.spec.tolerations[0].toleration_seconds = None;
        assert_eq!(messages(&pod, &node, Eviction::Scheduled), cancelled);
        pod.spec.tolerations.clear();
        let evicted = ["Marking for deletion Pod ns/web-1"];
        assert_eq!(messages(&pod, &node, Eviction::Scheduled), evicted);
        pod.status.phase = "Succeeded".into();
        assert_eq!(messages(&pod, &node, Eviction::None), evicted, "also one that has ended");
    }

    #[test]
    fn without_the_taint_manager_pods_of_failed_nodes_are_evicted_after_the_timeout() {
        let names = Names::new(Profile::Kubernetes);
        let planned = |key: &str, effect: &str, since: i64, change: fn(&mut Pod)| {
            let (mut node, mut pod) = (Node::default(), examples::pod(1));
            node.spec.taints.push(Taint { key: key.into(), ..taint(effect, since) });
            change(&mut pod);
            let now = TaintAge::at(Time::from_unix(NOW));
            plan_by_timeout(names, &pod, &node, now, Duration::from_secs(300))
        };
        let wait =
            |secs| Plan { requeue_after: Some(Duration::from_secs(secs)), ..Plan::default() };
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let after = |secs: i64| planned(key, "NoExecute", NOW - secs, |_| {});
            assert_eq!((after(0), after(299)), (wait(300), wait(1)), "{key}");
            let evicted = after(300);
            assert!(matches!(&evicted.writes[..], [ApiWrite::Delete { grace_secs: None, .. }]));
            let events = evicted.reports.iter().map(|event| (&*event.reason, &*event.message));
            let expected =
                ("NodeControllerEviction", "Marking for deletion Pod web-1 from Node node");
            assert_eq!(events.collect::<Vec<_>>(), [expected], "{key}");
            let tolerating = planned(key, "NoExecute", NOW - 300, |pod| {
                pod.spec.tolerations = vec![toleration("", "Exists", "", None)];
            });
            assert_eq!(tolerating.writes, evicted.writes, "{key}, whatever it tolerates");
            assert_eq!(planned(key, "NoSchedule", 0, |_| {}), Plan::default(), "{key}");
        }
        let failed = "node.kubernetes.io/unreachable";
        let stays = [
            planned("k", "NoExecute", 0, |_| {}),
            planned(failed, "NoExecute", 0, |pod| {
                pod.metadata.deletion_timestamp = Some(Time::from_unix(NOW));
            }),
            planned(failed, "NoExecute", 0, |pod| {
                let (kind, controller) = ("DaemonSet".into(), Some(true));
                let owner = OwnerReference { kind, controller, ..OwnerReference::default() };
                pod.metadata.owner_references.push(owner);
            }),
        ];
        assert!(stays.iter().all(|plan| *plan == Plan::default()), "{stays:?}");
    }

    #[test]
    fn evictions_are_planned_again_only_for_nodes_tolerations_and_deletions() {
        let pod = examples::pod(1);
        let affected = |change: fn(&mut Pod)| {
            let mut new = pod.clone();
            change(&mut new);
            is_affected(Some(&pod), Some(&new))
        };
        assert!(!affected(|pod| examples::set_ready(pod, "False")));
        assert!(!affected(|pod| pod.status.phase = "Failed".into()));
        assert!(!affected(|pod| pod.metadata.resource_version = "9".into()));
        assert!(affected(|pod| pod.spec.node_name = "other".into()));
        assert!(affected(|pod| pod.spec.tolerations.push(Toleration::default())));
        assert!(affected(|pod| pod.metadata.uid = "another".into()));
        assert!(is_affected(None, Some(&pod)) && is_affected(Some(&pod), None));
        let mut unscheduled = pod.clone();
        unscheduled.spec.node_name.clear();
        assert!(!is_affected(None, Some(&unscheduled)) && !is_affected(Some(&unscheduled), None));
        assert!(is_affected(Some(&unscheduled), Some(&pod)), "it is bound");
    }
}
