//! The cgroups of pods: one per pod below its QoS class.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_host::cgroups::{CgroupUsage, Cgroups, Removal};
use agent_host::logind::SYSTEM_BUS;
use agent_host::systemd::Systemd;
use agent_interfaces::{PodCgroupError, PodCgroups};
use agent_node::cgroup::{
    CgroupLimits, CgroupManager, CgroupName, CpuBound, class_limits, cpu_request, node_limits,
    pod_limits, reserved_limits,
};
use agent_node::qos::{QosClass, assigned_qos_class};
use agent_node::resources::Amounts;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::Quantity;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;

/// Attempts to remove a cgroup while its killed processes exit, before an error is returned.
const REMOVE_TRIES_MAX: usize = 20;
/// Pause between attempts.
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

/// Node allocatable enforcement (`enforceNodeAllocatable`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Enforced {
    /// Whether all pods together are limited to what is not reserved.
    pub pods: Bounded,
    /// The total reservation.
    pub reserved: Amounts,
    /// Cgroups of system and Kubernetes daemons with their reservations. They exist before the
    /// agent starts.
    pub groups: Vec<(String, Amounts)>,
}

/// Whether a limit is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bounded {
    /// Enforced.
    #[default]
    Yes,
    /// Not enforced.
    No,
}

/// The cgroups of this node's pods. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct NodeCgroups {
    cgroups: Cgroups,
    root: String,
    driver: CgroupManager,
    /// Used only with the systemd cgroup driver.
    systemd: Arc<Systemd>,
    /// Limit of processes per pod.
    pids: Option<u64>,
    /// How CPU limits are enforced.
    cpu: CpuBound,
    /// Pods with a cgroup, by uid: QoS class and requested CPU, which counts for the weight of the
    /// class.
    placed: Arc<Mutex<BTreeMap<String, (QosClass, Quantity)>>>,
    /// Whether this process has set the weight; an earlier one may have known pods that are not
    /// known yet.
    weighed: Arc<AtomicBool>,
}

impl NodeCgroups {
    /// Cgroups below `root`. `pids` limits the processes of each pod, `cpu` says how its CPU limit
    /// is enforced.
    pub fn new(
        cgroups: Cgroups,
        root: &str,
        driver: CgroupManager,
        pids: Option<u64>,
        cpu: CpuBound,
    ) -> Self {
        let systemd = Arc::new(Systemd::new(Path::new(SYSTEM_BUS)));
        let root = root.to_owned();
        let (placed, weighed) = (Arc::default(), Arc::default());
        Self { cgroups, root, driver, systemd, pids, cpu, placed, weighed }
    }

