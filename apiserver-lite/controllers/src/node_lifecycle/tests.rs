//! Nodes that fall silent and return.

use proto_api::names::Profile;

use super::*;
use crate::addresses::examples;

const GRACE: Duration = Duration::from_secs(40);

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn node(ready: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = "node".into();
    node.metadata.resource_version = "7".into();
    node.status.conditions.push(NodeCondition {
        type_: "Ready".into(),
        status: ready.into(),
        last_heartbeat_time: Time::from_unix(10),
        ..NodeCondition::default()
    });
    node
}

fn lease(renewed: i64) -> Lease {
    let mut lease = Lease::default();
    lease.spec.renew_time = Some(MicroTime::from_unix_micros(renewed));
    lease
}

/// The patched conditions and taints, as `name=status` and `key:effect`.
fn patched(plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    for write in &plan.writes {
        let ApiWrite::Patch { kind: ObjectKind::Node, patch, .. } = write else {
            unreachable!("{write:?}")
        };
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let text =
            |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        for condition in patch["status"]["conditions"].as_array().into_iter().flatten() {
            all.push(format!("{}={}", text(condition, "type"), text(condition, "status")));
        }
        for taint in patch["spec"]["taints"].as_array().into_iter().flatten() {
            all.push(format!("{}:{}", text(taint, "key"), text(taint, "effect")));
        }
        if patch["spec"]["taints"] == json!([]) {
            all.push("untainted".to_owned());
        }
    }
    all
}

#[test]
fn silence_is_measured_from_the_last_change() {
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    let clocks = |secs| NodeClocks { steady: at(secs), wall: Time::from_unix(100) };
    let node = node("True");
    let health = NodeHealth::update(None, &node, Some(&lease(1)), at(0));
    let same = NodeHealth::update(Some(&health), &node, Some(&lease(1)), at(30));
    assert_eq!(health, same);
    let plan_at = |health: &NodeHealth, secs| {
        plan(names(), &node, health, GRACE, clocks(secs), ClusterHealth::SomeReady)
    };
    assert_eq!(plan_at(&same, 30).requeue_after, Some(Duration::from_secs(10)));
    assert!(plan_at(&same, 30).writes.is_empty());
    assert_eq!(
        patched(&plan_at(&same, 40)),
        ["Ready=Unknown", "MemoryPressure=Unknown", "DiskPressure=Unknown", "PIDPressure=Unknown"]
    );
    let renewed = NodeHealth::update(Some(&same), &node, Some(&lease(2)), at(39));
    assert_eq!(plan_at(&renewed, 40).requeue_after, Some(Duration::from_secs(39)));
}

#[test]
fn a_node_that_has_never_reported_has_time_to_start() {
    let periods = GracePeriods { running: GRACE, starting: Duration::from_secs(60) };
    let mut starting = node("True");
    starting.status.conditions.clear();
    let start = Instant::now();
    let health = NodeHealth::update(None, &starting, None, start);
    let at = |node: &Node, secs| {
        let steady = start + Duration::from_secs(secs);
        let clocks = NodeClocks { steady, wall: Time::from_unix(100) };
        let grace = periods.for_node(node);
        plan(names(), node, &health, grace, clocks, ClusterHealth::SomeReady)
    };
    for secs in [0, 40, 59] {
        assert!(at(&starting, secs).writes.is_empty(), "no taint after {secs} s");
        assert_eq!(at(&starting, secs).requeue_after, Some(Duration::from_secs(60 - secs)));
    }
    assert_eq!(patched(&at(&starting, 60))[0], "Ready=Unknown");
    assert_eq!(periods.for_node(&node("Unknown")), GRACE);
    let unreachable =
        ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"];
    assert_eq!(patched(&at(&node("Unknown"), 0)), unreachable);
}

/// As in Kubernetes: renewals count as health, also of a kubelet that has never posted a status.
#[test]
fn a_node_that_renews_its_lease_and_has_never_reported_is_left_alone() {
    let mut starting = node("True");
    starting.status.conditions.clear();
    let start = Instant::now();
    let mut health = None;
    let at = |secs: i64, lease: &Lease, health: &mut Option<NodeHealth>| {
        let steady = start + Duration::from_secs(secs.unsigned_abs());
        let latest = NodeHealth::update(health.as_ref(), &starting, Some(lease), steady);
        let clocks = NodeClocks { steady, wall: Time::from_unix(100) };
        let planned = plan(names(), &starting, &latest, GRACE, clocks, ClusterHealth::SomeReady);
        *health = Some(latest);
        patched(&planned)
    };
    for renewal in 0..20 {
        assert_eq!(at(renewal * 10, &lease(renewal), &mut health), [""; 0], "{renewal}");
    }
    assert_eq!(at(190 + 40, &lease(19), &mut health)[0], "Ready=Unknown", "it has ended");
}

