//! The objects that pods refer to: which they are, and where a pod's task reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_pod::desired::ephemeral_container;
use agent_pod::env::{EnvObjects, EnvRequirements, ServiceEnv, env_requirements};
use agent_volume::persistent::KnownObjects;
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
    /// The first required object or key that a container's environment lacks, as a message for
    /// users.
    fn missing(&self, pod: &Pod, container: &Container) -> Option<String>;
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
    // An invalid volume fails when it is set up, not here.
    for volume in agent_volume::volumes(pod).unwrap_or_default() {
        let mut needs = agent_volume::VolumeRequirements::default();
        volume.add_needs(&mut needs);
        all.config_maps.extend(needs.config_maps);
        all.secrets.extend(needs.secrets);
    }
    all
}

/// The first required object or key that a container's environment lacks; `sources` is called only
/// if it refers to any.
pub fn missing(
    pod: &Pod,
    container: &Container,
    sources: impl FnOnce() -> PodObjects,
) -> Option<String> {
    if container.env.is_empty() && container.env_from.is_empty() {
        return None;
    }
    let inputs = agent_pod::env::EnvInputs {
        pod,
        host_ips: &[],
        pod_ips: &[],
        objects: &sources(),
        services: &[],
        allocatable: &BTreeMap::new(),
    };
    agent_pod::env::check_environment(container, &inputs).err().map(|error| error.to_string())
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

    fn missing(&self, pod: &Pod, container: &Container) -> Option<String> {
        missing(pod, container, || self.0.clone())
    }
}
