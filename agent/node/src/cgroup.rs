//! The cgroup tree of the node's pods: names and limits for both cgroup versions and both drivers.
//!
//! ```text
//! <root>/kubepods                      all pods: the node's allocatable resources
//!        ├── pod<uid>                  guaranteed
//!        ├── burstable/pod<uid>
//!        └── besteffort/pod<uid>
//! ```

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::Quantity;
use proto_api::core::v1::{Container, Pod};

use crate::qos::{QosClass, qos_class};
use crate::resources::{Amounts, CPU, HUGE_PAGES, MEMORY, PID, all_limited, limits, requests};

/// CPU weight without a CPU request.
pub const SHARES_MIN: u64 = 2;
/// Largest CPU weight in cgroup v1.
pub const SHARES_MAX: u64 = 262_144;
/// Period of CPU quotas in microseconds.
pub const QUOTA_PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel accepts, in microseconds.
const QUOTA_MIN_US: u64 = 1_000;

/// The cgroup driver, which determines the names of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupManager {
    /// cgroupfs: plain directories.
    Cgroupfs,
    /// systemd: slices.
    Systemd,
}

/// A cgroup: the names on its path from the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// The cgroup of all pods below `root` (`/` or a path of plain names).
    pub fn pods(root: &str) -> Self {
        let mut parts: Vec<String> =
            root.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        parts.push("kubepods".to_owned());
        Self(parts)
    }

    /// The cgroup of a QoS class; guaranteed pods are directly below the cgroup of all pods.
    pub fn class(root: &str, class: QosClass) -> Self {
        let pods = Self::pods(root);
        match class {
            QosClass::Guaranteed => pods,
            QosClass::Burstable => pods.child("burstable"),
            QosClass::BestEffort => pods.child("besteffort"),
        }
    }

    /// The cgroup of a pod.
    pub fn pod(root: &str, class: QosClass, uid: &str) -> Self {
        Self::class(root, class).child(&format!("pod{uid}"))
    }

    /// Uid of the pod whose cgroup is the directory `child` of its class; `None` if that is not a pod's cgroup.
    pub fn uid_of(
        root: &str,
        class: QosClass,
        driver: CgroupManager,
        child: &str,
    ) -> Option<String> {
        let uid = match driver {
            CgroupManager::Cgroupfs => child.strip_prefix("pod")?.to_owned(),
            CgroupManager::Systemd => {
                let above = Self::class(root, class).parent(driver);
                let pod =
                    child.strip_suffix(".slice")?.strip_prefix(above.strip_suffix(".slice")?)?;
                // Uids contain no `_`.
                pod.strip_prefix("-pod")?.replace('_', "-")
            }
        };
        (!uid.is_empty()).then_some(uid)
    }

    fn child(mut self, name: &str) -> Self {
        self.0.push(name.to_owned());
        self
    }

    /// Path below the mount point of a hierarchy, with a leading `/`.
    pub fn path(&self, driver: CgroupManager) -> String {
        match driver {
            CgroupManager::Cgroupfs => format!("/{}", self.0.join("/")),
            CgroupManager::Systemd => {
                let slices = (1..=self.0.len()).map(|n| slice(&self.0[..n]));
                slices.fold(String::new(), |path, slice| format!("{path}/{slice}"))
            }
        }
    }

    /// The sandbox's `cgroup_parent` in CRI: a path, or the name of the innermost slice.
    pub fn parent(&self, driver: CgroupManager) -> String {
        match driver {
            CgroupManager::Cgroupfs => self.path(driver),
            CgroupManager::Systemd => slice(&self.0),
        }
    }
}

/// Slice name for a list of names. systemd uses `-` as separator, so `-` inside a name becomes `_`.
fn slice(parts: &[String]) -> String {
    let escaped: Vec<String> = parts.iter().map(|p| p.replace('-', "_")).collect();
    format!("{}.slice", escaped.join("-"))
}

/// Limits of a cgroup; `None` keeps the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// CPU weight on the scale of cgroup v1, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// CPU quota in microseconds per period.
    pub cpu_quota_us: Option<u64>,
    /// Length of the period in microseconds; [`QUOTA_PERIOD_US`] by default.
    pub cpu_period_us: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads.
    pub pids: Option<u64>,
    /// Huge pages in bytes by page size in bytes; 0 for sizes not listed.
    pub huge_pages: Option<BTreeMap<u64, u64>>,
}

