//! Sets up the volumes that live with the pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use agent_interfaces::{PodObjects, VolumeError};
use agent_pod::volume_mounts::VolumeOnHost;
use agent_telemetry::metrics::{OperationMetrics, plugin};
use agent_volume::Volume;
use agent_volume::pod_volumes::ReadyVolume;
use agent_volume::sources::{HostPathKind, PayloadInputs, TokenWant, VolumeKind};
use agent_volume::tree::TreeWrite;
use proto_api::Quantity;
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_daemon::exit::chain;

use super::subpath_refresh::SubPathRefresher;

/// The set-up of a pod's ephemeral volumes on a blocking thread, with its inputs.
pub(super) struct SetUpTask {
    pub(super) pod: Arc<Pod>,
    pub(super) volumes: Vec<Volume>,
    pub(super) sources: PodObjects,
    pub(super) tokens: BTreeMap<TokenWant, String>,
    pub(super) allocatable: BTreeMap<String, Quantity>,
    pub(super) operations: OperationMetrics,
    pub(super) subpath_refresher: Arc<SubPathRefresher>,
}

pub(super) struct SetUpResult {
    pub(super) on_host: BTreeMap<String, VolumeOnHost>,
    pub(super) switched: Vec<Volume>,
    /// The first error.
    pub(super) outcome: Result<(), VolumeError>,
}

impl SetUpTask {
    pub(super) fn set_up(self, on_disk: &agent_volume::VolumesOnDisk) -> SetUpResult {
        let inputs = PayloadInputs {
            pod: &self.pod,
            objects: &self.sources,
            tokens: &self.tokens,
            allocatable: &self.allocatable,
            budget: &agent_volume::Budget::default(),
        };
        let mut done =
            SetUpResult { on_host: BTreeMap::new(), switched: Vec::new(), outcome: Ok(()) };
        let persistent = |volume: &Volume| volume.kind == VolumeKind::Persistent;
        let follows = refreshes_subpaths(&self.pod);
        let in_pod = self.pod.spec.volumes.iter().map(|volume| (volume.name.as_str(), volume));
        let in_pod: BTreeMap<_, _> = in_pod.collect();
        for volume in self.volumes.into_iter().filter(|volume| !persistent(volume)) {
            let began = Instant::now();
            let made = on_disk.set_up(&inputs, &volume);
            if let Some(named) = in_pod.get(volume.name.as_str()) {
                let plugin = plugin(named, self.operations.domain());
                self.operations.record_volume(
                    "volume_mount",
                    &plugin,
                    began.elapsed(),
                    made.is_ok(),
                );
            }
            match made {
                Ok(ReadyVolume { path, written, .. }) => {
                    let path = path.to_string_lossy().into_owned();
                    let follows = follows && matches!(volume.kind, VolumeKind::Projected(_));
                    let on_host = volume_on_host(on_disk, &volume, path, follows);
                    if follows {
                        let refresher = &self.subpath_refresher;
                        let renewed = refresher.refresh(on_disk, &self.pod, &volume.name, &on_host);
                        let renewed = renewed.map_err(|e| VolumeError::mount(chain(&e)));
                        done.outcome = done.outcome.and(renewed);
                    }
                    done.on_host.insert(volume.name.clone(), on_host);
                    if written == Some(TreeWrite::Switched) {
                        done.switched.push(volume);
                    }
                }
                Err(error) => {
                    done.outcome = done.outcome.and(Err(VolumeError::mount(chain(&error))));
                }
            }
        }
        done
    }
}

/// Whether a pod enables subPath refresh.
pub(super) fn refreshes_subpaths(pod: &Pod) -> bool {
    pod.metadata.annotations.get(Names::PARTS_FOLLOW).is_some_and(|value| value == "true")
}

/// A volume as it is mounted into containers.
fn volume_on_host(
    on_disk: &agent_volume::VolumesOnDisk,
    volume: &Volume,
    path: String,
    follows: bool,
) -> VolumeOnHost {
    VolumeOnHost {
        path,
        read_only: matches!(volume.kind, VolumeKind::Projected(_)),
        managed: !matches!(volume.kind, VolumeKind::HostPath { .. }),
        block: false,
        checked: match &volume.kind {
            VolumeKind::HostPath { path, kind } => {
                *kind != HostPathKind::Unset && !on_disk.are_below(path)
            }
            _ => false,
        },
        follows,
    }
}
