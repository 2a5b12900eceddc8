//! Complete rollouts against a model of the server and the replica sets, checked at every step.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use proto_api::IntOrString;
use proto_api::apps::v1::RollingUpdateDeployment;
use proto_api::meta::v1::LabelSelector;
use proto_api::names::Profile;

use super::*;
use crate::api_writes::WrittenObject;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn deployment(replicas: i32) -> Deployment {
    let mut deployment = Deployment::default();
    deployment.metadata.name = "web".into();
    deployment.metadata.namespace = "ns".into();
    deployment.metadata.uid = "deployment".into();
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    deployment.spec.replicas = Some(replicas);
    deployment.spec.selector =
        Some(LabelSelector { match_labels: labels.clone(), ..Default::default() });
    deployment.spec.template.metadata.labels = labels;
    deployment.spec.strategy.type_ = "RollingUpdate".into();
    deployment.spec.progress_deadline_seconds = Some(600);
    deployment
}

fn roll(deployment: &mut Deployment, surge: &str, unavailable: &str) {
    let value = |text: &str| text.parse().map_or(IntOrString::from(text), IntOrString::Int);
    deployment.spec.strategy.rolling_update = Some(RollingUpdateDeployment {
        max_surge: Some(value(surge)),
        max_unavailable: Some(value(unavailable)),
    });
}

/// A deployment, its sets and the numbers of their pods: each set has `status.replicas` pods, some available.
struct Cluster {
    deployment: Deployment,
    sets: BTreeMap<String, ReplicaSet>,
    /// Uids of sets with terminating pods.
    ending: BTreeSet<String>,
    time: i64,
    version: u64,
}

impl Cluster {
    fn new(deployment: Deployment) -> Self {
        let (sets, ending) = (BTreeMap::new(), BTreeSet::new());
        Self { deployment, sets, ending, time: 1000, version: 0 }
    }

    fn plan(&self) -> Plan {
        let sets: Vec<Arc<ReplicaSet>> = self.sets.values().cloned().map(Arc::new).collect();
        let ending = |uid: &str| self.ending.contains(uid);
        plan(names(), &self.deployment, &sets, &ending, Time::from_unix(self.time))
    }

    /// Executes one plan. Returns the number of writes.
    fn step(&mut self) -> usize {
        self.step_up_to(usize::MAX)
    }

    /// Executes so many writes of one plan.
    fn step_up_to(&mut self, limit: usize) -> usize {
        self.time += 1;
        let plan = self.plan();
        let count = plan.writes.len();
        for write in plan.writes.into_iter().take(limit) {
            self.apply(write);
        }
        count
    }

    /// Executes a write as the server does. A plan has seen the latest versions: it may not depend on one that it has changed itself.
    fn apply(&mut self, write: ApiWrite) {
        self.version += 1;
        let version = self.version.to_string();
        match write {
            ApiWrite::Create(WrittenObject::ReplicaSet(mut set)) => {
                set.metadata.uid = format!("uid-{}", set.metadata.name);
                set.metadata.creation_timestamp = Time::from_unix(self.time);
                set.metadata.resource_version = version;
                assert!(self.sets.insert(set.metadata.name.clone(), *set).is_none());
            }
            ApiWrite::UpdateStatus(WrittenObject::Deployment(new)) => {
                let stored = &mut self.deployment;
                assert_eq!(new.metadata.resource_version, stored.metadata.resource_version);
                stored.status = new.status;
                stored.metadata.annotations = new.metadata.annotations;
                stored.metadata.resource_version = version;
            }
            ApiWrite::Patch { kind: ObjectKind::ReplicaSet, key, patch, .. } => {
                let set = self.sets.get_mut(&key.name).unwrap();
                if let Some(asked) = patch["metadata"]["resourceVersion"].as_str() {
                    assert_eq!(asked, set.metadata.resource_version, "{patch}");
                }
                set.metadata.resource_version = version;
                if let Some(owners) = patch["metadata"].get("ownerReferences") {
                    set.metadata.owner_references = serde_json::from_value(owners.clone()).unwrap();
                    return;
                }
                let annotations = patch["metadata"]["annotations"].as_object().cloned();
                for (name, value) in annotations.into_iter().flatten() {
                    set.metadata.annotations.insert(name, value.as_str().unwrap().to_owned());
                }
                if let Some(seconds) = patch["spec"]["minReadySeconds"].as_i64() {
                    set.spec.min_ready_seconds = i32::try_from(seconds).unwrap();
                }
                if let Some(replicas) = patch["spec"]["replicas"].as_i64() {
                    set.spec.replicas = Some(i32::try_from(replicas).unwrap());
                }
            }
            ApiWrite::Delete { key, .. } => assert!(self.sets.remove(&key.name).is_some()),
            other => unreachable!("{other:?}"),
        }
    }

    /// Replica sets create and delete pods, unavailable ones first.
    fn pods_follow(&mut self) {
        for set in self.sets.values_mut() {
            set.status.replicas = set.spec.replicas.unwrap();
            set.status.available_replicas = set.status.available_replicas.min(set.status.replicas);
            set.status.ready_replicas = set.status.available_replicas;
        }
    }

