//! The Score extension point: NodeResourcesFit, NodeResourcesBalancedAllocation, NodeAffinity, TaintToleration, InterPodAffinity, PodTopologySpread and
//! ImageLocality. Each plugin gives 0 to 100 points, which the profile weighs.

mod image_locality;
mod pod_affinity;
mod resources;
mod topology_spread;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::node_selector::matches_term;
use crate::nodes::NodeLoad;
use crate::pod_affinity::NamespaceLabels;
use crate::pod_info::PodInfo;
use crate::profile::{MAX_POINTS, Profile, Score};
use crate::selected_counts::SelectedCounts;
use crate::taints::tolerates;

/// What scores look at besides the pod.
#[derive(Clone, Copy)]
pub struct ScoreView<'a> {
    /// All nodes.
    pub loads: &'a [NodeLoad],
    pub namespaces: &'a NamespaceLabels,
    pub profile: &'a Profile,
    /// Points of extenders, by node.
    pub added: &'a BTreeMap<String, i64>,
}

/// Selects the best node, by its index in `feasible`; none if that is empty.
pub fn select_best(
    pod: &PodInfo,
    feasible: &[&NodeLoad],
    view: ScoreView<'_>,
    selected: &mut SelectedCounts,
) -> Option<usize> {
    if feasible.len() <= 1 {
        return feasible.len().checked_sub(1);
    }
    let mut sums = vec![0_i64; feasible.len()];
    for (score, weight) in &view.profile.scores {
        for (sum, points) in sums.iter_mut().zip(points(*score, pod, feasible, view, selected)) {
            *sum = sum.saturating_add(points.saturating_mul(*weight));
        }
    }
    for (sum, load) in sums.iter_mut().zip(feasible) {
        *sum = sum.saturating_add(view.added.get(&load.node.name).copied().unwrap_or(0));
    }
    // Equal ranks are decided by name.
    let ties = view.profile.ties;
    let rank = |load: &NodeLoad| ties.rank(&pod.key, &load.node.name, load.pod_count);
    let ranked = feasible.iter().zip(sums).enumerate();
    ranked.min_by_key(|(nth, (load, sum))| (Reverse(*sum), rank(load), *nth)).map(|(nth, _)| nth)
}

/// The points of each feasible node by one score.
fn points(
    score: Score,
    pod: &PodInfo,
    feasible: &[&NodeLoad],
    view: ScoreView<'_>,
    selected: &mut SelectedCounts,
) -> Vec<i64> {
    let ScoreView { loads, namespaces, profile, added: _ } = view;
    let each = |points: &dyn Fn(&NodeLoad) -> i64| -> Vec<i64> {
        feasible.iter().map(|load| points(load)).collect()
    };
    match score {
        Score::NodeResourcesFit => each(&|load| resources::score_fit(pod, load, &profile.fit)),
        Score::NodeResourcesBalancedAllocation => {
            each(&|load| resources::score_balance(pod, load, &profile.balanced))
        }
        Score::ImageLocality => image_locality::points(pod, feasible, loads, selected),
        Score::NodeAffinity => normalize(each(&|load| preferred_weight(pod, load, profile))),
        Score::InterPodAffinity => {
            let weight = profile.hard_pod_affinity_weight;
            pod_affinity::points(pod, feasible, loads, namespaces, weight)
        }
        Score::PodTopologySpread => {
            topology_spread::points(pod, feasible, loads, profile, selected)
        }
        Score::TaintToleration => normalize_reversed(each(&|load| count_untolerated(pod, load))),
    }
}

/// NodeAffinity: the weights of the preferred terms that the node matches.
fn preferred_weight(pod: &PodInfo, load: &NodeLoad, profile: &Profile) -> i64 {
    let all = profile.added_affinity.preferred.iter().chain(&pod.preferred);
    let met = all.filter(|term| matches_term(&term.preference, &load.node.name, &load.node.labels));
    met.map(|term| i64::from(term.weight)).fold(0, i64::saturating_add)
}

/// TaintToleration: the PreferNoSchedule taints that the pod does not tolerate.
fn count_untolerated(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let soft = load.node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
    let untolerated = soft.filter(|taint| !pod.tolerations.iter().any(|t| tolerates(t, taint)));
    i64::try_from(untolerated.count()).unwrap_or(MAX_POINTS)
}

