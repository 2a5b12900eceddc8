use proptest::prelude::*;
use proto_api::core::v1::Pod;

use super::*;
use crate::managers::cpus::tests::machine;
use crate::managers::devices::Device;

fn container(name: &str, cpu: &str, gpus: &str) -> Container {
    let mut container = Container { name: name.into(), ..Container::default() };
    for (resource, amount) in [("cpu", cpu), ("memory", "1Gi"), ("example.com/gpu", gpus)] {
        if amount != "0" {
            let amount = amount.parse().expect("quantity");
            container.resources.limits.insert(resource.into(), amount);
            container.resources.requests.insert(resource.into(), amount);
        }
    }
    container
}

fn pod(uid: &str, init: Vec<Container>, containers: Vec<Container>) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = uid.into();
    pod.spec.init_containers = init;
    pod.spec.containers = containers;
    pod
}

fn rules(policy: TopologyPolicy, scope: TopologyScope) -> ManagerRules {
    let cpus = cpus::CpuRules { reserved: "0".parse().expect("set"), unit: cpus::CpuUnit::Thread };
    ManagerRules { cpus: Some(cpus), memory: None, policy, scope }
}

fn inventory() -> Inventory {
    let device = |node: &str| Device { nodes: node.parse().expect("set"), ..Device::default() };
    let gpus = [("g0", "0"), ("g1", "1"), ("g2", "1")];
    let gpus = gpus.map(|(id, node)| (id.to_owned(), device(node))).into();
    Inventory::from([("example.com/gpu".to_owned(), gpus)])
}

/// Allocates for a whole pod as the agent does.
fn give(
    rules: &ManagerRules,
    holdings: &mut Allocations,
    pod: &Pod,
) -> Result<(), AdmissionRefusal> {
    let (machine, inventory) = (machine(), inventory());
    let mut tried = holdings.clone();
    for (_, container) in containers(pod) {
        let scene =
            GrantContext { rules, machine: &machine, inventory: &inventory, holdings: &tried };
        let PartialGrant { mut grant, asks } = grant(&scene, pod, container)?;
        for ask in asks {
            grant.devices.insert(ask.resource.clone(), devices::choose_devices(&ask, &[]));
        }
        let own = tried.entry(pod.metadata.uid.clone()).or_default();
        own.insert(container.name.clone(), grant);
    }
    *holdings = tried;
    Ok(())
}

fn cpus_of(holdings: &Allocations, uid: &str, container: &str) -> String {
    holdings[uid][container].cpus.to_string()
}

#[test]
fn containers_get_their_own_and_the_rest_is_shared() {
    let rules = rules(TopologyPolicy::None, TopologyScope::Container);
    let mut holdings = Allocations::new();
    let pod = pod("a", vec![], vec![container("x", "2", "0"), container("y", "500m", "0")]);
    give(&rules, &mut holdings, &pod).expect("given");
    assert_eq!(cpus_of(&holdings, "a", "x"), "1,5");
    assert_eq!(cpus_of(&holdings, "a", "y"), "");
    assert_eq!(shared_cpus(&machine(), &holdings).to_string(), "0,2-4,6-7");
    holdings.remove("a");
    assert_eq!(shared_cpus(&machine(), &holdings).len(), 8);
}

#[test]
fn an_init_containers_share_is_used_again() {
    let rules = rules(TopologyPolicy::None, TopologyScope::Container);
    let mut holdings = Allocations::new();
    let pod = pod("a", vec![container("i", "4", "2")], vec![container("x", "5", "3")]);
    give(&rules, &mut holdings, &pod).expect("given");
    let [init, main] = ["i", "x"].map(|name| &holdings["a"][name]);
    assert!(init.cpus.is_within(&main.cpus) && main.cpus.len() == 5);
    assert!(init.devices["example.com/gpu"].is_subset(&main.devices["example.com/gpu"]));
    assert_eq!(main.devices["example.com/gpu"].len(), 3);
}