    /// One more pod of a set becomes available, if one is missing.
    fn one_available(&mut self, nth: usize) {
        let mut missing =
            self.sets.values_mut().filter(|s| s.status.available_replicas < s.status.replicas);
        if let Some(set) = missing.nth(nth) {
            set.status.available_replicas += 1;
            set.status.ready_replicas += 1;
        }
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            let writes = self.step();
            let before: Vec<_> = self.sets.values().map(|set| set.status.clone()).collect();
            self.pods_follow();
            self.one_available(0);
            if writes == 0 && before.iter().eq(self.sets.values().map(|set| &set.status)) {
                return;
            }
        }
        unreachable!("does not settle");
    }

    fn pods(&self) -> i32 {
        self.sets.values().map(|set| set.status.replicas).sum()
    }

    fn available(&self) -> i32 {
        self.sets.values().map(|set| set.status.available_replicas).sum()
    }

    fn condition(&self, kind: &str) -> String {
        let condition = self.deployment.status.conditions.iter().find(|c| c.type_ == kind).unwrap();
        format!("{} {}", condition.status, condition.reason)
    }

    fn change_template(&mut self, image: &str) {
        let container =
            proto_api::core::v1::Container { image: image.into(), ..Default::default() };
        self.deployment.spec.template.spec.containers = vec![container];
        self.deployment.metadata.generation += 1;
    }
}

#[test]
fn a_new_deployment_becomes_available() {
    let mut cluster = Cluster::new(deployment(3));
    cluster.step();
    let set = cluster.sets.values().next().unwrap();
    let hash = &set.metadata.labels[TEMPLATE_HASH];
    assert_eq!(set.metadata.name, format!("web-{hash}"));
    assert_eq!(set.spec.selector.as_ref().unwrap().match_labels[TEMPLATE_HASH], *hash);
    assert_eq!(set.metadata.annotations["deployment.kubernetes.io/revision"], "1");
    assert_eq!(cluster.condition("Available"), "False MinimumReplicasUnavailable");
    cluster.settle();
    assert_eq!(cluster.condition("Available"), "True MinimumReplicasAvailable");
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetAvailable");
    let status = &cluster.deployment.status;
    assert_eq!((status.replicas, status.updated_replicas, status.unavailable_replicas), (3, 3, 0));
    assert_eq!(cluster.deployment.metadata.annotations["deployment.kubernetes.io/revision"], "1");
}

#[test]
fn an_undo_uses_the_old_set_under_a_new_number() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.settle();
    let first = cluster.sets.keys().next().unwrap().clone();
    cluster.change_template("two");
    cluster.settle();
    assert_eq!(cluster.sets.len(), 2);
    assert_eq!(cluster.sets[&first].spec.replicas, Some(0));
    cluster.deployment.spec.template.spec.containers.clear();
    cluster.settle();
    assert_eq!(cluster.sets.len(), 2);
    let set = &cluster.sets[&first];
    assert_eq!(set.spec.replicas, Some(2));
    assert_eq!(set.metadata.annotations["deployment.kubernetes.io/revision"], "3");
}

