//! What pods use: requests and limits of their containers, as long as they have not ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto_api::core::v1::{Container, Pod};
use proto_api::names::Names;
use proto_api::{Quantity, Time};

use crate::resource_amounts::{ResourceList, add, raise};

/// Resources of pods whose names have no prefix.
const NAMED: &[&str] = &[
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "pods",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// Resources that every container has to name where a quota counts them; Kubernetes requires it of no other.
const REQUIRED: &[&str] =
    &["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];
const HUGE_PAGES: &str = "hugepages-";
const REQUESTS: &str = "requests.";

/// Whether a quota's resource of this name counts pods.
pub fn is_counted_by(name: &str, names: &Names) -> bool {
    let requested = name.strip_prefix(REQUESTS);
    NAMED.contains(&name)
        || requested.unwrap_or(name).starts_with(HUGE_PAGES)
        || requested.is_some() && has_foreign_domain(name, names)
}

/// Whether a name has a domain that is not Kubernetes' own.
fn has_foreign_domain(name: &str, names: &Names) -> bool {
    let own = format!("{}/", names.label_domain());
    name.contains('/') && !name.contains(&own)
}

/// What a pod uses. One that has ended, or that should have ended by `now`, is an object only.
pub fn amounts(pod: &Pod, names: &Names, now: Time) -> ResourceList {
    let mut amounts = ResourceList::from([("count/pods".to_owned(), Quantity::from_units(1))]);
    if has_ended(pod) || left_until_ended(pod, now).is_some_and(|left| left.is_zero()) {
        return amounts;
    }
    let total = |of: fn(&Container) -> &ResourceList| {
        let mut total = ResourceList::new();
        pod.spec.containers.iter().for_each(|container| add(&mut total, of(container)));
        pod.spec.init_containers.iter().for_each(|container| raise(&mut total, of(container)));
        add(&mut total, &pod.spec.overhead);
        total
    };
    let requests = total(|container| &container.resources.requests);
    let limits = total(|container| &container.resources.limits);
    add(&mut amounts, &computed(&requests, &limits, names));
    amounts
}

fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Failed" | "Succeeded")
}

/// How long a pod that is being deleted is counted; later its node may be lost, and the pod must not keep others out. None for other pods.
pub fn left_until_ended(pod: &Pod, now: Time) -> Option<Duration> {
    let deleted = pod.metadata.deletion_timestamp?.unix()?;
    let grace = pod.metadata.deletion_grace_period_seconds?;
    let end = deleted.saturating_add(grace).saturating_add(1);
    let left = end.saturating_sub(now.unix()?);
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

/// Requests and limits under the names that quotas have for them.
fn computed(requests: &ResourceList, limits: &ResourceList, names: &Names) -> ResourceList {
    let mut all = ResourceList::from([("pods".to_owned(), Quantity::from_units(1))]);
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(name) {
            all.insert(name.to_owned(), *request);
            all.insert(format!("{REQUESTS}{name}"), *request);
        }
        if let Some(limit) = limits.get(name) {
            all.insert(format!("limits.{name}"), *limit);
        }
    }
    for (name, request) in requests {
        if name.starts_with(HUGE_PAGES) {
            all.insert(name.clone(), *request);
        }
        let is_extended = has_foreign_domain(name, names) && !name.starts_with(REQUESTS);
        if is_extended || name.starts_with(HUGE_PAGES) {
            all.insert(format!("{REQUESTS}{name}"), *request);
        }
    }
    all
}

/// What containers of the pod have to name and do not, by resource; `counted` are the resources that a quota counts.
pub fn find_missing<'a>(
    pod: &'a Pod,
    counted: &BTreeSet<&'a str>,
    names: &Names,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let required: Vec<&str> = counted.iter().copied().filter(|n| REQUIRED.contains(n)).collect();
    for container in pod.spec.containers.iter().chain(&pod.spec.init_containers) {
        let named = computed(&container.resources.requests, &container.resources.limits, names);
        for resource in required.iter().filter(|resource| !named.contains_key(**resource)) {
            missing.entry(resource).or_default().insert(container.name.as_str());
        }
    }
    missing
}
