//! Profiles: which filters a scheduler asks, how it weighs scores, and the arguments of both. Names and defaults are those of kube-scheduler 1.25.

use std::collections::BTreeSet;

use proto_api::core::v1::{NodeSelector, PreferredSchedulingTerm};
use proto_api::names::Names;

use crate::features::SchedulingFeatures;
use crate::resource_amounts::{CPU, MEMORY};
use crate::ties::Ties;

/// Most points of a node by one score.
pub const MAX_POINTS: i64 = 100;
/// Largest weight of a score, so that all scores together stay far from the range's end.
pub const WEIGHT_MAX: i64 = i32::MAX as i64;

/// A filter that a profile can leave out. VolumeBinding is none of them: without it the volumes of a pod would not be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    NodeUnschedulable,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    VolumeRestrictions,
    EbsLimits,
    GcePdLimits,
    NodeVolumeLimits,
    AzureDiskLimits,
    CinderLimits,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
}

impl Filter {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Self); 14] = [
        ("NodeUnschedulable", Self::NodeUnschedulable),
        ("TaintToleration", Self::TaintToleration),
        ("NodeAffinity", Self::NodeAffinity),
        ("NodePorts", Self::NodePorts),
        ("NodeResourcesFit", Self::NodeResourcesFit),
        ("VolumeRestrictions", Self::VolumeRestrictions),
        ("EBSLimits", Self::EbsLimits),
        ("GCEPDLimits", Self::GcePdLimits),
        ("NodeVolumeLimits", Self::NodeVolumeLimits),
        ("AzureDiskLimits", Self::AzureDiskLimits),
        ("CinderLimits", Self::CinderLimits),
        ("VolumeZone", Self::VolumeZone),
        ("PodTopologySpread", Self::PodTopologySpread),
        ("InterPodAffinity", Self::InterPodAffinity),
    ];

    /// Whether a profile has it that does not say otherwise.
    pub fn is_default(self) -> bool {
        self != Self::CinderLimits
    }
}

/// What makes one node better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Score {
    NodeResourcesFit,
    NodeResourcesBalancedAllocation,
    ImageLocality,
    NodeAffinity,
    InterPodAffinity,
    PodTopologySpread,
    TaintToleration,
}

impl Score {
    /// All of them, by their names, with their weights.
    pub const ALL: [(&'static str, Self, i64); 7] = [
        ("NodeResourcesFit", Self::NodeResourcesFit, 1),
        ("NodeResourcesBalancedAllocation", Self::NodeResourcesBalancedAllocation, 1),
        ("ImageLocality", Self::ImageLocality, 1),
        ("NodeAffinity", Self::NodeAffinity, 2),
        ("InterPodAffinity", Self::InterPodAffinity, 2),
        ("PodTopologySpread", Self::PodTopologySpread, 2),
        ("TaintToleration", Self::TaintToleration, 3),
    ];
}

/// How pods with one `schedulerName` are scheduled.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The `schedulerName`.
    pub name: String,
    /// Filters that are not asked.
    pub left_out: BTreeSet<Filter>,
    /// The scores that count, with their weights.
    pub scores: Vec<(Score, i64)>,
    pub fit: ResourceFit,
    /// Resources whose used shares are alike on a balanced node.
    pub balanced: Vec<String>,
    /// What a required affinity term of a running pod that selects the new one counts.
    pub hard_pod_affinity_weight: i64,
    pub added_affinity: AddedAffinity,
    /// How pods are spread that have no constraints themselves.
    pub default_spread: DefaultSpread,
    /// The label of nodes whose value each node has alone.
    pub hostname_label: String,
    /// How pods of lower priority end for pods that fit on no node; none if they do not.
    pub preemption: Option<CandidateNumber>,
    pub features: SchedulingFeatures,
    pub ties: Ties,
}

/// The arguments of NodeResourcesFit.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceFit {
    pub strategy: FitStrategy,
    /// Resources that score, with their weights.
    pub resources: Vec<(String, i64)>,
    /// Extended resources that nodes need not have.
    pub ignored_resources: BTreeSet<String>,
    /// The same by what stands before the slash.
    pub ignored_groups: BTreeSet<String>,
}

