//! Random histories: Services come, change and go, caches lag, writes conflict, the controller restarts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::*;
use super::{names, node, ranges, service};

const FAMILIES: [&[&str]; 4] = [&["IPv4"], &["IPv6"], &["IPv4", "IPv6"], &["IPv6", "IPv4"]];
const ASKED: [&str; 5] = ["", "", "192.0.2.2", "fd00::2", "203.0.113.1"];
const RANGES: [&str; 2] = ["192.0.2.1-192.0.2.4", "fd00::1-fd00::3"];
const NAMES: u8 = 8;

/// Ranges that an operator has made smaller.
const SMALLER: [&str; 1] = ["192.0.2.2-192.0.2.3"];

/// A server and the caches of a controller.
struct Cluster {
    server: BTreeMap<ObjectKey, Service>,
    cache: BTreeMap<ObjectKey, Service>,
    users: AddressUsers,
    ranges: AddressRanges,
    nodes: Vec<Arc<Node>>,
    revision: i64,
}

#[derive(Clone, Debug)]
enum HistoryStep {
    Create(u8, u8),
    Ask(u8, u8),
    Type(u8, bool),
    Delete(u8),
    Nodes(u8),
    /// The cache gets one Service as it is.
    See(u8),
    /// The controller plans a Service of which the cache shows its own last write; the write may meet another change.
    Plan(u8, bool),
    /// The controller starts again, with these or smaller ranges.
    Restart(bool),
}

fn key(number: u8) -> ObjectKey {
    ObjectKey::new("ns", format!("web-{}", number % NAMES))
}

fn addresses(service: &Service) -> BTreeSet<IpAddr> {
    of_status(service).collect()
}

impl Cluster {
    fn new() -> Self {
        Self {
            server: BTreeMap::new(),
            cache: BTreeMap::new(),
            users: AddressUsers::default(),
            ranges: ranges(&RANGES),
            nodes: ["a", "b", "c"].map(|name| node(name, "True")).into(),
            revision: 1,
        }
    }

    fn change(&mut self, number: u8, change: impl FnOnce(&mut Service)) {
        self.revision += 1;
        if let Some(service) = self.server.get_mut(&key(number)) {
            change(service);
            service.metadata.resource_version = self.revision.to_string();
        }
    }

    fn create(&mut self, number: u8, families: u8) {
        self.revision += 1;
        let mut new = service(self.revision, FAMILIES[usize::from(families) % FAMILIES.len()]);
        new.metadata.name = key(number).name;
        new.metadata.resource_version = self.revision.to_string();
        self.server.entry(key(number)).or_insert(new);
    }

    fn see(&mut self, number: u8) {
        match self.server.get(&key(number)) {
            Some(service) => drop(self.cache.insert(key(number), service.clone())),
            None => drop(self.cache.remove(&key(number))),
        }
        let shown = self.cache.get(&key(number));
        self.users.service_changed(names(), &key(number), shown);
    }

    fn plan(&mut self, number: u8, meets_another: bool) -> bool {
        self.see(number);
        let Some(cached) = self.cache.get(&key(number)).cloned() else { return false };
        let (ranges, nodes) = (&self.ranges, &self.nodes);
        let around = Surroundings { names: names(), ranges, nodes, slices: &[] };
        let planned = self.users.plan(&around, &cached);
        if meets_another {
            self.change(number, |_| ());
        }
        for write in &planned.plan.writes {
            self.execute(write);
        }
        !planned.plan.writes.is_empty()
    }

    /// As the server does, with the condition on the version.
    fn execute(&mut self, write: &ApiWrite) {
        let ApiWrite::Patch { key, patch, .. } = write else { unreachable!("{write:?}") };
        self.revision += 1;
        let Some(found) = self.server.get_mut(key) else { return };
        if patch["metadata"]["resourceVersion"] != found.metadata.resource_version.as_str() {
            return;
        }
        let annotation = names().load_balancer_node();
        match patch["metadata"]["annotations"][&annotation].as_str() {
            Some(node) => drop(found.metadata.annotations.insert(annotation, node.to_owned())),
            None => drop(found.metadata.annotations.remove(&annotation)),
        }
        if let Some(list) = patch.pointer("/status/loadBalancer/ingress") {
            let entry = |entry: &serde_json::Value| LoadBalancerIngress {
                ip: entry["ip"].as_str().unwrap_or_default().to_owned(),
                ..LoadBalancerIngress::default()
            };
            let list = list.as_array().expect("a list");
            found.status.load_balancer.ingress = list.iter().map(entry).collect();
        }
        found.metadata.resource_version = self.revision.to_string();
    }

    fn step(&mut self, step: HistoryStep) {
        match step {
            HistoryStep::Create(number, families) => self.create(number, families),
            HistoryStep::Ask(number, which) => self.change(number, |service| {
                service.spec.load_balancer_ip = ASKED[usize::from(which) % ASKED.len()].into();
            }),
            HistoryStep::Type(number, balanced) => self.change(number, |service| {
                let type_ = if balanced { "LoadBalancer" } else { "ClusterIP" };
                service.spec.type_ = type_.into();
            }),
            HistoryStep::Delete(number) => drop(self.server.remove(&key(number))),
            HistoryStep::Nodes(ready) => {
                let status = |bit: u8| if ready & bit == 0 { "Unknown" } else { "True" };
                let all = [("a", 1), ("b", 2), ("c", 4)];
                self.nodes = all.map(|(name, bit)| node(name, status(bit))).into();
            }
            HistoryStep::See(number) => self.see(number),
            HistoryStep::Plan(number, meets_another) => {
                let before = self.server.get(&key(number)).cloned();
                self.plan(number, meets_another);
                self.check_kept(before.as_ref(), self.server.get(&key(number)));
            }
            HistoryStep::Restart(smaller) => {
                self.cache.clear();
                self.users = AddressUsers::default();
                (0..NAMES).for_each(|number| self.see(number));
                self.ranges = if smaller { ranges(&SMALLER) } else { ranges(&RANGES) };
            }
        }
    }

