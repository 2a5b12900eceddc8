//! Usage of node, pods and containers, as `/stats/summary` tells it. Pure.

use proto_api::Time;
use serde_json::{Map, Value, json};

/// CPU and memory, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// When it was measured, nanoseconds since 1970.
    pub at_nanos: i64,
    /// CPU time since the start, nanoseconds.
    pub cpu_nanos: u64,
    /// CPU time a second lately, nanoseconds; when it is known.
    pub cpu_nanos_per_sec: Option<u64>,
    /// All memory charged, bytes.
    pub memory_bytes: u64,
    /// Memory that cannot be taken back at once, bytes.
    pub working_set_bytes: u64,
    /// Anonymous memory, bytes.
    pub rss_bytes: u64,
    /// The limit, or what the machine has, less the working set; when there is a limit.
    pub available_bytes: Option<u64>,
}

/// Use of a file system, bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Size of the file system.
    pub capacity_bytes: u64,
    /// Free to anybody.
    pub available_bytes: u64,
    /// Used by what it is about.
    pub used_bytes: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Inodes used by what it is about.
    pub inodes_used: u64,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStats {
    /// Its name in the pod.
    pub name: String,
    /// When it was started, seconds since 1970.
    pub started: i64,
    /// CPU and memory.
    pub usage: Usage,
    /// Its writable layer.
    pub rootfs: Option<FsUsage>,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodStats {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// When it was started, seconds since 1970.
    pub started: i64,
    /// CPU and memory of the whole pod, when its cgroup could be read.
    pub usage: Option<Usage>,
    /// Its containers.
    pub containers: Vec<ContainerStats>,
}

/// The node and everything on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Name of the node.
    pub name: String,
    /// When the machine was started, seconds since 1970.
    pub booted: i64,
    /// CPU and memory of the whole machine.
    pub usage: Usage,
    /// The file system with the agent's root directory.
    pub fs: Option<FsUsage>,
    /// The pods.
    pub pods: Vec<PodStats>,
}

/// How much of the summary is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Full,
    /// `?only_cpu_and_memory=true`.
    CpuAndMemory,
}

/// The body of `/stats/summary`.
pub fn summary(stats: &NodeStats, extent: Extent) -> Value {
    let mut node = object([("nodeName", json!(stats.name)), ("startTime", time(stats.booted))]);
    put_usage(&mut node, &stats.usage);
    put_fs(&mut node, "fs", stats.fs.as_ref(), stats.usage.at_nanos, extent);
    json!({"node": node, "pods": stats.pods.iter().map(|stats| pod(stats, extent)).collect::<Vec<_>>()})
}

fn pod(stats: &PodStats, extent: Extent) -> Value {
    let reference = json!({"name": stats.name, "namespace": stats.namespace, "uid": stats.uid});
    let containers: Vec<_> =
        stats.containers.iter().map(|stats| container(stats, extent)).collect();
    let mut pod = object([
        ("podRef", reference),
        ("startTime", time(stats.started)),
        ("containers", json!(containers)),
    ]);
    if let Some(usage) = &stats.usage {
        put_usage(&mut pod, usage);
    }
    Value::Object(pod)
}

fn container(stats: &ContainerStats, extent: Extent) -> Value {
    let mut container = object([("name", json!(stats.name)), ("startTime", time(stats.started))]);
    put_usage(&mut container, &stats.usage);
    put_fs(&mut container, "rootfs", stats.rootfs.as_ref(), stats.usage.at_nanos, extent);
    Value::Object(container)
}

fn put_usage(into: &mut Map<String, Value>, usage: &Usage) {
    let at = time(usage.at_nanos.div_euclid(1_000_000_000));
    let mut cpu = object([("time", at.clone())]);
    if let Some(rate) = usage.cpu_nanos_per_sec {
        cpu.insert("usageNanoCores".to_owned(), json!(rate));
    }
    cpu.insert("usageCoreNanoSeconds".to_owned(), json!(usage.cpu_nanos));
    let mut memory = object([("time", at)]);
    if let Some(available) = usage.available_bytes {
        memory.insert("availableBytes".to_owned(), json!(available));
    }
    memory.insert("usageBytes".to_owned(), json!(usage.memory_bytes));
    memory.insert("workingSetBytes".to_owned(), json!(usage.working_set_bytes));
    memory.insert("rssBytes".to_owned(), json!(usage.rss_bytes));
    into.insert("cpu".to_owned(), Value::Object(cpu));
    into.insert("memory".to_owned(), Value::Object(memory));
}

fn put_fs(
    into: &mut Map<String, Value>,
    name: &str,
    fs: Option<&FsUsage>,
    at_nanos: i64,
    extent: Extent,
) {
    let (Some(fs), Extent::Full) = (fs, extent) else { return };
    let value = json!({
        "time": time(at_nanos.div_euclid(1_000_000_000)),
        "availableBytes": fs.available_bytes, "capacityBytes": fs.capacity_bytes, "usedBytes": fs.used_bytes,
        "inodesFree": fs.inodes_free, "inodes": fs.inodes, "inodesUsed": fs.inodes_used,
    });
    into.insert(name.to_owned(), value);
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn time(unix: i64) -> Value {
    json!(Time::from_unix(unix).to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn sample() -> NodeStats {
        let usage = Usage {
            at_nanos: 1_500_000_000_250_000_000,
            cpu_nanos: 2_500_000_000,
            cpu_nanos_per_sec: Some(7),
            memory_bytes: 30,
            working_set_bytes: 20,
            rss_bytes: 10,
            available_bytes: None,
        };
        let container = ContainerStats {
            name: "c".into(),
            started: 1_499_999_999,
            usage: usage.clone(),
            rootfs: Some(FsUsage { used_bytes: 5, ..FsUsage::default() }),
        };
        let pod = PodStats {
            namespace: "a".into(),
            name: "web".into(),
            uid: "u".into(),
            started: 1_499_999_998,
            usage: Some(usage.clone()),
            containers: vec![container],
        };
        NodeStats { name: "n1".into(), booted: 1_400_000_000, usage, fs: None, pods: vec![pod] }
    }

    #[test]
    fn the_summary_has_the_fields_that_people_scrape() {
        let summary = summary(&sample(), Extent::Full);
        let usage = json!({"time": "2017-07-14T02:40:00Z", "usageNanoCores": 7, "usageCoreNanoSeconds": 2_500_000_000_u64});
        assert_eq!(summary["node"]["nodeName"], "n1");
        assert_eq!(summary["node"]["cpu"], usage);
        let pod = &summary["pods"][0];
        assert_eq!(pod["podRef"], json!({"name": "web", "namespace": "a", "uid": "u"}));
        let memory = json!({"time": "2017-07-14T02:40:00Z", "usageBytes": 30, "workingSetBytes": 20, "rssBytes": 10});
        assert_eq!(pod["containers"][0]["memory"], memory);
        assert_eq!(pod["containers"][0]["rootfs"]["usedBytes"], 5);
        assert_eq!(
            super::summary(&sample(), Extent::CpuAndMemory)["pods"][0]["containers"][0]
                .get("rootfs"),
            None
        );
    }
}
