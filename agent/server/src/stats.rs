//! Usage of node, pods and containers, and its form at `/stats/summary`. Pure.

use agent_host::cgroup_stats::CgroupStats;
use agent_host::net_counters::InterfaceCounters;
use agent_interfaces::VolumeFill;
use proto_api::Time;
use serde_json::{Map, Value, json};

/// CPU and memory usage at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// When it was measured, nanoseconds since 1970.
    pub at_nanos: i64,
    /// CPU time since the start, nanoseconds.
    pub cpu_nanos: u64,
    /// Recent CPU time per second in nanoseconds, if known.
    pub cpu_nanos_per_sec: Option<u64>,
    /// Charged memory in bytes.
    pub memory_bytes: u64,
    /// Memory that cannot be reclaimed at once, in bytes.
    pub working_set_bytes: u64,
    /// Anonymous memory, bytes.
    pub rss_bytes: u64,
    /// The limit or the machine's memory less the working set, if there is a limit.
    pub available_bytes: Option<u64>,
    /// Minor and major page faults, if counted.
    pub page_faults: Option<(u64, u64)>,
}

/// Usage of a file system in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Size of the file system.
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub used_bytes: u64,
    /// Total inodes.
    pub inodes: u64,
    pub inodes_free: u64,
    pub inodes_used: u64,
}

/// A cgroup with the kernel's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Its path.
    pub place: String,
    /// Statistics.
    pub stats: CgroupStats,
}

/// An entry of `containers` in the stats summary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStats {
    /// Name in the pod.
    pub name: String,
    /// CRI id.
    pub id: String,
    pub image: String,
    /// When it was started, seconds since 1970.
    pub started: i64,
    /// CPU and memory.
    pub usage: Usage,
    /// Its writable layer.
    pub rootfs: Option<FsUsage>,
    pub logs: Option<FsUsage>,
    pub cgroup: Option<Counted>,
}

/// A volume of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Its name in the pod.
    pub name: String,
    /// The claim that it comes from.
    pub claim: Option<String>,
    /// Usage.
    pub fs: FsUsage,
    /// Whether it is a separate file system.
    pub own_fs: bool,
}

impl From<VolumeFill> for VolumeStats {
    fn from(fill: VolumeFill) -> Self {
        let ((capacity_bytes, used_bytes, available_bytes), (inodes, inodes_used, inodes_free)) =
            (fill.bytes, fill.inodes);
        let fs = FsUsage {
            capacity_bytes,
            available_bytes,
            used_bytes,
            inodes,
            inodes_free,
            inodes_used,
        };
        Self { name: fill.name, claim: fill.claim, fs, own_fs: true }
    }
}

/// An entry of `pods` in the stats summary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodStats {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// When it was started, seconds since 1970.
    pub started: i64,
    /// CPU and memory of the whole pod, if its cgroup could be read.
    pub usage: Option<Usage>,
    pub containers: Vec<ContainerStats>,
    /// Interfaces of its network namespace.
    pub network: Vec<InterfaceCounters>,
    pub volumes: Vec<VolumeStats>,
    /// Usage of the node's disk.
    pub ephemeral: Option<FsUsage>,
    pub cgroup: Option<Counted>,
}

/// A system container: the pods as a whole, or a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemStats {
    /// `pods`, or the name of a program.
    pub name: String,
    /// When it was started, seconds since 1970.
    pub started: i64,
    /// CPU and memory.
    pub usage: Usage,
    /// Its cgroup, if it has a separate one.
    pub cgroup: Option<Counted>,
}

/// Usage of the node and of its pods, measured together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Name of the node.
    pub name: String,
    /// When the machine was started, seconds since 1970.
    pub booted: i64,
    /// CPU and memory of the whole machine.
    pub usage: Usage,
    /// The root of the cgroup tree.
    pub cgroup: Option<Counted>,
    /// The file system with the agent's root directory.
    pub fs: Option<FsUsage>,
    /// The file system with the images.
    pub image_fs: Option<FsUsage>,
    /// The node's own interfaces.
    pub network: Vec<InterfaceCounters>,
    /// Processes and threads of the machine, and their limit.
    pub tasks: Option<(u64, u64)>,
    /// Processors, and bytes of memory.
    pub machine: (u32, u64),
    /// System containers.
    pub system: Vec<SystemStats>,
    pub pods: Vec<PodStats>,
}

/// The requested part of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryScope {
    /// Everything.
    Full,
    /// `?only_cpu_and_memory=true`.
    CpuAndMemory,
}

