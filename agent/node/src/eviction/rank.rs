//! Eviction order: pods above their requests first, then by lower priority, then by usage above requests.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::cmp::Reverse;

use proto_api::Quantity;
use proto_api::core::v1::Pod;

use super::Signal;
use crate::priority::{is_critical, priority};
use crate::resources::{EPHEMERAL_STORAGE, MEMORY, requests};

/// Usage of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUse {
    /// Name of the container.
    pub name: String,
    /// Memory working set in bytes.
    pub memory: u64,
    /// Bytes of the writable layer.
    pub layer: u64,
    /// Bytes of its logs.
    pub logs: u64,
}

/// Usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUse {
    /// Memory working set in bytes.
    pub memory: u64,
    /// Bytes of local volumes.
    pub volumes: u64,
    /// Inodes of volumes, logs and writable layers.
    pub inodes: u64,
    /// Number of processes and threads.
    pub tasks: u64,
    pub containers: Vec<ContainerUse>,
}

impl PodUse {
    /// Total bytes on disk.
    pub fn disk(&self) -> u64 {
        let own = |c: &ContainerUse| c.layer.saturating_add(c.logs);
        self.containers.iter().map(own).fold(self.volumes, u64::saturating_add)
    }
}

/// A pod that may be evicted.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a Pod,
    /// Whether it is a static pod.
    pub is_static: bool,
    /// Its usage; `None` if unknown, which ranks as the highest.
    pub uses: Option<PodUse>,
}

/// Candidates in eviction order for a shortage of `signal`, without critical pods.
pub fn eviction_order<'a, 'b>(
    candidates: &'b [Candidate<'a>],
    signal: Signal,
) -> Vec<&'b Candidate<'a>> {
    let mut order: Vec<&Candidate<'_>> =
        candidates.iter().filter(|c| !is_critical(c.pod, c.is_static)).collect();
    order.sort_by_cached_key(|c| {
        let requested = |resource: &str| {
            requests(c.pod).get(resource).map_or(0, |quantity| quantity.as_bytes())
        };
        // Whether usage exceeds the request, and by how much.
        let (exceeds, amount) = match (&c.uses, signal) {
            (None, _) => (true, i128::MAX),
            (Some(uses), Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable) => {
                let asked = requested(MEMORY);
                (uses.memory > asked, difference(uses.memory, asked))
            }
            (Some(uses), Signal::NodefsAvailable | Signal::ImagefsAvailable) => {
                let asked = requested(EPHEMERAL_STORAGE);
                (uses.disk() > asked, difference(uses.disk(), asked))
            }
            // Inodes cannot be requested, so any use exceeds the request; a pod without inodes frees none.
            (Some(uses), Signal::NodefsInodesFree | Signal::ImagefsInodesFree) => {
                (uses.inodes > 0, i128::from(uses.inodes))
            }
            // Process ids cannot be requested, and every pod has some.
            (Some(uses), Signal::PidAvailable) => (false, i128::from(uses.tasks)),
        };
        (Reverse(exceeds), priority(c.pod), Reverse(amount), c.pod.metadata.uid.clone())
    });
    order
}

/// Message of an evicted pod, as the kubelet writes it.
pub fn eviction_message(candidate: &Candidate<'_>, signal: Signal) -> String {
    let resource = signal.resource();
    let mut message = format!("The node was low on resource: {resource}. ");
    let Some(uses) = &candidate.uses else { return message };
    for container in &uses.containers {
        let used = match resource {
            MEMORY => container.memory,
            EPHEMERAL_STORAGE => container.layer.saturating_add(container.logs),
            _ => continue,
        };
        let spec = candidate.pod.spec.containers.iter().find(|c| c.name == container.name);
        let asked = spec.and_then(|c| c.resources.requests.get(resource)).copied();
        let asked = asked.unwrap_or_default();
        if used > asked.as_bytes() {
            let name = &container.name;
            message.push_str(&format!(
                "Container {name} was using {}, which exceeds its request of {asked}. ",
                kibibytes(used)
            ));
        }
    }
    message
}

/// An amount in messages: whole kibibytes.
pub fn kibibytes(bytes: u64) -> Quantity {
    Quantity::from_bytes(
        i64::try_from(bytes.div_ceil(1024).saturating_mul(1024)).unwrap_or(i64::MAX),
    )
}