/// A taint is its key and its effect.
#[test]
fn a_user_s_preference_with_the_key_of_a_condition_replaces_no_taint() {
    let now = Instant::now();
    let clocks = NodeClocks { steady: now, wall: Time::from_unix(100) };
    for (status, key) in [("False", "not-ready"), ("Unknown", "unreachable")] {
        let key = format!("node.kubernetes.io/{key}");
        let mut failed = node(status);
        let (of_user, effect) = (key.clone(), "PreferNoSchedule".to_owned());
        failed.spec.taints.push(Taint { key: of_user, effect, ..Taint::default() });
        let health = NodeHealth::update(None, &failed, None, now);
        let plan = plan(names(), &failed, &health, GRACE, clocks, ClusterHealth::SomeReady);
        let expected = ["PreferNoSchedule", "NoSchedule", "NoExecute"];
        assert_eq!(patched(&plan), expected.map(|effect| format!("{key}:{effect}")));
    }
}

/// A node with labels of both generations is in the zone of the older ones.
#[test]
fn zones_have_labels_of_two_generations() {
    let zone = |labels: &[(&str, &str)]| {
        let mut node = Node::default();
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        node.metadata.labels = labels.collect();
        zone_of(&zone_keys(names()), &node).map(|name| name.cloned().unwrap_or_default())
    };
    let (older, newer) = ("failure-domain.beta.kubernetes.io", "topology.kubernetes.io");
    let (older_zone, newer_zone) = (format!("{older}/zone"), format!("{newer}/zone"));
    let region = format!("{older}/region");
    for (labels, expected) in [
        (vec![], ["", ""]),
        (vec![(newer_zone.as_str(), "a")], ["", "a"]),
        (vec![(older_zone.as_str(), "a"), (region.as_str(), "r")], ["r", "a"]),
        (vec![(older_zone.as_str(), "a"), (newer_zone.as_str(), "b")], ["", "a"]),
    ] {
        assert_eq!(zone(&labels), expected, "{labels:?}");
    }
}

/// A controller manager that is cut off finds all nodes silent, and must not evict all pods.
#[test]
fn no_pods_are_evicted_while_no_node_is_ready() {
    let now = Instant::now();
    let clocks = NodeClocks { steady: now, wall: Time::from_unix(100) };
    let unreachable = "node.kubernetes.io/unreachable";
    let mut silent = node("Unknown");
    let health = NodeHealth::update(None, &silent, None, now);
    let taints =
        |node: &Node, cluster| patched(&plan(names(), node, &health, GRACE, clocks, cluster));
    assert_eq!(taints(&silent, ClusterHealth::NoneReady), [format!("{unreachable}:NoSchedule")]);
    for effect in ["NoSchedule", "NoExecute"] {
        let (key, effect) = (unreachable.to_owned(), effect.to_owned());
        silent.spec.taints.push(Taint { key, effect, ..Taint::default() });
    }
    assert_eq!(taints(&silent, ClusterHealth::NoneReady), [format!("{unreachable}:NoSchedule")]);
    assert!(taints(&silent, ClusterHealth::SomeReady).is_empty());
    let health = |other: &Node| {
        let wall = Time::from_unix(100);
        let (nodes, none) = ([&silent, other].into_iter(), ZoneEvictions::default());
        ClusterHealth::assess(names(), &EvictionRates::default(), Some(&silent), nodes, &none, wall)
    };
    assert_eq!(health(&node("True")), ClusterHealth::SomeReady);
    assert_eq!(health(&node("False")), ClusterHealth::NoneReady);
}

#[test]
fn nodes_that_are_excluded_from_disruption_are_not_counted() {
    let label = |node: &mut Node| {
        node.metadata.labels.insert("node.kubernetes.io/exclude-disruption".into(), "".into());
    };
    let health = |nodes: &[Node]| {
        let (wall, none) = (Time::from_unix(1000), ZoneEvictions::default());
        let rates = EvictionRates::default();
        ClusterHealth::assess(names(), &rates, nodes.first(), nodes.iter(), &none, wall)
    };
    let mut nodes = zone("a", 10, 6, None);
    assert_eq!(health(&nodes), ClusterHealth::NotNow(None), "most nodes of the zone have failed");
    nodes.iter_mut().take(2).for_each(label);
    assert_eq!(health(&nodes), ClusterHealth::SomeReady, "four of eight have");
    nodes.iter_mut().skip(6).for_each(label);
    assert_eq!(health(&nodes), ClusterHealth::NoneReady, "four of four have");
    nodes.iter_mut().for_each(label);
    assert_eq!(health(&nodes), ClusterHealth::SomeReady, "none is counted");
}

