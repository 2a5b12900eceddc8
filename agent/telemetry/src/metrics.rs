//! The agent's metrics with Kubernetes' names: the prefix follows the naming profile. Gauges of
//! present state are read on request; events are counted when they happen.

mod collect;
mod operations;
mod register;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_runtime::observe::CallReport;
use prometheus::{Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};
use proto_api::core::v1::{Pod, PodStatus};
use proto_api::names::Names;
use proto_daemon::exit::chain;
use proto_daemon::metrics::Metrics;

pub use collect::{PodGauges, Registrations};
pub use operations::{OperationMetrics, plugin};
use register::{BUCKETS, Register};

/// Buckets for pod starts, which may include image pulls.
const LONG_BUCKETS: [f64; 12] =
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];

/// Metrics of events.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    runtime_operations: IntCounterVec,
    runtime_errors: IntCounterVec,
    runtime_seconds: HistogramVec,
    started_pods: IntCounter,
    started_pod_errors: IntCounter,
    started_containers: IntCounterVec,
    started_container_errors: IntCounterVec,
    pod_start_seconds: Histogram,
    pod_worker_seconds: HistogramVec,
    pod_worker_start_seconds: Histogram,
    /// Pods evicted, by the signal that was below its threshold.
    pub evictions: IntCounterVec,
    /// Requests of the HTTPS endpoint, by method, path, server type and whether they are
    /// long-running.
    pub http_requests: IntCounterVec,
    /// Their durations.
    pub http_seconds: HistogramVec,
    /// Requests in flight.
    pub http_inflight: IntGaugeVec,
    /// Connections of the HTTPS endpoint that it rejected or closed, by reason.
    pub http_connections_closed: IntCounterVec,
    /// Seconds until the client certificate expires.
    pub client_certificate_ttl: Gauge,
    /// Seconds until the serving certificate expires.
    pub server_certificate_ttl: Gauge,
    /// Renewals of the client certificate that failed.
    pub client_renew_errors: IntCounter,
    /// Renewals of the serving certificate that failed.
    pub server_renew_errors: IntCounter,
    /// Log files rotated, by outcome.
    pub log_rotations: IntCounterVec,
    log_bytes: IntGaugeVec,
    /// Operations on the node.
    pub operations: OperationMetrics,
    /// When pods were first seen, until they run.
    waiting: Arc<Mutex<BTreeMap<String, Instant>>>,
}

