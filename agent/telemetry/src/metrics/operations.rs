//! Metrics of operations on the node: cgroups, relists, sandboxes, volumes, devices, preemption and
//! eviction.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec};
use proto_api::core::v1::{Pod, Volume};
use proto_api::names::Names;

use super::register::Register;

/// Buckets of containers per pod.
const CONTAINERS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
/// Buckets in seconds of storage operations, as in Kubernetes.
const STORAGE: [f64; 11] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0];
/// Buckets of relist intervals, which are minutes.
const INTERVALS: [f64; 9] = [0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 600.0, 1800.0];

/// Counters of operations. Cheap to clone; clones share the counters.
#[derive(Clone, Debug)]
pub struct OperationMetrics {
    cgroup_seconds: HistogramVec,
    look_seconds: Histogram,
    look_interval_seconds: Histogram,
    last_seen: Gauge,
    lost_events: IntCounter,
    sandbox_seconds: HistogramVec,
    sandbox_errors: IntCounterVec,
    preemptions: IntCounterVec,
    readings_age: HistogramVec,
    volume_seconds: HistogramVec,
    credential_seconds: HistogramVec,
    credential_errors: IntCounterVec,
    device_seconds: HistogramVec,
    device_asks: IntCounterVec,
    shutdown_start: Gauge,
    shutdown_end: Gauge,
    containers: Histogram,
    domain: &'static str,
    last_look: Arc<Mutex<Option<Instant>>>,
    /// Plugins of mounted volumes, by uid of the pod.
    mounted: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    /// Issue time of the oldest token in each pod's volumes, in seconds since 1970 by the server's
    /// clock, by uid.
    issued: Arc<Mutex<BTreeMap<String, i64>>>,
}

impl OperationMetrics {
    #[expect(clippy::too_many_lines, reason = "a flat table of names")]
    pub(super) fn register(
        with: &Register<'_>,
        names: &'static Names,
    ) -> Result<Self, prometheus::Error> {
        Ok(Self {
            cgroup_seconds: with.seconds(
                "cgroup_manager_duration_seconds",
                "Duration in seconds for cgroup manager operations. Broken down by method.",
                &["operation_type"],
            )?,
            look_seconds: with.histogram(
                "pleg_relist_duration_seconds",
                "Duration in seconds of one look at all pods of the runtime.",
                &super::register::BUCKETS,
            )?,
            look_interval_seconds: with.histogram(
                "pleg_relist_interval_seconds",
                "Interval in seconds between two looks at all pods of the runtime; in between its events are followed.",
                &INTERVALS,
            )?,
            last_seen: with.gauge(
                "pleg_last_seen_seconds",
                "Timestamp in seconds when the runtime last sent an event or was last listed.",
            )?,
            lost_events: with.counter(
                "pleg_discard_events",
                "The number of events that found a full queue; a look at the pod takes their place.",
            )?,
            sandbox_seconds: with.seconds(
                "run_podsandbox_duration_seconds",
                "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
                &["runtime_handler"],
            )?,
            sandbox_errors: with.counters(
                "run_podsandbox_errors_total",
                "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
                &["runtime_handler"],
            )?,
            preemptions: with.counters(
                "preemptions",
                "Cumulative number of pod preemptions by preemption resource",
                &["preemption_signal"],
            )?,
            readings_age: with.seconds(
                "eviction_stats_age_seconds",
                "Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
                &["eviction_signal"],
            )?,
            volume_seconds: with.metrics.register(HistogramVec::new(
                HistogramOpts::new("storage_operation_duration_seconds", "Storage operation duration")
                    .buckets(STORAGE.to_vec()),
                &["migrated", "operation_name", "status", "volume_plugin"],
            )?)?,
            credential_seconds: with.seconds(
                "credential_provider_plugin_duration",
                "Duration of execution in seconds for credential provider plugin",
                &["plugin_name"],
            )?,
            credential_errors: with.counters(
                "credential_provider_plugin_errors",
                "Number of errors from credential provider plugin",
                &["plugin_name"],
            )?,
            device_seconds: with.seconds(
                "device_plugin_alloc_duration_seconds",
                "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
                &["resource_name"],
            )?,
            device_asks: with.counters(
                "pod_resources_endpoint_requests_total",
                "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
                &["server_api_version"],
            )?,
            shutdown_start: with.gauge(
                "graceful_shutdown_start_time_seconds",
                "Last graceful shutdown start time since unix epoch in seconds",
            )?,
            shutdown_end: with.gauge(
                "graceful_shutdown_end_time_seconds",
                "Last graceful shutdown end time since unix epoch in seconds",
            )?,
            containers: with.histogram(
                "containers_per_pod_count",
                "The number of containers per pod.",
                &CONTAINERS,
            )?,
            domain: names.label_domain(),
            last_look: Arc::default(),
            mounted: Arc::default(),
            issued: Arc::default(),
        })
    }

