//! Spread constraints of pods that have none themselves: those of the profile. They select what the Services of the pod and its controller select together,
//! as kube-scheduler's `DefaultSelector` does.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto_api::selectors::Selector;

use crate::placement::{NodeInclusion, Spread};
use crate::pod_info::PodInfo;
use crate::profile::{DefaultConstraint, Profile, WhenUnsatisfiable};

/// What the Services that select a pod and its controller select together; none if that is everything. `services` are the selectors of its namespace.
pub fn default_selector(
    pod: &PodInfo,
    services: &[Arc<BTreeMap<String, String>>],
    controller: Option<&Selector>,
) -> Option<Selector> {
    let mut labels = BTreeMap::new();
    for service in services {
        if service.iter().all(|(key, value)| pod.labels.get(key) == Some(value)) {
            labels.extend(service.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
    }
    let selector = Selector::from_map(&labels);
    let selector = match controller {
        Some(controller) => selector.and(controller),
        None => selector,
    };
    (!selector.is_everything()).then_some(selector)
}

/// The pod with the default constraints of the profile, unless it has its own. `selector` is asked only if there are any; without one it has none.
pub fn spread_by_default(
    pod: Arc<PodInfo>,
    profile: &Profile,
    selector: impl FnOnce(&PodInfo) -> Option<Selector>,
) -> Arc<PodInfo> {
    let default = &profile.default_spread;
    if default.constraints.is_empty() || pod.constraints.has_spread() {
        return pod;
    }
    let Some(selector) = selector(&pod) else { return pod };
    let spreads = |when: WhenUnsatisfiable| -> Vec<Spread> {
        let all = default.constraints.iter().filter(|of| of.when_unsatisfiable == when);
        all.map(|constraint| spread(constraint, &selector)).collect()
    };
    let mut pod = Arc::unwrap_or_clone(pod);
    pod.constraints.topology_spread = spreads(WhenUnsatisfiable::DoNotSchedule);
    pod.constraints.preferred_spread = spreads(WhenUnsatisfiable::ScheduleAnyway);
    pod.constraints.scored = default.scored;
    Arc::new(pod)
}

fn spread(constraint: &DefaultConstraint, selector: &Selector) -> Spread {
    Spread {
        pods: Some(selector.clone()),
        topology_key: constraint.topology_key.clone(),
        max_skew: constraint.max_skew,
        min_domains: constraint.min_domains,
        inclusion: NodeInclusion::default(),
    }
}

#[cfg(test)]
mod tests;
