//! `/metrics/resource`: CPU and memory of node, pods and containers, for autoscalers and `kubectl
//! top`. Pure.

use std::fmt::Write as _;

use super::stats::{NodeStats, Usage};

/// The Prometheus text format, with the time of measurement of each sample.
pub fn text(stats: &NodeStats) -> String {
    let mut out = String::new();
    let containers = || {
        stats.pods.iter().flat_map(|pod| {
            pod.containers.iter().map(move |container| {
                let labels = format!(
                    "container={:?},namespace={:?},pod={:?}",
                    container.name, pod.namespace, pod.name
                );
                (labels, container)
            })
        })
    };
    let pods = || {
        stats.pods.iter().filter_map(|pod| {
            let labels = format!("namespace={:?},pod={:?}", pod.namespace, pod.name);
            pod.usage.as_ref().map(|usage| (labels, usage))
        })
    };
    let node = || std::iter::once((String::new(), &stats.usage));
    let container_usage = || containers().map(|(labels, container)| (labels, &container.usage));

    const CPU: &str = "Cumulative CPU time consumed, in core-seconds.";
    const MEMORY: &str = "Current working set, in bytes.";
    samples(
        &mut out,
        "container_cpu_usage_seconds_total",
        "counter",
        CPU,
        container_usage(),
        cpu_seconds,
    );
    samples(
        &mut out,
        "container_memory_working_set_bytes",
        "gauge",
        MEMORY,
        container_usage(),
        working_set,
    );
    header(&mut out, "container_start_time_seconds", "gauge", "Start time, in seconds since 1970.");
    for (labels, container) in containers() {
        line(
            &mut out,
            "container_start_time_seconds",
            &labels,
            container.started as f64,
            container.usage.at_nanos,
        );
    }
    samples(&mut out, "node_cpu_usage_seconds_total", "counter", CPU, node(), cpu_seconds);
    samples(&mut out, "node_memory_working_set_bytes", "gauge", MEMORY, node(), working_set);
    samples(&mut out, "pod_cpu_usage_seconds_total", "counter", CPU, pods(), cpu_seconds);
    samples(&mut out, "pod_memory_working_set_bytes", "gauge", MEMORY, pods(), working_set);
    header(
        &mut out,
        "scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    out.push_str("scrape_error 0\n");
    out
}

fn samples<'a>(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    usages: impl Iterator<Item = (String, &'a Usage)>,
    value: fn(&Usage) -> f64,
) {
    header(out, name, kind, help);
    for (labels, usage) in usages {
        line(out, name, &labels, value(usage), usage.at_nanos);
    }
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &str, value: f64, at_nanos: i64) {
    let millis = at_nanos.div_euclid(1_000_000);
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(out, "{name}{labels} {value} {millis}");
}

fn cpu_seconds(usage: &Usage) -> f64 {
    usage.cpu_nanos as f64 / 1e9
}

fn working_set(usage: &Usage) -> f64 {
    usage.working_set_bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_carry_labels_and_their_moment() {
        let text = text(&super::super::stats::tests::sample());
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter\ncontainer_cpu_usage_seconds_total{container=\"c\",namespace=\"a\",pod=\"web\"} 2.5 1500000000250\n",
            "container_start_time_seconds{container=\"c\",namespace=\"a\",pod=\"web\"} 1499999999 1500000000250\n",
            "node_memory_working_set_bytes 20 1500000000250\n",
            "pod_cpu_usage_seconds_total{namespace=\"a\",pod=\"web\"} 2.5 1500000000250\n",
            "scrape_error 0\n",
        ] {
            assert!(text.contains(line), "{line} in:\n{text}");
        }
    }
}