/// Enforcement of CPU limits (`cpuCFSQuota`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuBound {
    /// By a quota per period of this many microseconds.
    Period(u64),
    /// Not enforced: limits only determine the QoS class.
    Off,
}

impl Default for CpuBound {
    fn default() -> Self {
        Self::Period(QUOTA_PERIOD_US)
    }
}

impl CgroupLimits {
    /// Applies the node's enforcement of CPU limits.
    #[must_use]
    pub fn with_cpu_bound(mut self, cpu: CpuBound) -> Self {
        self.cpu_quota_us = match cpu {
            CpuBound::Off => None,
            CpuBound::Period(period) => {
                self.cpu_period_us = self.cpu_quota_us.map(|_| period);
                self.cpu_quota_us
                    .map(|quota| (quota.saturating_mul(period) / QUOTA_PERIOD_US).max(QUOTA_MIN_US))
            }
        };
        self
    }

    /// CPU weight on the scale of cgroup v2, 1 to 10000.
    pub fn cpu_weight(&self) -> Option<u64> {
        const RANGE: u64 = SHARES_MAX - SHARES_MIN;
        self.cpu_shares.map(|shares| {
            let above = shares.saturating_sub(SHARES_MIN).min(RANGE);
            (above.saturating_mul(9_999) / RANGE).saturating_add(1)
        })
    }
}

/// CPU weight for a request.
pub fn cpu_shares(cpu: Quantity) -> u64 {
    let milli = u64::try_from(cpu.as_milli()).unwrap_or(0);
    (milli.saturating_mul(1024) / 1000).clamp(SHARES_MIN, SHARES_MAX)
}

/// CPU quota per period in microseconds for a limit; `None` for a limit of 0.
pub fn cpu_quota_us(cpu: Quantity) -> Option<u64> {
    let milli = u64::try_from(cpu.as_milli()).ok().filter(|m| *m > 0)?;
    Some((milli.saturating_mul(QUOTA_PERIOD_US) / 1000).max(QUOTA_MIN_US))
}

/// Limits of a pod's cgroup. A resource is limited only if every container limits it.
pub fn pod_limits(pod: &Pod, pids: Option<u64>) -> CgroupLimits {
    let class = qos_class(pod);
    let limits = limits(pod);
    let huge_pages = Some(huge_pages(&limits));
    if class == QosClass::BestEffort {
        let cpu_shares = Some(SHARES_MIN);
        return CgroupLimits { cpu_shares, pids, huge_pages, ..CgroupLimits::default() };
    }
    let cpu = quantity_of(&requests(pod), &limits, CPU);
    CgroupLimits {
        cpu_shares: Some(cpu_shares(cpu)),
        cpu_quota_us: all_limited(pod, CPU).then(|| cpu_quota_us(amount(&limits, CPU))).flatten(),
        memory_bytes: all_limited(pod, MEMORY).then(|| amount(&limits, MEMORY).as_bytes()),
        pids,
        huge_pages,
        ..CgroupLimits::default()
    }
}

/// Huge page limits in bytes by page size.
fn huge_pages(amounts: &Amounts) -> BTreeMap<u64, u64> {
    let pages = amounts.iter().filter_map(|(name, amount)| {
        let size = name.strip_prefix(HUGE_PAGES)?.parse::<Quantity>().ok()?;
        Some((size.as_bytes(), amount.as_bytes()))
    });
    pages.collect()
}

/// A huge page size as in the kernel's file names: `64KB`, `2MB`, `1GB`.
pub fn huge_page_file_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    let whole = UNITS.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    whole.map_or_else(
        || format!("{bytes}B"),
        |(unit, name)| format!("{}{name}", bytes.checked_div(unit).unwrap_or_default()),
    )
}

/// CPU request of a pod, which is its share of its class's weight.
pub fn cpu_request(pod: &Pod) -> Quantity {
    quantity_of(&requests(pod), &limits(pod), CPU)
}

/// Limits of the cgroup of a QoS class, from the [CPU requests](cpu_asked) of its pods.
pub fn class_limits(class: QosClass, pods: impl Iterator<Item = Quantity>) -> CgroupLimits {
    let cpu_shares = match class {
        QosClass::Guaranteed => None,
        QosClass::BestEffort => Some(SHARES_MIN),
        QosClass::Burstable => Some(cpu_shares(pods.sum())),
    };
    CgroupLimits { cpu_shares, ..CgroupLimits::default() }
}

