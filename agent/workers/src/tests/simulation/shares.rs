//! Processors: what pods ask for together fits, and what one container has for itself no other has (invariant 20).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_devices::Plugins;
use agent_journal::Journal;
use agent_node::managers::topology::{Cpu, MachineTopology};
use agent_node::managers::{IdSet, ManagerRules, cpus};
use agent_resources::allocator::Allocator;
use proto_api::core::v1::Pod;
use proto_api::names::Names;

use super::runtime::Troubled;
use super::world::{World, lock};
use crate::pod_context::PodContext;
use crate::test_support::metrics;

/// Processors of the machine, the first of which nobody gets for itself.
const CPUS: u32 = 8;
/// What pods may ask for together, in thousandths: less than the processors that could be given away, so that it is admission that keeps
/// to it.
const ALLOCATABLE: i64 = 4000;

/// Has the agent give processors to its pods.
pub fn give_to(parts: &mut PodContext, journal: Journal) -> Arc<Allocator> {
    let allocator = allocator(journal);
    parts.environment.allocator = Some(allocator.clone());
    let node = parts.pods.node.get_mut().expect("lock");
    for (name, amount) in [("cpu", format!("{ALLOCATABLE}m")), ("memory", "8Gi".into())] {
        node.status.allocatable.insert(name.into(), amount.parse().expect("quantity"));
    }
    allocator
}

/// The agent's managers, with what the journal remembers.
pub fn allocator(journal: Journal) -> Arc<Allocator> {
    let cpu = |id| Cpu { id, core: id, socket: 0, node: 0 };
    let machine = MachineTopology { cpus: (0..CPUS).map(cpu).collect(), memory: BTreeMap::new() };
    let reserved = "0".parse().expect("set");
    let rules = ManagerRules {
        cpus: Some(cpus::CpuRules { reserved, unit: cpus::CpuUnit::Thread }),
        ..ManagerRules::default()
    };
    let plugins = Plugins::new("/nonexistent".into(), <&Names>::default(), []);
    Arc::new(Allocator::new(rules, machine, plugins, journal, metrics().operations))
}

/// Processors that a container of the pod is to have for itself. The pods here ask for one or for none.
fn own(pod: &Pod, name: &str) -> usize {
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let whole = |limit: &proto_api::Quantity| limit.as_milli() == 1000;
    let found = all.clone().find(|c| c.name == name);
    usize::from(found.is_some_and(|c| c.resources.limits.get("cpu").is_some_and(whole)))
}

/// What the pod asks for while its containers run, in thousandths.
fn asked(pod: &Pod) -> i64 {
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy.is_some());
    let all = sidecars.chain(&pod.spec.containers);
    all.filter_map(|c| c.resources.requests.get("cpu")).map(|cpu| cpu.as_milli()).sum()
}

/// Looks at everything that runs.
pub fn judge(runtime: &Troubled) {
    let running = runtime.running();
    let mut world = lock(&runtime.world);
    // As in Kubernetes, a static pod starts before the requests of the API server's pods are known.
    let counts = |uid: &&String| world.books.get(*uid).is_some_and(|book| !book.unheard);
    let pods: BTreeSet<&String> = running.iter().map(|(uid, _)| uid).filter(counts).collect();
    let together: i64 =
        pods.iter().filter_map(|uid| world.books.get(*uid)).map(|book| asked(&book.pod)).sum();
    if together > ALLOCATABLE {
        world.broken(format!("{pods:?} ask for {together} thousandths of {ALLOCATABLE}"));
    }
    let mut taken = IdSet::default();
    for (uid, container) in &running {
        let Some(wanted) = world.books.get(uid).map(|book| own(&book.pod, &container.name)) else {
            continue;
        };
        if wanted == 0 {
            continue;
        }
        let has = given(runtime, &container.id);
        let (is, free) = (has.len(), has.without(&taken).len());
        let reserved = has.iter().any(|id| id == 0);
        if is != wanted || free != wanted || reserved {
            let name = &container.name;
            world.broken(format!("{name} of {uid} has {has} for itself, and others have {taken}"));
        }
        taken = taken.or(&has);
    }
}

/// Once nothing changes any more, everybody else has left what one has for itself.
pub fn judge_settled(runtime: &Troubled) {
    let running = runtime.running();
    let mut world = lock(&runtime.world);
    let has = |wanted: usize, world: &World| -> Vec<(String, IdSet)> {
        let is = |(uid, name): (&String, &str)| {
            world.books.get(uid).is_some_and(|book| own(&book.pod, name) == wanted)
        };
        let of = running.iter().filter(|(uid, c)| is((uid, &c.name)));
        of.map(|(_, c)| (c.id.clone(), given(runtime, &c.id))).collect()
    };
    let taken = has(1, &world).into_iter().fold(IdSet::default(), |all, (_, set)| all.or(&set));
    for (id, set) in has(0, &world) {
        if !set.and(&taken).is_empty() {
            world.broken(format!("{id} still runs on {set}, of which others have {taken}"));
        }
    }
}

fn given(runtime: &Troubled, id: &str) -> IdSet {
    runtime.inner.resources(id).cpuset_cpus.parse().unwrap_or_default()
}