/// `kubectl create deployment`, `annotate kubernetes.io/change-cause`, `set image`, `annotate`, `rollout history`, `rollout undo`.
#[test]
fn history_shows_change_causes_and_an_undo_finds_its_revision() {
    const CAUSE: &str = "kubernetes.io/change-cause";
    let mut cluster = Cluster::new(deployment(2));
    let cause = |cluster: &mut Cluster, text: &str| {
        let annotations = &mut cluster.deployment.metadata.annotations;
        annotations.insert(CAUSE.into(), text.into());
        annotations.insert("kubectl.kubernetes.io/last-applied-configuration".into(), "{}".into());
        cluster.settle();
    };
    let history = |cluster: &Cluster| {
        let number = |set: &ReplicaSet| -> u64 {
            set.metadata.annotations["deployment.kubernetes.io/revision"].parse().unwrap()
        };
        let cause = |set: &ReplicaSet| set.metadata.annotations[CAUSE].clone();
        cluster.sets.values().map(|set| (number(set), cause(set))).collect::<BTreeMap<_, _>>()
    };
    cluster.settle();
    cause(&mut cluster, "first");
    cluster.change_template("two");
    cluster.settle();
    cause(&mut cluster, "second");
    let expect = |pairs: [(u64, &str); 2]| {
        pairs
            .map(|(number, cause)| (number, cause.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(history(&cluster), expect([(1, "first"), (2, "second")]));
    // What `rollout undo --to-revision=1` does: template and annotations of that set.
    let first = cluster.sets.values().find(|set| set.metadata.annotations[CAUSE] == "first");
    let first = first.unwrap().clone();
    let mut template = first.spec.template.clone();
    template.metadata.labels.remove(TEMPLATE_HASH);
    cluster.deployment.spec.template = template;
    cluster.deployment.metadata.annotations.insert(CAUSE.into(), "first".into());
    cluster.settle();
    assert_eq!(history(&cluster), expect([(2, "second"), (3, "first")]));
    let annotations = &cluster.sets[&first.metadata.name].metadata.annotations;
    assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
    assert!(!annotations.contains_key("kubectl.kubernetes.io/last-applied-configuration"));
    let revision = &cluster.deployment.metadata.annotations["deployment.kubernetes.io/revision"];
    assert_eq!(revision, "3");
}

#[test]
fn a_revision_that_is_too_large_or_no_number_does_no_harm() {
    for text in ["18446744073709551615", "9223372036854775807", "-1", "1e3", ""] {
        let mut cluster = Cluster::new(deployment(1));
        cluster.settle();
        let set = cluster.sets.values_mut().next().unwrap();
        let key = "deployment.kubernetes.io/revision".to_owned();
        set.metadata.annotations.insert(key, text.to_owned());
        cluster.change_template("two");
        cluster.settle();
        assert_eq!(cluster.sets.len(), 2, "{text}");
    }
}

#[test]
fn a_name_that_another_set_has_is_avoided() {
    let mut cluster = Cluster::new(deployment(1));
    let name = format!("web-{}", template_hash(&cluster.deployment));
    let mut foreign = ReplicaSet::default();
    foreign.metadata.name = name.clone();
    cluster.sets.insert(name.clone(), foreign);
    cluster.step();
    assert_eq!((cluster.sets.len(), cluster.deployment.status.collision_count), (1, Some(1)));
    cluster.step();
    assert_eq!(cluster.sets.len(), 2);
    assert_eq!(cluster.sets[&name].spec.replicas, None, "it is not touched");
}

#[test]
fn sets_that_are_stored_with_another_template_are_made_ever_more_slowly() {
    let deployment = deployment(1);
    let names = names();
    let (mut stored, mut status, mut made) = (Vec::<Arc<ReplicaSet>>::new(), None, Vec::new());
    for second in 0..10_000 {
        let now = Time::from_unix(1_000_000 + second);
        let mut current = deployment.clone();
        current.status.collision_count = status;
        let plan = plan(names, &current, &stored, &|_| false, now);
        for write in plan.writes {
            match write {
                ApiWrite::Create(WrittenObject::ReplicaSet(set)) => {
                    let mut set = set.as_ref().clone();
                    set.metadata.uid = format!("u{second}");
                    set.metadata.creation_timestamp = now;
                    set.spec.template.spec.node_name = "changed".to_owned();
                    stored.push(Arc::new(set));
                    made.push(second);
                }
                ApiWrite::UpdateStatus(WrittenObject::Deployment(new)) => {
                    status = new.status.collision_count;
                }
                _ => {}
            }
        }
    }
    assert!((10..20).contains(&made.len()), "{made:?}");
    let gaps: Vec<i64> = made.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps.is_sorted() && gaps.iter().all(|gap| *gap <= 3602), "{gaps:?}");
}

#[test]
fn min_ready_seconds_is_copied_to_the_newest_replica_set() {
    let mut cluster = Cluster::new(deployment(1));
    cluster.settle();
    cluster.deployment.spec.min_ready_seconds = 7;
    cluster.settle();
    assert_eq!(cluster.sets.values().next().unwrap().spec.min_ready_seconds, 7);
}

#[test]
fn each_scaling_has_an_event() {
    let empty: [Arc<ReplicaSet>; 0] = [];
    let mut first = plan(names(), &deployment(3), &empty, &|_| false, Time::from_unix(1));
    let event = first.events.remove(&0).unwrap();
    assert!(matches!(first.writes[0], ApiWrite::Create(_)));
    assert_eq!(event.operation, ReplicaOperation::Scale { from: None, to: 3 });
    assert_eq!((&*event.about.kind, &*event.about.name), ("Deployment", "web"));
    let mut cluster = Cluster::new(deployment(3));
    cluster.settle();
    cluster.deployment.spec.replicas = Some(1);
    let sets: Vec<Arc<ReplicaSet>> = cluster.sets.values().cloned().map(Arc::new).collect();
    let plan = plan(names(), &cluster.deployment, &sets, &|_| false, Time::from_unix(2));
    let acts: Vec<_> = plan.events.values().map(|event| event.operation.clone()).collect();
    assert_eq!(acts, [ReplicaOperation::Scale { from: Some(3), to: 1 }]);
}

#[test]
fn a_selector_of_everything_takes_nothing() {
    let mut cluster = Cluster::new(deployment(1));
    cluster.deployment.spec.selector = Some(LabelSelector::default());
    cluster.sets.insert("foreign".into(), ReplicaSet::default());
    assert_eq!(cluster.step(), 0);
}

#[test]
fn orphaned_replica_sets_are_adopted_and_those_that_do_not_match_are_released() {
    let mut cluster = Cluster::new(deployment(1));
    cluster.settle();
    let mine = cluster.sets.keys().next().unwrap().clone();
    let before = cluster.sets[&mine].metadata.owner_references.clone();
    cluster.sets.get_mut(&mine).unwrap().metadata.owner_references.clear();
    let mut foreign = cluster.sets[&mine].clone();
    foreign.metadata.name = "foreign".into();
    foreign.metadata.owner_references = before.clone();
    foreign.metadata.owner_references[0].uid = "another".into();
    cluster.sets.insert("foreign".into(), foreign);
    assert_eq!(cluster.step(), 1, "ownership comes before everything else");
    assert_eq!(cluster.sets[&mine].metadata.owner_references, before);
    assert_eq!(cluster.sets["foreign"].metadata.owner_references[0].uid, "another");
    cluster.sets.get_mut(&mine).unwrap().metadata.labels.clear();
    assert_eq!(cluster.step(), 1);
    assert_eq!(cluster.sets[&mine].metadata.owner_references, []);
}

#[test]
fn recreate_waits_until_the_old_pods_are_deleted() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.deployment.spec.strategy.type_ = "Recreate".into();
    cluster.settle();
    cluster.change_template("two");
    cluster.step();
    assert_eq!((cluster.sets.len(), cluster.pods()), (1, 2));
    cluster.step();
    assert_eq!(cluster.sets.len(), 1, "the old pods are still there");
    cluster.pods_follow();
    cluster.step();
    assert_eq!(cluster.sets.len(), 2);
    cluster.settle();
    assert_eq!(cluster.available(), 2);
    let most = |set: &ReplicaSet| {
        set.metadata.annotations[&names().sub_label("deployment", "max-replicas")].clone()
    };
    assert_eq!(
        cluster.sets.values().map(most).collect::<Vec<_>>(),
        ["2", "2"],
        "there is no surge"
    );
}

fn sizes(cluster: &Cluster) -> Vec<i32> {
    let mut sets: Vec<&ReplicaSet> = cluster.sets.values().collect();
    sets.sort_by_key(|set| set.metadata.creation_timestamp.unix());
    sets.iter().map(|set| set.spec.replicas.unwrap()).collect()
}

/// `scale` while the pods of the new template do not start: both templates grow, the old one not at the cost of the new one.
#[test]
fn a_rollout_that_is_stuck_is_scaled_in_proportion() {
    let mut cluster = Cluster::new(deployment(10));
    roll(&mut cluster.deployment, "3", "2");
    cluster.settle();
    cluster.change_template("missing");
    for _ in 0..6 {
        cluster.step();
        cluster.pods_follow();
    }
    assert_eq!(sizes(&cluster), [8, 5]);
    let wanted = [
        (30, [20, 13]),
        // All of the old template's pods are available: the rollout goes on as far as it can.
        (30, [20, 13]),
        (10, [8, 5]),
        (0, [0, 0]),
    ];
    for (replicas, expect) in wanted {
        cluster.deployment.spec.replicas = Some(replicas);
        cluster.step();
        assert_eq!(sizes(&cluster), expect, "{replicas}");
        cluster.pods_follow();
        cluster.step();
        assert_eq!((sizes(&cluster), cluster.step()), (expect.to_vec(), 0), "{replicas}: at rest");
    }
    for set in cluster.sets.values() {
        let annotation = |name: &str| set.metadata.annotations[name].as_str();
        assert_eq!(annotation("deployment.kubernetes.io/desired-replicas"), "0");
        assert_eq!(annotation("deployment.kubernetes.io/max-replicas"), "3");
    }
}

/// The sizes of sets, the oldest first, of a deployment that was scaled in the middle of a rollout. Each set says how many pods all could have before.
fn scaled(before: &[(i32, &str)], replicas: i32, surge: &str, status_replicas: i32) -> Vec<i32> {
    let mut deployment = deployment(replicas);
    roll(&mut deployment, surge, "0");
    deployment.status.replicas = status_replicas;
    let mut cluster = Cluster::new(deployment);
    for (nth, (size, most)) in before.iter().enumerate() {
        cluster.change_template(&format!("image{nth}"));
        let mut set = ReplicaSet::default();
        let name = format!("web-{nth}");
        set.metadata.name.clone_from(&name);
        set.metadata.namespace = "ns".into();
        set.metadata.uid.clone_from(&name);
        set.metadata.labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        set.metadata.creation_timestamp = Time::from_unix(i64::try_from(nth).unwrap());
        set.metadata.owner_references = vec![reference(names(), &cluster.deployment)];
        let annotations = &mut set.metadata.annotations;
        annotations.insert("deployment.kubernetes.io/desired-replicas".into(), "1".into());
        annotations.insert("deployment.kubernetes.io/max-replicas".into(), (*most).into());
        set.spec.replicas = Some(*size);
        set.spec.template = cluster.deployment.spec.template.clone();
        cluster.sets.insert(name, set);
    }
    cluster.step();
    sizes(&cluster)
}

/// The shares are of the pods that all sets could have before, which may be more than they have.
#[test]
fn a_rollout_is_scaled_by_the_sizes_that_its_sets_could_have() {
    let table = [
        // sizes with max-replicas, replicas, surge, status.replicas -> sizes
        (&[(8, "13"), (3, "13")][..], 30, "3", 11, &[25, 8][..]),
        // No number: the pods that there are.
        (&[(8, ""), (3, "x")], 30, "3", 11, &[24, 9]),
        (&[(8, "0"), (3, "-1")], 30, "3", 11, &[24, 9]),
        // The newer ones take what there is before the oldest one does.
        (&[(1, "3"), (1, "3"), (1, "3")], 4, "1", 3, &[1, 2, 2]),
        (&[(8, "13"), (3, "13")], 4, "3", 11, &[4, 3]),
        (&[(8, "13"), (3, "13")], 0, "3", 11, &[0, 0]),
        (&[(8, "0"), (3, "0")], 30, "3", 0, &[30, 3]),
        (&[(8, "2147483647"), (3, "2147483647")], i32::MAX, "3", 11, &[2147483647, 3]),
    ];
    for (before, replicas, surge, pods, expected) in table {
        assert_eq!(scaled(before, replicas, surge, pods), expected, "{before:?} {replicas}");
    }
}

/// A set that was scaled by hand to the new size of its deployment is only marked, and the rollout that follows is not held up.
#[test]
fn a_set_that_has_its_size_already_is_marked() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.settle();
    cluster.deployment.spec.replicas = Some(3);
    cluster.sets.values_mut().for_each(|set| set.spec.replicas = Some(3));
    let sets: Vec<Arc<ReplicaSet>> = cluster.sets.values().cloned().map(Arc::new).collect();
    let plan = plan(names(), &cluster.deployment, &sets, &|_| false, Time::from_unix(1));
    assert!(plan.events.is_empty(), "{:?}", plan.events);
    cluster.change_template("two");
    cluster.settle();
    assert_eq!(sizes(&cluster), [0, 3]);
}

