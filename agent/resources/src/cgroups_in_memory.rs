//! Cgroups of the pods of a hollow node: their names alone.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_interfaces::{PodCgroupError, PodCgroups};
use futures_util::future::BoxFuture;
use proto_api::core::v1::Pod;

/// The cgroups of a hollow node.
#[derive(Debug, Default)]
pub struct CgroupsInMemory {
    uids: Mutex<BTreeSet<String>>,
}

impl CgroupsInMemory {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodCgroups for CgroupsInMemory {
    fn make_cgroup(&self, pod: &Pod) -> Result<String, PodCgroupError> {
        self.lock().insert(pod.metadata.uid.clone());
        Ok(self.cgroup_parent(pod))
    }

    fn cgroup_parent(&self, pod: &Pod) -> String {
        format!("/kubepods/pod{}", pod.metadata.uid)
    }

    fn adopt_cgroup(&self, pod: &Pod) -> bool {
        self.lock().contains(&pod.metadata.uid)
    }

    fn uids(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>> {
        self.lock().remove(&pod.metadata.uid);
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cgroup_lives_from_its_making_to_its_removal() {
        let (cgroups, mut pod) = (CgroupsInMemory::default(), Pod::default());
        pod.metadata.uid = "u".to_owned();
        assert!(!cgroups.adopt_cgroup(&pod));
        assert_eq!(cgroups.make_cgroup(&pod).expect("made"), "/kubepods/podu");
        assert!(cgroups.adopt_cgroup(&pod));
        assert_eq!(cgroups.uids(), ["u"]);
        cgroups.remove_cgroup(&pod).await.expect("removed");
        assert!(cgroups.uids().is_empty());
    }
}
