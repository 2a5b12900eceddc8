//! Rules of the CPU, memory and topology managers, from the configuration and the machine. Pure.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use agent_config::FileConfig;
use agent_node::managers::topology::{MachineTopology, NODES_MAX, TopologyPolicy, TopologyScope};
use agent_node::managers::{IdSet, ManagerRules, cpus, memory};
use agent_node::resources::{self, Amounts, CPU, MEMORY};
use proto_daemon::config::FieldError;

/// CPU manager option to allocate whole cores only.
const FULL_CORES: &str = "full-pcpus-only";

/// `evicted_below` is the memory in bytes that eviction keeps free.
///
/// # Errors
/// A setting that does not fit the machine, with its field.
pub fn rules(
    file: &FileConfig,
    machine: &MachineTopology,
    evicted_below: u64,
) -> Result<ManagerRules, FieldError> {
    let mut reserved = Amounts::new();
    resources::add(&mut reserved, &file.system_reserved);
    resources::add(&mut reserved, &file.kube_reserved);
    let bad_policy = |why: String| FieldError::new("topologyManagerPolicy", why);
    let policy = TopologyPolicy::parse(&file.topology_manager_policy)
        .ok_or_else(|| bad_policy(format!("{:?}", file.topology_manager_policy)))?;
    if policy != TopologyPolicy::None && machine.nodes().len() > NODES_MAX {
        return Err(bad_policy(format!("more than {NODES_MAX} NUMA nodes")));
    }
    let is_static = |policy: &str| policy.eq_ignore_ascii_case("static");
    Ok(ManagerRules {
        cpus: match is_static(&file.cpu_manager_policy) {
            true => Some(cpu_rules(file, machine, &reserved)?),
            false => None,
        },
        memory: match is_static(&file.memory_manager_policy) {
            true => Some(memory_rules(file, &reserved, evicted_below)?),
            false => None,
        },
        policy,
        scope: if file.topology_manager_scope == "pod" {
            TopologyScope::Pod
        } else {
            TopologyScope::Container
        },
    })
}

fn cpu_rules(
    file: &FileConfig,
    machine: &MachineTopology,
    reserved: &Amounts,
) -> Result<cpus::CpuRules, FieldError> {
    let mut unit = cpus::CpuUnit::Thread;
    for (option, value) in &file.cpu_manager_policy_options {
        match (option.as_str(), value.as_str()) {
            (FULL_CORES, "true") => unit = cpus::CpuUnit::Core,
            (FULL_CORES, "false") => {}
            _ => {
                let path = format!("cpuManagerPolicyOptions.{option}");
                return Err(FieldError::new(path, format!("{value:?} is not supported")));
            }
        }
    }
    let given = || {
        let milli = reserved.get(CPU).map_or(0, |q| q.as_milli());
        let number = usize::try_from(milli).unwrap_or(0).div_ceil(1000);
        (number > 0).then(|| cpus::choose_reserved(machine, number)).flatten()
    };
    let bad_set = |why: String| FieldError::new("reservedSystemCPUs", why);
    let set = match file.reserved_system_cpus.as_str() {
        "" => given(),
        text => Some(text.parse::<IdSet>().map_err(|error| bad_set(error.to_string()))?),
    };
    let all: IdSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    match set.filter(|set| !set.is_empty()) {
        Some(reserved) if reserved.is_within(&all) => Ok(cpus::CpuRules { reserved, unit }),
        Some(reserved) => Err(bad_set(format!("{reserved} is not within the machine's {all}"))),
        None => Err(FieldError::new(
            "cpuManagerPolicy",
            "the static policy requires systemReserved.cpu + kubeReserved.cpu to be greater than zero",
        )),
    }
}

/// The sum of reservations per NUMA node must match the total reservation, with which the scheduler
/// counts.
fn memory_rules(
    file: &FileConfig,
    reserved: &Amounts,
    evicted_below: u64,
) -> Result<memory::MemoryRules, FieldError> {
    let mut by_node: BTreeMap<u32, memory::Sizes> = BTreeMap::new();
    let mut sums = memory::Sizes::new();
    for part in &file.reserved_memory {
        let node = u32::try_from(part.numa_node)
            .map_err(|_| FieldError::new("reservedMemory.numaNode", part.numa_node.to_string()))?;
        for (name, amount) in &part.limits {
            by_node.entry(node).or_default().insert(name.clone(), amount.as_bytes());
            let sum = sums.entry(name.clone()).or_default();
            *sum = sum.saturating_add(amount.as_bytes());
        }
    }
    let memory = reserved.get(MEMORY).map_or(0, |q| q.as_bytes()).saturating_add(evicted_below);
    let given = sums.get(MEMORY).copied().unwrap_or(0);
    if given != memory {
        return Err(FieldError::new(
            "reservedMemory",
            format!(
                "the total amount {given} of type \"memory\" is not equal to the value {memory} \
                 determined by Node Allocatable feature"
            ),
        ));
    }
    Ok(memory::MemoryRules { reserved: by_node })
}

#[cfg(test)]
mod tests {
    use agent_config::file::ReservedMemory;
    use agent_node::managers::topology::Cpu;

    use super::*;

    fn machine() -> MachineTopology {
        let cpu = |id| Cpu { id, core: id % 2, socket: 0, node: 0 };
        MachineTopology { cpus: (0..4).map(cpu).collect(), memory: BTreeMap::new() }
    }

    fn file() -> FileConfig {
        FileConfig { cpu_manager_policy: "static".into(), ..FileConfig::default() }
    }

    #[test]
    fn nothing_is_managed_by_default() {
        assert_eq!(rules(&FileConfig::default(), &machine(), 0), Ok(ManagerRules::default()));
    }

    #[test]
    fn processors_are_kept_back() {
        let refused = |file: &FileConfig| rules(file, &machine(), 0).expect_err("refused").path;
        assert_eq!(refused(&file()), "cpuManagerPolicy");
        let mut by_amount = file();
        by_amount.kube_reserved.insert("cpu".into(), "1500m".parse().expect("quantity"));
        let got = rules(&by_amount, &machine(), 0).expect("rules").cpus.expect("managed");
        assert_eq!(got.reserved.to_string(), "0,2");
        let mut by_name = FileConfig { reserved_system_cpus: "3".into(), ..file() };
        by_name.cpu_manager_policy_options.insert(FULL_CORES.into(), "true".into());
        let got = rules(&by_name, &machine(), 0).expect("rules").cpus.expect("managed");
        assert_eq!((got.reserved.to_string(), got.unit), ("3".into(), cpus::CpuUnit::Core));
        for wrong in ["9", "x"] {
            let file = FileConfig { reserved_system_cpus: wrong.into(), ..file() };
            assert_eq!(refused(&file), "reservedSystemCPUs");
        }
        by_name.cpu_manager_policy_options.insert("align-by-socket".into(), "true".into());
        assert!(
            rules(&by_name, &machine(), 0).is_err(),
            "an option that is not there is no option"
        );
    }

    #[test]
    fn memory_adds_up() {
        let mut file =
            FileConfig { memory_manager_policy: "Static".into(), ..FileConfig::default() };
        file.system_reserved.insert("memory".into(), "1Gi".parse().expect("quantity"));
        assert!(rules(&file, &machine(), 0).is_err());
        let limits = [("memory".to_owned(), "1124Mi".parse().expect("quantity"))].into();
        file.reserved_memory = vec![ReservedMemory { numa_node: 0, limits }];
        let got = rules(&file, &machine(), 100 << 20).expect("rules").memory.expect("managed");
        assert_eq!(got.reserved[&0]["memory"], 1124 << 20);
    }
}
