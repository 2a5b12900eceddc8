//! `/metrics/cadvisor`: cgroup metrics of containers, pods and the machine with cAdvisor's names;
//! and volume usage for `/metrics`. Pure.

use agent_host::cgroup_stats::{CgroupStats, Throttling};
use proto_api::names::Names;

use super::exposition::Exposition;
use super::stats::{Counted, FsUsage, NodeStats, PodStats};

/// The cgroup that metrics belong to. Labels that do not apply are empty.
#[derive(Clone, Copy, Default)]
struct Subject<'a> {
    container: &'a str,
    /// Path of the cgroup.
    id: &'a str,
    image: &'a str,
    /// CRI id.
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

/// A metric of cgroups: name, type, help, extra labels, and how to read it.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    fn(&CgroupStats) -> Option<f64>,
);

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const TOTAL: &[(&str, &str)] = &[("cpu", "total")];

const ROWS: &[Row] = &[
    (
        "container_cpu_usage_seconds_total",
        COUNTER,
        "Cumulative cpu time consumed in seconds.",
        TOTAL,
        |s| Some(secs(s.cpu_nanos)),
    ),
    (
        "container_cpu_user_seconds_total",
        COUNTER,
        "Cumulative user cpu time consumed in seconds.",
        &[],
        |s| Some(secs(s.cpu_user_nanos)),
    ),
    (
        "container_cpu_system_seconds_total",
        COUNTER,
        "Cumulative system cpu time consumed in seconds.",
        &[],
        |s| Some(secs(s.cpu_system_nanos)),
    ),
    (
        "container_cpu_cfs_periods_total",
        COUNTER,
        "Number of elapsed enforcement period intervals.",
        &[],
        |s| throttling(s, |t| t.periods as f64),
    ),
    (
        "container_cpu_cfs_throttled_periods_total",
        COUNTER,
        "Number of throttled period intervals.",
        &[],
        |s| throttling(s, |t| t.throttled as f64),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Total time duration the container has been throttled.",
        &[],
        |s| throttling(s, |t| secs(t.nanos)),
    ),
    ("container_spec_cpu_shares", GAUGE, "CPU share of the container.", &[], |s| {
        s.cpu_shares.map(|n| n as f64)
    }),
    ("container_spec_cpu_quota", GAUGE, "CPU quota of the container.", &[], |s| {
        s.cpu_quota.map(|(quota, _)| quota as f64)
    }),
    ("container_spec_cpu_period", GAUGE, "CPU period of the container.", &[], |s| {
        Some(s.cpu_quota.map_or(100_000.0, |(_, period)| period as f64))
    }),
    (
        "container_memory_usage_bytes",
        GAUGE,
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        &[],
        |s| Some(s.memory_bytes as f64),
    ),
    ("container_memory_working_set_bytes", GAUGE, "Current working set in bytes.", &[], |s| {
        Some(s.working_set_bytes as f64)
    }),
    ("container_memory_rss", GAUGE, "Size of RSS in bytes.", &[], |s| Some(s.rss_bytes as f64)),
    ("container_memory_cache", GAUGE, "Number of bytes of page cache memory.", &[], |s| {
        Some(s.cache_bytes as f64)
    }),
    ("container_memory_mapped_file", GAUGE, "Size of memory mapped files in bytes.", &[], |s| {
        Some(s.mapped_bytes as f64)
    }),
    ("container_memory_swap", GAUGE, "Container swap usage in bytes.", &[], |s| {
        Some(s.swap_bytes as f64)
    }),
    (
        "container_memory_max_usage_bytes",
        GAUGE,
        "Maximum memory usage recorded in bytes",
        &[],
        |s| s.memory_max_seen.map(|n| n as f64),
    ),
    ("container_memory_failcnt", COUNTER, "Number of memory usage hits limits", &[], |s| {
        Some(s.memory_failures as f64)
    }),
    (
        "container_memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        &[("failure_type", "pgfault"), ("scope", "hierarchy")],
        |s| Some(s.page_faults.0 as f64),
    ),
    (
        "container_memory_failures_total",
        COUNTER,
        "",
        &[("failure_type", "pgmajfault"), ("scope", "hierarchy")],
        |s| Some(s.page_faults.1 as f64),
    ),
    ("container_spec_memory_limit_bytes", GAUGE, "Memory limit for the container.", &[], |s| {
        Some(s.memory_limit.unwrap_or(0) as f64)
    }),
    (
        "container_fs_reads_bytes_total",
        COUNTER,
        "Cumulative count of bytes read",
        &[("device", "")],
        |s| Some(s.io.read_bytes as f64),
    ),
    (
        "container_fs_writes_bytes_total",
        COUNTER,
        "Cumulative count of bytes written",
        &[("device", "")],
        |s| Some(s.io.write_bytes as f64),
    ),
    (
        "container_fs_reads_total",
        COUNTER,
        "Cumulative count of reads completed",
        &[("device", "")],
        |s| Some(s.io.reads as f64),
    ),
    (
        "container_fs_writes_total",
        COUNTER,
        "Cumulative count of writes completed",
        &[("device", "")],
        |s| Some(s.io.writes as f64),
    ),
    ("container_processes", GAUGE, "Number of processes running inside the container.", &[], |s| {
        Some(s.processes as f64)
    }),
    ("container_threads", GAUGE, "Number of threads running inside the container", &[], |s| {
        Some(s.threads as f64)
    }),
    (
        "container_threads_max",
        GAUGE,
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        &[],
        |s| Some(s.threads_max.unwrap_or(0) as f64),
    ),
    (
        "container_start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds.",
        &[],
        |s| Some(s.made as f64),
    ),
];

