//! Preemption on the node: which pods end so that a critical pod fits.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::cmp::Reverse;
use std::sync::Arc;

use proto_api::core::v1::Pod;

use crate::priority::{is_critical, priority};
use crate::qos::{QosClass, qos_class};
use crate::resources::{Amounts, PODS, capacity, requests};

/// A running pod that could be preempted.
#[derive(Clone, Debug)]
pub struct PreemptionVictim {
    pub pod: Arc<Pod>,
    /// Whether it is a static pod.
    pub is_static: bool,
}

/// Uids of the pods that have to end so that `pod` fits into the allocatable resources; `None` if no set of pods is enough. Only
/// pods less important than `pod` end: best-effort pods first, then burstable, then guaranteed; within a class as few as
/// possible, largest usable ones first.
pub fn choose_victims(
    pod: &Pod,
    is_static: bool,
    running: &[PreemptionVictim],
    allocatable: &Amounts,
) -> Option<Vec<String>> {
    let mut lacking = missing_amounts(pod, running, allocatable);
    let mut candidates: Vec<&PreemptionVictim> =
        running.iter().filter(|v| may_end(v, pod, is_static)).collect();
    candidates.sort_by_key(|v| {
        let class = match qos_class(&v.pod) {
            QosClass::BestEffort => 0,
            QosClass::Burstable => 1,
            QosClass::Guaranteed => 2,
        };
        (class, priority(&v.pod), Reverse(relief(&v.pod, &lacking)), v.pod.metadata.uid.clone())
    });
    let mut chosen: Vec<&PreemptionVictim> = Vec::new();
    for victim in candidates {
        if lacking.is_empty() {
            break;
        }
        if relief(&victim.pod, &lacking) > 0 {
            relieve(&mut lacking, &victim.pod);
            chosen.push(victim);
        }
    }
    if !lacking.is_empty() {
        return None;
    }
    Some(spare_victims(pod, running, allocatable, chosen))
}

/// A critical pod preempts only pods that are not critical, and never a static pod.
fn may_end(victim: &PreemptionVictim, pod: &Pod, is_static: bool) -> bool {
    let less_important = priority(&victim.pod) < priority(pod);
    !is_critical(&victim.pod, victim.is_static) && (is_static || less_important)
}

/// Missing amounts by resource, in thousandths.
fn missing_amounts(
    pod: &Pod,
    running: &[PreemptionVictim],
    allocatable: &Amounts,
) -> Vec<(String, i64)> {
    let mut lacking = Vec::new();
    let mut wanted = requests(pod);
    wanted.insert(PODS.to_owned(), proto_api::Quantity::from_units(1));
    for (name, amount) in wanted {
        let Some(capacity) = capacity(allocatable, &name) else { continue };
        let held: i64 =
            running.iter().map(|v| requested_amount(&v.pod, &name)).fold(0, i64::saturating_add);
        let missing = held.saturating_add(amount.as_milli()).saturating_sub(capacity.as_milli());
        if !amount.is_zero() && missing > 0 {
            lacking.push((name, missing));
        }
    }
    lacking
}

fn requested_amount(pod: &Pod, resource: &str) -> i64 {
    match resource {
        PODS => 1000,
        _ => requests(pod).get(resource).map_or(0, |q| q.as_milli()),
    }
}

/// Share of the missing amounts that the pod holds, summed over the resources, in thousandths.
fn relief(pod: &Pod, lacking: &[(String, i64)]) -> i64 {
    let share = |(name, missing): &(String, i64)| {
        let held = requested_amount(pod, name).min(*missing);
        let thousandths = i128::from(held).saturating_mul(1000);
        let share = thousandths.checked_div(i128::from(*missing)).unwrap_or_default();
        i64::try_from(share).unwrap_or(0)
    };
    lacking.iter().map(share).sum()
}

fn relieve(lacking: &mut Vec<(String, i64)>, pod: &Pod) {
    for (name, missing) in lacking.iter_mut() {
        *missing = missing.saturating_sub(requested_amount(pod, name));
    }
    lacking.retain(|(_, missing)| *missing > 0);
}

