//! Limits on local ephemeral storage of volumes, containers and pods, enforced independently of the node's free space.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::Quantity;
use proto_api::core::v1::Pod;

use super::rank::PodUse;
use crate::resources::{EPHEMERAL_STORAGE, all_limited, limits};

/// Whether the pod has any such limit, so that its usage has to be measured.
pub fn is_limited(pod: &Pod) -> bool {
    let container = |c: &proto_api::core::v1::Container| {
        c.resources.limits.get(EPHEMERAL_STORAGE).is_some_and(|q| !q.is_zero())
    };
    pod.spec.init_containers.iter().chain(&pod.spec.containers).any(container)
        || !volume_limits(pod).is_empty()
}

/// `emptyDir` volumes on disk with a `sizeLimit`.
fn volume_limits(pod: &Pod) -> BTreeMap<&str, Quantity> {
    let limit = |volume: &proto_api::core::v1::Volume| {
        volume.volume_source.empty_dir.as_ref()?.size_limit.filter(|limit| !limit.is_zero())
    };
    let volumes = pod.spec.volumes.iter();
    volumes.filter_map(|v| Some((v.name.as_str(), limit(v)?))).collect()
}

/// An exceeded limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Value of the metric label.
    pub signal: &'static str,
    /// Message in the pod's status.
    pub message: String,
}

/// The first limit that the pod exceeds; `volumes` holds the bytes of each `emptyDir`.
pub fn exceeded_limit(
    pod: &Pod,
    uses: &PodUse,
    volumes: &BTreeMap<String, u64>,
) -> Option<Exceeded> {
    let found = |signal, message| Some(Exceeded { signal, message });
    for (name, limit) in volume_limits(pod) {
        if volumes.get(name).is_some_and(|used| *used > limit.as_bytes()) {
            let message =
                format!("Usage of EmptyDir volume {name:?} exceeds the limit \"{limit}\". ");
            return found("emptyDirFsLimit", message);
        }
    }
    let whole = limits(pod).get(EPHEMERAL_STORAGE).copied().unwrap_or_default();
    if all_limited(pod, EPHEMERAL_STORAGE) && !whole.is_zero() && uses.disk() > whole.as_bytes() {
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {whole}. "
        );
        return found("ephemeralPodFsLimit", message);
    }
    for container in &pod.spec.containers {
        let limit = container.resources.limits.get(EPHEMERAL_STORAGE);
        let Some(limit) = limit.filter(|limit| !limit.is_zero()) else { continue };
        let used = uses.containers.iter().find(|c| c.name == container.name);
        if used.is_some_and(|c| c.layer.saturating_add(c.logs) > limit.as_bytes()) {
            let name = &container.name;
            let message = format!(
                "Container {name} exceeded its local ephemeral storage limit \"{limit}\". "
            );
            return found("ephemeralContainerFsLimit", message);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{Container, EmptyDirVolumeSource, Volume};

    use super::super::rank::ContainerUse;
    use super::*;

    fn pod(volume: Option<&str>, limits: &[Option<&str>]) -> Pod {
        let mut pod = Pod::default();
        let container = |(number, limit): (usize, &Option<&str>)| {
            let mut container = Container { name: format!("c{number}"), ..Container::default() };
            if let Some(limit) = limit {
                let limit = limit.parse().expect("quantity");
                container.resources.limits.insert(EPHEMERAL_STORAGE.into(), limit);
            }
            container
        };
        pod.spec.containers = limits.iter().enumerate().map(container).collect();
        let mut empty = Volume { name: "v".into(), ..Volume::default() };
        let size_limit = volume.map(|limit| limit.parse().expect("quantity"));
        empty.volume_source.empty_dir =
            Some(EmptyDirVolumeSource { size_limit, ..EmptyDirVolumeSource::default() });
        pod.spec.volumes = vec![empty];
        pod
    }

    fn uses(volumes: u64, layers: &[u64]) -> PodUse {
        let one = |(number, layer): (usize, &u64)| ContainerUse {
            name: format!("c{number}"),
            layer: *layer,
            ..ContainerUse::default()
        };
        let containers = layers.iter().enumerate().map(one).collect();
        PodUse { volumes, containers, ..PodUse::default() }
    }

    #[test]
    fn each_limit_is_kept() {
        let cases = [
            (pod(None, &[None]), uses(1 << 40, &[1 << 40]), None),
            (
                pod(Some("1Ki"), &[None]),
                uses(1025, &[0]),
                Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "),
            ),
            (pod(Some("1Ki"), &[None]), uses(1024, &[0]), None),
            (
                pod(None, &[Some("1Ki")]),
                uses(1000, &[100]),
                Some(
                    "Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. ",
                ),
            ),
            (
                pod(None, &[Some("1Ki"), Some("4Ki")]),
                uses(0, &[1025, 0]),
                Some("Container c0 exceeded its local ephemeral storage limit \"1Ki\". "),
            ),
            (pod(None, &[Some("1Ki"), None]), uses(4096, &[1024, 4096]), None),
        ];
        for (pod, uses, expect) in cases {
            let volumes = BTreeMap::from([("v".to_owned(), uses.volumes)]);
            let found = exceeded_limit(&pod, &uses, &volumes).map(|exceeded| exceeded.message);
            assert_eq!(found.as_deref(), expect);
            let limited = pod.spec.volumes[0]
                .volume_source
                .empty_dir
                .as_ref()
                .is_some_and(|e| e.size_limit.is_some())
                || pod.spec.containers.iter().any(|c| !c.resources.limits.is_empty());
            assert_eq!(is_limited(&pod), limited);
        }
    }
}