/// The body of `/stats/summary`.
pub fn summary(stats: &NodeStats, extent: SummaryScope) -> Value {
    let at = stats.usage.at_nanos;
    let mut node = object([("nodeName", json!(stats.name))]);
    let system: Vec<_> = stats.system.iter().map(part).collect();
    node.insert("systemContainers".to_owned(), json!(system));
    node.insert("startTime".to_owned(), time(stats.booted));
    put_usage(&mut node, &stats.usage);
    if extent == SummaryScope::Full {
        put_network(&mut node, &stats.network, at);
        put_fs(&mut node, "fs", stats.fs.as_ref(), at, extent);
        if let Some(images) = &stats.image_fs {
            node.insert("runtime".to_owned(), json!({"imageFs": fs_value(images, at)}));
        }
        if let Some((now, most)) = stats.tasks {
            node.insert(
                "rlimit".to_owned(),
                json!({"time": at_time(at), "maxpid": most, "curproc": now}),
            );
        }
    }
    let pods: Vec<_> = stats.pods.iter().map(|stats| pod(stats, at, extent)).collect();
    json!({"node": node, "pods": pods})
}

fn part(stats: &SystemStats) -> Value {
    let mut part = object([("name", json!(stats.name)), ("startTime", time(stats.started))]);
    put_usage(&mut part, &stats.usage);
    Value::Object(part)
}

fn pod(stats: &PodStats, at: i64, extent: SummaryScope) -> Value {
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
    if extent == SummaryScope::CpuAndMemory {
        return Value::Object(pod);
    }
    put_network(&mut pod, &stats.network, at);
    let volumes: Vec<_> = stats.volumes.iter().map(|stats2| volume(stats, stats2, at)).collect();
    if !volumes.is_empty() {
        pod.insert("volume".to_owned(), json!(volumes));
    }
    put_fs(&mut pod, "ephemeral-storage", stats.ephemeral.as_ref(), at, extent);
    if let Some(cgroup) = &stats.cgroup {
        pod.insert("process_stats".to_owned(), json!({"process_count": cgroup.stats.processes}));
    }
    Value::Object(pod)
}

fn volume(pod: &PodStats, stats: &VolumeStats, at: i64) -> Value {
    let mut value = fs_value(&stats.fs, at);
    if let Some(fields) = value.as_object_mut() {
        fields.insert("name".to_owned(), json!(stats.name));
        if let Some(claim) = &stats.claim {
            fields.insert("pvcRef".to_owned(), json!({"name": claim, "namespace": pod.namespace}));
        }
    }
    value
}

fn container(stats: &ContainerStats, extent: SummaryScope) -> Value {
    let mut container = object([("name", json!(stats.name)), ("startTime", time(stats.started))]);
    put_usage(&mut container, &stats.usage);
    put_fs(&mut container, "rootfs", stats.rootfs.as_ref(), stats.usage.at_nanos, extent);
    put_fs(&mut container, "logs", stats.logs.as_ref(), stats.usage.at_nanos, extent);
    Value::Object(container)
}

fn put_usage(into: &mut Map<String, Value>, usage: &Usage) {
    let at = at_time(usage.at_nanos);
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
    if let Some((faults, major)) = usage.page_faults {
        memory.insert("pageFaults".to_owned(), json!(faults));
        memory.insert("majorPageFaults".to_owned(), json!(major));
    }
    into.insert("cpu".to_owned(), Value::Object(cpu));
    into.insert("memory".to_owned(), Value::Object(memory));
}

/// The default interface is `eth0`, else the first one.
fn put_network(into: &mut Map<String, Value>, interfaces: &[InterfaceCounters], at: i64) {
    let fields = |interface: &InterfaceCounters| {
        let ([rx, _, rx_errors, _], [tx, _, tx_errors, _]) = (interface.received, interface.sent);
        object([
            ("name", json!(interface.name)),
            ("rxBytes", json!(rx)),
            ("rxErrors", json!(rx_errors)),
            ("txBytes", json!(tx)),
            ("txErrors", json!(tx_errors)),
        ])
    };
    let main = interfaces.iter().find(|interface| interface.name == "eth0").or(interfaces.first());
    let Some(main) = main else { return };
    let mut network = object([("time", at_time(at))]);
    network.extend(fields(main));
    let all: Vec<_> = interfaces.iter().map(fields).collect();
    network.insert("interfaces".to_owned(), json!(all));
    into.insert("network".to_owned(), Value::Object(network));
}

fn put_fs(
    into: &mut Map<String, Value>,
    name: &str,
    fs: Option<&FsUsage>,
    at_nanos: i64,
    extent: SummaryScope,
) {
    let (Some(fs), SummaryScope::Full) = (fs, extent) else { return };
    into.insert(name.to_owned(), fs_value(fs, at_nanos));
}