/// Metrics of interfaces: name, help, direction and counter.
const NETWORK: [(&str, &str, Direction, usize); 8] = [
    (
        "container_network_receive_bytes_total",
        "Cumulative count of bytes received",
        Direction::In,
        0,
    ),
    (
        "container_network_receive_packets_total",
        "Cumulative count of packets received",
        Direction::In,
        1,
    ),
    (
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving",
        Direction::In,
        2,
    ),
    (
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        Direction::In,
        3,
    ),
    (
        "container_network_transmit_bytes_total",
        "Cumulative count of bytes transmitted",
        Direction::Out,
        0,
    ),
    (
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted",
        Direction::Out,
        1,
    ),
    (
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        Direction::Out,
        2,
    ),
    (
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        Direction::Out,
        3,
    ),
];

#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// The whole page.
pub fn text(stats: &NodeStats) -> String {
    let at = stats.usage.at_nanos;
    let mut out = Exposition::default();
    let subjects = subjects(stats);
    let mut before = "";
    for (name, kind, help, own, value) in ROWS {
        if *name != before {
            out.family(name, kind, help);
            before = name;
        }
        for (subject, numbers) in &subjects {
            if let Some(value) = value(numbers) {
                out.sample(name, &labels(subject, own), value, Some(at));
            }
        }
    }
    last_seen(&mut out, &subjects, at);
    network(&mut out, stats);
    file_systems(&mut out, stats);
    machine(&mut out, stats);
    out.into_text()
}

/// The root, system cgroups, pods, containers.
fn subjects(stats: &NodeStats) -> Vec<(Subject<'_>, &CgroupStats)> {
    fn with_place<'a>(
        counted: Option<&'a Counted>,
        subject: Subject<'a>,
    ) -> Option<(Subject<'a>, &'a CgroupStats)> {
        counted.map(|counted| (Subject { id: &counted.place, ..subject }, &counted.stats))
    }
    let mut all = Vec::new();
    all.extend(with_place(stats.cgroup.as_ref(), Subject::default()));
    all.extend(
        stats.system.iter().filter_map(|part| with_place(part.cgroup.as_ref(), Subject::default())),
    );
    for pod in &stats.pods {
        all.extend(with_place(pod.cgroup.as_ref(), of_pod(pod)));
        all.extend(pod.containers.iter().filter_map(|container| {
            let subject = Subject {
                container: &container.name,
                image: &container.image,
                name: &container.id,
                ..of_pod(pod)
            };
            with_place(container.cgroup.as_ref(), subject)
        }));
    }
    all
}

