//! The objects that pods refer to: which they are, and where a pod's task reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_pod::desired::ephemeral_container;
use agent_pod::env::{EnvObjects, EnvRequirements, ServiceEnv, env_requirements};
use agent_volume::VolumeRequirements;
use agent_volume::persistent::{self, KnownObjects};
use proto_api::core::v1::{ConfigMap, Container, Pod, Secret};
use tokio::sync::Notify;

/// API objects that a pod refers to, in their latest version.
#[derive(Clone, Debug, Default)]
pub struct PodObjects {
    /// ConfigMaps by name; `None` is known not to exist.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// Secrets by name; `None` is known not to exist.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// Claims, volumes, drivers and attachments of persistent volumes.
    pub persistent: KnownObjects,
}

impl EnvObjects for PodObjects {
    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)?.as_deref()
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)?.as_deref()
    }
}

/// Provides the objects that pods refer to.
pub trait ObjectCache: Send + Sync {
    /// Watches the objects of `pod`; `poke` is notified of each change.
    fn subscribe(&self, pod: &Pod, poke: Arc<Notify>) -> Box<dyn Subscription>;
}

/// The watched objects of one pod.
pub trait Subscription: Send + Sync {
    /// The present objects; one that has not been read yet is missing.
    fn objects(&self) -> PodObjects;
    /// The present services for the environment variables of the pod's containers. There may be hundreds: they are read for a new container only.
    fn services(&self, pod: &Pod) -> Vec<ServiceEnv>;
    /// Whether all objects have been read.
    fn is_complete(&self) -> bool;
    /// The present ConfigMaps and Secrets, for the environments of the pod's containers.
    fn environment_objects(&self) -> PodObjects {
        self.objects()
    }
}

/// Most objects that a pod may name: ConfigMaps, Secrets, claims, drivers of volumes, and tokens. Each is watched or requested, whether it exists or
/// not.
pub const NAMED_OBJECTS_MAX: usize = 256;

/// Most volumes of a pod. Each may be a mount of the node, of which the kernel allows 100,000 (`fs.mount-max`).
pub const VOLUMES_MAX: usize = 1024;

/// Most mounts of volumes in all containers of a pod.
pub const VOLUME_MOUNTS_MAX: usize = 4096;

/// A pod has or names too much. The text is shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodBoundError {
    /// Objects that would be watched or requested.
    #[error(
        "the pod names {0} ConfigMaps, Secrets, claims, volume drivers and tokens; a node reads at most {NAMED_OBJECTS_MAX} for a pod"
    )]
    Objects(usize),
    /// Volumes, whatever their kind.
    #[error("the pod has {0} volumes; a node sets up at most {VOLUMES_MAX} for a pod")]
    Volumes(usize),
    /// Entries of `volumeMounts`, also of init and ephemeral containers.
    #[error(
        "the containers of the pod have {0} volume mounts; a node makes at most {VOLUME_MOUNTS_MAX} for a pod"
    )]
    VolumeMounts(usize),
}

/// Checks the number of a pod's volumes and of the objects that it names. To be called before these are watched.
///
/// # Errors
/// They are more than [`VOLUMES_MAX`], [`VOLUME_MOUNTS_MAX`] or [`NAMED_OBJECTS_MAX`].
pub fn check_pod_bounds(pod: &Pod) -> Result<(), PodBoundError> {
    let volumes = pod.spec.volumes.len();
    if volumes > VOLUMES_MAX {
        return Err(PodBoundError::Volumes(volumes));
    }
    let mounts = count_volume_mounts(pod);
    if mounts > VOLUME_MOUNTS_MAX {
        return Err(PodBoundError::VolumeMounts(mounts));
    }
    let EnvRequirements { config_maps, secrets } = needs_of(pod);
    let disks = persistent::required_objects(pod, "", &KnownObjects::default());
    let tokens = volume_requirements(pod).tokens;
    let counts = [
        config_maps.len(),
        secrets.len(),
        disks.claims.len(),
        disks.drivers.len(),
        disks.secrets.len(),
        tokens.len(),
    ];
    let named = counts.into_iter().fold(0_usize, usize::saturating_add);
    if named > NAMED_OBJECTS_MAX { Err(PodBoundError::Objects(named)) } else { Ok(()) }
}