/// `failed` nodes of a zone of `all`; the first of them was tainted at `since`.
fn zone(name: &str, all: usize, failed: usize, since: Option<i64>) -> Vec<Node> {
    let mut nodes: Vec<Node> = (0..all)
        .map(|nth| {
            let mut node = node(if nth < failed { "Unknown" } else { "True" });
            node.metadata.labels.insert("topology.kubernetes.io/zone".into(), name.into());
            node
        })
        .collect();
    if let Some(since) = since {
        taint(&mut nodes[0], since);
    }
    nodes
}

fn taint(node: &mut Node, since: i64) {
    let key = "node.kubernetes.io/unreachable".to_owned();
    let (effect, time_added) = ("NoExecute".to_owned(), Some(Time::from_unix(since)));
    node.spec.taints.push(Taint { key, effect, time_added, ..Taint::default() });
}

/// Most nodes of a zone fail together because of the network between them and the control plane: their pods run on.
#[test]
fn nodes_of_a_zone_are_evicted_one_after_the_other_and_not_if_most_of_them_fail() {
    let others = zone("b", 9, 0, None);
    let wait = |secs| ClusterHealth::NotNow(Some(Duration::from_secs(secs)));
    let never = ClusterHealth::NotNow(None);
    let now = ClusterHealth::SomeReady;
    for (all, failed, since, expected) in [
        (10, 2, None, now),
        (10, 2, Some(995), wait(5)),
        (10, 2, Some(990), now),
        // A clock that was set back does not hold them up for longer.
        (10, 2, Some(5000), wait(10)),
        (10, 5, Some(990), now),
        (10, 6, Some(0), never),
        (3, 2, Some(990), now),
        (4, 3, None, never),
        // All of a zone, while other zones work.
        (10, 10, Some(990), now),
        (60, 40, None, now),
        (60, 40, Some(990), wait(90)),
        (60, 40, Some(900), now),
    ] {
        let nodes = zone("a", all, failed, since);
        let (node, wall) = (nodes.get(1).unwrap(), Time::from_unix(1000));
        let nodes = nodes.iter().chain(&others);
        let none = ZoneEvictions::default();
        let found = ClusterHealth::assess(
            names(),
            &EvictionRates::default(),
            Some(node),
            nodes,
            &none,
            wall,
        );
        assert_eq!(found, expected, "{failed} of {all}, {since:?}");
    }
    let nodes = zone("a", 10, 6, Some(0));
    let of = |node: &Node| {
        let nodes = nodes.iter().chain(&others);
        ClusterHealth::assess(
            names(),
            &EvictionRates::default(),
            Some(node),
            nodes,
            &ZoneEvictions::default(),
            Time::from_unix(1000),
        )
    };
    assert_eq!(of(&nodes[0]), ClusterHealth::SomeReady, "it keeps its taint");
    let steady = Instant::now();
    let clocks = NodeClocks { steady, wall: Time::from_unix(1000) };
    let planned = |node: &Node, cluster| {
        let health = NodeHealth::update(None, node, None, steady);
        plan(names(), node, &health, GRACE, clocks, cluster)
    };
    let waiting = planned(&nodes[1], wait(7));
    assert_eq!(patched(&waiting), ["node.kubernetes.io/unreachable:NoSchedule"]);
    assert_eq!(waiting.requeue_after, Some(Duration::from_secs(7)));
    assert_eq!(patched(&planned(&nodes[1], never)), patched(&waiting));
}