/// `rollout pause` in the middle, then `scale`: both templates are scaled proportionally.
#[test]
fn a_paused_rollout_is_scaled_in_proportion() {
    let mut cluster = Cluster::new(deployment(10));
    roll(&mut cluster.deployment, "2", "2");
    cluster.settle();
    cluster.change_template("two");
    for _ in 0..4 {
        cluster.step();
        cluster.pods_follow();
    }
    assert_eq!(sizes(&cluster), [8, 4]);
    cluster.deployment.spec.paused = true;
    for (wanted, expect) in [(10, [8, 4]), (22, [16, 8]), (21, [15, 8]), (4, [4, 2]), (0, [0, 0])] {
        cluster.deployment.spec.replicas = Some(wanted);
        cluster.step();
        assert_eq!(sizes(&cluster), expect, "{wanted}");
        cluster.step();
        assert_eq!((sizes(&cluster), cluster.step()), (expect.to_vec(), 0), "{wanted}: at rest");
    }
}

/// Terminating pods are in no status, and may run for their grace period.
#[test]
fn recreate_waits_for_pods_on_their_way_out() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.deployment.spec.strategy.type_ = "Recreate".into();
    cluster.settle();
    let first = cluster.sets.values().next().unwrap().clone();
    cluster.change_template("two");
    cluster.step();
    cluster.pods_follow();
    cluster.ending.insert(first.metadata.uid.clone());
    cluster.step();
    assert_eq!((cluster.sets.len(), cluster.pods()), (1, 0), "they still run");
    cluster.ending.clear();
    cluster.settle();
    assert_eq!((cluster.sets.len(), cluster.available()), (2, 2));
    // Back to the first template, whose set exists.
    cluster.deployment.spec.template.spec.containers.clear();
    let second = cluster.sets.values().find(|set| set.metadata.uid != first.metadata.uid);
    let second = second.unwrap().metadata.uid.clone();
    cluster.ending.insert(second);
    for _ in 0..5 {
        cluster.step();
        cluster.pods_follow();
    }
    assert_eq!(cluster.pods(), 0);
    cluster.ending.clear();
    cluster.settle();
    assert_eq!(cluster.sets[&first.metadata.name].status.replicas, 2);
}

