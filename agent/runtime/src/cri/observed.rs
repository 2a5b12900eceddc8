//! Values of the agent from CRI messages.

use std::path::Path;

use agent_pod::observed::{Exit, InstanceState, ObservedContainer, ObservedSandbox};
use agent_pod::spec::labels;
use proto_grpc::cri::v1 as wire;

use crate::runtime::{ConditionError, ContainerUsage, FilesystemUsage, Image, RuntimeHealth};

pub(super) fn health(status: &wire::RuntimeStatus) -> RuntimeHealth {
    let condition = |name: &'static str| match status.conditions.iter().find(|c| c.r#type == name) {
        Some(condition) if condition.status => Ok(()),
        Some(condition) => Err(ConditionError::False {
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }),
        None => Err(ConditionError::Missing(name)),
    };
    RuntimeHealth { runtime: condition("RuntimeReady"), network: condition("NetworkReady") }
}

pub(crate) fn sandbox(status: wire::PodSandboxStatus) -> ObservedSandbox {
    let ready = status.state() == wire::PodSandboxState::SandboxReady;
    let network = status.network.unwrap_or_default();
    let further = network.additional_ips.into_iter().map(|ip| ip.ip);
    ObservedSandbox {
        id: status.id,
        attempt: status.metadata.unwrap_or_default().attempt,
        ready,
        ips: std::iter::once(network.ip).chain(further).filter(|ip| !ip.is_empty()).collect(),
    }
}

pub(crate) fn container(sandbox_id: String, status: wire::ContainerStatus) -> ObservedContainer {
    let state = match status.state() {
        wire::ContainerState::ContainerCreated => InstanceState::Created,
        wire::ContainerState::ContainerRunning => {
            InstanceState::Running { started_at: status.started_at }
        }
        wire::ContainerState::ContainerExited => InstanceState::Exited(Exit {
            code: status.exit_code,
            reason: status.reason.clone(),
            message: status.message.clone(),
            started_at: status.started_at,
            finished_at: status.finished_at,
        }),
        wire::ContainerState::ContainerUnknown => InstanceState::Unknown,
    };
    let message_file = message_file(&status);
    let metadata = status.metadata.unwrap_or_default();
    ObservedContainer {
        id: status.id,
        name: metadata.name,
        attempt: metadata.attempt,
        sandbox_id,
        image: status.image.unwrap_or_default().image,
        image_id: status.image_ref,
        hash: status.annotations.get(labels::DEFINITION_HASH).cloned().unwrap_or_default(),
        message_file,
        state,
    }
}

/// The file of the termination message, if a kubelet made it: it lies in a directory of the node that is the container's alone. What else is mounted at its
/// path is a volume of the pod, in which pods can replace directories by links.
fn message_file(status: &wire::ContainerStatus) -> Option<String> {
    let path = status.annotations.get(labels::TERMINATION_MESSAGE_PATH)?;
    let uid = status.labels.get(labels::POD_UID).filter(|uid| !uid.is_empty())?;
    let name = status.metadata.as_ref().map(|metadata| &metadata.name)?;
    let directory = Path::new("pods").join(uid).join("containers").join(name);
    let made_by_kubelet = |mount: &&wire::Mount| {
        let parent = Path::new(&mount.host_path).parent();
        mount.container_path == *path && parent.is_some_and(|parent| parent.ends_with(&directory))
    };
    status.mounts.iter().find(made_by_kubelet).map(|mount| mount.host_path.clone())
}

pub(super) fn image(image: wire::Image) -> Image {
    Image {
        id: image.id,
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: image.size,
        uid: image.uid.map(|uid| uid.value),
        username: image.username,
        pinned: image.pinned,
    }
}

pub(super) fn filesystem(usage: wire::FilesystemUsage) -> FilesystemUsage {
    FilesystemUsage {
        mountpoint: usage.fs_id.unwrap_or_default().mountpoint,
        used_bytes: value(usage.used_bytes),
        inodes_used: value(usage.inodes_used),
    }
}

