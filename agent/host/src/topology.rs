//! CPU and memory topology from /sys/devices/system.

use std::collections::BTreeMap;
use std::path::Path;

use agent_node::managers::IdSet;
use agent_node::managers::topology::{Cpu, MachineTopology};
use agent_node::resources::{MEMORY, huge_page_resource};

use crate::machine::huge_pages;

/// CPUs and memory by NUMA node. Unknown values are omitted; without NUMA there is one node, 0, with `memory_bytes`.
#[must_use]
pub fn read_machine(memory_bytes: u64) -> MachineTopology {
    read(Path::new("/sys/devices/system"), memory_bytes)
}

fn read(root: &Path, memory_bytes: u64) -> MachineTopology {
    let nodes = set(&root.join("node/online")).filter(|nodes| !nodes.is_empty());
    let nodes = nodes.unwrap_or_else(|| IdSet::from_iter([0]));
    let of_node: BTreeMap<u32, IdSet> = nodes
        .iter()
        .filter_map(|node| Some((node, set(&root.join(format!("node/node{node}/cpulist")))?)))
        .collect();
    let node_of = |cpu| {
        let found = of_node.iter().find(|(_, cpus)| cpus.contains(cpu));
        found.map_or(0, |(node, _)| *node)
    };
    let online = set(&root.join("cpu/online")).unwrap_or_default();
    let number = |cpu: u32, file: &str| -> Option<u32> {
        text(&root.join(format!("cpu/cpu{cpu}/topology/{file}")))?.parse().ok()
    };
    let mut cores: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut cpus = Vec::new();
    for id in online.iter() {
        let socket = number(id, "physical_package_id").unwrap_or(0);
        // Core ids repeat between sockets; a core is identified by its first CPU.
        let core = number(id, "core_id").unwrap_or(id);
        let core = *cores.entry((socket, core)).or_insert(id);
        cpus.push(Cpu { id, core, socket, node: node_of(id) });
    }
    let whole = nodes.len() == 1;
    let memory = nodes.iter().map(|node| {
        let of_node = root.join(format!("node/node{node}"));
        let bytes = mem_total(&of_node.join("meminfo")).filter(|_| !whole).unwrap_or(memory_bytes);
        let pages = huge_pages(&of_node.join("hugepages"));
        let set_aside: u64 = pages.values().sum();
        let mut sizes: BTreeMap<String, u64> =
            pages.into_iter().map(|(size, bytes)| (huge_page_resource(size), bytes)).collect();
        sizes.insert(MEMORY.to_owned(), bytes.saturating_sub(set_aside));
        (node, sizes)
    });
    MachineTopology { memory: memory.collect(), cpus }
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn set(path: &Path) -> Option<IdSet> {
    text(path)?.parse().ok()
}

/// Parses `Node 0 MemTotal:  16384 kB`.
fn mem_total(path: &Path) -> Option<u64> {
    let text = text(path)?;
    let line = text.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn two_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "node/online", "0-1\n");
        write(root, "cpu/online", "0-3\n");
        for (node, cpus, kib) in [(0, "0,2", 1024), (1, "1,3", 2048)] {
            write(root, &format!("node/node{node}/cpulist"), cpus);
            let line = format!("Node {node} MemTotal:       {kib} kB\n");
            write(root, &format!("node/node{node}/meminfo"), &line);
        }
        write(root, "node/node1/hugepages/hugepages-256kB/nr_hugepages", "2\n");
        for cpu in 0..4 {
            write(root, &format!("cpu/cpu{cpu}/topology/core_id"), "0");
            let socket = (cpu % 2).to_string();
            write(root, &format!("cpu/cpu{cpu}/topology/physical_package_id"), &socket);
        }
        let machine = read(root, 1);
        let shown: Vec<_> = machine.cpus.iter().map(|c| (c.id, c.core, c.socket, c.node)).collect();
        assert_eq!(shown, [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 0, 0), (3, 1, 1, 1)]);
        assert_eq!(machine.memory[&0]["memory"], 1 << 20);
        assert_eq!(machine.memory[&1]["memory"], (2 << 20) - (512 << 10));
        assert_eq!(machine.memory[&1]["hugepages-256Ki"], 512 << 10);
    }

    #[test]
    fn a_machine_without_nodes_has_one() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "cpu/online", "0-1");
        let machine = read(dir.path(), 7);
        assert_eq!(machine.nodes().to_string(), "0");
        assert_eq!((machine.cpus.len(), machine.memory[&0]["memory"]), (2, 7));
    }

    #[test]
    fn this_machine_has_processors_and_memory() {
        let machine = read_machine(1 << 30);
        assert!(!machine.cpus.is_empty());
        assert!(machine.memory.values().any(|sizes| sizes["memory"] > 0));
    }
}