    /// A plan takes nothing from a load balancer that asks for nothing else.
    fn check_kept(&self, before: Option<&Service>, after: Option<&Service>) {
        let (Some(before), Some(after)) = (before, after) else { return };
        let asks = !before.spec.load_balancer_ip.is_empty();
        let is_noted = announcing_node(names(), before).is_some();
        let is_ours = is_noted || addresses(before).iter().all(|has| self.ranges.contains(*has));
        if before.spec.type_ == "LoadBalancer" && !asks && is_ours {
            assert!(addresses(before).is_subset(&addresses(after)), "{before:?} {after:?}");
        }
        if before.spec.type_ != "LoadBalancer" && addresses(before) != addresses(after) {
            // Without the annotation nothing says that an address outside of the ranges was ours.
            let stays = |has: &IpAddr| !is_noted && !self.ranges.contains(*has);
            assert!(addresses(after).iter().all(stays), "released as a whole: {after:?}");
        }
    }

    /// No address twice, none outside of all ranges, at most one of each family.
    fn check(&self) {
        let mut seen = BTreeSet::new();
        let all = ranges(&RANGES);
        for service in self.server.values() {
            let has = addresses(service);
            assert_eq!(has.len(), service.status.load_balancer.ingress.len());
            for address in &has {
                assert!(all.contains(*address), "{address}");
                assert!(seen.insert(*address), "{address} twice: {:?}", self.server);
            }
            let families: BTreeSet<_> = has.iter().map(|address| family_of(*address)).collect();
            assert_eq!(families.len(), has.len());
        }
    }

    /// Plans all until there is nothing to write, twice: a Service that lacks an address is tried again when others have been planned.
    fn settle(&mut self) {
        let mut quiet = 0;
        for round in 0.. {
            (0..NAMES).for_each(|number| self.see(number));
            let writes = (0..NAMES).filter(|number| self.plan(*number, false)).count();
            self.check();
            quiet = if writes == 0 { quiet + 1 } else { 0 };
            if quiet == 2 {
                return;
            }
            assert!(round < 20, "the controller never rests");
        }
    }

    /// A Service that could have an address has one, and what has one is announced.
    fn check_settled(&self) {
        let used: BTreeSet<IpAddr> = self.server.values().flat_map(addresses).collect();
        let able = self.nodes.iter().any(|node| announcing_node::can_announce(names(), node));
        for service in self.server.values() {
            let (has, spec) = (addresses(service), &service.spec);
            let node = announcing_node(names(), service);
            if spec.type_ != "LoadBalancer" {
                let left = has.iter().any(|address| self.ranges.contains(*address));
                assert!(!left && node.is_none(), "{service:?}");
                continue;
            }
            if node.is_none() && has.iter().any(|address| !self.ranges.contains(*address)) {
                // Nothing says that it was ours.
                continue;
            }
            assert!(!able || node.is_some() != has.is_empty(), "{service:?}");
            for family in families(service).into_iter().filter(|_| spec.load_balancer_ip.is_empty())
            {
                let lacks = !has.iter().any(|address| family_of(*address) == family);
                let is_taken = |address| used.contains(&address);
                let free = self.ranges.free(family == Family::V4, is_taken);
                assert!(!lacks || free.is_none(), "{service:?}");
            }
            if let Some(asked) = asked_address(service)
                && self.ranges.contains(asked)
                && families(service).contains(&family_of(asked))
            {
                assert!(has.contains(&asked) || used.contains(&asked), "{service:?}");
            }
        }
    }
}

fn step() -> impl Strategy<Value = HistoryStep> {
    let number = any::<u8>();
    prop_oneof![
        4 => (number, any::<u8>()).prop_map(|(n, families)| HistoryStep::Create(n, families)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(n, which)| HistoryStep::Ask(n, which)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(n, balanced)| HistoryStep::Type(n, balanced)),
        1 => any::<u8>().prop_map(HistoryStep::Delete),
        1 => any::<u8>().prop_map(HistoryStep::Nodes),
        4 => any::<u8>().prop_map(HistoryStep::See),
        8 => (any::<u8>(), proptest::bool::weighted(0.2))
            .prop_map(|(n, meets)| HistoryStep::Plan(n, meets)),
        1 => proptest::bool::weighted(0.3).prop_map(HistoryStep::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_address_is_given_twice_and_all_are_given(
        steps in proptest::collection::vec(step(), 1..80)
    ) {
        let mut cluster = Cluster::new();
        for step in steps {
            cluster.step(step);
            cluster.check();
        }
        cluster.settle();
        cluster.check_settled();
    }
}

/// Two controllers wrote at once, or a user did: the older Service keeps the address.
#[test]
fn a_duplicate_is_resolved() {
    let mut cluster = Cluster::new();
    (0..3).for_each(|number| cluster.create(number, 0));
    for number in 0..3 {
        cluster.change(number, |service| {
            let entry =
                LoadBalancerIngress { ip: "192.0.2.3".into(), ..LoadBalancerIngress::default() };
            service.status.load_balancer.ingress = vec![entry];
        });
    }
    cluster.step(HistoryStep::Restart(false));
    for number in [2, 1, 0] {
        cluster.plan(number, false);
    }
    cluster.settle();
    let has = |number| addresses(&cluster.server[&key(number)]);
    assert_eq!(has(0), BTreeSet::from(["192.0.2.3".parse().unwrap()]));
    assert!(has(1).len() == 1 && has(2).len() == 1);
}
