//! The checks of the level restricted, without those of capabilities and seccomp profiles.

use std::collections::BTreeSet;

use proto_api::core::v1::VolumeSource;

use super::Finding;
use crate::pod_view::{FieldSetters, PodView};
use crate::text::{join_quoted, name_containers, pluralize};

pub(crate) fn check_privilege_escalation(pod: PodView<'_>) -> Option<Finding> {
    let containers = pod.names_where(|container| {
        container.context.and_then(|context| context.allow_privilege_escalation) != Some(false)
    });
    (!containers.is_empty()).then(|| Finding {
        reason: "allowPrivilegeEscalation != false",
        detail: format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            name_containers(&containers)
        ),
    })
}

pub(crate) fn check_volumes(pod: PodView<'_>) -> Option<Finding> {
    let mut types = BTreeSet::new();
    let mut volumes = Vec::new();
    for volume in pod.spec.volumes.iter().filter(|volume| !is_allowed(&volume.volume_source)) {
        volumes.push(volume.name.as_str());
        types.insert(name_type(&volume.volume_source));
    }
    (!volumes.is_empty()).then(|| {
        let word = pluralize(volumes.len(), "volume", "volumes");
        let uses = pluralize(volumes.len(), "uses", "use");
        let types_word =
            pluralize(types.len(), "restricted volume type", "restricted volume types");
        let (volumes, types) = (join_quoted(volumes), join_quoted(types));
        Finding {
            reason: "restricted volume types",
            detail: format!("{word} {volumes} {uses} {types_word} {types}"),
        }
    })
}

fn is_allowed(source: &VolumeSource) -> bool {
    source.config_map.is_some()
        || source.csi.is_some()
        || source.downward_api.is_some()
        || source.empty_dir.is_some()
        || source.ephemeral.is_some()
        || source.persistent_volume_claim.is_some()
        || source.projected.is_some()
        || source.secret.is_some()
}

/// The name of the type of a source that is not allowed.
fn name_type(source: &VolumeSource) -> &'static str {
    let types = [
        ("hostPath", source.host_path.is_some()),
        ("gcePersistentDisk", source.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", source.aws_elastic_block_store.is_some()),
        ("gitRepo", source.git_repo.is_some()),
        ("nfs", source.nfs.is_some()),
        ("iscsi", source.iscsi.is_some()),
        ("glusterfs", source.glusterfs.is_some()),
        ("rbd", source.rbd.is_some()),
        ("flexVolume", source.flex_volume.is_some()),
        ("cinder", source.cinder.is_some()),
        ("cephfs", source.cephfs.is_some()),
        ("flocker", source.flocker.is_some()),
        ("fc", source.fc.is_some()),
        ("azureFile", source.azure_file.is_some()),
        ("vsphereVolume", source.vsphere_volume.is_some()),
        ("quobyte", source.quobyte.is_some()),
        ("azureDisk", source.azure_disk.is_some()),
        ("photonPersistentDisk", source.photon_persistent_disk.is_some()),
        ("portworxVolume", source.portworx_volume.is_some()),
        ("scaleIO", source.scale_io.is_some()),
        ("storageos", source.storageos.is_some()),
    ];
    types.into_iter().find(|(_, is_set)| *is_set).map_or("unknown", |(name, _)| name)
}

pub(crate) fn check_run_as_non_root(pod: PodView<'_>) -> Option<Finding> {
    let reason = "runAsNonRoot != true";
    let of_pod = pod.context().and_then(|context| context.run_as_non_root);
    let with = |wanted: Option<bool>| {
        pod.names_where(|container| {
            container.context.and_then(|context| context.run_as_non_root) == wanted
        })
    };
    let setters = FieldSetters { pod: of_pod == Some(false), containers: with(Some(false)) };
    if !setters.is_empty() {
        let detail =
            format!("{} must not set securityContext.runAsNonRoot=false", setters.describe());
        return Some(Finding { reason, detail });
    }
    let unset = if of_pod == Some(true) { Vec::new() } else { with(None) };
    (!unset.is_empty()).then(|| Finding {
        reason,
        detail: format!(
            "pod or {} must set securityContext.runAsNonRoot=true",
            name_containers(&unset)
        ),
    })
}

pub(crate) fn check_run_as_user(pod: PodView<'_>) -> Option<Finding> {
    let setters = FieldSetters {
        pod: pod.context().is_some_and(|context| context.run_as_user == Some(0)),
        containers: pod.names_where(|container| {
            container.context.is_some_and(|context| context.run_as_user == Some(0))
        }),
    };
    (!setters.is_empty()).then(|| Finding {
        reason: "runAsUser=0",
        detail: format!("{} must not set runAsUser=0", setters.describe()),
    })
}
