//! The claims that a pod names, and the bound on their number. Each is compared with volumes, on the scheduler's one task.

use std::collections::BTreeSet;

use proto_api::core::v1::{Pod, Volume};

/// Most claims of a pod that is scheduled. As many as a kubelet of this project mounts.
pub const CLAIMS_MAX: usize = 256;

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimUse {
    /// The claim's name.
    pub name: String,
    /// Whether it belongs to an ephemeral volume of the pod.
    pub ephemeral: bool,
}

/// The claims that a pod uses, at most [`CLAIMS_MAX`], and how many there are.
pub fn claims_of(pod: &Pod) -> (Vec<ClaimUse>, usize) {
    let claim = |volume: &Volume| {
        let source = &volume.volume_source;
        if let Some(claim) = &source.persistent_volume_claim {
            return Some(ClaimUse { name: claim.claim_name.clone(), ephemeral: false });
        }
        let name = format!("{}-{}", pod.metadata.name, volume.name);
        source.ephemeral.is_some().then_some(ClaimUse { name, ephemeral: true })
    };
    let (mut claims, mut known) = (Vec::new(), BTreeSet::new());
    for used in pod.spec.volumes.iter().filter_map(claim) {
        if known.insert(used.clone()) && claims.len() < CLAIMS_MAX {
            claims.push(used);
        }
    }
    (claims, known.len())
}