    /// A pod's cgroup was created (`create`), updated (`update`) or removed (`destroy`).
    pub fn record_cgroup(&self, operation: &str, took: Duration) {
        self.cgroup_seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
    }

    /// All pods of the runtime were listed.
    pub fn record_relist(&self, took: Duration) {
        self.look_seconds.observe(took.as_secs_f64());
        let last = lock(&self.last_look).replace(Instant::now());
        if let Some(last) = last {
            self.look_interval_seconds.observe(last.elapsed().as_secs_f64());
        }
        self.record_event();
    }

    /// A runtime event was received.
    pub fn record_event(&self) {
        self.last_seen.set(unix_secs());
    }

    /// An event found a full queue.
    pub fn record_dropped_event(&self) {
        self.lost_events.inc();
    }

    /// A sandbox was requested; an empty handler is the runtime's default.
    pub fn record_sandbox(&self, handler: &str, took: Duration, worked: bool) {
        self.sandbox_seconds.with_label_values(&[handler]).observe(took.as_secs_f64());
        if !worked {
            self.sandbox_errors.with_label_values(&[handler]).inc();
        }
    }

    /// A pod was preempted for this resource.
    pub fn record_preemption(&self, resource: &str) {
        self.preemptions.with_label_values(&[resource]).inc();
    }

    /// A pod was evicted by a signal of this age.
    pub fn record_eviction_age(&self, signal: &str, age: Duration) {
        self.readings_age.with_label_values(&[signal]).observe(age.as_secs_f64());
    }

    /// A volume was mounted (`volume_mount`) or unmounted (`volume_unmount`).
    pub fn record_volume(&self, operation: &str, plugin: &str, took: Duration, worked: bool) {
        let status = if worked { "success" } else { "fail-unknown" };
        let labels = ["false", operation, status, plugin];
        self.volume_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// All volumes of a pod were torn down in this time.
    pub fn record_teardown(&self, pod: &Pod, took: Duration, worked: bool) {
        self.plugins_of(pod)
            .for_each(|plugin| self.record_volume("volume_unmount", &plugin, took, worked));
    }

    /// A credential provider plugin was called.
    pub fn record_credentials(&self, plugin: &str, took: Duration, worked: bool) {
        self.credential_seconds.with_label_values(&[plugin]).observe(took.as_secs_f64());
        if !worked {
            self.credential_errors.with_label_values(&[plugin]).inc();
        }
    }

    /// The domain of plugin names.
    pub fn domain(&self) -> &'static str {
        self.domain
    }

    /// The volumes of a pod were mounted.
    pub fn record_mounted(&self, pod: &Pod) {
        let plugins = self.plugins_of(pod).collect();
        lock(&self.mounted).insert(pod.metadata.uid.clone(), plugins);
    }

    /// The pod's oldest token was issued at this time, in seconds since 1970.
    pub fn record_tokens(&self, uid: &str, oldest: i64) {
        lock(&self.issued).insert(uid.to_owned(), oldest);
    }