/// The set's controller may have created pods since its status was written.
#[test]
fn recreate_waits_until_the_old_sets_have_observed_their_size() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.deployment.spec.strategy.type_ = "Recreate".into();
    cluster.settle();
    let first = cluster.sets.keys().next().unwrap().clone();
    cluster.change_template("two");
    cluster.step();
    cluster.pods_follow();
    cluster.sets.get_mut(&first).unwrap().metadata.generation = 2;
    cluster.step();
    assert_eq!((cluster.sets.len(), cluster.pods()), (1, 0));
    cluster.sets.get_mut(&first).unwrap().status.observed_generation = 2;
    cluster.settle();
    assert_eq!((cluster.sets.len(), cluster.available()), (2, 2));
}

/// `kubectl apply` of another image and another number of replicas: with both in one plan there were more pods than may be.
#[test]
fn a_deployment_is_scaled_before_it_is_rolled_out() {
    let mut cluster = Cluster::new(deployment(1));
    roll(&mut cluster.deployment, "0", "1");
    cluster.settle();
    cluster.deployment.spec.replicas = Some(2);
    cluster.change_template("two");
    cluster.step();
    assert_eq!(sizes(&cluster), [2]);
    cluster.step();
    assert_eq!(sizes(&cluster), [2, 0]);
    cluster.settle();
    assert_eq!(sizes(&cluster), [0, 2]);
}

/// A set that was scaled down says that pods are available which it is about to delete.
#[test]
fn pods_beyond_the_size_of_their_set_are_not_counted_on() {
    let mut cluster = Cluster::new(deployment(4));
    roll(&mut cluster.deployment, "0", "1");
    cluster.settle();
    let first = cluster.sets.keys().next().unwrap().clone();
    cluster.change_template("two");
    for _ in 0..20 {
        if sizes(&cluster) == [2, 2] {
            break;
        }
        cluster.step();
        cluster.pods_follow();
        cluster.one_available(0);
    }
    // Back to the first template before its set has deleted the last two.
    cluster.deployment.spec.template.spec.containers.clear();
    for set in cluster.sets.values_mut() {
        set.status.available_replicas = if set.metadata.name == first { 4 } else { 2 };
    }
    cluster.step();
    assert_eq!(sizes(&cluster), [2, 1], "three are available in the end, not two");
}

