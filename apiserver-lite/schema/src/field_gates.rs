//! The feature gates that decide what objects of built-in kinds may have. All are off unless switched on, as in Kubernetes 1.25.

use std::fmt;

/// A gate of fields or of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldGate {
    /// `nodeExpandSecretRef` of volumes.
    CsiNodeExpandSecret,
    /// Metrics of containers in autoscalers.
    HpaContainerMetrics,
    /// `minReplicas: 0` of autoscalers.
    HpaScaleToZero,
    /// `podFailurePolicy` of Jobs, and of those of CronJobs.
    JobPodFailurePolicy,
    /// `matchLabelKeys` of topology spread constraints.
    MatchLabelKeysInPodTopologySpread,
    /// `maxUnavailable` of StatefulSets, with its default.
    MaxUnavailableStatefulSet,
    /// `minDomains` of topology spread constraints.
    MinDomainsInPodTopologySpread,
    /// `nodeAffinityPolicy` and `nodeTaintsPolicy` of topology spread constraints.
    NodeInclusionPolicyInPodTopologySpread,
    /// `procMount` of containers other than `Default`.
    ProcMountType,
    /// The access mode of volumes and claims for one pod.
    ReadWriteOncePod,
    /// `allocatedResources` and `resizeStatus` of claims.
    RecoverVolumeExpansionFailure,
    /// `seLinuxMount` of storage drivers, with its default.
    SeLinuxMountReadWriteOncePod,
    /// `persistentVolumeClaimRetentionPolicy` of StatefulSets, with its defaults.
    StatefulSetAutoDeletePvc,
    /// `hostUsers` of pods.
    UserNamespacesStatelessPodsSupport,
}

impl FieldGate {
    /// All gates, in the order of their declaration.
    pub const ALL: [Self; 14] = [
        Self::CsiNodeExpandSecret,
        Self::HpaContainerMetrics,
        Self::HpaScaleToZero,
        Self::JobPodFailurePolicy,
        Self::MatchLabelKeysInPodTopologySpread,
        Self::MaxUnavailableStatefulSet,
        Self::MinDomainsInPodTopologySpread,
        Self::NodeInclusionPolicyInPodTopologySpread,
        Self::ProcMountType,
        Self::ReadWriteOncePod,
        Self::RecoverVolumeExpansionFailure,
        Self::SeLinuxMountReadWriteOncePod,
        Self::StatefulSetAutoDeletePvc,
        Self::UserNamespacesStatelessPodsSupport,
    ];

    /// The name in `--feature-gates`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CsiNodeExpandSecret => "CSINodeExpandSecret",
            Self::HpaContainerMetrics => "HPAContainerMetrics",
            Self::HpaScaleToZero => "HPAScaleToZero",
            Self::JobPodFailurePolicy => "JobPodFailurePolicy",
            Self::MatchLabelKeysInPodTopologySpread => "MatchLabelKeysInPodTopologySpread",
            Self::MaxUnavailableStatefulSet => "MaxUnavailableStatefulSet",
            Self::MinDomainsInPodTopologySpread => "MinDomainsInPodTopologySpread",
            Self::NodeInclusionPolicyInPodTopologySpread => {
                "NodeInclusionPolicyInPodTopologySpread"
            }
            Self::ProcMountType => "ProcMountType",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
            Self::RecoverVolumeExpansionFailure => "RecoverVolumeExpansionFailure",
            Self::SeLinuxMountReadWriteOncePod => "SELinuxMountReadWriteOncePod",
            Self::StatefulSetAutoDeletePvc => "StatefulSetAutoDeletePVC",
            Self::UserNamespacesStatelessPodsSupport => "UserNamespacesStatelessPodsSupport",
        }
    }

    const fn bit(self) -> u16 {
        1_u16.wrapping_shl(self as u32)
    }
}

/// The gates that are on; by default none is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FieldGates(u16);

impl FieldGates {
    /// The names of all gates.
    #[must_use]
    pub fn names() -> [&'static str; FieldGate::ALL.len()] {
        FieldGate::ALL.map(FieldGate::name)
    }

    /// The gates whose names are `on`.
    #[must_use]
    pub fn from_names(on: impl Fn(&str) -> bool) -> Self {
        FieldGate::ALL.into_iter().filter(|gate| on(gate.name())).collect()
    }

    /// Whether a gate is on.
    #[must_use]
    pub const fn has(self, gate: FieldGate) -> bool {
        self.0 & gate.bit() != 0
    }

    /// Whether the gate of this name is on; one that is not of this kind is off.
    #[must_use]
    pub fn has_named(self, name: &str) -> bool {
        FieldGate::ALL.into_iter().any(|gate| gate.name() == name && self.has(gate))
    }
}

impl FromIterator<FieldGate> for FieldGates {
    fn from_iter<I: IntoIterator<Item = FieldGate>>(gates: I) -> Self {
        Self(gates.into_iter().fold(0, |all, gate| all | gate.bit()))
    }
}

impl fmt::Debug for FieldGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(FieldGate::ALL.iter().filter(|gate| self.has(**gate))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gate_is_switched_by_its_name() {
        for gate in FieldGate::ALL {
            let alone = FieldGates::from_names(|name| name == gate.name());
            let on: Vec<_> = FieldGate::ALL.into_iter().filter(|other| alone.has(*other)).collect();
            assert_eq!(on, [gate]);
            assert!(alone.has_named(gate.name()) && !FieldGates::default().has(gate));
            assert_eq!(format!("{alone:?}"), format!("{{{gate:?}}}"));
        }
        assert!(!FieldGate::ALL.into_iter().collect::<FieldGates>().has_named("PodSecurity"));
    }
}