fn fs_value(fs: &FsUsage, at_nanos: i64) -> Value {
    json!({
        "time": at_time(at_nanos),
        "availableBytes": fs.available_bytes, "capacityBytes": fs.capacity_bytes, "usedBytes": fs.used_bytes,
        "inodesFree": fs.inodes_free, "inodes": fs.inodes, "inodesUsed": fs.inodes_used,
    })
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn at_time(nanos: i64) -> Value {
    time(nanos.div_euclid(1_000_000_000))
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
            page_faults: None,
        };
        let stats = CgroupStats {
            cpu_nanos: 2_500_000_000,
            memory_bytes: 30,
            processes: 3,
            ..CgroupStats::default()
        };
        let counted = |place: &str| Some(Counted { place: place.to_owned(), stats: stats.clone() });
        let container = ContainerStats {
            name: "c".into(),
            id: "id1".into(),
            image: "busybox:1".into(),
            started: 1_499_999_999,
            usage: usage.clone(),
            rootfs: Some(FsUsage { used_bytes: 5, ..FsUsage::default() }),
            logs: Some(FsUsage { used_bytes: 6, ..FsUsage::default() }),
            cgroup: counted("/kubepods/podu/id1"),
        };
        let eth0 =
            InterfaceCounters { name: "eth0".into(), received: [1, 2, 3, 4], sent: [5, 6, 7, 8] };
        let volume = |name: &str, claim: Option<&str>| VolumeStats {
            name: name.into(),
            claim: claim.map(str::to_owned),
            fs: FsUsage { used_bytes: 9, capacity_bytes: 100, ..FsUsage::default() },
            own_fs: claim.is_some(),
        };
        let pod = PodStats {
            namespace: "a".into(),
            name: "web".into(),
            uid: "u".into(),
            started: 1_499_999_998,
            usage: Some(usage.clone()),
            containers: vec![container],
            network: vec![eth0.clone()],
            volumes: vec![volume("tmp", None), volume("data", Some("data-web"))],
            ephemeral: Some(FsUsage { used_bytes: 20, ..FsUsage::default() }),
            cgroup: counted("/kubepods/podu"),
        };
        NodeStats {
            name: "n1".into(),
            booted: 1_400_000_000,
            usage: usage.clone(),
            cgroup: counted("/"),
            network: vec![eth0],
            tasks: Some((7, 100)),
            machine: (2, 1 << 30),
            system: vec![SystemStats {
                name: "pods".into(),
                started: 1,
                usage,
                cgroup: counted("/kubepods"),
            }],
            pods: vec![pod],
            ..NodeStats::default()
        }
    }

    #[test]
    fn the_summary_has_the_fields_that_people_scrape() {
        let summary = summary(&sample(), SummaryScope::Full);
        let usage = json!({"time": "2017-07-14T02:40:00Z", "usageNanoCores": 7, "usageCoreNanoSeconds": 2_500_000_000_u64});
        assert_eq!(summary["node"]["nodeName"], "n1");
        assert_eq!(summary["node"]["cpu"], usage);
        assert_eq!(summary["node"]["rlimit"]["curproc"], 7);
        assert_eq!(summary["node"]["systemContainers"][0]["name"], "pods");
        assert_eq!(summary["node"]["network"]["interfaces"][0]["txBytes"], 5);
        let pod = &summary["pods"][0];
        assert_eq!(pod["podRef"], json!({"name": "web", "namespace": "a", "uid": "u"}));
        let memory = json!({"time": "2017-07-14T02:40:00Z", "usageBytes": 30, "workingSetBytes": 20, "rssBytes": 10});
        assert_eq!(pod["containers"][0]["memory"], memory);
        assert_eq!(pod["containers"][0]["rootfs"]["usedBytes"], 5);
        assert_eq!(pod["containers"][0]["logs"]["usedBytes"], 6);
        assert_eq!(
            (&pod["network"]["name"], &pod["network"]["rxErrors"]),
            (&json!("eth0"), &json!(3))
        );
        assert_eq!(pod["volume"][1]["pvcRef"], json!({"name": "data-web", "namespace": "a"}));
        assert_eq!(
            (&pod["ephemeral-storage"]["usedBytes"], &pod["process_stats"]["process_count"]),
            (&json!(20), &json!(3))
        );
        let short = super::summary(&sample(), SummaryScope::CpuAndMemory);
        assert_eq!(short["pods"][0]["containers"][0].get("rootfs"), None);
        assert_eq!((short["pods"][0].get("volume"), short["node"].get("rlimit")), (None, None));
    }
}
