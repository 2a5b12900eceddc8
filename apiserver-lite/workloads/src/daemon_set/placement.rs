//! Which nodes have a pod of the set, which need one, and which have too many.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_controllers::Plan;
use apiserver_controllers::addresses::{is_ready, is_terminating};
use proto_api::apps::v1::DaemonSet;
use proto_api::core::v1::{Node, Pod, PodSpec};
use proto_api::event_report::{EventKind, EventReport};
use proto_api::names::Names;
use proto_api::{IntOrString, Time};

use super::PodChanges;
use super::failed_pods::FailedPods;
use super::template::{add_tolerations, node_of};
use crate::node_fit::{matches_selectors, tolerates_all};
use crate::pods::{is_available, revision};

/// Whether a pod of the set should run on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Yes.
    Runs,
    /// One that is there stays; none is created.
    Stays,
    No,
}

/// Whether a pod of the set should run on a node.
pub fn runs_on(names: &Names, set: &DaemonSet, node: &Node) -> Fit {
    fit(&placement_spec(names, set), node)
}

/// The fields of the pods' spec that say on which nodes they run: the whole may be large, and is asked for each change of a node.
fn placement_spec(names: &Names, set: &DaemonSet) -> PodSpec {
    let template = &set.spec.template.spec;
    let mut spec = PodSpec {
        node_name: template.node_name.clone(),
        node_selector: template.node_selector.clone(),
        affinity: template.affinity.clone(),
        tolerations: template.tolerations.clone(),
        host_network: template.host_network,
        ..PodSpec::default()
    };
    add_tolerations(names, &mut spec);
    spec
}

fn fit(spec: &PodSpec, node: &Node) -> Fit {
    let is_named = spec.node_name.is_empty() || spec.node_name == node.metadata.name;
    if !is_named || !matches_selectors(spec, node) {
        return Fit::No;
    }
    if tolerates_all(&spec.tolerations, node, &["NoExecute", "NoSchedule"]) {
        return Fit::Runs;
    }
    match tolerates_all(&spec.tolerations, node, &["NoExecute"]) {
        true => Fit::Stays,
        false => Fit::No,
    }
}

/// The set's pods by node.
pub(super) struct Placement<'a> {
    pub(super) set: &'a DaemonSet,
    pub(super) nodes: BTreeMap<&'a str, Fit>,
    /// The pods of each node that has any, also of nodes that do not exist.
    pub(super) pods: BTreeMap<&'a str, Vec<&'a Pod>>,
    about: proto_api::core::v1::ObjectReference,
}