/// Which nodes are better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FitStrategy {
    /// Those with more room.
    LeastAllocated,
    /// Those with less room.
    MostAllocated,
    /// By points of this shape: utilisation in percent, in rising order, and 0 to 100 points.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// The arguments of DefaultPreemption: how many candidates are enough, if one of them violates no disruption budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateNumber {
    /// The share, in percent, of the nodes that preemption might help; 0 to 100.
    pub percentage: usize,
    /// The least.
    pub absolute: usize,
}

impl Default for CandidateNumber {
    fn default() -> Self {
        Self { percentage: 10, absolute: 100 }
    }
}

impl CandidateNumber {
    /// The number for so many nodes, at least 1.
    pub fn for_nodes(self, nodes: usize) -> usize {
        let share = nodes.saturating_mul(self.percentage) / 100;
        share.max(self.absolute).max(1)
    }
}

/// Node affinity that every pod of a profile has besides its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddedAffinity {
    pub required: Option<NodeSelector>,
    pub preferred: Vec<PreferredSchedulingTerm>,
}

/// The spread of pods that have no constraints themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultSpread {
    pub constraints: Vec<DefaultConstraint>,
    /// The nodes that soft constraints score.
    pub scored: ScoredNodes,
}

/// A default spread constraint. What it selects differs by pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultConstraint {
    /// The label of nodes whose values are the domains.
    pub topology_key: String,
    pub max_skew: i64,
    /// The number of domains below which the emptiest one counts as empty.
    pub min_domains: usize,
    pub when_unsatisfiable: WhenUnsatisfiable,
}

/// What becomes of a pod that would exceed the maximum skew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

/// Which nodes have points by soft spread constraints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoredNodes {
    /// Those with the keys of all constraints.
    #[default]
    WithAllKeys,
    /// All; of the keys that a node lacks it has none.
    All,
}

impl DefaultSpread {
    /// That of Kubernetes where nothing else is said: over hosts and zones, where possible.
    pub fn of_system(names: &Names) -> Self {
        let soft = |topology_key, max_skew| DefaultConstraint {
            topology_key,
            max_skew,
            min_domains: 1,
            when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        };
        let (host, zone) = (names.label("hostname"), names.sub_label("topology", "zone"));
        Self { constraints: vec![soft(host, 3), soft(zone, 5)], scored: ScoredNodes::All }
    }

    /// Whether a pod can be left without a node by these constraints.
    pub fn is_hard(&self) -> bool {
        let hard = WhenUnsatisfiable::DoNotSchedule;
        self.constraints.iter().any(|constraint| constraint.when_unsatisfiable == hard)
    }
}

impl Profile {
    /// The default profile for pods with this `schedulerName`.
    pub fn new(names: &Names, name: &str) -> Self {
        let (both, hostname_label) = ([CPU, MEMORY].map(str::to_owned), names.label("hostname"));
        let filters = Filter::ALL.iter().map(|(_, filter)| *filter);
        Self {
            name: name.to_owned(),
            left_out: filters.filter(|filter| !filter.is_default()).collect(),
            scores: Score::ALL.iter().map(|(_, score, weight)| (*score, *weight)).collect(),
            fit: ResourceFit {
                strategy: FitStrategy::LeastAllocated,
                resources: both.iter().map(|resource| (resource.clone(), 1)).collect(),
                ignored_resources: BTreeSet::new(),
                ignored_groups: BTreeSet::new(),
            },
            balanced: both.into(),
            hard_pod_affinity_weight: 1,
            added_affinity: AddedAffinity::default(),
            default_spread: DefaultSpread::of_system(names),
            hostname_label,
            preemption: Some(CandidateNumber::default()),
            features: SchedulingFeatures::default(),
            ties: Ties::default(),
        }
    }

    /// Whether a filter is asked.
    pub fn asks(&self, filter: Filter) -> bool {
        !self.left_out.contains(&filter)
    }
}
