//! The PreBind extension point of volumes: writes the volumes selected for a pod's claims, and reserves the node until they are bound.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto_client::{ClientError, Patch, WriteParams};
use proto_daemon::exit::chain;

use super::bind::FailureReason;
use super::preempt::Nomination;
use super::{Scheduler, on_node};
use crate::backoff_queue::Failure;
use apiserver_scheduling::pod_info::PodInfo;
use apiserver_scheduling::reservations::SelectedNodeWrite;
use apiserver_scheduling::volumes::{StorageSnapshot, VolumeChoice, VolumePatch};

impl Scheduler {
    /// Writes what was selected for a pod's claims unless it is written. Returns the pod with the node that is now reserved for it.
    ///
    /// # Errors
    /// A write has failed, so that a node has to be selected again: when the object changes that was another one, or after the pod's back-off.
    pub(super) async fn bind_volumes(
        &mut self,
        pod: &Arc<PodInfo>,
        node: &str,
        choices: &[VolumeChoice],
        storage: &mut StorageSnapshot,
    ) -> Result<Arc<PodInfo>, Failure> {
        let mut written = BTreeMap::new();
        for choice in choices {
            storage.assumed.extend(choice.volume_name().map(str::to_owned));
            let Some(patch) = choice.patch(self.client.names(), &self.annotations, node) else {
                continue;
            };
            if let Some((claim, version)) = patch.claim() {
                match self.reserved.write_to(pod, node, claim, version) {
                    SelectedNodeWrite::Due => {}
                    SelectedNodeWrite::Written => continue,
                    SelectedNodeWrite::Refused => {
                        tracing::debug!(pod = %pod.key, node, %claim, "the provisioner has removed the selected node from the claim; another is selected after the pod's back-off");
                        self.reserved.end(pod, "");
                        return Err(Failure::Error);
                    }
                }
                written.insert(claim.clone(), version.to_owned());
            }
            if let Err(error) = self.write_patch(&patch).await {
                tracing::debug!(pod = %pod.key, node, error = chain(&error), "cannot write the selected node to the pod's volume claim; retried");
                self.reserved.end(pod, "");
                let is_outdated = error.is_conflict();
                return Err(if is_outdated { Failure::Volumes } else { Failure::Error });
            }
        }
        let assigned = on_node(pod, node);
        if self.reserved.reserve(assigned.clone(), written, Instant::now()) {
            let why = "running PreBind plugin \"VolumeBinding\": binding volumes: timed out waiting for the condition";
            self.report_failure(pod, FailureReason::SchedulerError, why, Nomination::Unchanged)
                .await;
        }
        Ok(assigned)
    }

    async fn write_patch(&self, patch: &VolumePatch) -> Result<(), ClientError> {
        let params = WriteParams::default();
        match patch {
            VolumePatch::Volume(name, patch) => {
                let api = self.client.all::<PersistentVolume>();
                api.patch(name, &Patch::Merge(patch.clone()), &params).await.map(drop)
            }
            VolumePatch::Claim(key, patch) => {
                let api = self.client.within::<PersistentVolumeClaim>(&key.namespace);
                api.patch(&key.name, &Patch::Merge(patch.clone()), &params).await.map(drop)
            }
        }
    }
}
