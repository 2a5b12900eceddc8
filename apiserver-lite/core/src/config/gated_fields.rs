//! Fields of built-in kinds that objects keep only with a feature gate.

use proto_daemon::feature_gates::FeatureGates;

const FAILURE_POLICY: &str = "JobPodFailurePolicy";
const CLAIM_RETENTION: &str = "StatefulSetAutoDeletePVC";

/// The fields that are kept. The others are dropped from what is written, unless the stored object has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatedFields {
    /// `podFailurePolicy` of Jobs.
    pub pod_failure_policies: bool,
    /// `persistentVolumeClaimRetentionPolicy` of StatefulSets, with its defaults.
    pub claim_retention_policies: bool,
}

impl GatedFields {
    /// The gates that decide.
    pub const GATES: [&str; 2] = [FAILURE_POLICY, CLAIM_RETENTION];

    /// The fields that these gates keep.
    #[must_use]
    pub fn of(gates: &FeatureGates) -> Self {
        Self {
            pod_failure_policies: gates.is_on(FAILURE_POLICY),
            claim_retention_policies: gates.is_on(CLAIM_RETENTION),
        }
    }

    /// Whether a gate is on; those that keep no field are off.
    #[must_use]
    pub fn is_on(&self, gate: &str) -> bool {
        match gate {
            FAILURE_POLICY => self.pod_failure_policies,
            CLAIM_RETENTION => self.claim_retention_policies,
            _ => false,
        }
    }
}