/// Scales the values so that the largest becomes 100.
fn normalize(values: Vec<i64>) -> Vec<i64> {
    let most = values.iter().copied().max().unwrap_or(0);
    // Stored weights may be negative.
    let part = |value: i64| value.max(0).saturating_mul(MAX_POINTS).checked_div(most).unwrap_or(0);
    values.into_iter().map(|value| if most <= 0 { 0 } else { part(value) }).collect()
}

/// Scales the values so that the largest becomes 0, and zero becomes 100.
fn normalize_reversed(values: Vec<i64>) -> Vec<i64> {
    normalize(values).into_iter().map(|value| MAX_POINTS.saturating_sub(value)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto_api::core::v1::{
        NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm, Taint,
    };
    use proto_api::selectors::Selector;
    use proto_api::steps::count_during;

    use super::*;
    use crate::default_spread::spread_by_default;
    use crate::examples::{names, node, pod, profile};
    use crate::placement::{NodeInclusion, Spread, Term, WeightedTerm};
    use crate::profile::ScoredNodes;
    use crate::ties::Ties;

    fn loads(names: &[&str]) -> Vec<NodeLoad> {
        names.iter().map(|name| NodeLoad::empty(Arc::new(node(name)))).collect()
    }

    fn chosen(pod: &PodInfo, loads: &[NodeLoad]) -> String {
        chosen_by(&profile(), pod, loads)
    }

    fn chosen_by(profile: &Profile, pod: &PodInfo, loads: &[NodeLoad]) -> String {
        let feasible: Vec<&NodeLoad> = loads.iter().collect();
        let namespaces = NamespaceLabels::new();
        let added = BTreeMap::new();
        let view = ScoreView { loads, namespaces: &namespaces, profile, added: &added };
        select_best(pod, &feasible, view, &mut SelectedCounts::default())
            .map_or_else(String::new, |nth| loads[nth].node.name.clone())
    }

    #[test]
    fn nodes_with_free_resources_are_preferred() {
        let mut loads = loads(&["a", "b", "c"]);
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads), "a");
        loads[0].add(pod("x", 2000, 4 << 30));
        loads[1].add(pod("y", 1000, 2 << 30));
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads), "c");
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads[..2]), "b");
        assert_eq!(chosen(&pod("p", 0, 0), &[]), "");
    }

    #[test]
    fn pods_without_requests_are_spread() {
        let mut loads = loads(&["a", "b"]);
        let mut nothing = pod("p", 0, 0);
        nothing.weight = (100, 200 << 20);
        let mut counts = [0, 0];
        for _ in 0..10 {
            let name = chosen(&nothing, &loads);
            let nth = usize::from(name == "b");
            loads[nth].add(nothing.clone());
            counts[nth] += 1;
        }
        assert_eq!(counts, [5, 5]);
    }

    /// A pod that the profile spreads over the pods with its label.
    fn spread_by(profile: &Profile, name: &str, app: &str) -> PodInfo {
        let selector = |_: &PodInfo| format!("app={app}").parse::<Selector>().ok();
        (*spread_by_default(Arc::new(labelled(name, app)), profile, selector)).clone()
    }

    #[test]
    fn siblings_are_spread_even_against_load() {
        let mut loads = loads(&["a", "b"]);
        let sibling = spread_by(&profile(), "s", "web");
        loads[0].add(labelled("w", "web"));
        loads[1].add(pod("x", 1000, 2 << 30));
        assert_eq!(chosen(&sibling, &loads), "b");
        assert_eq!(chosen(&spread_by(&profile(), "t", "other"), &loads), "a");
        assert_eq!(chosen(&labelled("u", "web"), &loads), "a", "without a selector");
    }

    #[test]
    fn siblings_are_spread_over_zones() {
        let mut loads = loads(&["a", "b", "c"]);
        for (load, zone) in loads.iter_mut().zip(["x", "x", "y"]) {
            let mut node = (*load.node).clone();
            node.labels.insert("topology.kubernetes.io/zone".into(), zone.into());
            load.node = Arc::new(node);
        }
        loads[0].add(labelled("w", "web"));
        loads[2].add(pod("x", 400, 800 << 20));
        assert_eq!(chosen(&spread_by(&profile(), "s", "web"), &loads), "c");
        let mut none = profile();
        none.default_spread.constraints.clear();
        assert_eq!(chosen_by(&none, &spread_by(&none, "s", "web"), &loads), "b");
    }

    #[test]
    fn nodes_without_a_zone_are_scored_by_the_systems_constraints_alone() {
        let mut loads = loads(&["a", "b"]);
        let mut node = (*loads[0].node).clone();
        node.labels.insert("topology.kubernetes.io/zone".into(), "x".into());
        loads[0].node = Arc::new(node);
        loads[0].add(labelled("w", "web"));
        assert_eq!(chosen(&spread_by(&profile(), "s", "web"), &loads), "b");
        let mut listed = profile();
        listed.default_spread.scored = ScoredNodes::WithAllKeys;
        assert_eq!(chosen_by(&listed, &spread_by(&listed, "s", "web"), &loads), "a");
    }

    #[test]
    fn ties_are_broken_by_a_seed_alike_each_time_and_only_ties() {
        let mut loads = loads(&["a", "b", "c", "d"]);
        let seeded = |seed| Profile { ties: Ties::Seeded(seed), ..profile() };
        let choices = |seed: u64, loads: &[NodeLoad]| -> Vec<String> {
            let pods = (0..64).map(|nth| pod(&format!("p{nth}"), 100, 1 << 20));
            pods.map(|pod| chosen_by(&seeded(seed), &pod, loads)).collect()
        };
        let first = choices(1, &loads);
        assert_eq!(first, choices(1, &loads));
        assert_ne!(first, choices(2, &loads));
        for node in ["a", "b", "c", "d"] {
            let count = first.iter().filter(|chosen| *chosen == node).count();
            assert!((6..30).contains(&count), "{node}: {first:?}");
        }
        loads[..3].iter_mut().for_each(|load| load.add(pod("x", 2000, 4 << 30)));
        assert!(choices(1, &loads).iter().all(|chosen| chosen == "d"));
    }

    #[test]
    fn a_profile_says_which_scores_count() {
        let mut loads = loads(&["a", "b"]);
        loads[0].add(pod("x", 2000, 4 << 30));
        let small = pod("p", 100, 1 << 20);
        assert_eq!(chosen(&small, &loads), "b");
        let mut packed = profile();
        packed.fit.strategy = crate::profile::FitStrategy::MostAllocated;
        assert_eq!(chosen_by(&packed, &small, &loads), "a");
        let mut none = profile();
        none.scores.clear();
        assert_eq!(chosen_by(&none, &small, &loads), "b", "it has fewer pods");
        let requirement = NodeSelectorRequirement {
            key: "zone".into(),
            operator: "In".into(),
            values: vec!["zone-a".into()],
        };
        let preference =
            NodeSelectorTerm { match_expressions: vec![requirement], ..Default::default() };
        let mut added = profile();
        added.added_affinity.preferred = vec![PreferredSchedulingTerm { weight: 1, preference }];
        assert_eq!(chosen_by(&added, &small, &loads), "a");
    }

    #[test]
    fn preferred_affinity_and_soft_taints_count() {
        let mut picky = pod("p", 100, 1 << 20);
        let requirement = NodeSelectorRequirement {
            key: "zone".into(),
            operator: "In".into(),
            values: vec!["zone-c".into()],
        };
        let preference =
            NodeSelectorTerm { match_expressions: vec![requirement], ..Default::default() };
        picky.preferred = vec![PreferredSchedulingTerm { weight: 1, preference }];
        assert_eq!(chosen(&picky, &loads(&["a", "b", "c"])), "c");
        let mut loads = loads(&["a", "b"]);
        let mut mild = node("a");
        mild.taints =
            vec![Taint { key: "k".into(), effect: "PreferNoSchedule".into(), ..Taint::default() }];
        loads[0].node = Arc::new(mild);
        loads[1].add(pod("x", 2000, 4 << 30));
        assert_eq!(chosen(&picky, &loads), "b");
    }

    fn labelled(name: &str, app: &str) -> PodInfo {
        PodInfo { labels: [("app".to_owned(), app.to_owned())].into(), ..pod(name, 100, 1 << 20) }
    }

    fn term(app: &str) -> Term {
        Term {
            pods: format!("app={app}").parse().ok(),
            namespaces: ["ns".to_owned()].into(),
            namespace_selector: None,
            topology_key: "zone".into(),
        }
    }

    #[test]
    fn pods_are_placed_near_those_they_prefer_and_far_from_others() {
        let mut loads = loads(&["a", "b", "c"]);
        loads[1].add(labelled("db", "db"));
        let mut client = labelled("p", "client");
        client.constraints.preferred = vec![WeightedTerm { weight: 100, term: term("db") }];
        assert_eq!(chosen(&client, &loads), "b");
        client.constraints.preferred = vec![WeightedTerm { weight: -100, term: term("db") }];
        assert_eq!(chosen(&client, &loads), "a");
        // What runs has preferences, too.
        client.constraints.preferred.clear();
        let mut friend = labelled("friend", "friend");
        friend.constraints.affinity = vec![term("client")];
        loads[2].add(friend);
        assert_eq!(chosen(&client, &loads), "c");
    }

    #[test]
    fn soft_spread_constraints_prefer_the_emptier_domain() {
        let mut loads = loads(&["a", "b"]);
        loads[0].add(labelled("w1", "web"));
        loads[1].add(pod("x", 2000, 4 << 30));
        let mut web = labelled("w2", "web");
        assert_eq!(chosen(&web, &loads), "a", "it has more room");
        web.constraints.preferred_spread = vec![Spread {
            pods: "app=web".parse().ok(),
            topology_key: "zone".into(),
            max_skew: 1,
            min_domains: 1,
            inclusion: NodeInclusion::default(),
        }];
        assert_eq!(chosen(&web, &loads), "b");
        web.constraints.preferred_spread[0].topology_key = "rack".into();
        assert_eq!(chosen(&web, &loads), "a", "no node has the key");
    }

    /// The weight of a constraint grows with its domains: those of nodes that lack the key of another constraint do not count.
    #[test]
    fn domains_of_nodes_that_lack_another_key_do_not_count() {
        let mut all = loads(&["a", "b", "c"]);
        for (load, rack) in all.iter_mut().zip(["1", "2"]) {
            let mut node = (*load.node).clone();
            node.labels.insert("rack".into(), rack.into());
            load.node = Arc::new(node);
        }
        (0..3).for_each(|nth| all[0].add(labelled(&format!("w{nth}"), "web")));
        let mut web = labelled("w", "web");
        web.constraints.preferred_spread = ["zone", "rack"]
            .map(|key| Spread {
                pods: "app=web".parse().ok(),
                topology_key: key.into(),
                max_skew: 3,
                min_domains: 1,
                inclusion: NodeInclusion::default(),
            })
            .into();
        let feasible: Vec<&NodeLoad> = all.iter().collect();
        let (profile, selected) = (profile(), &mut SelectedCounts::default());
        let points = topology_spread::points(&web, &feasible, &all, &profile, selected);
        // Of two zones and two racks: a costs round(2 * (3 * ln 4 + 2)), b and the least 2 * 2.
        assert_eq!(points, [33, 100, 0]);
    }

    #[test]
    fn nodes_with_the_image_are_preferred() {
        let mut loads = loads(&["a", "b"]);
        let mut with = node("b");
        with.images.insert("registry/app:latest".into(), 2 << 30);
        loads[1].node = Arc::new(with);
        let mut app = pod("p", 100, 1 << 20);
        app.images = vec!["registry/app:latest".into()];
        assert_eq!(chosen(&app, &loads), "b");
        app.images = vec!["registry/app:2".into()];
        assert_eq!(chosen(&app, &loads), "a");
    }

    /// An image that no node has counts as a container, with no bytes.
    #[test]
    fn points_of_images_grow_with_the_nodes_that_have_them() {
        let mut all = loads(&["a", "b", "c", "d"]);
        for load in &mut all[..2] {
            let mut with = (*load.node).clone();
            with.images.insert("app:1".into(), 2000 << 20);
            load.node = Arc::new(with);
        }
        let feasible: Vec<&NodeLoad> = all[1..].iter().collect();
        let selected = &mut SelectedCounts::default();
        let mut points = |images: &[&str]| {
            let images = images.iter().map(|image| (*image).into()).collect();
            let pod = PodInfo { images, ..pod("p", 1, 1) };
            image_locality::points(&pod, &feasible, &all, selected)
        };
        // Half of 2000 MiB, of 1000 for each container.
        assert_eq!(points(&["app:1"]), [100, 0, 0]);
        assert_eq!(points(&["app:1", "none:1"]), [49, 0, 0]);
        assert_eq!(points(&["app:1", "app:1"]), [100, 0, 0]);
        assert_eq!(points(&["none:1"]), [0, 0, 0]);
        assert_eq!(points(&[]), [0, 0, 0]);
    }

    /// Plugins that find nothing for a pod do not look at each node.
    #[test]
    fn plugins_without_a_preference_cost_nothing() {
        let loads: Vec<NodeLoad> =
            (0..50).map(|nth| NodeLoad::empty(Arc::new(node(&format!("n{nth}"))))).collect();
        let feasible: Vec<&NodeLoad> = loads.iter().collect();
        let (namespaces, added, profile) = (NamespaceLabels::new(), BTreeMap::new(), profile());
        let view =
            ScoreView { loads: &loads, namespaces: &namespaces, profile: &profile, added: &added };
        let mut selected = SelectedCounts::default();
        let mut steps = |score: Score, pod: &PodInfo| {
            count_during(|| drop(points(score, pod, &feasible, view, &mut selected)))
        };
        let mut web = pod("web", 1, 1);
        assert_eq!(steps(Score::InterPodAffinity, &web), 0, "no domain has points");
        web.images = vec!["none:1".into()];
        assert_eq!(steps(Score::ImageLocality, &web), 50, "the nodes with the image");
        assert_eq!(steps(Score::ImageLocality, &web), 0, "they are known");
        let spread = |key: String| Spread {
            pods: "app=web".parse().ok(),
            topology_key: key,
            max_skew: 1,
            min_domains: 1,
            inclusion: NodeInclusion::default(),
        };
        web.constraints.preferred_spread = vec![spread(names().label("hostname"))];
        assert_eq!(steps(Score::PodTopologySpread, &web), 0, "each node is a domain");
        web.constraints.preferred_spread.push(spread("zone".into()));
        assert_eq!(steps(Score::PodTopologySpread, &web), 100, "two keys of each node");
    }

    /// Twice the nodes, or twice the constraints, cost at most twice the comparisons.
    #[test]
    fn preferences_cost_their_number_for_each_node() {
        let loads = |count: usize| -> Vec<NodeLoad> {
            let load = |nth: usize| {
                let mut node = node(&format!("n{nth}"));
                node.labels.extend((0..80).map(|nth| (format!("k{nth}"), format!("v{nth}"))));
                NodeLoad::empty(Arc::new(node))
            };
            let mut loads: Vec<NodeLoad> = (0..count).map(load).collect();
            let db = |nth| {
                let mut db = pod(&format!("db{nth}"), 1, 1);
                db.labels.insert("app".into(), "db".into());
                db
            };
            loads.iter_mut().enumerate().for_each(|(nth, load)| load.add(db(nth)));
            loads
        };
        let steps = |nodes: usize, constraints: usize| {
            let loads = loads(nodes);
            let feasible: Vec<&NodeLoad> = loads.iter().collect();
            let (namespaces, added, profile) = (NamespaceLabels::new(), BTreeMap::new(), profile());
            let mut web = pod("web", 1, 1);
            let pods: Option<Selector> = "app=db".parse().ok();
            let spread = |nth: usize| Spread {
                pods: pods.clone(),
                topology_key: format!("k{nth}"),
                max_skew: 1,
                min_domains: 1,
                inclusion: NodeInclusion::default(),
            };
            web.constraints.preferred_spread = (0..constraints).map(spread).collect();
            web.constraints.preferred = vec![WeightedTerm {
                weight: 1,
                term: Term {
                    pods: pods.clone(),
                    namespaces: ["ns".to_owned()].into(),
                    namespace_selector: None,
                    topology_key: names().label("hostname"),
                },
            }];
            let view = ScoreView {
                loads: &loads,
                namespaces: &namespaces,
                profile: &profile,
                added: &added,
            };
            count_during(|| {
                assert!(
                    select_best(&web, &feasible, view, &mut SelectedCounts::default()).is_some()
                );
            })
        };
        for costs in [
            [50, 100, 200].map(|nodes| steps(nodes, 1)),
            [20, 40, 80].map(|constraints| steps(20, constraints)),
        ] {
            for pair in costs.windows(2) {
                assert!(pair[1] <= pair[0] * 2 + 100, "{costs:?}");
            }
        }
    }
}