    /// Creates the cgroups above those of pods, with the limits of `enforced`.
    ///
    /// # Errors
    /// A cgroup cannot be created.
    pub fn prepare(&self, capacity: &Amounts, enforced: &Enforced) -> Result<(), PodCgroupError> {
        self.ensure(&CgroupName::pods(&self.root), &self.pods_limits(capacity, enforced))?;
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            let name = CgroupName::class(&self.root, class);
            // The weight of running burstable pods is not known yet: the present one stays.
            if class == QosClass::BestEffort || !self.cgroups.exists(&name.path(self.driver)) {
                self.ensure(&name, &class_limits(class, std::iter::empty()))?;
            }
        }
        for (place, amounts) in &enforced.groups {
            if !self.cgroups.exists(place) {
                return Err(PodCgroupError::NoReservation(place.clone()));
            }
            self.cgroups.make(place, &reserved_limits(amounts))?;
        }
        Ok(())
    }

    /// Sets the limits of the slices above those of pods in systemd, if it manages cgroups.
    ///
    /// # Errors
    /// systemd cannot be reached or refuses.
    pub async fn write_slice_limits(
        &self,
        capacity: &Amounts,
        enforced: &Enforced,
    ) -> Result<(), PodCgroupError> {
        if self.driver == CgroupManager::Cgroupfs {
            return Ok(());
        }
        self.bound(&CgroupName::pods(&self.root), &self.pods_limits(capacity, enforced)).await?;
        let class = QosClass::BestEffort;
        let limits = class_limits(class, std::iter::empty());
        self.bound(&CgroupName::class(&self.root, class), &limits).await
    }

    async fn bound(&self, name: &CgroupName, limits: &CgroupLimits) -> Result<(), PodCgroupError> {
        Ok(self.systemd.set_limits(&name.parent(self.driver), limits).await?)
    }

    fn pods_limits(&self, capacity: &Amounts, enforced: &Enforced) -> CgroupLimits {
        let limits = node_limits(capacity, &enforced.reserved);
        match enforced.pods {
            Bounded::Yes => limits,
            Bounded::No => {
                CgroupLimits { cpu_shares: limits.cpu_shares, ..CgroupLimits::default() }
            }
        }
    }

    /// Limits of the burstable class, from the pods in it.
    fn burstable(&self) -> CgroupLimits {
        let placed = self.placed();
        let members = placed.values().filter(|(class, _)| *class == QosClass::Burstable);
        class_limits(QosClass::Burstable, members.map(|(_, asked)| *asked))
    }

    fn ensure(&self, name: &CgroupName, limits: &CgroupLimits) -> Result<(), PodCgroupError> {
        Ok(self.cgroups.make(&name.path(self.driver), limits)?)
    }

    fn name(&self, pod: &Pod) -> CgroupName {
        CgroupName::pod(&self.root, assigned_qos_class(pod), &pod.metadata.uid)
    }

    /// Path of a pod's cgroup in a class.
    fn in_class(&self, class: QosClass, uid: &str) -> String {
        CgroupName::pod(&self.root, class, uid).path(self.driver)
    }

    /// The classes in which a pod has a cgroup. Of an orphaned pod only the uid is known.
    fn classes_of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = QosClass> + 'a {
        let has = |class: &QosClass| self.cgroups.exists(&self.in_class(*class, uid));
        CLASSES.into_iter().filter(has)
    }

    async fn remove(&self, name: &CgroupName) -> Result<(), PodCgroupError> {
        let path = name.path(self.driver);
        for _ in 0..REMOVE_TRIES_MAX {
            let (cgroups, of) = (self.cgroups.clone(), path.clone());
            let removed = spawn_blocking(move || cgroups.remove(&of)).await;
            let interrupted = |error| PodCgroupError::Interrupted {
                cgroup: path.clone(),
                source: std::io::Error::other(error),
            };
            if removed.map_err(interrupted)?? == Removal::Gone {
                break;
            }
            tokio::time::sleep(REMOVE_PAUSE).await;
        }
        if self.cgroups.exists(&path) {
            return Err(PodCgroupError::Busy(path));
        }
        if self.driver == CgroupManager::Systemd
            && let Err(error) = self.systemd.remove_slice(&name.parent(self.driver)).await
        {
            // The cgroup is removed; only an unused slice unit is left.
            tracing::warn!(
                path,
                error = chain(&error),
                "cannot stop the slice of a removed cgroup; an unused unit is left in systemd"
            );
        }
        Ok(())
    }

    /// Updates the weight of a class from its pods.
    fn weigh(&self, of: QosClass) -> Result<(), PodCgroupError> {
        match of {
            QosClass::Guaranteed | QosClass::BestEffort => Ok(()),
            QosClass::Burstable => {
                self.weighed.store(true, Ordering::Relaxed);
                self.ensure(&CgroupName::class(&self.root, of), &self.burstable())
            }
        }
    }

    /// Has systemd know the weight of a class, where it manages them.
    async fn settle_class(&self, of: QosClass) -> Result<(), PodCgroupError> {
        match (self.driver, of) {
            (CgroupManager::Cgroupfs, _) | (_, QosClass::Guaranteed | QosClass::BestEffort) => {
                Ok(())
            }
            (CgroupManager::Systemd, QosClass::Burstable) => {
                self.bound(&CgroupName::class(&self.root, of), &self.burstable()).await
            }
        }
    }

    /// Whether nothing was known of its cgroup before.
    fn place(&self, pod: &Pod) -> bool {
        let member = (assigned_qos_class(pod), cpu_request(pod));
        self.placed().insert(pod.metadata.uid.clone(), member).is_none()
    }

    fn placed(&self) -> MutexGuard<'_, BTreeMap<String, (QosClass, Quantity)>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodCgroups for NodeCgroups {
    fn make_cgroup(&self, pod: &Pod) -> Result<String, PodCgroupError> {
        if self.place(pod) {
            self.weigh(assigned_qos_class(pod))?;
        }
        let name = self.name(pod);
        self.ensure(&name, &pod_limits(pod, self.pids).with_cpu_bound(self.cpu))?;
        Ok(name.parent(self.driver))
    }

    fn settle_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>> {
        async move {
            if self.driver == CgroupManager::Cgroupfs {
                return Ok(());
            }
            self.settle_class(assigned_qos_class(pod)).await?;
            let limits = pod_limits(pod, self.pids).with_cpu_bound(self.cpu);
            self.bound(&self.name(pod), &limits).await
        }
        .boxed()
    }

    fn cgroup_parent(&self, pod: &Pod) -> String {
        self.name(pod).parent(self.driver)
    }

    fn adopt_cgroup(&self, pod: &Pod) -> bool {
        let uid = &pod.metadata.uid;
        let has = self.classes_of(uid).next().is_some();
        if has {
            self.place(pod);
            // Until another came or went its class has the weight that it had with this one.
            if self.weighed.load(Ordering::Relaxed)
                && let Err(error) = self.weigh(assigned_qos_class(pod))
            {
                tracing::warn!(
                    uid,
                    error = chain(&error),
                    "cannot update the CPU weight of the pod's QoS class; it stays as it was"
                );
            }
        }
        has
    }

    fn uids(&self) -> Vec<String> {
        let of_class = |class: QosClass| {
            let children =
                self.cgroups.children(&CgroupName::class(&self.root, class).path(self.driver));
            let uid =
                move |child: String| CgroupName::uid_of(&self.root, class, self.driver, &child);
            children.into_iter().filter_map(uid)
        };
        CLASSES.into_iter().flat_map(of_class).collect()
    }

    fn usage(&self, pod: &Pod) -> Option<CgroupUsage> {
        self.cgroups.usage(&self.name(pod).path(self.driver))
    }

    fn pods_memory(&self) -> Option<u64> {
        let pods = CgroupName::pods(&self.root).path(self.driver);
        self.cgroups.usage(&pods).map(|usage| usage.working_set_bytes)
    }

    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>> {
        async move {
            let uid = &pod.metadata.uid;
            let classes: Vec<QosClass> = self.classes_of(uid).collect();
            for class in &classes {
                self.remove(&CgroupName::pod(&self.root, *class, uid)).await?;
            }
            self.placed().remove(uid);
            for class in classes {
                self.weigh(class)?;
                self.settle_class(class).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use agent_host::cgroups::Layout;
    use proto_api::core::v1::Container;

    use super::*;

    fn pod(uid: &str, requests: &[&str], limits: &[&str]) -> Pod {
        let one = |name: &&str| ((*name).to_owned(), "64M".parse().expect("quantity"));
        let mut container = Container::default();
        container.resources.requests = requests.iter().map(one).collect();
        container.resources.limits = limits.iter().map(one).collect();
        let mut pod = Pod::default();
        pod.metadata.uid = uid.into();
        pod.spec.containers = vec![container];
        pod
    }

    /// A tree of a test's own, removed with it.
    struct Tree {
        cgroups: Cgroups,
        top: String,
    }

    impl Tree {
        fn new(test: &str) -> Option<Self> {
            let root = std::fs::metadata("/proc/self").expect("proc").uid() == 0;
            let Some(cgroups) = Cgroups::detect().ok().filter(|_| root) else {
                eprintln!("SKIPPED {test}: needs root and cgroups");
                return None;
            };
            Some(Self { cgroups, top: format!("/orchlet-{test}-{}", std::process::id()) })
        }

        /// What an agent that begins makes of it.
        fn place(&self) -> NodeCgroups {
            let (driver, cpu) = (CgroupManager::Cgroupfs, CpuBound::default());
            let place = NodeCgroups::new(self.cgroups.clone(), &self.top, driver, None, cpu);
            place.prepare(&Amounts::new(), &Enforced::default()).expect("prepare");
            place
        }

        /// The weight of burstable pods, in the host's own unit.
        fn weight(&self) -> u64 {
            let (tree, file) = match self.cgroups.layout() {
                Layout::V1(trees) => (trees.cpu.as_deref().expect("cpu"), "cpu.shares"),
                Layout::V2 { mount } => (mount.as_path(), "cpu.weight"),
            };
            let path = tree.join(&self.top[1..]).join("kubepods/burstable").join(file);
            std::fs::read_to_string(path).expect("weight").trim().parse().expect("number")
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            for directory in ["/kubepods/burstable", "/kubepods/besteffort", "/kubepods", ""] {
                let _ = self.cgroups.remove(&format!("{}{directory}", self.top));
            }
        }
    }

    #[tokio::test]
    async fn a_cgroup_is_found_and_removed_by_its_uid_alone() {
        let Some(tree) = Tree::new("place-found") else { return };
        let place = tree.place();
        let both = ["cpu", "memory"];
        let pods = [pod("a-1", &[], &[]), pod("b-2", &["memory"], &[]), pod("c-3", &both, &both)];
        for pod in &pods {
            place.make_cgroup(pod).expect("make");
        }
        let mut uids = place.uids();
        uids.sort();
        assert_eq!(uids, ["a-1", "b-2", "c-3"]);
        for pod in &pods {
            let uid = &pod.metadata.uid;
            let mut remains = Pod::default();
            remains.metadata.uid.clone_from(uid);
            let had = place.adopt_cgroup(&remains);
            place.remove_cgroup(&remains).await.expect("remove");
            assert!(had && !place.adopt_cgroup(pod), "{uid}");
        }
        assert_eq!(place.uids(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn burstable_pods_keep_their_weight_when_the_agent_restarts() {
        let Some(tree) = Tree::new("place-weight") else { return };
        let asks = |uid: &str, cpu: &str| {
            let mut pod = pod(uid, &["cpu"], &[]);
            let requests = &mut pod.spec.containers[0].resources.requests;
            requests.insert("cpu".into(), cpu.parse().expect("quantity"));
            pod
        };
        let (one, two, three) = (asks("a-1", "1"), asks("b-2", "2"), asks("c-3", "4"));
        let first = tree.place();
        let none = tree.weight();
        first.make_cgroup(&one).expect("make");
        let weight = tree.weight();
        first.make_cgroup(&two).expect("make");
        let both = tree.weight();
        assert!(none < weight && weight < both, "{none} {weight} {both}");

        let next = tree.place();
        assert_eq!(tree.weight(), both, "nothing is known of them yet");
        assert!(next.adopt_cgroup(&one) && !next.adopt_cgroup(&three));
        assert_eq!(tree.weight(), both);
        next.make_cgroup(&three).expect("make");
        // Another source reports its pods late.
        let without = tree.weight();
        assert!(next.adopt_cgroup(&two));
        assert!(without > both && tree.weight() > without, "{both} {without}");
        for pod in [&three, &two] {
            next.remove_cgroup(pod).await.expect("remove");
        }
        assert_eq!(tree.weight(), weight);
        next.remove_cgroup(&one).await.expect("remove");
        assert_eq!(tree.weight(), none);
    }
}