/// Spares every victim without which the others are still enough, most valuable first.
fn spare_victims(
    pod: &Pod,
    running: &[PreemptionVictim],
    allocatable: &Amounts,
    mut chosen: Vec<&PreemptionVictim>,
) -> Vec<String> {
    let mut number = chosen.len();
    while number > 0 {
        number = number.saturating_sub(1);
        let without: Vec<&PreemptionVictim> = chosen
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != number)
            .map(|(_, victim)| *victim)
            .collect();
        let stay: Vec<PreemptionVictim> = running
            .iter()
            .filter(|v| without.iter().all(|gone| gone.pod.metadata.uid != v.pod.metadata.uid))
            .cloned()
            .collect();
        if missing_amounts(pod, &stay, allocatable).is_empty() {
            chosen = without;
        }
    }
    chosen.into_iter().map(|victim| victim.pod.metadata.uid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::Container;

    use super::*;

    fn pod(name: &str, priority: i32, requests: &[(&str, &str)], guaranteed: bool) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = name.into();
        pod.spec.priority = Some(priority);
        let mut container = Container::default();
        for (resource, amount) in requests {
            let amount = amount.parse().expect("quantity");
            container.resources.requests.insert((*resource).to_owned(), amount);
            if guaranteed {
                container.resources.limits.insert((*resource).to_owned(), amount);
            }
        }
        pod.spec.containers = vec![container];
        pod
    }

    fn running(pods: &[Pod]) -> Vec<PreemptionVictim> {
        let one = |pod: &Pod| PreemptionVictim {
            pod: Arc::new(pod.clone()),
            is_static: pod.metadata.uid.starts_with("static"),
        };
        pods.iter().map(one).collect()
    }

    fn allocatable() -> Amounts {
        let amounts = [("cpu", "2"), ("memory", "1000"), ("pods", "4")];
        amounts
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), amount.parse().expect("quantity")))
            .collect()
    }

    const CRITICAL: i32 = 2_000_000_000;

    #[test]
    fn as_few_as_possible_and_the_least_valuable() {
        let critical = pod("new", CRITICAL, &[("cpu", "1")], false);
        let small = pod("small", 0, &[("cpu", "200m")], false);
        let large = pod("large", 0, &[("cpu", "1500m")], false);
        let guaranteed = pod("g", 0, &[("cpu", "300m"), ("memory", "1")], true);
        let all = running(&[small.clone(), large, guaranteed.clone()]);
        let chosen = choose_victims(&critical, false, &all, &allocatable());
        assert_eq!(chosen, Some(vec!["large".to_owned()]));
        // A large guaranteed pod is spared while burstable ones are enough.
        let other = pod("other", 0, &[("cpu", "900m")], false);
        let big = pod("g", 0, &[("cpu", "900m"), ("memory", "1")], true);
        let all = running(&[small, other, big]);
        let chosen = choose_victims(&critical, false, &all, &allocatable());
        assert_eq!(chosen, Some(vec!["other".to_owned(), "small".to_owned()]));
    }

    #[test]
    fn critical_and_static_pods_are_not_preempted() {
        let critical = pod("new", CRITICAL, &[("cpu", "1")], false);
        let all = running(&[
            pod("static-1", 0, &[("cpu", "1")], false),
            pod("other", CRITICAL, &[("cpu", "1")], false),
        ]);
        assert_eq!(choose_victims(&critical, false, &all, &allocatable()), None);
    }

    #[test]
    fn places_for_pods_run_out_too() {
        let critical = pod("new", CRITICAL, &[], false);
        let full: Vec<Pod> = (0..4).map(|n| pod(&format!("p{n}"), n, &[], false)).collect();
        let chosen = choose_victims(&critical, false, &running(&full), &allocatable());
        assert_eq!(chosen, Some(vec!["p0".to_owned()]));
        assert_eq!(
            choose_victims(&critical, false, &running(&full[1..]), &allocatable()),
            Some(vec![])
        );
    }
}