/// Limits of the cgroup of all pods: the node's capacity less reservations. The eviction threshold is not subtracted, because
/// eviction has to observe usage above it.
pub fn node_limits(capacity: &Amounts, reserved: &Amounts) -> CgroupLimits {
    let left = |name: &str| {
        let reserved = amount(reserved, name);
        capacity.get(name).map(|has| (*has - reserved).max(Quantity::default()))
    };
    CgroupLimits {
        cpu_shares: left(CPU).map(cpu_shares),
        memory_bytes: left(MEMORY).map(|q| q.as_bytes()),
        pids: left(PID).map(|q| q.as_bytes()),
        ..CgroupLimits::default()
    }
}

/// Limits of the cgroup of a reservation (`systemReserved`, `kubeReserved`).
pub fn reserved_limits(reserved: &Amounts) -> CgroupLimits {
    let given = |name: &str| reserved.get(name).copied().filter(|q| !q.is_zero());
    CgroupLimits {
        cpu_shares: given(CPU).map(cpu_shares),
        memory_bytes: given(MEMORY).map(|q| q.as_bytes()),
        pids: given(PID).map(|q| q.as_bytes()),
        ..CgroupLimits::default()
    }
}

/// Limits of a container. Without a CPU request its CPU limit determines the weight.
pub fn container_limits(container: &Container) -> CgroupLimits {
    let resources = &container.resources;
    let memory = amount(&resources.limits, MEMORY);
    CgroupLimits {
        cpu_shares: Some(cpu_shares(quantity_of(&resources.requests, &resources.limits, CPU))),
        cpu_quota_us: cpu_quota_us(amount(&resources.limits, CPU)),
        memory_bytes: (!memory.is_zero()).then(|| memory.as_bytes()),
        ..CgroupLimits::default()
    }
}

fn quantity_of(requests: &Amounts, limits: &Amounts, name: &str) -> Quantity {
    requests.get(name).or_else(|| limits.get(name)).copied().unwrap_or_default()
}