fn count_volume_mounts(pod: &Pod) -> usize {
    let spec = &pod.spec;
    let of_containers = spec.init_containers.iter().chain(&spec.containers);
    let of_containers = of_containers.map(|container| container.volume_mounts.len());
    let ephemeral = spec.ephemeral_containers.iter();
    let ephemeral = ephemeral.map(|c| c.ephemeral_container_common.volume_mounts.len());
    of_containers.chain(ephemeral).fold(0, usize::saturating_add)
}

/// Names of the ConfigMaps and Secrets that a pod refers to in environments, volumes and pull
/// secrets.
pub fn needs_of(pod: &Pod) -> EnvRequirements {
    let mut all = needs_without_pulls(pod);
    all.secrets.extend(pod.spec.image_pull_secrets.iter().map(|secret| secret.name.clone()));
    all
}

/// The same without pull secrets, which a pod whose images are on the node does not need.
pub fn needs_without_pulls(pod: &Pod) -> EnvRequirements {
    let mut all = EnvRequirements::default();
    let spec = &pod.spec;
    let ephemeral: Vec<Container> =
        spec.ephemeral_containers.iter().map(ephemeral_container).collect();
    for container in spec.init_containers.iter().chain(&spec.containers).chain(&ephemeral) {
        let EnvRequirements { config_maps, secrets } = env_requirements(container);
        all.config_maps.extend(config_maps);
        all.secrets.extend(secrets);
    }
    let of_volumes = volume_requirements(pod);
    all.config_maps.extend(of_volumes.config_maps);
    all.secrets.extend(of_volumes.secrets);
    all
}

/// What the volumes of a pod need. An invalid volume fails when it is set up, not here.
fn volume_requirements(pod: &Pod) -> VolumeRequirements {
    let mut needs = VolumeRequirements::default();
    let volumes = agent_volume::volumes(pod).unwrap_or_default();
    volumes.iter().for_each(|volume| volume.add_needs(&mut needs));
    needs
}

/// The cache of a node without an API server: no object exists.
#[derive(Debug, Default)]
pub struct NoObjects;

impl ObjectCache for NoObjects {
    fn subscribe(&self, pod: &Pod, _: Arc<Notify>) -> Box<dyn Subscription> {
        let EnvRequirements { config_maps, secrets } = needs_of(pod);
        let absent = |names: BTreeSet<String>| names.into_iter().map(|name| (name, None));
        let config_maps = absent(config_maps).collect();
        let secrets = secrets.into_iter().map(|name| (name, None)).collect();
        let sources = PodObjects { config_maps, secrets, ..PodObjects::default() };
        Box::new(Fixed(sources))
    }
}

/// Objects that never change.
struct Fixed(PodObjects);

impl Subscription for Fixed {
    fn objects(&self) -> PodObjects {
        self.0.clone()
    }

    fn services(&self, _: &Pod) -> Vec<ServiceEnv> {
        Vec::new()
    }

