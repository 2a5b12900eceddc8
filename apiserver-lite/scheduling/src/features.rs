//! Features of scheduling that are on or off by their feature gates.

const MIN_DOMAINS: &str = "MinDomainsInPodTopologySpread";
const MATCH_LABEL_KEYS: &str = "MatchLabelKeysInPodTopologySpread";
const INCLUSION_POLICIES: &str = "NodeInclusionPolicyInPodTopologySpread";
const DISRUPTION_CONDITIONS: &str = "PodDisruptionConditions";

/// The features that are on. What belongs to another one counts as absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulingFeatures {
    /// `minDomains` of topology spread constraints.
    pub min_domains: bool,
    /// `matchLabelKeys` of topology spread constraints.
    pub match_label_keys: bool,
    /// `nodeAffinityPolicy` and `nodeTaintsPolicy` of topology spread constraints.
    pub inclusion_policies: bool,
    /// The condition DisruptionTarget of pods that end for others.
    pub disruption_conditions: bool,
}

impl SchedulingFeatures {
    /// Their gates.
    pub const GATES: [&str; 4] =
        [MIN_DOMAINS, MATCH_LABEL_KEYS, INCLUSION_POLICIES, DISRUPTION_CONDITIONS];

    /// The features whose gates are on.
    pub fn from_gates(is_on: impl Fn(&str) -> bool) -> Self {
        Self {
            min_domains: is_on(MIN_DOMAINS),
            match_label_keys: is_on(MATCH_LABEL_KEYS),
            inclusion_policies: is_on(INCLUSION_POLICIES),
            disruption_conditions: is_on(DISRUPTION_CONDITIONS),
        }
    }
}