#[test]
fn everything_lies_on_one_node_or_the_pod_is_refused() {
    let single = rules(TopologyPolicy::SingleNode, TopologyScope::Container);
    let mut holdings = Allocations::new();
    let near = pod("a", vec![], vec![container("x", "2", "1")]);
    give(&single, &mut holdings, &near).expect("given");
    assert_eq!(cpus_of(&holdings, "a", "x"), "1,5");
    assert_eq!(holdings["a"]["x"].devices["example.com/gpu"], Ids::from(["g0".to_owned()]));
    let next = pod("b", vec![], vec![container("x", "2", "1")]);
    give(&single, &mut holdings, &next).expect("given");
    assert_eq!(cpus_of(&holdings, "b", "x"), "2,6");
    let wide = pod("c", vec![], vec![container("x", "3", "0")]);
    let refusal = give(&single, &mut holdings, &wide).expect_err("refused");
    assert_eq!(refusal.reason, "TopologyAffinityError");
    assert_eq!(refusal.message, "Resources cannot be allocated with Topology locality");
    assert!(!holdings.contains_key("c"), "a refused pod has nothing");
    let best = rules(TopologyPolicy::BestEffort, TopologyScope::Container);
    give(&best, &mut holdings, &wide).expect("given");
}

#[test]
fn pod_scope_aligns_the_containers_of_a_pod_on_one_numa_node() {
    let scoped = rules(TopologyPolicy::SingleNode, TopologyScope::Pod);
    let mut holdings = Allocations::new();
    let pair = pod("a", vec![], vec![container("x", "2", "0"), container("y", "2", "0")]);
    give(&scoped, &mut holdings, &pair).expect("given");
    let [x, y] = ["x", "y"].map(|name| cpus_of(&holdings, "a", name));
    assert_eq!([x.as_str(), y.as_str()], ["2,6", "3,7"], "node 0 has only three to give");
    let large = pod("b", vec![], vec![container("x", "2", "0"), container("y", "2", "0")]);
    assert!(give(&scoped, &mut holdings, &large).is_err());
}

#[test]
fn whole_cores_and_too_much() {
    let mut cores = rules(TopologyPolicy::None, TopologyScope::Container);
    cores.cpus.as_mut().expect("rules").unit = cpus::CpuUnit::Core;
    let odd = pod("a", vec![], vec![container("x", "3", "0")]);
    let refusal = give(&cores, &mut Allocations::new(), &odd).expect_err("refused");
    assert_eq!(refusal.reason, "SMTAlignmentError");
    let rules = rules(TopologyPolicy::None, TopologyScope::Container);
    let large = pod("a", vec![], vec![container("x", "8", "0")]);
    let refusal = give(&rules, &mut Allocations::new(), &large).expect_err("refused");
    assert_eq!(refusal.reason, "UnexpectedAdmissionError");
    let devices = pod("a", vec![], vec![container("x", "1", "4")]);
    let refusal = give(&rules, &mut Allocations::new(), &devices).expect_err("refused");
    assert_eq!(
        refusal.message,
        "Allocate failed due to requested number of devices unavailable for example.com/gpu. \
         Requested: 4, Available: 3, which is unexpected"
    );
}

proptest! {
    /// In any sequence, no CPU or device belongs to two pods, and reserved CPUs to none.
    #[test]
    fn nothing_is_given_twice(
        steps in prop::collection::vec((0_u8..6, 1_u8..5, 0_u8..3, any::<bool>()), 1..30),
        policy in prop::sample::select(vec![TopologyPolicy::None, TopologyPolicy::BestEffort, TopologyPolicy::SingleNode]),
    ) {
        let rules = rules(policy, TopologyScope::Container);
        let mut holdings = Allocations::new();
        for (uid, cpus, gpus, leave) in steps {
            let uid = format!("p{uid}");
            if leave || holdings.contains_key(&uid) {
                holdings.remove(&uid);
                continue;
            }
            let (cpus, gpus) = (cpus.to_string(), gpus.to_string());
            let pod = pod(&uid, vec![], vec![container("x", &cpus, &gpus)]);
            let _ = give(&rules, &mut holdings, &pod);
            let all: Vec<u32> = holdings.values().flat_map(|g| g["x"].cpus.iter()).collect();
            let unique: IdSet = all.iter().copied().collect();
            prop_assert_eq!(all.len(), unique.len());
            prop_assert!(!unique.contains(0));
            let devices: Vec<&String> =
                holdings.values().flat_map(|g| g["x"].devices.values().flatten()).collect();
            let unique: std::collections::BTreeSet<_> = devices.iter().collect();
            prop_assert_eq!(devices.len(), unique.len());
        }
    }
}