#[test]
fn history_is_bounded() {
    let mut cluster = Cluster::new(deployment(1));
    cluster.deployment.spec.revision_history_limit = Some(2);
    for image in ["a", "b", "c", "d", "e"] {
        cluster.change_template(image);
        cluster.settle();
    }
    assert_eq!(cluster.sets.len(), 3);
}

/// After an undo the revision before the last is that of the oldest set.
#[test]
fn the_lowest_revisions_leave_the_history_once_the_rollout_is_complete() {
    let mut cluster = Cluster::new(deployment(1));
    cluster.deployment.spec.revision_history_limit = Some(2);
    for image in ["a", "b", "c"] {
        cluster.change_template(image);
        cluster.settle();
    }
    // Back to `a`, then on: of `a`, `b` and `c` the revisions are 4, 2 and 3.
    cluster.change_template("a");
    cluster.settle();
    cluster.change_template("d");
    cluster.step();
    cluster.pods_follow();
    cluster.step();
    let images = |cluster: &Cluster| {
        let image = |set: &ReplicaSet| set.spec.template.spec.containers[0].image.clone();
        let mut all: Vec<String> = cluster.sets.values().map(image).collect();
        all.sort();
        all.concat()
    };
    assert_eq!(images(&cluster), "abcd", "nothing is deleted while it may be needed");
    cluster.settle();
    assert_eq!(images(&cluster), "acd");
}

/// `kubectl rollout status` and those who watch deployments take the condition for the rollout's, not for the pods'.
#[test]
fn a_complete_rollout_does_not_fail_when_its_pods_do() {
    let mut cluster = Cluster::new(deployment(3));
    cluster.settle();
    let set = cluster.sets.values_mut().next().unwrap();
    set.status.available_replicas = 1;
    set.status.ready_replicas = 1;
    for _ in 0..2 {
        cluster.step();
        cluster.time += 700;
    }
    assert_eq!(cluster.condition("Available"), "False MinimumReplicasUnavailable");
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetAvailable");
    // More of the same pods are no rollout either.
    cluster.deployment.spec.replicas = Some(9);
    for _ in 0..3 {
        cluster.step();
        cluster.pods_follow();
        cluster.time += 700;
    }
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetAvailable");
    cluster.change_template("two");
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetCreated");
}

#[test]
fn a_recreated_deployment_is_not_complete_before_its_new_pods_are() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.deployment.spec.strategy.type_ = "Recreate".into();
    cluster.settle();
    cluster.change_template("broken");
    for _ in 0..4 {
        cluster.step();
        cluster.pods_follow();
    }
    assert_eq!((cluster.sets.len(), cluster.available()), (2, 0));
    assert_eq!(cluster.condition("Progressing"), "True ReplicaSetUpdated");
    cluster.time += 700;
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "False ProgressDeadlineExceeded");
}

#[test]
fn a_new_template_after_a_failed_rollout_has_a_deadline_of_its_own() {
    let mut cluster = Cluster::new(deployment(4));
    cluster.settle();
    cluster.change_template("broken");
    for _ in 0..6 {
        cluster.step();
        cluster.pods_follow();
    }
    cluster.time += 700;
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "False ProgressDeadlineExceeded");
    cluster.change_template("mended");
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetCreated");
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetCreated");
}

/// The controller is lost after it has made the set: the deployment says neither the revision nor that a rollout begins.
#[test]
fn a_status_that_was_not_written_is_made_up_for() {
    for (strategy, last) in [("RollingUpdate", "broken"), ("Recreate", "")] {
        let mut cluster = Cluster::new(deployment(4));
        cluster.deployment.spec.strategy.type_ = strategy.into();
        cluster.settle();
        if !last.is_empty() {
            cluster.change_template(last);
            for _ in 0..6 {
                cluster.step();
                cluster.pods_follow();
            }
            cluster.time += 700;
            cluster.step();
            assert_eq!(cluster.condition("Progressing"), "False ProgressDeadlineExceeded");
        }
        cluster.change_template("mended");
        let sets = cluster.sets.len();
        while cluster.sets.len() == sets {
            // Of the plan that makes the set nothing else is executed.
            let makes = matches!(cluster.plan().writes.first(), Some(ApiWrite::Create(_)));
            match makes {
                true => drop(cluster.step_up_to(1)),
                false => {
                    cluster.step();
                    cluster.pods_follow();
                }
            }
        }
        let marked = |cluster: &Cluster| {
            cluster.deployment.metadata.annotations["deployment.kubernetes.io/revision"].clone()
        };
        assert_eq!(marked(&cluster), sets.to_string(), "{strategy}");
        cluster.step();
        assert_eq!(marked(&cluster), (sets + 1).to_string(), "{strategy}");
        assert_eq!(cluster.condition("Progressing"), "True FoundNewReplicaSet", "{strategy}");
        cluster.time += 700;
        cluster.step();
        assert_eq!(cluster.condition("Progressing"), "False ProgressDeadlineExceeded");
    }
}

