//! Profiles of files as Kubernetes' documentation has them.

use apiserver_scheduling::profile::{
    AddedAffinity, DefaultConstraint, DefaultSpread, ScoredNodes, WhenUnsatisfiable,
};

use super::super::tests::{HEAD, read as read_file};
use super::*;

fn profiles(text: &str) -> Vec<Profile> {
    read_file(&format!("{HEAD}profiles:\n{text}")).expect(text).profiles
}

fn one(text: &str) -> Profile {
    let [profile] = profiles(text).try_into().expect("one profile");
    profile
}

fn default() -> Profile {
    Profile::new(Names::new(proto_api::names::Profile::Kubernetes), DEFAULT_NAME)
}

#[test]
fn several_profiles_have_their_own_plugins() {
    let text = "- schedulerName: default-scheduler\n- schedulerName: no-scoring-scheduler\n  plugins:\n    preScore: {disabled: [{name: '*'}]}\n    score: {disabled: [{name: '*'}]}\n";
    let [first, second] = profiles(text).try_into().expect("two profiles");
    assert_eq!(first, default());
    let scores = Vec::new();
    assert_eq!(second, Profile { name: "no-scoring-scheduler".into(), scores, ..default() });
    assert_eq!(one("- {}\n"), default());
}

#[test]
fn plugins_are_left_out_and_weighed() {
    let weight = |profile: &Profile, score| {
        profile.scores.iter().find(|(of, _)| *of == score).map(|(_, weight)| *weight)
    };
    let weighed = one(
        "- plugins: {score: {disabled: [{name: ImageLocality}], enabled: [{name: NodeAffinity, weight: 5}, {name: TaintToleration}]}}\n",
    );
    assert_eq!(weight(&weighed, Score::ImageLocality), None);
    assert_eq!(weight(&weighed, Score::NodeAffinity), Some(5));
    assert_eq!(weight(&weighed, Score::TaintToleration), Some(1));
    assert_eq!(weight(&weighed, Score::PodTopologySpread), Some(2));
    assert_eq!((&weighed.left_out, weighed.preemption.is_some()), (&default().left_out, true));
    let multi = one(
        "- plugins: {multiPoint: {disabled: [{name: NodeAffinity}, {name: DefaultPreemption}]}, filter: {disabled: [{name: NodePorts}]}}\n",
    );
    let left_out = [Filter::NodeAffinity, Filter::NodePorts, Filter::CinderLimits];
    assert_eq!(multi.left_out, BTreeSet::from(left_out));
    assert_eq!((weight(&multi, Score::NodeAffinity), multi.preemption), (None, None));
    let only = one(
        "- plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 3}]}, score: {enabled: [{name: ImageLocality, weight: 2}]}}\n",
    );
    assert_eq!(only.scores, [(Score::NodeResourcesFit, 3), (Score::ImageLocality, 2)]);
    assert_eq!(only.left_out.len(), Filter::ALL.len() - 1);
    let again = one(
        "- plugins: {multiPoint: {enabled: [{name: NodeResourcesFit, weight: 3}]}, score: {disabled: [{name: NodeResourcesFit}]}}\n",
    );
    assert_eq!(weight(&again, Score::NodeResourcesFit), None);
}

/// kube-scheduler's plugins of 1.25 at the extension point Filter but two that are always asked, in its order.
const DEFAULT_FILTERS: [&str; 13] = [
    "NodeUnschedulable",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "EBSLimits",
    "GCEPDLimits",
    "NodeVolumeLimits",
    "AzureDiskLimits",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
];