impl AgentMetrics {
    /// Registers everything.
    ///
    /// # Errors
    /// A metric name is invalid or duplicate, which the test of this file shows.
    #[expect(clippy::too_many_lines, reason = "a flat table of names")]
    pub fn register(
        metrics: &Metrics,
        names: &'static Names,
        node: &str,
    ) -> Result<Self, prometheus::Error> {
        let with = Register { metrics, prefix: names.component("let") };
        let own = with.gauges("node_name", "The node's name. The count is always 1.", &["node"])?;
        own.with_label_values(&[node]).set(1);
        let far = |name: &str, help: &str| {
            let gauge = with.gauge(name, help)?;
            // Unknown is infinity, as in Kubernetes' kubelet.
            gauge.set(f64::INFINITY);
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            runtime_operations: with.counters(
                "runtime_operations_total",
                "Cumulative number of runtime operations by operation type.",
                &["operation_type"],
            )?,
            runtime_errors: with.counters(
                "runtime_operations_errors_total",
                "Cumulative number of runtime operation errors by operation type.",
                &["operation_type"],
            )?,
            runtime_seconds: with.seconds(
                "runtime_operations_duration_seconds",
                "Duration in seconds of runtime operations. Broken down by operation type.",
                &["operation_type"],
            )?,
            started_pods: with.counter("started_pods_total", "Cumulative number of pods started")?,
            started_pod_errors: with.counter(
                "started_pods_errors_total",
                "Cumulative number of errors when starting pods",
            )?,
            started_containers: with.counters(
                "started_containers_total",
                "Cumulative number of containers started",
                &["container_type"],
            )?,
            started_container_errors: with.counters(
                "started_containers_errors_total",
                "Cumulative number of errors when starting containers",
                &["container_type"],
            )?,
            pod_start_seconds: with.histogram(
                "pod_start_duration_seconds",
                "Duration in seconds from the agent seeing a pod for the first time to the pod starting to run",
                &LONG_BUCKETS,
            )?,
            pod_worker_seconds: with.seconds(
                "pod_worker_duration_seconds",
                "Duration in seconds of one step of a pod. Broken down by operation type.",
                &["operation_type"],
            )?,
            pod_worker_start_seconds: with.histogram(
                "pod_worker_start_duration_seconds",
                "Duration in seconds from the agent seeing a pod to starting a worker.",
                &BUCKETS,
            )?,
            evictions: with.counters(
                "evictions",
                "Cumulative number of pod evictions by eviction signal",
                &["eviction_signal"],
            )?,
            http_requests: with.counters(
                "http_requests_total",
                "Number of the http requests received since the server started",
                &["method", "path", "server_type", "long_running"],
            )?,
            http_seconds: with.seconds(
                "http_requests_duration_seconds",
                "Duration in seconds to serve http requests",
                &["method", "path", "server_type", "long_running"],
            )?,
            http_inflight: with.gauges("http_inflight_requests", "Number of the inflight http requests", &["method", "path", "server_type", "long_running"])?,
            http_connections_closed: with.counters(
                "http_connections_closed_total",
                "Connections refused or closed by the server, by reason.",
                &["reason"],
            )?,
            client_certificate_ttl: far(
                "certificate_manager_client_ttl_seconds",
                "Gauge of the TTL (time-to-live) of the client certificate, in seconds; negative when it has ended.",
            )?,
            server_certificate_ttl: far(
                "certificate_manager_server_ttl_seconds",
                "Gauge of the shortest TTL (time-to-live) of the serving certificate, in seconds; negative when it has ended.",
            )?,
            client_renew_errors: with.counter(
                "certificate_manager_client_expiration_renew_errors",
                "Counter of certificate renewal errors.",
            )?,
            server_renew_errors: with.counter(
                "server_expiration_renew_errors",
                "Counter of certificate renewal errors.",
            )?,
            log_rotations: with.counters(
                "log_rotations_total",
                "Container logs rotated, by outcome.",
                &["outcome"],
            )?,
            log_bytes: with.gauges(
                "container_log_filesystem_used_bytes",
                "Bytes used by the container's logs on the filesystem.",
                &["uid", "namespace", "pod", "container"],
            )?,
            operations: OperationMetrics::register(&with, names)?,
            waiting: Arc::default(),
        })
    }

    /// Counts a runtime call.
    pub fn record_call(&self, ended: CallReport) {
        let name = operation(ended.call);
        self.runtime_operations.with_label_values(&[&name]).inc();
        self.runtime_seconds.with_label_values(&[&name]).observe(ended.took.as_secs_f64());
        if !ended.worked {
            self.runtime_errors.with_label_values(&[&name]).inc();
        }
    }

    /// Counts a step of a pod by its name: `CreateSandbox { .. }` is `CreateSandbox`.
    pub fn record_step(&self, what: &str, took: Duration, worked: bool) {
        let name = what.split([' ', '(', '{']).next().unwrap_or_default();
        if name == "RemoveCgroup" {
            self.operations.record_cgroup("destroy", took);
        }
        self.pod_worker_seconds.with_label_values(&[name]).observe(took.as_secs_f64());
        match (name, worked) {
            ("CreateSandbox", true) => {
                self.started_pods.inc();
                self.started_containers.with_label_values(&["podsandbox"]).inc();
            }
            ("CreateSandbox", false) => {
                self.started_pod_errors.inc();
                self.started_container_errors.with_label_values(&["podsandbox"]).inc();
            }
            ("StartContainer", true) => {
                self.started_containers.with_label_values(&["container"]).inc()
            }
            ("StartContainer" | "CreateContainer", false) => {
                self.started_container_errors.with_label_values(&["container"]).inc();
            }
            _ => {}
        }
    }

    /// Records the time between the source's report of a pod and the start of its task.
    pub fn record_worker_start(&self, after: Duration) {
        self.pod_worker_start_seconds.observe(after.as_secs_f64());
    }

    /// Sets the log sizes of running containers, by uid, namespace and name of the pod and name of
    /// the container.
    pub fn set_log_sizes<'a>(&self, logs: impl Iterator<Item = (&'a [String; 4], u64)>) {
        self.log_bytes.reset();
        for (owner, bytes) in logs {
            let gauge = self.log_bytes.with_label_values(owner);
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Observes a pod's status; its start duration is measured once.
    pub fn observe_pod(&self, pod: &Pod, status: &PodStatus) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match status.phase.as_str() {
            "Pending" | "" => {
                if !waiting.contains_key(&pod.metadata.uid) {
                    waiting.insert(pod.metadata.uid.clone(), Instant::now());
                    self.operations.record_new_pod(pod);
                }
            }
            phase => {
                if let Some(since) = waiting.remove(&pod.metadata.uid)
                    && phase == "Running"
                {
                    self.pod_start_seconds.observe(since.elapsed().as_secs_f64());
                }
            }
        }
    }

    /// Drops the state of a deleted pod.
    pub fn forget_pod(&self, uid: &str) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.operations.record_unmounted(uid);
    }
}