/// An undo writes annotations and size of the set that it finds at once.
#[test]
fn an_undo_takes_one_write_of_its_set() {
    let mut cluster = Cluster::new(deployment(2));
    roll(&mut cluster.deployment, "1", "0");
    cluster.settle();
    cluster.change_template("two");
    cluster.settle();
    cluster.deployment.spec.template.spec.containers.clear();
    let writes = cluster.plan().writes;
    let of_sets = |write: &&ApiWrite| matches!(write, ApiWrite::Patch { .. });
    assert_eq!(writes.iter().filter(of_sets).count(), 1, "{writes:?}");
    cluster.settle();
    assert_eq!(sizes(&cluster), [2, 0]);
}

#[test]
fn a_set_that_cannot_be_made_is_said_in_the_condition_progressing() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.settle();
    cluster.change_template("two");
    let failed = |cluster: &Cluster| {
        let plan = cluster.plan();
        assert!(matches!(plan.writes[0], ApiWrite::Create(_)));
        let name = format!("web-{}", template_hash(&cluster.deployment));
        let now = Time::from_unix(cluster.time);
        (plan.status_of_failure(0, "exceeded quota".into(), now), name)
    };
    let (Some(write), name) = failed(&cluster) else { panic!("a status") };
    cluster.apply(write);
    assert_eq!(cluster.condition("Progressing"), "False ReplicaSetCreateError");
    let conditions = &cluster.deployment.status.conditions;
    let progressing = conditions.iter().find(|c| c.type_ == "Progressing").unwrap();
    let expected = format!("Failed to create new replica set \"{name}\": exceeded quota");
    assert_eq!(progressing.message, expected);
    assert_eq!(failed(&cluster).0, None, "it is said already");
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetCreated");
    cluster.settle();
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetAvailable");
    // Sizes that cannot be written are not said, and without a deadline there is no condition.
    cluster.deployment.spec.replicas = Some(3);
    let plan = cluster.plan();
    assert_eq!(plan.status_of_failure(0, "no".into(), Time::from_unix(1)), None);
    cluster.deployment.spec.replicas = Some(2);
    cluster.deployment.spec.progress_deadline_seconds = None;
    cluster.change_template("three");
    assert_eq!(failed(&cluster).0, None);
}

#[test]
fn a_stuck_rollout_is_reported_after_the_deadline() {
    let mut cluster = Cluster::new(deployment(2));
    cluster.settle();
    cluster.change_template("broken");
    cluster.step();
    cluster.pods_follow();
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "True ReplicaSetUpdated");
    let sets: Vec<Arc<ReplicaSet>> = cluster.sets.values().cloned().map(Arc::new).collect();
    let waiting =
        plan(names(), &cluster.deployment, &sets, &|_| false, Time::from_unix(cluster.time));
    let due = waiting.requeue_after.map(|due| due.as_secs()).unwrap();
    assert!((590..=601).contains(&due), "{due}");
    cluster.time += i64::try_from(due).unwrap();
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "False ProgressDeadlineExceeded");
    cluster.deployment.spec.paused = true;
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "False ProgressDeadlineExceeded");
    assert!(cluster.available() >= 2);
}

#[test]
fn a_rollout_without_a_deadline_has_no_condition_progressing() {
    let has = |cluster: &Cluster, kind: &str| {
        cluster.deployment.status.conditions.iter().any(|condition| condition.type_ == kind)
    };
    for deadline in [None, Some(i32::MAX)] {
        let mut cluster = Cluster::new(deployment(3));
        cluster.settle();
        assert!(has(&cluster, "Progressing"));
        cluster.deployment.spec.progress_deadline_seconds = deadline;
        cluster.change_template("two");
        cluster.settle();
        assert!(!has(&cluster, "Progressing"), "{deadline:?}");
        assert!(has(&cluster, "Available"), "{deadline:?}");
        assert_eq!(sizes(&cluster), [0, 3]);
        cluster.deployment.spec.paused = true;
        cluster.settle();
        assert!(!has(&cluster, "Progressing"), "{deadline:?}");
    }
}

/// Its dependents are deleted first.
#[test]
fn a_deployment_that_is_being_deleted_shows_its_pods() {
    let mut cluster = Cluster::new(deployment(3));
    cluster.settle();
    assert_eq!(cluster.deployment.status.replicas, 3);
    cluster.deployment.metadata.deletion_timestamp = Some(Time::from_unix(1));
    cluster.deployment.spec.replicas = Some(5);
    cluster.sets.values_mut().for_each(|set| {
        set.status.replicas = 1;
        set.status.available_replicas = 1;
    });
    assert_eq!(cluster.step(), 1, "only the status");
    assert_eq!(sizes(&cluster), [3]);
    let status = &cluster.deployment.status;
    assert_eq!((status.replicas, status.available_replicas), (1, 1));
    assert_eq!(cluster.step(), 0);
    cluster.sets.clear();
    cluster.step();
    assert_eq!(cluster.deployment.status.replicas, 0);
}