fn amount(amounts: &Amounts, name: &str) -> Quantity {
    amounts.get(name).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::container;

    #[test]
    fn places_by_class_and_driver() {
        let uid = "0a1b-2c";
        let cases = [
            (QosClass::Guaranteed, "/kubepods/pod0a1b-2c", "kubepods-pod0a1b_2c.slice"),
            (
                QosClass::Burstable,
                "/kubepods/burstable/pod0a1b-2c",
                "kubepods-burstable-pod0a1b_2c.slice",
            ),
            (
                QosClass::BestEffort,
                "/kubepods/besteffort/pod0a1b-2c",
                "kubepods-besteffort-pod0a1b_2c.slice",
            ),
        ];
        for (class, path, slice) in cases {
            let name = CgroupName::pod("/", class, uid);
            assert_eq!(name.path(CgroupManager::Cgroupfs), path);
            assert_eq!(name.parent(CgroupManager::Cgroupfs), path);
            assert_eq!(name.parent(CgroupManager::Systemd), slice);
            for driver in [CgroupManager::Cgroupfs, CgroupManager::Systemd] {
                let path = name.path(driver);
                let child = path.rsplit('/').next().expect("a name");
                assert_eq!(CgroupName::uid_of("/", class, driver, child).as_deref(), Some(uid));
            }
        }
        for (driver, child) in [
            (CgroupManager::Cgroupfs, "burstable"),
            (CgroupManager::Cgroupfs, "pod"),
            (CgroupManager::Systemd, "kubepods-burstable.slice"),
            (CgroupManager::Systemd, "kubepods-burstable-podu.slice"),
            (CgroupManager::Systemd, "kubepods-podu.scope"),
        ] {
            let found = CgroupName::uid_of("/", QosClass::Guaranteed, driver, child);
            assert_eq!(found, None, "{child}");
        }
        let nested = CgroupName::pod("/a/b", QosClass::Burstable, "u");
        assert_eq!(nested.path(CgroupManager::Cgroupfs), "/a/b/kubepods/burstable/podu");
        assert_eq!(
            CgroupName::class("/", QosClass::Burstable).path(CgroupManager::Systemd),
            "/kubepods.slice/kubepods-burstable.slice"
        );
    }

    #[test]
    fn weights_and_quotas() {
        let cases = [
            ("0", 2, None, 1),
            ("1m", 2, Some(1_000), 1),
            ("100m", 102, Some(10_000), 4),
            ("1", 1024, Some(100_000), 39),
            ("2500m", 2560, Some(250_000), 98),
            ("10000", 262_144, Some(1_000_000_000), 10_000),
        ];
        for (cpu, expect_shares, quota, weight) in cases {
            let cpu: Quantity = cpu.parse().expect("quantity");
            assert_eq!(cpu_shares(cpu), expect_shares, "{cpu}");
            assert_eq!(cpu_quota_us(cpu), quota, "{cpu}");
            let limits = CgroupLimits { cpu_shares: Some(cpu_shares(cpu)), ..Default::default() };
            assert_eq!(limits.cpu_weight(), Some(weight), "{cpu}");
        }
    }

    #[test]
    fn a_pod_is_bounded_only_where_all_its_containers_are() {
        let bound = container(&[("cpu", "100m")], &[("cpu", "1"), ("memory", "64Mi")]);
        let free = container(&[("cpu", "100m")], &[("memory", "64Mi")]);
        let mut pod = Pod::default();
        pod.spec.containers = vec![bound, free];
        let limits = pod_limits(&pod, Some(100));
        assert_eq!(limits.cpu_shares, Some(204));
        assert_eq!(limits.cpu_quota_us, None);
        assert_eq!(limits.memory_bytes, Some(128 << 20));
        assert_eq!(limits.pids, Some(100));
        pod.spec.containers = vec![container(&[], &[])];
        assert_eq!(pod_limits(&pod, None).cpu_shares, Some(2));
    }

    #[test]
    fn quotas_follow_the_nodes_period() {
        let limits = container_limits(&container(&[], &[("cpu", "250m")]));
        let bound = |cpu| {
            let limits = limits.clone().with_cpu_bound(cpu);
            (limits.cpu_quota_us, limits.cpu_period_us)
        };
        assert_eq!(bound(CpuBound::default()), (Some(25_000), Some(100_000)));
        assert_eq!(bound(CpuBound::Period(10_000)), (Some(2_500), Some(10_000)));
        assert_eq!(bound(CpuBound::Period(1_000)), (Some(1_000), Some(1_000)));
        assert_eq!(bound(CpuBound::Off), (None, None));
    }

    #[test]
    fn overhead_and_huge_pages_count() {
        let limits =
            [("cpu", "1"), ("memory", "64Mi"), ("hugepages-2Mi", "4Mi"), ("hugepages-1Gi", "1Gi")];
        let mut pod = Pod::default();
        pod.spec.containers = vec![container(&[], &limits), container(&[], &limits)];
        pod.spec.overhead.insert("memory".into(), "10Mi".parse().expect("quantity"));
        let got = pod_limits(&pod, None);
        assert_eq!(got.memory_bytes, Some(138 << 20));
        assert_eq!(got.huge_pages, Some(BTreeMap::from([(2 << 20, 8 << 20), (1 << 30, 2 << 30)])));
        assert_eq!([2 << 20, 1 << 30, 64 << 10].map(huge_page_file_size), ["2MB", "1GB", "64KB"]);
    }

    #[test]
    fn the_nodes_pods_get_what_is_not_reserved() {
        let amounts = |list: &[(&str, &str)]| container(list, &[]).resources.requests;
        let capacity = amounts(&[("cpu", "4"), ("memory", "8Gi")]);
        let reserved = amounts(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "1000")]);
        let pods = node_limits(&capacity, &reserved);
        assert_eq!((pods.cpu_shares, pods.memory_bytes), (Some(3584), Some(7 << 30)));
        assert_eq!(pods.pids, None, "the number of all processes is not known here");
        let system = reserved_limits(&reserved);
        assert_eq!((system.cpu_shares, system.pids), (Some(512), Some(1000)));
        let too_much = amounts(&[("memory", "9Gi")]);
        assert_eq!(node_limits(&capacity, &too_much).memory_bytes, Some(0));
    }

    #[test]
    fn the_burstable_class_weighs_what_its_pods_ask() {
        let mut pod = Pod::default();
        pod.spec.containers = vec![container(&[("cpu", "500m")], &[])];
        let limits = class_limits(QosClass::Burstable, [&pod, &pod].into_iter().map(cpu_request));
        assert_eq!(limits.cpu_shares, Some(1024));
    }
}