/// The flags of kube-controller-manager have their meaning with other values.
#[test]
fn the_pace_of_evictions_follows_the_rates() {
    let others = zone("b", 9, 0, None);
    let wait = |secs| ClusterHealth::NotNow(Some(Duration::from_secs(secs)));
    let (never, now) = (ClusterHealth::NotNow(None), ClusterHealth::SomeReady);
    let with = |healthy, failing, small_zone, failed_share| EvictionRates {
        healthy,
        failing,
        small_zone,
        failed_share,
    };
    for (rates, all, failed, since, expected) in [
        (with(0.5, 0.01, 50, 0.55), 10, 2, &[999][..], wait(1)),
        (with(0.5, 0.01, 50, 0.55), 10, 2, &[998], now),
        // Pauses are rounded up, numbers of nodes down.
        (with(0.3, 0.01, 50, 0.55), 10, 2, &[997], wait(1)),
        (with(0.0, 1.0, 50, 0.55), 10, 2, &[], never),
        (with(f64::NAN, 1.0, 50, 0.55), 10, 2, &[], never),
        (with(2.5, 0.01, 50, 0.55), 10, 4, &[1000], now),
        (with(2.5, 0.01, 50, 0.55), 10, 4, &[1000, 1000], wait(1)),
        (with(2.5, 0.01, 50, 0.55), 10, 4, &[1000, 999], now),
        (with(1e300, 0.01, 50, 0.55), 10, 4, &[1000, 1000, 1000], now),
        (with(1e-300, 0.01, 50, 0.55), 10, 4, &[1000], wait(31_536_000)),
        // Large and small zones.
        (with(0.1, 0.2, 9, 0.55), 10, 6, &[998], wait(3)),
        (with(0.1, 0.2, 10, 0.55), 10, 6, &[], never),
        (with(0.1, 0.0, 9, 0.55), 10, 6, &[], never),
        (with(0.1, 0.2, u32::MAX, 0.55), 60, 40, &[], never),
        // The share that has to fail; three nodes at least.
        (with(0.1, 0.2, 50, 0.3), 10, 3, &[], never),
        (with(0.1, 0.2, 50, 0.31), 10, 3, &[], now),
        (with(0.1, 0.2, 50, 0.0), 10, 2, &[], now),
        (with(0.1, 0.2, 50, 0.0), 10, 3, &[], never),
        (with(0.1, 0.2, 50, 1.0), 10, 9, &[990], now),
        (with(0.1, 0.2, 50, 0.55), 20, 11, &[], never),
        (with(0.1, 0.2, 50, 0.55), 20, 10, &[], now),
    ] {
        let mut nodes = zone("a", all, failed, None);
        for (node, since) in nodes.iter_mut().zip(since) {
            taint(node, *since);
        }
        let (node, wall) = (&nodes[failed - 1], Time::from_unix(1000));
        let (all, none) = (nodes.iter().chain(&others), ZoneEvictions::default());
        let found = ClusterHealth::assess(names(), &rates, Some(node), all, &none, wall);
        assert_eq!(found, expected, "{rates:?}, {failed} failed, {since:?}");
    }
}

/// Labels of other nodes change what a zone is: no change of this node calls for the next plan.
#[test]
fn a_node_that_may_not_be_evicted_is_looked_at_again() {
    let (steady, mut node) = (Instant::now(), node("Unknown"));
    for kind in &KUBELET_CONDITIONS[1..] {
        let (type_, status) = ((*kind).to_owned(), "Unknown".to_owned());
        node.status.conditions.push(NodeCondition { type_, status, ..NodeCondition::default() });
    }
    let again = |cluster| {
        let health = NodeHealth::update(None, &node, None, steady);
        let later = steady.checked_add(GRACE.saturating_mul(2)).expect("a time");
        let clocks = NodeClocks { steady: later, wall: Time::from_unix(1000) };
        plan(names(), &node, &health, GRACE, clocks, cluster).requeue_after
    };
    assert_eq!(again(ClusterHealth::NotNow(None)), Some(RECHECK));
    assert_eq!(again(ClusterHealth::NoneReady), Some(RECHECK));
    assert_eq!(again(ClusterHealth::SomeReady), None, "its taint is set");
    let turn = Duration::from_secs(7);
    assert_eq!(again(ClusterHealth::NotNow(Some(turn))), Some(turn));
}