/// Usage above the request, negative if below; cannot overflow.
fn difference(used: u64, asked: u64) -> i128 {
    i128::from(used).saturating_sub(i128::from(asked))
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::Container;

    use super::*;

    fn pod(name: &str, priority: i32, memory: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = name.into();
        pod.metadata.uid = name.into();
        pod.spec.priority = Some(priority);
        let mut container = Container { name: "c".into(), ..Container::default() };
        if !memory.is_empty() {
            let amount: Quantity = memory.parse().expect("quantity");
            container.resources.requests.insert("memory".into(), amount);
        }
        pod.spec.containers = vec![container];
        pod
    }

    fn names(all: &[Candidate<'_>], signal: Signal) -> Vec<String> {
        eviction_order(all, signal).into_iter().map(|c| c.pod.metadata.name.clone()).collect()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory() {
        let pods = [
            (pod("within", 0, "200Mi"), 100 * MIB),
            (pod("over-a-little", 0, "100Mi"), 110 * MIB),
            (pod("over-much", 0, ""), 90 * MIB),
            (pod("over-important", 1000, ""), 500 * MIB),
            (pod("within-unimportant", -10, "200Mi"), 10 * MIB),
            (pod("critical", 2_000_000_000, ""), 900 * MIB),
            (pod("manifest", 0, ""), 900 * MIB),
        ];
        let all: Vec<Candidate<'_>> = pods
            .iter()
            .map(|(pod, memory)| Candidate {
                pod,
                is_static: pod.metadata.name == "manifest",
                uses: Some(PodUse { memory: *memory, ..PodUse::default() }),
            })
            .collect();
        let expect =
            ["over-much", "over-a-little", "over-important", "within-unimportant", "within"];
        assert_eq!(names(&all, Signal::MemoryAvailable), expect);
    }

    #[test]
    fn disk_and_pids_and_the_unknown() {
        let (a, b, c) = (pod("a", 0, ""), pod("b", 0, ""), pod("c", 0, ""));
        let layer = |bytes| ContainerUse { name: "c".into(), layer: bytes, ..Default::default() };
        let uses = |volumes, layers, tasks| {
            Some(PodUse { volumes, tasks, containers: vec![layer(layers)], ..PodUse::default() })
        };
        let all = [
            Candidate { pod: &a, is_static: false, uses: uses(5, 10, 3) },
            Candidate { pod: &b, is_static: false, uses: uses(20, 0, 2) },
            Candidate { pod: &c, is_static: false, uses: None },
        ];
        assert_eq!(names(&all, Signal::ImagefsAvailable), ["c", "b", "a"]);
        assert_eq!(names(&all, Signal::PidAvailable), ["c", "a", "b"]);
    }

    #[test]
    fn pods_without_inodes_are_ranked_last() {
        let (idle, busy, system) =
            (pod("idle", -5, ""), pod("busy", 10, ""), pod("busier", 20, ""));
        let candidate = |pod, inodes| Candidate {
            pod,
            is_static: false,
            uses: Some(PodUse { inodes, ..PodUse::default() }),
        };
        let all = [candidate(&idle, 0), candidate(&busy, 100), candidate(&system, 900)];
        assert_eq!(names(&all, Signal::NodefsInodesFree), ["busy", "busier", "idle"]);
    }

    #[test]
    fn the_eviction_message_names_containers_that_exceed_their_requests() {
        let pod = pod("p", 0, "1Mi");
        let containers =
            vec![ContainerUse { name: "c".into(), memory: 3 * MIB + 1, ..Default::default() }];
        let uses = Some(PodUse { memory: 3 * MIB, containers, ..PodUse::default() });
        let candidate = Candidate { pod: &pod, is_static: false, uses };
        assert_eq!(
            eviction_message(&candidate, Signal::MemoryAvailable),
            "The node was low on resource: memory. Container c was using 3073Ki, which exceeds its \
             request of 1Mi. "
        );
        assert_eq!(
            eviction_message(&candidate, Signal::PidAvailable),
            "The node was low on resource: pids. "
        );
    }
}
