//! How many pods of each node a spread constraint selects, and how many nodes have an image, kept for the pods of one cycle: those of a workload are alike,
//! and few nodes change from one to the next.

use std::collections::{BTreeMap, HashMap};

use crate::nodes::{LoadStamp, NodeLoad};
use crate::placement::Spread;
use crate::pod_info::{PodInfo, PodPhase};

/// Bound of the counts that are kept, of all selectors and images together: some 20 MB.
const COUNTS_MAX: usize = 500_000;

/// The counts of one cycle.
#[derive(Debug, Default)]
pub struct SelectedCounts {
    /// By namespace and selector.
    by_selector: BTreeMap<(String, String), HashMap<LoadStamp, i64>>,
    /// The nodes that have each image.
    by_image: BTreeMap<String, usize>,
    len: usize,
}

/// The counts of one constraint of one pod.
pub struct ConstraintCounts<'a> {
    pod: &'a PodInfo,
    spread: &'a Spread,
    by_load: &'a mut HashMap<LoadStamp, i64>,
    len: &'a mut usize,
}

impl SelectedCounts {
    /// Those of a constraint of `pod`.
    pub fn of_constraint<'a>(
        &'a mut self,
        pod: &'a PodInfo,
        spread: &'a Spread,
    ) -> ConstraintCounts<'a> {
        self.forget_beyond_bound();
        let selector = spread.pods.as_ref().map_or_else(String::new, ToString::to_string);
        let by_load = self.by_selector.entry((pod.key.namespace.clone(), selector)).or_default();
        ConstraintCounts { pod, spread, by_load, len: &mut self.len }
    }

    /// How many nodes have an image. `loads` are those of the cycle: their pods change, the nodes do not.
    pub fn nodes_with_image(&mut self, image: &str, loads: &[NodeLoad]) -> usize {
        if let Some(count) = self.by_image.get(image) {
            return *count;
        }
        self.forget_beyond_bound();
        proto_api::count_steps!(loads.len());
        let count = loads.iter().filter(|load| load.node.images.contains_key(image)).count();
        self.by_image.insert(image.to_owned(), count);
        self.len = self.len.saturating_add(1);
        count
    }

    fn forget_beyond_bound(&mut self) {
        if self.len >= COUNTS_MAX {
            *self = Self::default();
        }
    }
}

impl ConstraintCounts<'_> {
    /// The active pods of a node that the constraint selects.
    pub fn count(&mut self, load: &NodeLoad) -> i64 {
        let Self { pod, spread, by_load, len } = self;
        *by_load.entry(load.stamp()).or_insert_with(|| {
            **len = len.saturating_add(1);
            count_selected(pod, spread, load)
        })
    }
}

fn count_selected(pod: &PodInfo, spread: &Spread, load: &NodeLoad) -> i64 {
    let active = load.pods.iter().filter(|other| other.phase == PodPhase::Active);
    let selected = active.filter(|other| spread.selects(pod, other)).count();
    i64::try_from(selected).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto_api::steps::count_during;

    use super::*;
    use crate::examples::{node, pod};
    use crate::placement::NodeInclusion;

    fn spread(selector: &str) -> Spread {
        let pods = Some(selector.parse().expect("a selector"));
        Spread {
            pods,
            topology_key: "zone".into(),
            max_skew: 1,
            min_domains: 1,
            inclusion: NodeInclusion::default(),
        }
    }

    #[test]
    fn only_nodes_that_changed_are_counted_again() {
        let mut loads: Vec<NodeLoad> =
            (0..100).map(|nth| NodeLoad::empty(Arc::new(node(&format!("n{nth}"))))).collect();
        let mut web = pod("web", 1, 1);
        web.labels.insert("app".into(), "web".into());
        for load in &mut loads {
            load.add(pod("other", 1, 1));
        }
        let (spread, mut counts) = (spread("app=web"), SelectedCounts::default());
        // The sum of all nodes, and the pods that were looked at for it.
        let mut all = |loads: &[NodeLoad]| -> (i64, u64) {
            let (mut counts, mut sum) = (counts.of_constraint(&web, &spread), 0);
            let steps = count_during(|| sum = loads.iter().map(|load| counts.count(load)).sum());
            (sum, steps)
        };
        assert_eq!(all(&loads), (0, 100));
        let before = loads[7].clone();
        loads[7].add(web.clone());
        assert_eq!(all(&loads), (1, 2));
        // A load that is put back is known.
        loads[7] = before;
        assert_eq!(all(&loads), (0, 0));
        loads[8] = loads[8].without(|_| false);
        assert_eq!(all(&loads), (0, 1));
    }

    #[test]
    fn counts_beyond_the_bound_are_forgotten() {
        let mut with = node("n");
        with.images.insert("app:1".into(), 1);
        let loads = [NodeLoad::empty(Arc::new(with)), NodeLoad::empty(Arc::new(node("m")))];
        let mut counts = SelectedCounts::default();
        counts.of_constraint(&pod("web", 1, 1), &spread("app=web")).count(&loads[0]);
        assert_eq!(counts.nodes_with_image("app:1", &loads), 1);
        assert_eq!(counts.nodes_with_image("app:2", &loads), 0);
        assert_eq!((counts.by_selector.len(), counts.by_image.len(), counts.len), (1, 2, 3));
        counts.len = COUNTS_MAX;
        assert_eq!(counts.nodes_with_image("app:1", &loads), 1);
        assert_eq!(counts.by_image.len(), 2, "it is known");
        assert_eq!(counts.nodes_with_image("app:3", &loads), 0);
        assert_eq!((counts.by_selector.len(), counts.by_image.len(), counts.len), (0, 1, 1));
    }

    #[test]
    fn namespaces_and_selectors_are_counted_apart() {
        let mut load = NodeLoad::empty(Arc::new(node("n")));
        let mut web = pod("web", 1, 1);
        web.labels.insert("app".into(), "web".into());
        load.add(web.clone());
        let mut counts = SelectedCounts::default();
        let mut count =
            |of: &PodInfo, selector: &str| counts.of_constraint(of, &spread(selector)).count(&load);
        assert_eq!(count(&web, "app=web"), 1);
        assert_eq!(count(&web, "app=db"), 0);
        let mut elsewhere = web.clone();
        elsewhere.key.namespace = "other".into();
        assert_eq!(count(&elsewhere, "app=web"), 0);
        assert_eq!(count(&web, "app=web"), 1);
    }
}
