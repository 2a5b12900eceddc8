//! Binding the volumes of a pod whose node is chosen: the choice is written, and the pod keeps its place until they are
//! bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto_client::{ClientError, Patch, WriteParams};
use proto_daemon::exit::chain;

use super::{Reservation, Scheduler};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::volumes::{Choice, Storage, Write};

/// How long volumes may take to be bound before people are told; the pod goes on waiting.
const BINDING: Duration = Duration::from_secs(600);

impl Scheduler {
    /// Keeps the place of a pod that is not looked at in this pass.
    pub(super) fn keep_place(&self, pod: &PodInfo, loads: &mut [NodeLoad]) {
        let Some(held) = self.held.get(&pod.uid) else { return };
        if let Some(load) = loads.iter_mut().find(|load| load.node.name == held.pod.node) {
            load.add(held.pod.clone());
        }
    }

    /// Writes what was chosen for a pod's claims, as far as it is not written. The pod with its node, whose place it
    /// keeps from now on; none when a write has failed, so that the pod has to choose anew.
    pub(super) async fn bind_volumes(
        &mut self,
        pod: &Arc<PodInfo>,
        node: &str,
        choices: &[Choice],
        storage: &mut Storage,
    ) -> Option<Arc<PodInfo>> {
        for choice in choices {
            storage.taken.extend(choice.taken().map(str::to_owned));
            let Some(write) = choice.write(self.client.names(), &self.marks, node) else {
                continue;
            };
            if let Err(error) = self.write(&write).await {
                tracing::debug!(pod = %pod.key, node, error = chain(&error), "volume not chosen");
                self.held.remove(&pod.uid);
                return None;
            }
        }
        let placed = Arc::new(PodInfo { node: node.to_owned(), ..(**pod).clone() });
        let since = self.held.get(&pod.uid).map_or_else(Instant::now, |held| held.since);
        let late = since.elapsed() >= BINDING;
        let since = if late { Instant::now() } else { since };
        self.held.insert(pod.uid.clone(), Reservation { pod: placed.clone(), since });
        if late {
            let why = "running PreBind plugin \"VolumeBinding\": binding volumes: timed out waiting for the condition";
            self.tell(pod, why).await;
        }
        Some(placed)
    }

    async fn write(&self, write: &Write) -> Result<(), ClientError> {
        let params = WriteParams::default();
        match write {
            Write::Volume(name, patch) => {
                let api = self.client.all::<PersistentVolume>();
                api.patch(name, &Patch::Merge(patch.clone()), &params).await.map(drop)
            }
            Write::Claim(key, patch) => {
                let api = self.client.within::<PersistentVolumeClaim>(&key.namespace);
                api.patch(&key.name, &Patch::Merge(patch.clone()), &params).await.map(drop)
            }
        }
    }
}