impl Default for AgentMetrics {
    /// Unregistered metrics for tests.
    fn default() -> Self {
        use proto_api::names::Profile;
        let build = proto_daemon::metrics::BuildInfo { version: "", commit: "" };
        let registered = Metrics::new("orchlet", build)
            .and_then(|metrics| Self::register(&metrics, Names::new(Profile::default()), ""));
        match registered {
            Ok(metrics) => metrics,
            Err(error) => unreachable!("names of metrics: {}", chain(&error)),
        }
    }
}

/// Kubernetes' label of a runtime call: `RunPodSandbox` is `run_podsandbox`.
fn operation(call: &str) -> String {
    match call {
        "ImageFsInfo" => return "image_filesystem_info".to_owned(),
        "UpdateContainerResources" => return "update_container".to_owned(),
        "ListContainerStats" => return "list_container_stats".to_owned(),
        _ => {}
    }
    let mut name = String::with_capacity(call.len() + 4);
    for (at, letter) in call.replace("PodSandbox", "Podsandbox").char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use proto_daemon::metrics::BuildInfo;

    use super::*;

    #[test]
    fn calls_have_kubernetes_names() {
        for (call, name) in [
            ("RunPodSandbox", "run_podsandbox"),
            ("PodSandboxStatus", "podsandbox_status"),
            ("ListPodSandbox", "list_podsandbox"),
            ("CreateContainer", "create_container"),
            ("ReopenContainerLog", "reopen_container_log"),
            ("ExecSync", "exec_sync"),
            ("Version", "version"),
        ] {
            assert_eq!(operation(call), name);
        }
    }

    #[test]
    fn metrics_have_the_prefix_of_the_naming_profile() {
        for (profile, prefix) in [(Profile::Kubernetes, "kubelet"), (Profile::default(), "orchlet")]
        {
            let registry =
                Metrics::new("x", BuildInfo { version: "1", commit: "c" }).expect("names");
            let metrics =
                AgentMetrics::register(&registry, Names::new(profile), "n1").expect("names");
            metrics.record_call(CallReport {
                call: "RunPodSandbox",
                took: Duration::from_millis(20),
                worked: false,
            });
            metrics.record_step("CreateSandbox { attempt: 0 }", Duration::from_millis(20), true);
            let mut pod = Pod::default();
            pod.metadata.uid = "u".into();
            for phase in ["Pending", "Pending", "Running", "Running"] {
                metrics
                    .observe_pod(&pod, &PodStatus { phase: phase.into(), ..PodStatus::default() });
            }
            let owner = ["u", "ns", "p", "c"].map(str::to_owned);
            metrics.set_log_sizes([(&["gone"; 4].map(str::to_owned), 1)].into_iter());
            metrics.set_log_sizes([(&owner, 4096)].into_iter());
            let text = registry.text();
            assert!(!text.contains("gone"), "{text}");
            let log = r#"container="c",namespace="ns",pod="p",uid="u"} 4096"#;
            assert!(text.contains(&format!("_log_filesystem_used_bytes{{{log}\n")), "{text}");
            for line in [
                "_node_name{node=\"n1\"} 1\n",
                "_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1\n",
                "_started_pods_total 1\n",
                "_pod_start_duration_seconds_count 1\n",
                "_certificate_manager_client_ttl_seconds inf\n",
            ] {
                assert!(text.contains(&format!("{prefix}{line}")), "{line} in:\n{text}");
            }
        }
    }
}
