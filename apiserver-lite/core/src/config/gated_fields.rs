//! Fields of built-in kinds that objects keep only with a feature gate.

use proto_daemon::feature_gates::FeatureGates;

const FAILURE_POLICY: &str = "JobPodFailurePolicy";
const CLAIM_RETENTION: &str = "StatefulSetAutoDeletePVC";
const MAX_UNAVAILABLE: &str = "MaxUnavailableStatefulSet";

/// The fields that are kept. The others are dropped from what is written, unless the stored object has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatedFields {
    /// `podFailurePolicy` of Jobs.
    pub pod_failure_policies: bool,
    /// `persistentVolumeClaimRetentionPolicy` of StatefulSets, with its defaults.
    pub claim_retention_policies: bool,
    /// `maxUnavailable` of StatefulSets, with its default.
    pub max_unavailable_of_sets: bool,
}

impl GatedFields {
    /// The gates that decide.
    pub const GATES: [&str; 3] = [FAILURE_POLICY, CLAIM_RETENTION, MAX_UNAVAILABLE];

    /// The fields that these gates keep.
    #[must_use]
    pub fn from_gates(gates: &FeatureGates) -> Self {
        Self {
            pod_failure_policies: gates.is_on(FAILURE_POLICY),
            claim_retention_policies: gates.is_on(CLAIM_RETENTION),
            max_unavailable_of_sets: gates.is_on(MAX_UNAVAILABLE),
        }
    }

    /// Whether a gate is on; those that keep no field are off.
    #[must_use]
    pub fn is_on(&self, gate: &str) -> bool {
        match gate {
            FAILURE_POLICY => self.pod_failure_policies,
            CLAIM_RETENTION => self.claim_retention_policies,
            MAX_UNAVAILABLE => self.max_unavailable_of_sets,
            _ => false,
        }
    }
}
