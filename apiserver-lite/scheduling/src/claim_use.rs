//! The claims that a pod names.

use proto_api::core::v1::Pod;

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// The claim's name.
    pub name: String,
    /// Whether it belongs to an ephemeral volume of the pod.
    pub ephemeral: bool,
}

/// The claims that a pod uses.
pub fn claims_of(pod: &Pod) -> Vec<ClaimUse> {
    let volumes = pod.spec.volumes.iter();
    let claim = |volume: &proto_api::core::v1::Volume| {
        let source = &volume.volume_source;
        if let Some(claim) = &source.persistent_volume_claim {
            return Some(ClaimUse { name: claim.claim_name.clone(), ephemeral: false });
        }
        let name = format!("{}-{}", pod.metadata.name, volume.name);
        source.ephemeral.is_some().then_some(ClaimUse { name, ephemeral: true })
    };
    volumes.filter_map(claim).collect()
}