/// The next node of a zone is planned before the cache shows the taint of the one before.
#[test]
fn an_eviction_counts_before_the_cache_shows_it() {
    let mut nodes = [zone("a", 10, 3, None), zone("b", 9, 1, None)].concat();
    nodes.iter_mut().enumerate().for_each(|(nth, node)| node.metadata.name = format!("n{nth}"));
    let (first, second, elsewhere) = (&nodes[0].clone(), &nodes[1].clone(), &nodes[10].clone());
    let (rates, mut evicted) = (EvictionRates::default(), ZoneEvictions::default());
    let health = |node: &Node, evicted: &ZoneEvictions, now: i64| {
        ClusterHealth::assess(
            names(),
            &rates,
            Some(node),
            nodes.iter(),
            evicted,
            Time::from_unix(now),
        )
    };
    let steady = Instant::now();
    let planned = |node: &Node, cluster| {
        let clocks = NodeClocks { steady, wall: Time::from_unix(1000) };
        plan(names(), node, &NodeHealth::update(None, node, None, steady), GRACE, clocks, cluster)
    };
    let waits = planned(second, ClusterHealth::NotNow(None));
    evicted.note(names(), &rates, second, &waits, Time::from_unix(1000));
    assert_eq!(health(first, &evicted, 1000), ClusterHealth::SomeReady, "it has no such taint");
    let taints = planned(first, ClusterHealth::SomeReady);
    evicted.note(names(), &rates, first, &taints, Time::from_unix(1000));
    let left = |secs| ClusterHealth::NotNow(Some(Duration::from_secs(secs)));
    assert_eq!(health(second, &evicted, 1003), left(7));
    assert_eq!(health(second, &evicted, 1010), ClusterHealth::SomeReady);
    assert_eq!(health(second, &evicted, 500), left(10), "after the clock was set back");
    assert_eq!(health(elsewhere, &evicted, 1003), ClusterHealth::SomeReady);
    evicted.note(names(), &rates, second, &waits, Time::from_unix(1101));
    assert!(evicted.0.is_empty(), "it is forgotten");
    let slow = EvictionRates { failing: 0.001, ..rates };
    evicted.note(names(), &slow, first, &taints, Time::from_unix(1000));
    evicted.note(names(), &slow, second, &waits, Time::from_unix(2000));
    assert!(!evicted.0.is_empty(), "a zone that fails waits for 1,000 s");
    evicted.note(names(), &slow, second, &waits, Time::from_unix(2001));
    assert!(evicted.0.is_empty(), "it is forgotten");
    let twice = EvictionRates { healthy: 2.0, ..EvictionRates::default() };
    let wall = Time::from_unix(1000);
    evicted.note(names(), &rates, first, &taints, wall);
    taint(&mut nodes[0], 1000);
    let third = |evicted: &ZoneEvictions| {
        ClusterHealth::assess(names(), &twice, Some(&nodes[2]), nodes.iter(), evicted, wall)
    };
    assert_eq!(third(&evicted), ClusterHealth::SomeReady, "noted and shown, it counts once");
    evicted.note(names(), &rates, second, &taints, wall);
    assert_eq!(third(&evicted), left(1));
}

#[test]
fn registered_failed_and_removed_nodes_have_events() {
    let now = Instant::now();
    let health = |status: &str| {
        let mut node = node(status);
        node.metadata.name = "n1".into();
        NodeHealth::update(None, &node, None, now)
    };
    let event = |before: Option<&NodeHealth>, after: Option<&NodeHealth>| {
        transition_event(before, after).map(|event| format!("{} {}", event.reason, event.message))
    };
    let (ready, failed, reported) = (health("True"), health("Unknown"), health("False"));
    assert_eq!(
        event(None, Some(&ready)).as_deref(),
        Some("RegisteredNode Node n1 event: Registered Node n1 in Controller")
    );
    assert_eq!(
        event(Some(&ready), Some(&failed)).as_deref(),
        Some("NodeNotReady Node n1 status is now: NodeNotReady")
    );
    assert_eq!(event(Some(&ready), Some(&reported)), None, "the kubelet records it");
    assert_eq!(event(Some(&reported), Some(&failed)), None);
    assert_eq!(event(Some(&failed), Some(&ready)), None);
    assert_eq!(event(Some(&failed), Some(&failed)), None);
    assert_eq!(
        event(Some(&failed), None).as_deref(),
        Some("RemovingNode Node n1 event: Removing Node n1 from Controller")
    );
}

#[test]
fn messages_name_the_kubelet_of_the_profile() {
    let now = Instant::now();
    let clocks = NodeClocks { steady: now + GRACE, wall: Time::from_unix(100) };
    let node = node("True");
    let health = NodeHealth::update(None, &node, None, now);
    let cluster = ClusterHealth::SomeReady;
    let text = |names: &Names| format!("{:?}", plan(names, &node, &health, GRACE, clocks, cluster));
    assert!(text(names()).contains("Kubelet stopped posting node status."));
    let own = Names::new(Profile::default());
    assert!(text(own).contains("Orchlet stopped posting node status."));
}