#[test]
fn every_filter_is_left_out_or_asked_as_the_file_says() {
    let asked = |profile: &Profile| -> Vec<&'static str> {
        let asked = Filter::ALL.iter().filter(|(_, filter)| profile.asks(*filter));
        asked.map(|(name, _)| *name).collect()
    };
    assert_eq!(asked(&default()), DEFAULT_FILTERS);
    for (name, filter) in Filter::ALL {
        for point in ["multiPoint", "filter"] {
            let without =
                one(&format!("- plugins: {{{point}: {{disabled: [{{name: {name}}}]}}}}\n"));
            assert!(!without.asks(filter), "{point} {name}");
            let with = one(&format!("- plugins: {{{point}: {{enabled: [{{name: {name}}}]}}}}\n"));
            assert!(with.asks(filter), "{point} {name}");
            let alone = one(&format!(
                "- plugins: {{{point}: {{disabled: [{{name: '*'}}], enabled: [{{name: {name}}}]}}}}\n"
            ));
            assert_eq!(asked(&alone), [name], "{point}");
        }
    }
}

#[test]
fn arguments_are_read() {
    let fit = one(
        "- pluginConfig: [{name: NodeResourcesFit, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeResourcesFitArgs, ignoredResources: [example.com/foo], scoringStrategy: {type: RequestedToCapacityRatio, resources: [{name: intel.com/foo, weight: 3}, {name: cpu}], requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}}}]\n",
    );
    let shape = vec![(0, 0), (100, 100)];
    assert_eq!(fit.fit.strategy, FitStrategy::RequestedToCapacityRatio(shape));
    assert_eq!(fit.fit.resources, [("intel.com/foo".to_owned(), 3), ("cpu".to_owned(), 1)]);
    assert!(fit.fit.ignored_resources.contains("example.com/foo"));
    let others = one(
        "- pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 7}}, {name: PodTopologySpread, args: {defaultingType: List}}, {name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: foo, operator: In, values: [bar]}]}]}}}}, {name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu}, {name: example.com/gpu}]}}]\n",
    );
    assert_eq!(others.hard_pod_affinity_weight, 7);
    assert_eq!(others.default_spread, DefaultSpread::default());
    let AddedAffinity { required, preferred } = &others.added_affinity;
    assert_eq!(required.as_ref().map(|of| of.node_selector_terms.len()), Some(1));
    assert!(preferred.is_empty());
    assert_eq!(others.balanced, ["cpu", "example.com/gpu"]);
}

fn assert_fault(profiles: &str, why: &str) {
    let error = read_file(&format!("{HEAD}profiles:\n{profiles}")).expect_err(profiles);
    assert!(error.contains(why), "{profiles}{error}");
}

#[test]
fn faults_name_their_field() {
    for (text, why) in [
        (
            "- {schedulerName: a}\n- {schedulerName: a}\n",
            "profiles[1].schedulerName: \"a\" is the name of another profile",
        ),
        ("- {schedulerName: a}\n- {}\n", "profiles[1].schedulerName: is required"),
        (
            "- plugins: {score: {enabled: [{name: Mine}]}}\n",
            "profiles[0].plugins.score.enabled[0].name: there is no plugin \"Mine\"",
        ),
        ("- plugins: {score: {enabled: [{name: '*'}]}}\n", "there is no plugin \"*\""),
        (
            "- plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}\n",
            "enabled[0].weight: must be between 0 and",
        ),
        (
            "- plugins: {score: {enabled: [{name: ImageLocality, weight: 99999999999}]}}\n",
            "enabled[0].weight: must be between 0 and",
        ),
        ("- plugins: {scores: {}}\n", "scores: unknown field"),
        (
            "- pluginConfig: [{name: Mine}]\n",
            "profiles[0].pluginConfig[0].name: there is no plugin \"Mine\"",
        ),
        ("- pluginConfig: [{name: NodePorts}]\n", "plugin \"NodePorts\" has no arguments"),
        (
            "- pluginConfig: [{name: InterPodAffinity}, {name: InterPodAffinity}]\n",
            "pluginConfig[1].name: stands there twice",
        ),
    ] {
        assert_fault(text, why);
    }
}

