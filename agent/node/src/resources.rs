//! What a pod asks for and what it may use at most, summed over its containers.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::Quantity;
use proto_api::core::v1::{Container, Pod};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// CPU time, in cores.
pub const CPU: &str = "cpu";
/// Memory, in bytes.
pub const MEMORY: &str = "memory";
/// Local disk space, in bytes.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Processes and threads; only in reservations.
pub const PID: &str = "pid";
/// What the names of huge pages start with; the page size follows.
pub const HUGE_PAGES: &str = "hugepages-";
/// Number of pods.
pub const PODS: &str = "pods";

/// The resource of huge pages of a size in bytes: `hugepages-2Mi`.
pub fn huge_page_resource(bytes: u64) -> String {
    format!("{HUGE_PAGES}{}", Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX)))
}

/// How much a node has of a resource; `None` for a resource of the cluster, which a scheduler accounts for and no node does. What a
/// plugin of the node has ever offered is the node's: there, if need be as none.
pub fn capacity(allocatable: &Amounts, resource: &str) -> Option<Quantity> {
    let none = || (!resource.contains('/')).then(Quantity::default);
    allocatable.get(resource).copied().or_else(none)
}

/// What the scheduler and the node account for the pod: the larger of all containers together and of each init container
/// alone, both with the sidecars that run beside them, plus the pod's overhead.
pub fn requests(pod: &Pod) -> Amounts {
    effective(pod, |c| &c.resources.requests)
}

/// The same over limits. A resource that one container does not limit is limited for that container by nothing; ask
/// [`all_limited`] before using a sum as a bound.
pub fn limits(pod: &Pod) -> Amounts {
    effective(pod, |c| &c.resources.limits)
}

/// Whether every container of the pod, init containers included, limits that resource.
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

/// Whether an init container runs on beside the pod's containers.
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

/// Raises `sum` to `least`, resource by resource.
fn raise(sum: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = sum.entry(name.clone()).or_insert(*amount);
        *known = (*known).max(*amount);
    }
}

/// Adds `more` to `sum`, resource by resource.
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