/// Usage of a container; `None` if the entry does not name its container.
pub(super) fn usage(stats: wire::ContainerStats) -> Option<ContainerUsage> {
    let attributes = stats.attributes?;
    let cpu = stats.cpu.unwrap_or_default();
    let memory = stats.memory.unwrap_or_default();
    let layer = stats.writable_layer.unwrap_or_default();
    Some(ContainerUsage {
        id: attributes.id,
        name: attributes.metadata.unwrap_or_default().name,
        pod_uid: attributes.labels.get(labels::POD_UID).cloned().unwrap_or_default(),
        measured_at: cpu.timestamp,
        cpu_nanos: value(cpu.usage_core_nano_seconds),
        working_set_bytes: value(memory.working_set_bytes),
        rss_bytes: value(memory.rss_bytes),
        usage_bytes: value(memory.usage_bytes),
        writable_bytes: value(layer.used_bytes),
        writable_inodes: value(layer.inodes_used),
    })
}

fn value(value: Option<wire::UInt64Value>) -> u64 {
    value.unwrap_or_default().value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_primary_first_and_never_empty() {
        let status = |ip: &str, more: &[&str]| wire::PodSandboxStatus {
            network: Some(wire::PodSandboxNetworkStatus {
                ip: ip.into(),
                additional_ips: more.iter().map(|ip| wire::PodIp { ip: (*ip).into() }).collect(),
            }),
            ..Default::default()
        };
        assert_eq!(sandbox(status("10.0.0.2", &["fd00::2"])).ips, ["10.0.0.2", "fd00::2"]);
        assert_eq!(sandbox(status("", &[])).ips, Vec::<String>::new());
        assert_eq!(sandbox(wire::PodSandboxStatus::default()).ips, Vec::<String>::new());
    }

    #[test]
    fn an_unknown_state_is_not_taken_for_an_exit() {
        let state = |state| {
            container(String::new(), wire::ContainerStatus { state, ..Default::default() }).state
        };
        assert_eq!(state(1), InstanceState::Running { started_at: 0 });
        assert_eq!(state(3), InstanceState::Unknown);
        // An unknown state: prost decodes it as the first one, which is never treated as an exit.
        assert_eq!(state(99), InstanceState::Created);
    }

    /// The path of the message may be that of a volume, whose files are the pod's: `/shared/d` may lead anywhere when the container has ended.
    #[test]
    fn a_message_is_read_from_files_of_kubelets_only() {
        let file = |mounted: &[&str]| {
            let mount = |host_path: &&str| wire::Mount {
                container_path: "/t".into(),
                host_path: (*host_path).into(),
                ..Default::default()
            };
            let status = wire::ContainerStatus {
                metadata: Some(wire::ContainerMetadata { name: "c".into(), attempt: 0 }),
                labels: [(labels::POD_UID.to_owned(), "u".to_owned())].into(),
                annotations: [(labels::TERMINATION_MESSAGE_PATH.to_owned(), "/t".to_owned())]
                    .into(),
                mounts: mounted.iter().map(mount).collect(),
                ..Default::default()
            };
            container(String::new(), status).message_file
        };
        let of_kubelet = "/var/lib/kubelet/pods/u/containers/c/1f2e3d4c";
        assert_eq!(file(&[of_kubelet]).as_deref(), Some(of_kubelet));
        assert_eq!(file(&["/shared/d/shadow", of_kubelet]).as_deref(), Some(of_kubelet));
        for other in [
            "/shared/d/shadow",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v",
            "/var/lib/kubelet/pods/v/containers/c/1f2e3d4c",
            "/var/lib/kubelet/pods/u/containers/c/../d/1f2e3d4c",
            "/var/lib/kubelet/pods/u/containers/c",
            "",
        ] {
            assert_eq!(file(&[other]), None, "{other}");
        }
    }

    #[test]
    fn a_condition_that_is_missing_is_not_ready() {
        let health = health(&wire::RuntimeStatus {
            conditions: vec![wire::RuntimeCondition {
                r#type: "RuntimeReady".into(),
                status: true,
                ..Default::default()
            }],
        });
        assert_eq!(health.runtime, Ok(()));
        assert!(health.network.is_err());
    }
}
