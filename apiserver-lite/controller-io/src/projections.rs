//! What the caches keep of each object: memory is in proportion to what controllers read.

use apiserver_controllers::volumes::access_modes;
use proto_api::batch::v1::Job;
use proto_api::core::v1::{
    Affinity, Container, ContainerState, ContainerStateTerminated, ContainerStatus, Node,
    NodeAffinity, NodeStatus, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, PodStatus,
    Secret, Volume,
};
use proto_api::meta::v1::ObjectMeta;
use proto_api::{Kind, Resource};

/// Keeps the fields of a pod that controllers read.
pub fn slim_pod(pod: Pod) -> Pod {
    let Pod { metadata, spec, status } = pod;
    let container = |container: Container| Container {
        name: container.name,
        ports: shrunk(container.ports),
        ..Container::default()
    };
    let is_read = |key: &String| {
        key.ends_with("/pod-deletion-cost") || key.ends_with("/job-completion-index")
    };
    let annotations = metadata.annotations.into_iter().filter(|(key, _)| is_read(key)).collect();
    // Jobs count restarts, and how long ago pods have failed; their failure policies name containers.
    let is_of_job = metadata.owner_references.iter().any(|owner| owner.kind == Job::KIND);
    let statuses = |statuses: Vec<ContainerStatus>| -> Vec<ContainerStatus> {
        shrunk(statuses.into_iter().filter(|_| is_of_job).map(slim_container_status).collect())
    };
    let container_statuses = statuses(status.container_statuses);
    let init_container_statuses = statuses(status.init_container_statuses);
    // A pod with a node says where it is.
    let affinity = spec.affinity.filter(|_| spec.node_name.is_empty()).and_then(by_name);
    Pod {
        metadata: ObjectMeta {
            annotations,
            finalizers: shrunk(metadata.finalizers),
            owner_references: shrunk(metadata.owner_references),
            managed_fields: Vec::new(),
            ..metadata
        },
        spec: PodSpec {
            containers: shrunk(spec.containers.into_iter().map(container).collect()),
            node_name: spec.node_name,
            host_network: spec.host_network,
            hostname: spec.hostname,
            subdomain: spec.subdomain,
            affinity,
            restart_policy: spec.restart_policy,
            tolerations: shrunk(spec.tolerations),
            volumes: shrunk(spec.volumes.into_iter().filter(is_claim).collect()),
            ..PodSpec::default()
        },
        status: PodStatus {
            phase: status.phase,
            conditions: shrunk(status.conditions),
            pod_ip: status.pod_ip,
            pod_ips: shrunk(status.pod_ips),
            container_statuses,
            init_container_statuses,
            ..PodStatus::default()
        },
    }
}

/// Gives back the space without items: a list that is made from another keeps its allocation, and one that was decoded has some to grow.
fn shrunk<T>(mut items: Vec<T>) -> Vec<T> {
    items.shrink_to_fit();
    items
}

/// Keeps what says for which node a pod without one is.
fn by_name(affinity: Affinity) -> Option<Affinity> {
    let node = affinity.node_affinity?;
    let mut required = node.required_during_scheduling_ignored_during_execution?;
    required.node_selector_terms.retain_mut(|term| {
        term.match_expressions.clear();
        !term.match_fields.is_empty()
    });
    let required = Some(required).filter(|kept| !kept.node_selector_terms.is_empty())?;
    let node = NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(required),
        ..NodeAffinity::default()
    };
    Some(Affinity { node_affinity: Some(node), ..Affinity::default() })
}

fn slim_container_status(status: ContainerStatus) -> ContainerStatus {
    let terminated = status.state.terminated.map(|terminated| ContainerStateTerminated {
        exit_code: terminated.exit_code,
        finished_at: terminated.finished_at,
        ..ContainerStateTerminated::default()
    });
    ContainerStatus {
        name: status.name,
        state: ContainerState { terminated, ..ContainerState::default() },
        restart_count: status.restart_count,
        ..ContainerStatus::default()
    }
}

fn is_claim(volume: &Volume) -> bool {
    let source = &volume.volume_source;
    source.persistent_volume_claim.is_some() || source.ephemeral.is_some()
}

/// Removes the managed fields.
pub fn slim<T: Resource>(mut object: T) -> T {
    object.metadata_mut().managed_fields.clear();
    object
}

/// Removes the managed fields, and access modes that are repeated.
pub fn slim_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
    let mut claim = slim(claim);
    access_modes::limit_modes_of_claim(&mut claim);
    claim
}

/// Removes the managed fields, and access modes that are repeated.
pub fn slim_volume(volume: PersistentVolume) -> PersistentVolume {
    let mut volume = slim(volume);
    access_modes::limit_modes_of_volume(&mut volume);
    volume
}

/// Keeps the metadata, the type and the keys of non-empty data of a token secret.
pub fn slim_secret(secret: Secret) -> Secret {
    let Secret { metadata, data, type_, immutable, .. } = secret;
    let filled = data.into_iter().filter(|(_, value)| !value.is_empty());
    Secret {
        metadata: ObjectMeta { managed_fields: Vec::new(), ..metadata },
        data: filled.map(|(key, _)| (key, Vec::new())).collect(),
        type_,
        immutable,
        ..Secret::default()
    }
}