    /// Age of the oldest token in volumes in seconds by the wall clock; `None` without tokens.
    pub(super) fn token_age(&self) -> Option<f64> {
        let oldest = lock(&self.issued).values().copied().min()?;
        // A count of seconds is exact in a double.
        Some(unix_secs() - oldest as f64)
    }

    /// The volumes of a pod were unmounted.
    pub fn record_unmounted(&self, uid: &str) {
        lock(&self.issued).remove(uid);
        lock(&self.mounted).remove(uid);
    }

    /// Mounted volumes by plugin.
    pub(super) fn mounted_count(&self) -> BTreeMap<String, i64> {
        counted(lock(&self.mounted).values().flatten().cloned())
    }

    /// Desired volumes by plugin.
    pub(super) fn wanted_count<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> BTreeMap<String, i64> {
        counted(pods.flat_map(|pod| self.plugins_of(pod)))
    }

    fn plugins_of<'a>(&self, pod: &'a Pod) -> impl Iterator<Item = String> + use<'a> {
        let domain = self.domain;
        pod.spec.volumes.iter().map(move |volume| plugin(volume, domain))
    }

    /// A device plugin served an Allocate call.
    pub fn record_allocation(&self, resource: &str, took: Duration) {
        self.device_seconds.with_label_values(&[resource]).observe(took.as_secs_f64());
    }

    /// The pod resources API was called.
    pub fn record_pod_resources_request(&self) {
        self.device_asks.with_label_values(&["v1"]).inc();
    }

    /// A graceful shutdown started.
    pub fn record_shutdown_start(&self) {
        self.shutdown_start.set(unix_secs());
        self.shutdown_end.set(0.0);
    }

    /// A graceful shutdown has terminated all pods.
    pub fn record_shutdown_end(&self) {
        self.shutdown_end.set(unix_secs());
    }

    /// A pod was seen for the first time.
    pub fn record_new_pod(&self, pod: &Pod) {
        // A count of containers is exact in a double.
        self.containers.observe(pod.spec.containers.len() as f64);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The wall clock, since users compare it with the clocks of other machines.
fn unix_secs() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn counted(plugins: impl Iterator<Item = String>) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    plugins.for_each(|plugin| *counts.entry(plugin).or_default() += 1);
    counts
}

/// Kubernetes' name of a volume's plugin. A claim counts as such: its volume is not in the pod.
pub fn plugin(volume: &Volume, domain: &str) -> String {
    let source = &volume.volume_source;
    let kind = if source.config_map.is_some() {
        "configmap"
    } else if source.secret.is_some() {
        "secret"
    } else if source.projected.is_some() {
        "projected"
    } else if source.downward_api.is_some() {
        "downward-api"
    } else if source.host_path.is_some() {
        "host-path"
    } else if source.nfs.is_some() {
        "nfs"
    } else if source.iscsi.is_some() {
        "iscsi"
    } else if source.fc.is_some() {
        "fc"
    } else if let Some(csi) = &source.csi {
        return format!("{domain}/csi:{}", csi.driver);
    } else if source.persistent_volume_claim.is_some() || source.ephemeral.is_some() {
        "persistent-claim"
    } else {
        "empty-dir"
    };
    format!("{domain}/{kind}")
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{CSIVolumeSource, ConfigMapVolumeSource};

    use super::*;

    #[test]
    fn volumes_have_kubernetes_plugin_names() {
        let mut volume = Volume::default();
        assert_eq!(plugin(&volume, "kubernetes.io"), "kubernetes.io/empty-dir");
        volume.volume_source.csi =
            Some(CSIVolumeSource { driver: "d.io".into(), ..CSIVolumeSource::default() });
        assert_eq!(plugin(&volume, "kubernetes.io"), "kubernetes.io/csi:d.io");
        volume.volume_source.config_map = Some(ConfigMapVolumeSource::default());
        assert_eq!(plugin(&volume, "kubernetes.io"), "kubernetes.io/configmap");
    }
}