#[test]
fn a_paused_deployment_starts_no_rollout() {
    let mut cluster = Cluster::new(deployment(1));
    cluster.settle();
    cluster.deployment.spec.paused = true;
    cluster.change_template("two");
    cluster.settle();
    assert_eq!(cluster.sets.len(), 1);
    // But it is scaled.
    cluster.deployment.spec.replicas = Some(4);
    cluster.settle();
    assert_eq!((cluster.sets.len(), cluster.pods()), (1, 4));
    assert_eq!(cluster.condition("Progressing"), "Unknown DeploymentPaused");
    cluster.deployment.spec.paused = false;
    cluster.step();
    assert_eq!(cluster.condition("Progressing"), "Unknown DeploymentResumed");
    cluster.settle();
    assert_eq!(cluster.condition("Progressing"), "True NewReplicaSetAvailable");
}

#[test]
fn shares_are_rounded_and_bounded() {
    let check = |surge: &str, unavailable: &str, replicas: i32, expect: (i64, i64)| {
        let mut deployment = deployment(replicas);
        roll(&mut deployment, surge, unavailable);
        let sizes = Sizes::from_sets(None, &[]);
        let got = rollout::first_size(&deployment, &sizes, OldPods::Gone);
        assert_eq!(got, Some(i64::from(replicas.max(0))));
        let shares = (rollout::max_surge(&deployment), rollout::max_unavailable(&deployment));
        assert_eq!(shares, expect, "{surge} {unavailable} of {replicas}");
    };
    let most = i64::from(i32::MAX);
    check("25%", "25%", 10, (3, 2));
    check("0", "0", 10, (0, 1));
    check("0%", "9%", 10, (0, 1));
    check("0", "0", 0, (0, 0));
    check("-5", "-5", 10, (0, 1));
    check("-5%", "200%", 10, (0, 10));
    check("9223372036854775807%", "9223372036854775807%", 10, (most, 10));
    check("2147483647", "2147483647", i32::MAX, (most, most));
    check("100%", "100%", i32::MAX, (most, most));
    check("50%", "x", i32::MIN, (0, 0));
}

proptest! {
    /// At every step of any rollout: no more pods than surge allows, no fewer available than promised, and in
    /// the end the newest template has all pods.
    #[test]
    fn rollouts_keep_their_promises(
        replicas in 1..8i32,
        surge in prop_oneof![Just("0"), Just("1"), Just("25%"), Just("100%")],
        unavailable in prop_oneof![Just("0"), Just("1"), Just("25%"), Just("100%")],
        moves in proptest::collection::vec((0..4u8, 0..3usize), 0..60),
    ) {
        let mut cluster = Cluster::new(deployment(replicas));
        roll(&mut cluster.deployment, surge, unavailable);
        cluster.settle();
        prop_assert_eq!(cluster.available(), replicas);
        cluster.change_template("two");
        let part = |text: &str, quarter: i32| match text {
            "25%" => quarter,
            "100%" => replicas,
            number => number.parse().unwrap(),
        };
        let (up, down) = (part(surge, (replicas + 3) / 4), part(unavailable, replicas / 4));
        let down = if (up, down) == (0, 0) { 1 } else { down };
        let (least, most) = (replicas - down, replicas + up);
        for (kind, nth) in moves {
            match kind {
                0 | 1 => { cluster.step(); }
                2 => cluster.pods_follow(),
                _ => cluster.one_available(nth),
            }
            prop_assert!(cluster.available() >= least, "{} available", cluster.available());
            let asked: i32 = cluster.sets.values().map(|set| set.spec.replicas.unwrap()).sum();
            prop_assert!(asked <= most, "{asked} asked for");
        }
        cluster.settle();
        let sets: Vec<&ReplicaSet> = cluster.sets.values().collect();
        let newest = newest_set(&cluster.deployment, &sets);
        prop_assert_eq!(newest.unwrap().status.available_replicas, replicas);
        prop_assert_eq!(cluster.pods(), replicas);
    }
}

/// As in the manifest of a replica set that became one of a deployment.
#[test]
fn a_template_with_the_label_of_the_hash_has_one_set() {
    let mut labelled = deployment(1);
    labelled.spec.template.metadata.labels.insert(TEMPLATE_HASH.into(), "old".into());
    let mut cluster = Cluster::new(labelled);
    for _ in 0..10 {
        cluster.step();
    }
    assert_eq!(cluster.sets.len(), 1, "{:?}", cluster.sets.keys());
}

#[test]
fn the_newest_set_has_the_template_but_for_the_hash() {
    let deployment = deployment(1);
    let with = |change: fn(&mut ReplicaSet)| {
        let mut set = ReplicaSet::default();
        set.spec.template = deployment.spec.template.clone();
        set.spec.template.metadata.labels.insert(TEMPLATE_HASH.into(), "hash".into());
        change(&mut set);
        let other = ReplicaSet::default();
        newest_set(&deployment, &[&other, &set]).is_some()
    };
    assert!(with(|_| {}));
    assert!(with(|set| drop(set.spec.template.metadata.labels.remove(TEMPLATE_HASH))));
    assert!(!with(|set| drop(set.spec.template.metadata.labels.remove("app"))));
    assert!(!with(|set| drop(
        set.spec.template.metadata.annotations.insert("a".into(), "b".into())
    )));
    assert!(!with(|set| set.spec.template.spec.host_network = true));
}
