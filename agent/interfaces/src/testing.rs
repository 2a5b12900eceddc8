//! Test doubles: an API server that accepts every write, and a host in memory.

#![allow(clippy::expect_used, reason = "of tests only")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use agent_pod::events::PodEvent;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;

use crate::{
    AttachedVolumes, BindError, MountedVolumes, PodCgroupError, PodCgroups, PodObjects, PodVolumes,
    ReportError, Reported, Reports, ServerStatus, StatusChange, UnmountError, VolumeError,
    VolumeUsage, WantedPart,
};

/// An API server that accepts every write.
#[derive(Default)]
pub struct Api {
    /// Written statuses, oldest first.
    pub statuses: watch::Sender<Vec<PodStatus>>,
    /// Uids of deleted objects.
    pub deleted: Mutex<Vec<String>>,
    /// Recorded events.
    pub events: Mutex<Vec<PodEvent>>,
    /// The resource version of the next response.
    pub version: Mutex<String>,
}

impl Api {
    /// The reasons of the recorded events.
    pub fn reasons(&self) -> Vec<String> {
        self.events.lock().expect("lock").iter().map(|event| event.reason.to_string()).collect()
    }
}

impl Reports for Api {
    fn status<'a>(
        &'a self,
        _: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>> {
        self.statuses.send_modify(|all| all.push(change.to.clone()));
        let version = self.version.lock().expect("lock").clone();
        let answer = ServerStatus { status: change.to.clone(), version };
        std::future::ready(Ok(Reported::Shown(answer.into()))).boxed()
    }

    fn deleted<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>> {
        self.deleted.lock().expect("lock").push(pod.metadata.uid.clone());
        self.statuses.send_modify(|_| {});
        std::future::ready(Ok(())).boxed()
    }

    fn event(&self, _: &Pod, event: PodEvent) {
        self.events.lock().expect("lock").push(event);
    }
}

/// A host in memory: the cgroups and volumes of pods, by uid.
#[derive(Default)]
pub struct FakeHost {
    cgroups: Mutex<BTreeSet<String>>,
    volumes: Mutex<BTreeSet<String>>,
}

impl FakeHost {
    /// Whether nothing of any pod is left.
    pub fn is_bare(&self) -> bool {
        self.cgroups.lock().expect("lock").is_empty()
            && self.volumes.lock().expect("lock").is_empty()
    }
}

impl PodCgroups for FakeHost {
    fn make_cgroup(&self, pod: &Pod) -> Result<String, PodCgroupError> {
        self.cgroups.lock().expect("lock").insert(pod.metadata.uid.clone());
        Ok(self.cgroup_parent(pod))
    }

    fn cgroup_parent(&self, pod: &Pod) -> String {
        format!("/kubepods/pod{}", pod.metadata.uid)
    }

    fn adopt_cgroup(&self, pod: &Pod) -> bool {
        self.cgroups.lock().expect("lock").contains(&pod.metadata.uid)
    }

    fn uids(&self) -> Vec<String> {
        self.cgroups.lock().expect("lock").iter().cloned().collect()
    }

    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>> {
        self.cgroups.lock().expect("lock").remove(&pod.metadata.uid);
        std::future::ready(Ok(())).boxed()
    }
}

impl AttachedVolumes for FakeHost {}

impl VolumeUsage for FakeHost {}

impl PodVolumes for FakeHost {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        _: &'a PodObjects,
    ) -> BoxFuture<'a, Result<MountedVolumes, VolumeError>> {
        self.volumes.lock().expect("lock").insert(pod.metadata.uid.clone());
        std::future::ready(Ok(MountedVolumes::default())).boxed()
    }

    fn bind_parts<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a str,
        _: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, BindError>> {
        std::future::ready(Ok(BTreeMap::new())).boxed()
    }

    fn exist(&self, pod: &Pod) -> bool {
        self.volumes.lock().expect("lock").contains(&pod.metadata.uid)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), UnmountError>> {
        self.volumes.lock().expect("lock").remove(&pod.metadata.uid);
        std::future::ready(Ok(())).boxed()
    }
}