    fn is_complete(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{
        CSIVolumeSource, EnvFromSource, EphemeralContainer, LocalObjectReference,
        PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretEnvSource,
        ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection, VolumeSource,
    };

    use super::*;

    fn reference(n: usize) -> LocalObjectReference {
        LocalObjectReference { name: format!("a{n:04}") }
    }

    fn secrets(from: usize, to: usize) -> Vec<EnvFromSource> {
        let secret = |n| EnvFromSource {
            secret_ref: Some(SecretEnvSource {
                local_object_reference: reference(n),
                optional: Some(true),
            }),
            ..EnvFromSource::default()
        };
        (from..to).map(secret).collect()
    }

    fn volumes(count: usize, source: impl Fn(usize) -> VolumeSource) -> Vec<Volume> {
        let volume = |n| Volume { name: format!("v{n}"), volume_source: source(n) };
        (0..count).map(volume).collect()
    }

    fn named(pod: &Pod) -> usize {
        match check_pod_bounds(pod) {
            Err(PodBoundError::Objects(named)) => named,
            other => other.map_or(usize::MAX, |()| 0),
        }
    }

    #[test]
    fn objects_of_all_kinds_are_counted_once_for_a_pod() {
        let mut pod = Pod::default();
        let container = |env_from| Container { env_from, ..Container::default() };
        // The same by two containers.
        pod.spec.containers = vec![container(secrets(0, 200)); 2];
        pod.spec.init_containers = vec![container(secrets(100, NAMED_OBJECTS_MAX))];
        assert_eq!(named(&pod), 0);
        let one_more = |change: &dyn Fn(&mut Pod)| {
            let mut pod = pod.clone();
            change(&mut pod);
            named(&pod)
        };
        let claim = |n| VolumeSource {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: format!("c{n}"),
                read_only: false,
            }),
            ..VolumeSource::default()
        };
        let driver = |n| VolumeSource {
            csi: Some(CSIVolumeSource { driver: format!("d{n}"), ..CSIVolumeSource::default() }),
            ..VolumeSource::default()
        };
        let token = |n| VolumeSource {
            projected: Some(ProjectedVolumeSource {
                sources: vec![VolumeProjection {
                    service_account_token: Some(ServiceAccountTokenProjection {
                        audience: format!("t{n}"),
                        path: "token".into(),
                        ..ServiceAccountTokenProjection::default()
                    }),
                    ..VolumeProjection::default()
                }],
                ..ProjectedVolumeSource::default()
            }),
            ..VolumeSource::default()
        };
        let expect = NAMED_OBJECTS_MAX + 3;
        assert_eq!(one_more(&|pod| pod.spec.volumes = volumes(3, claim)), expect, "claims");
        assert_eq!(one_more(&|pod| pod.spec.volumes = volumes(3, driver)), expect, "drivers");
        assert_eq!(one_more(&|pod| pod.spec.volumes = volumes(3, token)), expect, "tokens");
        let pulls =
            |pod: &mut Pod| pod.spec.image_pull_secrets = (253..259).map(reference).collect();
        assert_eq!(one_more(&pulls), expect, "pull secrets");
        let looking = |pod: &mut Pod| {
            let mut ephemeral = EphemeralContainer::default();
            ephemeral.ephemeral_container_common.env_from = secrets(250, 259);
            pod.spec.ephemeral_containers = vec![ephemeral];
        };
        assert_eq!(one_more(&looking), expect, "an ephemeral container");
        let error = PodBoundError::Objects(1100).to_string();
        assert!(error.contains(" 1100 ") && error.contains(" 256 "), "{error}");
    }

    #[test]
    fn volumes_and_their_mounts_are_counted_over_all_containers() {
        let empty = |_| VolumeSource { empty_dir: Some(<_>::default()), ..<_>::default() };
        let mounts = |count| vec![VolumeMount { name: "v0".into(), ..<_>::default() }; count];
        let container = |count| Container { volume_mounts: mounts(count), ..<_>::default() };
        let mut pod = Pod::default();
        pod.spec.volumes = volumes(1024, empty);
        pod.spec.containers = vec![container(2000); 2];
        pod.spec.init_containers = vec![container(90)];
        let mut ephemeral = EphemeralContainer::default();
        ephemeral.ephemeral_container_common.volume_mounts = mounts(6);
        pod.spec.ephemeral_containers = vec![ephemeral.clone()];
        let refused =
            |pod: &Pod| check_pod_bounds(pod).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(refused(&pod), "");
        let change = |change: &dyn Fn(&mut Pod)| {
            let mut pod = pod.clone();
            change(&mut pod);
            refused(&pod)
        };
        let more = change(&|pod| pod.spec.volumes = volumes(1025, empty));
        assert_eq!(more, "the pod has 1025 volumes; a node sets up at most 1024 for a pod");
        let expect = "the containers of the pod have 4097 volume mounts; a node makes at most 4096 for a pod";
        assert_eq!(change(&|pod| pod.spec.init_containers = vec![container(91)]), expect);
        assert_eq!(change(&|pod| pod.spec.containers[1] = container(2001)), expect);
        let looking = |pod: &mut Pod| {
            pod.spec.ephemeral_containers[0].ephemeral_container_common.volume_mounts = mounts(7);
        };
        assert_eq!(change(&looking), expect);
    }
}