fn of_pod(pod: &PodStats) -> Subject<'_> {
    Subject { namespace: &pod.namespace, pod: &pod.name, ..Subject::default() }
}

/// In alphabetical order as in cAdvisor; the metric's own labels first.
fn labels<'a>(subject: &Subject<'a>, own: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut labels = vec![
        ("container", subject.container),
        ("id", subject.id),
        ("image", subject.image),
        ("name", subject.name),
        ("namespace", subject.namespace),
        ("pod", subject.pod),
    ];
    labels.extend_from_slice(own);
    labels.sort_unstable_by_key(|(name, _)| *name);
    labels
}

fn last_seen(out: &mut Exposition, subjects: &[(Subject<'_>, &CgroupStats)], at: i64) {
    out.family("container_last_seen", GAUGE, "Last time a container was seen by the exporter");
    let secs = at.div_euclid(1_000_000_000) as f64;
    for (subject, _) in subjects {
        out.sample("container_last_seen", &labels(subject, &[]), secs, Some(at));
    }
}

fn network(out: &mut Exposition, stats: &NodeStats) {
    let at = stats.usage.at_nanos;
    for (name, help, direction, counter) in NETWORK {
        out.family(name, COUNTER, help);
        let root = (Subject { id: "/", ..Subject::default() }, &stats.network);
        let pods = stats.pods.iter().map(|pod| {
            let id = pod.cgroup.as_ref().map_or("", |counted| &counted.place);
            (Subject { id, ..of_pod(pod) }, &pod.network)
        });
        for (subject, interfaces) in std::iter::once(root).chain(pods) {
            for interface in interfaces {
                let counters = match direction {
                    Direction::In => interface.received,
                    Direction::Out => interface.sent,
                };
                let value = counters.get(counter).copied().unwrap_or(0);
                out.sample(
                    name,
                    &labels(&subject, &[("interface", &interface.name)]),
                    value as f64,
                    Some(at),
                );
            }
        }
    }
}

fn file_systems(out: &mut Exposition, stats: &NodeStats) {
    type Value = fn(&FsUsage) -> u64;
    let at = stats.usage.at_nanos;
    let rows: [(&str, &str, Value); 4] = [
        (
            "container_fs_usage_bytes",
            "Number of bytes that are consumed by the container on this filesystem.",
            |fs| fs.used_bytes,
        ),
        (
            "container_fs_limit_bytes",
            "Number of bytes that can be consumed by the container on this filesystem.",
            |fs| fs.capacity_bytes,
        ),
        ("container_fs_inodes_total", "Number of Inodes", |fs| fs.inodes),
        ("container_fs_inodes_free", "Number of available Inodes", |fs| fs.inodes_free),
    ];
    for (name, help, value) in rows {
        out.family(name, GAUGE, help);
        if let Some(fs) = &stats.fs {
            let subject = Subject { id: "/", ..Subject::default() };
            out.sample(name, &labels(&subject, &[("device", "")]), value(fs) as f64, Some(at));
        }
        for pod in &stats.pods {
            for container in &pod.containers {
                let Some(fs) = &container.rootfs else { continue };
                let id = container.cgroup.as_ref().map_or("", |counted| &counted.place);
                let subject = Subject {
                    container: &container.name,
                    id,
                    image: &container.image,
                    name: &container.id,
                    ..of_pod(pod)
                };
                out.sample(name, &labels(&subject, &[("device", "")]), value(fs) as f64, Some(at));
            }
        }
    }
}

fn machine(out: &mut Exposition, stats: &NodeStats) {
    let (cores, memory) = stats.machine;
    out.family("machine_cpu_cores", GAUGE, "Number of logical CPU cores.");
    out.sample("machine_cpu_cores", &[], cores.into(), None);
    out.family("machine_memory_bytes", GAUGE, "Amount of memory installed on the machine.");
    out.sample("machine_memory_bytes", &[], memory as f64, None);
    out.family(
        "machine_scrape_error",
        GAUGE,
        "1 if there was an error while getting machine metrics, 0 otherwise.",
    );
    out.sample("machine_scrape_error", &[], 0.0, None);
    out.family(
        "container_scrape_error",
        GAUGE,
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    out.sample("container_scrape_error", &[], 0.0, None);
}

/// Usage of volumes of claims, for `/metrics`.
pub fn volumes(stats: &NodeStats, names: &Names) -> String {
    type Value = fn(&FsUsage) -> u64;
    let rows: [(&str, &str, Value); 6] = [
        ("available_bytes", "Number of available bytes in the volume", |fs| fs.available_bytes),
        ("capacity_bytes", "Capacity in bytes of the volume", |fs| fs.capacity_bytes),
        ("used_bytes", "Number of used bytes in the volume", |fs| fs.used_bytes),
        ("inodes", "Maximum number of inodes in the volume", |fs| fs.inodes),
        ("inodes_free", "Number of free inodes in the volume", |fs| fs.inodes_free),
        ("inodes_used", "Number of used inodes in the volume", |fs| fs.inodes_used),
    ];
    let mut out = Exposition::default();
    for (name, help, value) in rows {
        let name = format!("{}_volume_stats_{name}", names.component("let"));
        out.family(&name, GAUGE, help);
        for pod in &stats.pods {
            for volume in &pod.volumes {
                let Some(claim) = &volume.claim else { continue };
                let labels = [
                    ("namespace", pod.namespace.as_str()),
                    ("persistentvolumeclaim", claim.as_str()),
                ];
                out.sample(&name, &labels, value(&volume.fs) as f64, None);
            }
        }
    }
    out.into_text()
}

fn secs(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn throttling(stats: &CgroupStats, value: fn(&Throttling) -> f64) -> Option<f64> {
    stats.throttling.as_ref().map(value)
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn dashboards_find_their_names_and_labels() {
        let text = text(&super::super::stats::tests::sample());
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter\ncontainer_cpu_usage_seconds_total{container=\"\",cpu=\"total\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} 2.5 1500000000250\n",
            "container_cpu_usage_seconds_total{container=\"c\",cpu=\"total\",id=\"/kubepods/podu/id1\",image=\"busybox:1\",name=\"id1\",namespace=\"a\",pod=\"web\"} 2.5 ",
            "container_memory_usage_bytes{container=\"\",id=\"/kubepods/podu\",image=\"\",name=\"\",namespace=\"a\",pod=\"web\"} 30 ",
            "container_network_receive_bytes_total{container=\"\",id=\"/kubepods/podu\",image=\"\",interface=\"eth0\",name=\"\",namespace=\"a\",pod=\"web\"} 1 ",
            "container_fs_usage_bytes{container=\"c\",device=\"\",id=\"/kubepods/podu/id1\",image=\"busybox:1\",name=\"id1\",namespace=\"a\",pod=\"web\"} 5 ",
            "machine_cpu_cores 2\n",
        ] {
            assert!(text.contains(line), "{line} in:\n{text}");
        }
        let types = text.lines().filter(|line| line.starts_with("# TYPE")).count();
        let mut families: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), types, "each metric is announced once");
    }

    #[test]
    fn volume_metrics_are_only_those_of_claims() {
        let text = volumes(&super::super::stats::tests::sample(), Names::new(Profile::Kubernetes));
        assert!(text.contains("kubelet_volume_stats_used_bytes{namespace=\"a\",persistentvolumeclaim=\"data-web\"} 9\n"), "{text}");
        assert_eq!(text.matches("_used_bytes{").count(), 1);
    }
}