impl<'a> Placement<'a> {
    /// Groups the pods by their nodes; on each, those that are scheduled and older come first.
    pub(super) fn new(
        names: &Names,
        set: &'a DaemonSet,
        nodes: &'a [Arc<Node>],
        claimed: &[&'a Pod],
    ) -> Self {
        let spec = placement_spec(names, set);
        let nodes = nodes.iter().map(|node| (node.metadata.name.as_str(), fit(&spec, node)));
        let mut pods: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
        for pod in claimed {
            if let Some(node) = node_of(pod) {
                pods.entry(node).or_default().push(pod);
            }
        }
        for pods in pods.values_mut() {
            pods.sort_by_key(|pod| {
                let created = pod.metadata.creation_timestamp.unix();
                (pod.spec.node_name.is_empty(), created, &pod.metadata.name)
            });
        }
        let about = proto_api::event_report::reference(set, names);
        Self { set, nodes: nodes.collect(), pods, about }
    }

    /// The pods of a node.
    pub(super) fn on(&self, node: &str) -> &[&'a Pod] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }

    /// The number of nodes that should run a pod.
    pub(super) fn count_desired(&self) -> i32 {
        let wanted = self.nodes.values().filter(|fit| **fit == Fit::Runs).count();
        i32::try_from(wanted).unwrap_or(i32::MAX)
    }

    /// Whether the pod has been ready for long enough.
    pub(super) fn is_available(&self, pod: &Pod, now: Time) -> bool {
        is_available(pod, self.set.spec.min_ready_seconds, now)
    }

    /// The number of pods beyond one a node that an update may have.
    pub(super) fn surge_max(&self) -> i32 {
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        share(rolling.and_then(|rolling| rolling.max_surge.as_ref()), 0, self.count_desired())
    }

    /// The number of nodes without an available pod that an update may have.
    pub(super) fn unavailable_max(&self) -> i32 {
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        let max = share(
            rolling.and_then(|rolling| rolling.max_unavailable.as_ref()),
            1,
            self.count_desired(),
        );
        // Neither would let no pod be replaced.
        if max == 0 && self.surge_max() == 0 { 1 } else { max }
    }

    /// The pods that nodes lack, and those that they have without need. Notes failed pods in `failed`; their events and waits go to `plan`.
    pub(super) fn changes(
        &self,
        hash: &str,
        failed: &mut FailedPods,
        now: Time,
        plan: &mut Plan,
    ) -> PodChanges<'a> {
        let mut changes = PodChanges::default();
        for (node, fit) in &self.nodes {
            match fit {
                Fit::Runs if self.on(node).is_empty() => changes.create.push(*node),
                Fit::Runs | Fit::Stays => {
                    let mut running = Vec::new();
                    for pod in self.on(node).iter().copied().filter(|pod| !is_terminating(pod)) {
                        match pod.status.phase.as_str() {
                            "Failed" => match failed.remaining_delay(self.set, node, now) {
                                Some(left) => plan.requeue_in(left),
                                None => {
                                    failed.deleted(self.set, node, now);
                                    plan.reports.push(self.found_failed(pod, node));
                                    changes.delete.push(pod);
                                }
                            },
                            _ => running.push(pod),
                        }
                    }
                    if *fit == Fit::Runs && self.has_surge() && self.is_leaving(node) {
                        // An update with surge does not wait for the end of the pod that goes.
                        changes.create.push(*node);
                    }
                    changes.delete.extend(self.superfluous(running, hash, now));
                }
                Fit::No => {
                    let pods = self.on(node).iter().copied().filter(|pod| !is_terminating(pod));
                    changes.delete.extend(pods);
                }
            }
        }
        // No node's deletion ends pods that were never assigned to it.
        let gone = self.pods.iter().filter(|(node, _)| !self.nodes.contains_key(*node));
        let unscheduled = |pod: &&Pod| pod.spec.node_name.is_empty() && !is_terminating(pod);
        changes.delete.extend(gone.flat_map(|(_, pods)| pods.iter().copied().filter(unscheduled)));
        changes
    }

    /// Whether the node has one pod, which is terminating. Beside several, or beside a failed one that stays for its back-off, none is created: pods that
    /// fail or are evicted again and again would be without number.
    fn is_leaving(&self, node: &str) -> bool {
        matches!(self.on(node), [only] if is_terminating(only))
    }

    fn has_surge(&self) -> bool {
        self.set.spec.update_strategy.type_ == "RollingUpdate" && self.surge_max() > 0
    }

    /// The pods of a node beyond the one that it should run; beyond one old and one new during an update with surge. An available pod stays rather than
    /// an older one that is not.
    fn superfluous(&self, mut running: Vec<&'a Pod>, hash: &str, now: Time) -> Vec<&'a Pod> {
        running.sort_by_key(|pod| !self.is_available(pod, now));
        if !self.has_surge() {
            return running.iter().skip(1).copied().collect();
        }
        let (new, old): (Vec<&Pod>, Vec<&Pod>) =
            running.iter().copied().partition(|pod| revision(pod) == hash);
        let mut superfluous: Vec<&Pod> =
            new.iter().skip(1).chain(old.iter().skip(1)).copied().collect();
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!is_ready(old) || self.is_available(new, now))
        {
            superfluous.push(old);
        }
        superfluous
    }

    fn found_failed(&self, pod: &Pod, node: &str) -> EventReport {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        EventReport {
            about: self.about.clone(),
            kind: EventKind::Warning,
            reason: "FailedDaemonPod".into(),
            message: format!(
                "Found failed daemon pod {namespace}/{name} on node {node}, will try to kill it"
            ),
        }
    }
}

/// A number or a percentage of `whole`, rounded up; `default` if it is missing or neither.
fn share(value: Option<&IntOrString>, default: i32, whole: i32) -> i32 {
    let percent = match value {
        None => return default,
        Some(IntOrString::Int(number)) => return (*number).max(0),
        Some(IntOrString::String(text)) => text.strip_suffix('%').and_then(|t| t.parse().ok()),
    };
    let Some(percent): Option<i64> = percent else { return default };
    let part = i64::from(whole).saturating_mul(percent.max(0));
    i32::try_from(part.saturating_add(99).div_euclid(100)).unwrap_or(i32::MAX)
}
