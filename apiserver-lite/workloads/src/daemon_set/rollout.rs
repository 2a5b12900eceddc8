//! The rolling update: which pods of earlier revisions go, and which nodes get a second pod for the time of the update.

use apiserver_controllers::addresses::is_terminating;
use proto_api::Time;
use proto_api::core::v1::Pod;

use super::PodChanges;
use super::placement::{Fit, Placement};
use crate::pods::revision;

/// Maximum number of pods of a node, with those that are terminating, beside which it gets one more for an update.
const PODS_BEFORE_SURGE_MAX: usize = 2;

/// The next step. It is only called when no node lacks a pod and none has a superfluous one.
pub(super) fn changes<'a>(placement: &Placement<'a>, hash: &str, now: Time) -> PodChanges<'a> {
    match placement.surge_max() {
        0 => replace(placement, hash, now),
        max => surge(placement, hash, now, max),
    }
}

/// The nodes of the update: those that should run a pod, and those that have one.
fn nodes<'a>(placement: &Placement<'a>) -> Vec<&'a str> {
    let wanted = placement.nodes.iter().filter(|(_, fit)| **fit == Fit::Runs);
    let mut nodes: Vec<&str> =
        wanted.map(|(node, _)| *node).chain(placement.pods.keys().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// The pods of a node that are not terminating.
enum OnNode<'a> {
    None,
    Old(&'a Pod),
    New(&'a Pod),
    Both {
        old: &'a Pod,
        new: &'a Pod,
    },
    /// More than one of a sort: some have to go before the update.
    Several,
}

fn on_node<'a>(placement: &Placement<'a>, node: &str, hash: &str) -> OnNode<'a> {
    let pods = placement.on(node).iter().copied().filter(|pod| !is_terminating(pod));
    let (new, old): (Vec<&Pod>, Vec<&Pod>) = pods.partition(|pod| revision(pod) == hash);
    match (&new[..], &old[..]) {
        ([], []) => OnNode::None,
        ([], [old]) => OnNode::Old(old),
        ([new], []) => OnNode::New(new),
        ([new], [old]) => OnNode::Both { old, new },
        _ => OnNode::Several,
    }
}

/// Deletes old pods: those that are not available, and as many others as nodes may be without an available pod.
fn replace<'a>(placement: &Placement<'a>, hash: &str, now: Time) -> PodChanges<'a> {
    let mut unavailable = 0_i32;
    let (mut unused, mut candidates) = (Vec::new(), Vec::new());
    for node in nodes(placement) {
        match on_node(placement, node, hash) {
            OnNode::New(new) if placement.is_available(new, now) => {}
            OnNode::Old(old) if placement.is_available(old, now) => candidates.push(old),
            // The old pod is not available: replacing it reduces nothing.
            OnNode::Old(old) => {
                unavailable = unavailable.saturating_add(1);
                unused.push(old);
            }
            _ => unavailable = unavailable.saturating_add(1),
        }
    }
    let left = placement.unavailable_max().saturating_sub(unavailable);
    candidates.truncate(usize::try_from(left).unwrap_or(0));
    unused.extend(candidates);
    PodChanges { create: Vec::new(), delete: unused }
}

/// Creates new pods before old ones end, and deletes old ones whose successor is available.
fn surge<'a>(placement: &Placement<'a>, hash: &str, now: Time, max: i32) -> PodChanges<'a> {
    let (mut changes, mut surging, mut candidates) = (PodChanges::default(), 0_i32, Vec::new());
    for node in nodes(placement) {
        match on_node(placement, node, hash) {
            OnNode::None | OnNode::New(_) => {}
            // A node that is about to lose its pod gets no second one, nor does one on which several are terminating.
            OnNode::Old(_) if placement.nodes.get(node) != Some(&Fit::Runs) => {}
            OnNode::Old(_) if placement.on(node).len() > PODS_BEFORE_SURGE_MAX => {}
            OnNode::Old(old) if placement.is_available(old, now) => candidates.push(node),
            OnNode::Old(_) => changes.create.push(node),
            OnNode::Both { old, new } if placement.is_available(new, now) => {
                changes.delete.push(old);
            }
            OnNode::Both { .. } | OnNode::Several => surging = surging.saturating_add(1),
        }
    }
    candidates.truncate(usize::try_from(max.saturating_sub(surging)).unwrap_or(0));
    changes.create.extend(candidates);
    changes
}
