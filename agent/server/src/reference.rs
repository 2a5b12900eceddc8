//! Metrics that are written on request, as the agent's reference lists them: pages about a node with one of everything. Pure.

use agent_host::cgroup_stats::{CgroupStats, Throttling};
use agent_host::net_counters::InterfaceCounters;
use proto_api::names::Names;

use super::stats::{ContainerStats, Counted, FsUsage, NodeStats, PodStats, Usage, VolumeStats};
use super::{cadvisor, resource_metrics};

/// The pages by their paths, each with a value of every metric.
pub fn example_pages(names: &Names) -> [(&'static str, String); 3] {
    let stats = one_of_everything();
    [
        ("/metrics", cadvisor::volumes(&stats, names)),
        ("/metrics/cadvisor", cadvisor::text(&stats)),
        ("/metrics/resource", resource_metrics::text(&stats)),
    ]
}

fn one_of_everything() -> NodeStats {
    let stats = CgroupStats {
        throttling: Some(Throttling::default()),
        cpu_shares: Some(1),
        cpu_quota: Some((1, 1)),
        memory_max_seen: Some(1),
        memory_limit: Some(1),
        threads_max: Some(1),
        ..CgroupStats::default()
    };
    let cgroup = Some(Counted { stats, ..Counted::default() });
    let fs = Some(FsUsage::default());
    let network = vec![InterfaceCounters::default()];
    let container =
        ContainerStats { rootfs: fs, cgroup: cgroup.clone(), ..ContainerStats::default() };
    let volume = VolumeStats { claim: Some(String::new()), ..VolumeStats::default() };
    let pod = PodStats {
        usage: Some(Usage::default()),
        containers: vec![container],
        network: network.clone(),
        volumes: vec![volume],
        cgroup: cgroup.clone(),
        ..PodStats::default()
    };
    NodeStats { cgroup, fs, network, pods: vec![pod], ..NodeStats::default() }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn each_metric_has_a_value() {
        for (path, page) in example_pages(Names::new(Profile::Kubernetes)) {
            let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
            let mut count = 0;
            for name in names.filter_map(|line| line.split(' ').next()) {
                let is_value = |line: &&str| {
                    line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                };
                assert!(page.lines().any(|line| is_value(&line)), "{path}: {name}");
                count += 1;
            }
            assert!(count > 5, "{path}: {page}");
        }
    }
}