/// Keeps the labels, spec, conditions, addresses and volumes of a node.
pub fn slim_node(node: Node) -> Node {
    let Node { metadata, spec, status } = node;
    Node {
        metadata: ObjectMeta {
            annotations: Default::default(),
            managed_fields: Vec::new(),
            ..metadata
        },
        spec,
        status: NodeStatus {
            conditions: status.conditions,
            addresses: status.addresses,
            volumes_attached: status.volumes_attached,
            volumes_in_use: status.volumes_in_use,
            ..NodeStatus::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{ContainerPort, NodeSelector, NodeSelectorTerm};
    use proto_api::meta::v1::OwnerReference;

    use super::*;

    #[test]
    fn a_slim_pod_keeps_what_controllers_read() {
        let port = ContainerPort { name: "http".into(), ..ContainerPort::default() };
        let mut pod = Pod::default();
        pod.metadata.name = "web".into();
        pod.metadata.labels.insert("app".into(), "web".into());
        pod.spec.node_name = "node".into();
        pod.spec.containers = vec![Container { ports: vec![port], ..Container::default() }];
        pod.status.phase = "Running".into();
        pod.status.pod_ip = "10.1.0.1".into();
        pod.status.conditions.push(Default::default());
        let terms =
            vec![NodeSelectorTerm { match_fields: vec![Default::default()], ..Default::default() }];
        let required = Some(NodeSelector { node_selector_terms: terms });
        let node_affinity = NodeAffinity {
            required_during_scheduling_ignored_during_execution: required,
            ..NodeAffinity::default()
        };
        let mut waiting = pod.clone();
        waiting.spec.node_name.clear();
        waiting.spec.affinity =
            Some(Affinity { node_affinity: Some(node_affinity), ..Affinity::default() });
        assert_eq!(slim_pod(waiting.clone()), waiting, "its node is known from the affinity");
        let mut of_job = pod.clone();
        let owner = OwnerReference { kind: "Job".into(), ..OwnerReference::default() };
        of_job.metadata.owner_references = vec![owner];
        let index = "batch.kubernetes.io/job-completion-index".to_owned();
        of_job.metadata.annotations.insert(index, "1".into());
        let restarted =
            ContainerStatus { name: "c".into(), restart_count: 1, ..ContainerStatus::default() };
        of_job.status.container_statuses = vec![restarted.clone()];
        assert_eq!(slim_pod(of_job.clone()), of_job);
        assert_eq!(slim_pod(pod.clone()), pod);
        let mut fat = pod.clone();
        fat.spec.containers[0].image = "image".into();
        fat.metadata.annotations.insert("note".into(), "long".into());
        fat.spec.volumes.push(Default::default());
        fat.spec.affinity = waiting.spec.affinity;
        fat.status.container_statuses = vec![restarted];
        assert_eq!(slim_pod(fat), pod);
    }

    /// The space for items that lists of a pod have and do not use.
    fn unused(pod: &Pod) -> Vec<usize> {
        fn of<T>(items: &Vec<T>) -> usize {
            items.capacity() - items.len()
        }
        let Pod { metadata, spec, status } = pod;
        let mut unused = vec![
            of(&metadata.finalizers),
            of(&metadata.owner_references),
            of(&spec.containers),
            of(&spec.tolerations),
            of(&spec.volumes),
            of(&status.conditions),
            of(&status.pod_ips),
            of(&status.container_statuses),
            of(&status.init_container_statuses),
        ];
        unused.extend(spec.containers.iter().map(|container| of(&container.ports)));
        unused
    }

    #[test]
    fn lists_of_a_slim_pod_have_no_space_beyond_their_items() {
        /// One item, in the space that a decoder allocates for it.
        fn one<T: Default>() -> Vec<T> {
            let mut items = Vec::with_capacity(4);
            items.push(T::default());
            items
        }
        let mut pod = Pod::default();
        pod.metadata.finalizers = one();
        pod.metadata.owner_references = one();
        pod.spec.containers = one();
        pod.spec.containers[0].ports = one();
        pod.spec.tolerations = one();
        pod.spec.volumes = one();
        pod.status.conditions = one();
        pod.status.pod_ips = one();
        pod.status.container_statuses = one();
        pod.status.init_container_statuses = one();
        assert_eq!(unused(&pod), [3; 10]);
        let mut of_job = pod.clone();
        of_job.metadata.owner_references[0].kind = "Job".into();
        of_job.spec.volumes = one();
        of_job.spec.volumes[0].volume_source.ephemeral = Some(Default::default());
        of_job.status.container_statuses = one();
        of_job.status.init_container_statuses = one();
        let (slim, of_job) = (slim_pod(pod), slim_pod(of_job));
        assert_eq!((slim.spec.volumes.len(), slim.status.container_statuses.len()), (0, 0));
        assert_eq!((of_job.spec.volumes.len(), of_job.status.container_statuses.len()), (1, 1));
        assert_eq!([unused(&slim), unused(&of_job)], [[0; 10]; 2]);
    }

    #[test]
    fn access_modes_are_kept_once() {
        let modes = vec!["ReadWriteOnce".to_owned(); 1000];
        let (mut claim, mut volume) =
            (PersistentVolumeClaim::default(), PersistentVolume::default());
        claim.spec.access_modes = modes.clone();
        claim.status.access_modes = modes.clone();
        volume.spec.access_modes = modes;
        let (claim, volume) = (slim_claim(claim), slim_volume(volume));
        assert_eq!(claim.spec.access_modes, ["ReadWriteOnce"]);
        assert_eq!(claim.status.access_modes, volume.spec.access_modes);
    }
}
