//! Requests and limits of a pod, summed over its containers.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::Quantity;
use proto_api::core::v1::{Container, Pod};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// CPU, in cores.
pub const CPU: &str = "cpu";
/// Memory, in bytes.
pub const MEMORY: &str = "memory";
/// Local ephemeral storage, in bytes.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Processes and threads; used in reservations only.
pub const PID: &str = "pid";
/// Prefix of huge page resources; the page size follows.
pub const HUGE_PAGES: &str = "hugepages-";
/// Number of pods.
pub const PODS: &str = "pods";

/// Resource name of a huge page size in bytes: `hugepages-2Mi`.
pub fn huge_page_resource(bytes: u64) -> String {
    format!("{HUGE_PAGES}{}", Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX)))
}

/// Allocatable amount of a resource; `None` for resources of the cluster, which only the scheduler accounts for. A resource that
/// a plugin ever offered stays a resource of the node, with 0 if the plugin is gone.
pub fn capacity(allocatable: &Amounts, resource: &str) -> Option<Quantity> {
    let none = || (!resource.contains('/')).then(Quantity::default);
    allocatable.get(resource).copied().or_else(none)
}

/// Requests that scheduler and node account for: the larger of the sum of all containers and of each init container, both with
/// the sidecars running alongside, plus the pod's overhead.
pub fn requests(pod: &Pod) -> Amounts {
    effective(pod, |c| &c.resources.requests)
}

/// The same for limits. A container without a limit counts as 0; check [`all_limited`] before using the sum as a limit.
pub fn limits(pod: &Pod) -> Amounts {
    effective(pod, |c| &c.resources.limits)
}

/// Whether every container, including init containers, limits the resource.
pub fn all_limited(pod: &Pod, resource: &str) -> bool {
    let limited = |c: &Container| c.resources.limits.get(resource).is_some_and(|q| !q.is_zero());
    pod.spec.init_containers.iter().chain(&pod.spec.containers).all(limited)
}

fn effective(pod: &Pod, of: impl Fn(&Container) -> &Amounts) -> Amounts {
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for container in &pod.spec.init_containers {
        let mut now = sidecars.clone();
        add(&mut now, of(container));
        if is_sidecar(container) {
            sidecars.clone_from(&now);
        }
        raise(&mut starting, &now);
    }
    let mut sum = sidecars;
    for container in &pod.spec.containers {
        add(&mut sum, of(container));
    }
    raise(&mut sum, &starting);
    add(&mut sum, &pod.spec.overhead);
    sum
}

/// Whether an init container is a sidecar.
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

/// Raises each resource in `sum` to at least its amount in `least`.
fn raise(sum: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = sum.entry(name.clone()).or_insert(*amount);
        *known = (*known).max(*amount);
    }
}

/// Adds `more` to `sum`, by resource.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let known = sum.entry(name.clone()).or_default();
        *known = *known + *amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn container(requests: &[(&str, &str)]) -> Container {
        testing::container(requests, &[])
    }

    #[test]
    fn init_containers_count_alone_and_containers_together() {
        let mut pod = Pod::default();
        pod.spec.containers =
            vec![container(&[("cpu", "100m"), ("memory", "64Mi")]), container(&[("cpu", "200m")])];
        pod.spec.init_containers = vec![container(&[("cpu", "250m"), ("memory", "1Gi")])];
        pod.spec.overhead.insert("cpu".into(), "10m".parse().expect("quantity"));
        let sum = requests(&pod);
        assert_eq!(sum["cpu"].as_milli(), 310);
        assert_eq!(sum["memory"].value(), 1 << 30);
    }

    #[test]
    fn sidecars_count_beside_everything_that_comes_after_them() {
        let mut sidecar = container(&[("cpu", "100m")]);
        sidecar.restart_policy = Some("Always".into());
        let mut pod = Pod::default();
        pod.spec.init_containers =
            vec![container(&[("cpu", "350m")]), sidecar, container(&[("cpu", "300m")])];
        pod.spec.containers = vec![container(&[("cpu", "200m")])];
        assert_eq!(requests(&pod)["cpu"].as_milli(), 400);
        pod.spec.containers[0] = container(&[("cpu", "500m")]);
        assert_eq!(requests(&pod)["cpu"].as_milli(), 600);
    }
}