#[test]
fn taints_follow_conditions() {
    let now = Instant::now();
    let clocks = NodeClocks { steady: now, wall: Time::from_unix(100) };
    let taints = |node: &Node| {
        let health = NodeHealth::update(None, node, None, now);
        patched(&plan(names(), node, &health, GRACE, clocks, ClusterHealth::SomeReady))
    };
    assert!(taints(&node("True")).is_empty());
    let not_ready = "node.kubernetes.io/not-ready";
    assert_eq!(
        taints(&node("False")),
        [format!("{not_ready}:NoSchedule"), format!("{not_ready}:NoExecute")]
    );
    let unreachable = "node.kubernetes.io/unreachable";
    assert_eq!(
        taints(&node("Unknown")),
        [format!("{unreachable}:NoSchedule"), format!("{unreachable}:NoExecute")]
    );
    let mut back = node("True");
    let add = |node: &mut Node, key: &str| {
        let (key, effect) = (key.to_owned(), "NoSchedule".to_owned());
        node.spec.taints.push(Taint { key, effect, ..Taint::default() });
    };
    add(&mut back, unreachable);
    // The cloud's controller removes its taint.
    let cloud = "node.cloudprovider.kubernetes.io/uninitialized";
    add(&mut back, cloud);
    assert_eq!(taints(&back), [format!("{cloud}:NoSchedule")]);
    let mut cordoned = node("True");
    cordoned.spec.unschedulable = true;
    add(&mut cordoned, "user");
    assert_eq!(
        taints(&cordoned),
        ["user:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule"]
    );
}

#[test]
fn ready_pods_of_a_silent_node_are_marked_once() {
    let ready = examples::pod(1);
    let plan_on = |pod: &Pod, status: &str| plan_pod(pod, &node(status), Time::from_unix(100));
    let plan = plan_on(&ready, "Unknown");
    let [ApiWrite::Patch { part: Part::Status, patch, .. }] = &plan.writes[..] else {
        unreachable!("{plan:?}")
    };
    assert_eq!(patch["status"]["conditions"][0]["status"], "False");
    let events = plan.reports.iter().map(|event| (event.kind, &*event.reason, &*event.message));
    let expected = (EventKind::Warning, "NodeNotReady", "Node is not ready");
    assert_eq!(events.collect::<Vec<_>>(), [expected]);
    for status in ["True", "False"] {
        assert_eq!(plan_on(&ready, status), Plan::default(), "{status}");
    }
    let mut marked = ready.clone();
    examples::set_ready(&mut marked, "False");
    assert_eq!(plan_on(&marked, "Unknown"), Plan::default());
    let mut terminating = ready.clone();
    terminating.metadata.deletion_timestamp = Some(Time::from_unix(90));
    assert_eq!(plan_on(&terminating, "Unknown").writes.len(), 1, "it would count as serving");
    let transitions = [
        (None, "Unknown", true),
        (Some("True"), "Unknown", true),
        (Some("False"), "Unknown", false),
        (Some("Unknown"), "Unknown", false),
        (Some("True"), "False", false),
    ];
    for (old, new, expected) in transitions {
        let old_node = old.map(node);
        assert_eq!(loses_ready_pods(old_node.as_ref(), &node(new)), expected, "{old:?} -> {new}");
    }
    assert!(is_newly_assigned(None, &ready));
    assert!(!is_newly_assigned(Some(&marked), &ready), "its kubelet is back before its node");
}

#[test]
fn each_pressure_is_a_taint() {
    let now = Instant::now();
    let clocks = NodeClocks { steady: now, wall: Time::from_unix(100) };
    for (condition, taint) in [
        ("MemoryPressure", "memory-pressure"),
        ("DiskPressure", "disk-pressure"),
        ("PIDPressure", "pid-pressure"),
        ("NetworkUnavailable", "network-unavailable"),
    ] {
        let taints = |status: &str| {
            let mut node = node("True");
            let (type_, status) = (condition.to_owned(), status.to_owned());
            node.status.conditions.push(NodeCondition {
                type_,
                status,
                ..NodeCondition::default()
            });
            let health = NodeHealth::update(None, &node, None, now);
            patched(&plan(names(), &node, &health, GRACE, clocks, ClusterHealth::SomeReady))
        };
        assert_eq!(taints("True"), [format!("node.kubernetes.io/{taint}:NoSchedule")]);
        assert!(taints("False").is_empty() && taints("Unknown").is_empty(), "{condition}");
    }
}