#[test]
fn faults_of_arguments_name_their_field() {
    for (text, why) in [
        (
            "- pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]\n",
            "args.hardPodAffinityWeight: must be between 0 and 100",
        ),
        (
            "- pluginConfig: [{name: InterPodAffinity, args: {weight: 1}}]\n",
            "pluginConfig[0].args: unknown field `weight`",
        ),
        (
            "- pluginConfig: [{name: InterPodAffinity, args: {kind: NodeAffinityArgs}}]\n",
            "args.kind: must be InterPodAffinityArgs",
        ),
        (
            "- pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Best}}}]\n",
            "args.scoringStrategy.type: must be",
        ),
        (
            "- pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {resources: [{name: cpu, weight: 101}]}}}]\n",
            "resources[0].weight: must be between 1 and 100",
        ),
        (
            "- pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio}}}]\n",
            "shape: is required",
        ),
        (
            "- pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5, score: 1}, {utilization: 5, score: 1}]}}}}]\n",
            "shape[1].utilization",
        ),
        (
            "- pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5, score: 11}]}}}}]\n",
            "shape[0].score",
        ),
        (
            "- pluginConfig: [{name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu, weight: 2}]}}]\n",
            "resources[0].weight: must be between 1 and 1",
        ),
    ] {
        assert_fault(text, why);
    }
}

#[test]
fn default_constraints_are_read() {
    let names = Names::new(proto_api::names::Profile::Kubernetes);
    let spread = |args: &str| {
        one(&format!("- pluginConfig: [{{name: PodTopologySpread, args: {{{args}}}}}]\n"))
            .default_spread
    };
    for system in ["", "defaultingType: System"] {
        assert_eq!(spread(system), DefaultSpread::of_system(names), "{system}");
    }
    let listed = spread(
        "defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 2}, {maxSkew: 3, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, nodeTaintsPolicy: Honor}]",
    );
    let constraint = |max_skew, min_domains, when_unsatisfiable| DefaultConstraint {
        topology_key: "zone".to_owned(),
        max_skew,
        min_domains,
        when_unsatisfiable,
    };
    assert_eq!(
        listed.constraints,
        [
            constraint(1, 2, WhenUnsatisfiable::DoNotSchedule),
            constraint(3, 1, WhenUnsatisfiable::ScheduleAnyway),
        ]
    );
    assert_eq!(listed.scored, ScoredNodes::WithAllKeys);
}

#[test]
fn faults_of_default_constraints_are_kubernetes_own() {
    let hard = "maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule";
    let list = |constraint: &str| {
        format!("defaultingType: List, defaultConstraints: [{{{hard}}}, {{{constraint}}}]")
    };
    for (args, why) in [
        (
            "defaultingType: Mine".to_owned(),
            "defaultingType: Unsupported value: \"Mine\": supported values: \"System\", \"List\"",
        ),
        (
            format!("defaultConstraints: [{{{hard}}}]"),
            "defaultingType: Invalid value: \"System\": when .defaultConstraints are not empty",
        ),
        (
            list("maxSkew: 0, topologyKey: a, whenUnsatisfiable: ScheduleAnyway"),
            "defaultConstraints[1].maxSkew: Invalid value: 0: not in valid range (0, inf)",
        ),
        (
            list("maxSkew: 1, whenUnsatisfiable: ScheduleAnyway"),
            "defaultConstraints[1].topologyKey: Required value: can not be empty",
        ),
        (
            list("maxSkew: 1, topologyKey: 'a b', whenUnsatisfiable: ScheduleAnyway"),
            "defaultConstraints[1].topologyKey: Invalid value: \"a b\": must consist of",
        ),
        (
            list("maxSkew: 1, topologyKey: a"),
            "defaultConstraints[1].whenUnsatisfiable: Required value: can not be empty",
        ),
        (
            list("maxSkew: 1, topologyKey: a, whenUnsatisfiable: Never"),
            "defaultConstraints[1].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
        ),
        (
            list(
                "maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}",
            ),
            "defaultConstraints[1].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod",
        ),
        (list(hard), "defaultConstraints[1]: Duplicate value: \"{zone, DoNotSchedule}\""),
        (list("skew: 1"), "args: unknown field `skew`"),
    ] {
        let text = format!("- pluginConfig: [{{name: PodTopologySpread, args: {{{args}}}}}]\n");
        assert_fault(&text, &format!("profiles[0].pluginConfig[0].{}", with_path(why)));
    }
}

/// The path of a field of the arguments.
fn with_path(why: &str) -> String {
    if why.starts_with("args") { why.to_owned() } else { format!("args.{why}") }
}

#[test]
fn preemption_has_enough_candidates_by_its_arguments() {
    let number = |args: &str| {
        let text = format!("- pluginConfig: [{{name: DefaultPreemption, args: {{{args}}}}}]\n");
        one(&text).preemption.expect("it is not left out")
    };
    for (args, nodes, expected) in [
        ("", 50, 100),
        ("", 5_000, 500),
        ("minCandidateNodesAbsolute: 7", 50, 7),
        ("minCandidateNodesAbsolute: 7", 500, 50),
        ("minCandidateNodesAbsolute: 0", 5, 1),
        ("minCandidateNodesPercentage: 0", 5_000, 100),
        ("kind: DefaultPreemptionArgs, minCandidateNodesPercentage: 100", 150, 150),
    ] {
        assert_eq!(number(args).for_nodes(nodes), expected, "{args} {nodes}");
    }
    for (args, why) in [
        ("minCandidateNodesPercentage: 101", "minCandidateNodesPercentage: must be between"),
        ("minCandidateNodesPercentage: -1", "minCandidateNodesPercentage: must be between"),
        ("minCandidateNodesAbsolute: -1", "minCandidateNodesAbsolute: must be at least 0"),
        (
            "minCandidateNodesAbsolute: 0, minCandidateNodesPercentage: 0",
            "minCandidateNodesAbsolute: must not be 0",
        ),
    ] {
        let text = format!("- pluginConfig: [{{name: DefaultPreemption, args: {{{args}}}}}]\n");
        assert_fault(&text, &format!("profiles[0].pluginConfig[0].{}", with_path(why)));
    }
}

#[test]
fn what_has_no_effect_is_said() {
    let text = "- plugins: {multiPoint: {disabled: [{name: VolumeBinding}, {name: DefaultBinder}, {name: NodePorts}, {name: SelectorSpread}], enabled: [{name: CinderLimits}]}, \
        filter: {enabled: [{name: ImageLocality}, {name: EBSLimits}, {name: NodeName}]}, postFilter: {enabled: [{name: NodePorts}, {name: DefaultPreemption}]}, \
        score: {enabled: [{name: SelectorSpread, weight: 1}, {name: VolumeBinding}, {name: NodeAffinity}]}}\n  pluginConfig: [{name: DefaultPreemption, args: {minCandidateNodesPercentage: 10}}, {name: VolumeBinding}]\n";
    let warnings = read_file(&format!("{HEAD}profiles:\n{text}")).expect("valid").warnings;
    assert_eq!(
        warnings,
        [
            "profiles[0].plugins.multiPoint: DefaultBinder is not left out",
            "profiles[0].plugins.filter: ImageLocality has no effect there",
            "profiles[0].plugins.postFilter: NodePorts has no effect there",
            "profiles[0].plugins.score: SelectorSpread has no effect there",
            "profiles[0].plugins.score: VolumeBinding has no effect there",
            "profiles[0].plugins: the filter VolumeBinding is not left out",
            "profiles[0].pluginConfig: arguments of VolumeBinding have no effect",
        ]
    );
}

#[test]
fn filters_that_are_always_asked_are_named_where_all_are_left_out() {
    let warnings = |text: &str| {
        let text = format!("{HEAD}profiles:\n- plugins: {text}\n");
        read_file(&text).expect("valid").warnings
    };
    let both = ["NodeName", "VolumeBinding"]
        .map(|name| format!("profiles[0].plugins: the filter {name} is not left out"));
    assert_eq!(warnings("{multiPoint: {disabled: [{name: '*'}]}}"), both);
    assert_eq!(warnings("{filter: {disabled: [{name: '*'}]}}"), both);
    let kept = "{multiPoint: {disabled: [{name: '*'}], enabled: [{name: VolumeBinding}]}}";
    assert_eq!(warnings(kept), both[..1]);
    assert_eq!(warnings("{score: {disabled: [{name: '*'}]}}"), [""; 0]);
}
