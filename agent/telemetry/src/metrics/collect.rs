//! Gauges of present state, read from pod tasks on request.

use std::sync::Arc;

use agent_devices::Plugins;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use proto_api::core::v1::{ContainerStatus, Pod};
use proto_api::names::Names;

use super::OperationMetrics;

/// Returns the pods with their present status.
pub type PodLister = Arc<dyn Fn() -> Vec<Pod> + Send + Sync>;

/// Pods and containers by state.
#[derive(Clone)]
pub struct PodGauges {
    shown: PodLister,
    pods: IntGauge,
    containers: IntGaugeVec,
    ephemeral: IntGauge,
    volumes: IntGaugeVec,
    token_age: Gauge,
    operations: OperationMetrics,
}

impl PodGauges {
    /// Gauges over the pods of `shown` and the counted operations.
    ///
    /// # Errors
    /// A metric name is invalid.
    pub fn new(
        names: &Names,
        operations: OperationMetrics,
        shown: PodLister,
    ) -> Result<Self, prometheus::Error> {
        let named = |name: &str| format!("{}_{name}", names.component("let"));
        let containers =
            Opts::new(named("running_containers"), "Number of containers currently running");
        Ok(Self {
            shown,
            pods: IntGauge::new(
                named("running_pods"),
                "Number of pods that have a running pod sandbox",
            )?,
            containers: IntGaugeVec::new(containers, &["container_state"])?,
            ephemeral: IntGauge::new(
                named("managed_ephemeral_containers"),
                "Current number of ephemeral containers in pods managed by this agent.",
            )?,
            volumes: IntGaugeVec::new(
                Opts::new("volume_manager_total_volumes", "Number of volumes in Volume Manager"),
                &["plugin_name", "state"],
            )?,
            token_age: Gauge::new(
                named("volume_token_oldest_age_seconds"),
                "Age in seconds of the oldest service account token in pods' volumes, 0 without any.",
            )?,
            operations,
        })
    }
}

impl Collector for PodGauges {
    fn desc(&self) -> Vec<&Desc> {
        let own = [self.pods.desc(), self.containers.desc(), self.ephemeral.desc()].concat();
        [own, self.volumes.desc(), self.token_age.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let pods = (self.shown)();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.pods.set(count(pods.iter().filter(|pod| runs(pod)).count()));
        self.containers.reset();
        for state in pods.iter().flat_map(statuses).map(state) {
            self.containers.with_label_values(&[state]).inc();
        }
        self.ephemeral.set(count(pods.iter().map(|pod| pod.spec.ephemeral_containers.len()).sum()));
        self.volumes.reset();
        let wanted = self.operations.wanted_count(pods.iter().filter(|pod| !is_over(pod)));
        for (state, counts) in [
            ("desired_state_of_world", wanted),
            ("actual_state_of_world", self.operations.mounted_count()),
        ] {
            for (plugin, count) in counts {
                self.volumes.with_label_values(&[plugin.as_str(), state]).set(count);
            }
        }
        self.token_age.set(self.operations.token_age().unwrap_or(0.0));
        let own = [self.pods.collect(), self.containers.collect(), self.ephemeral.collect()];
        [own.concat(), self.volumes.collect(), self.token_age.collect()].concat()
    }
}

/// Registrations of device plugins, by resource.
#[derive(Clone)]
pub struct Registrations {
    plugins: Plugins,
    total: IntCounterVec,
}

impl Registrations {
    /// A counter over the registrations of `plugins`.
    ///
    /// # Errors
    /// A name is not one.
    pub fn new(names: &Names, plugins: Plugins) -> Result<Self, prometheus::Error> {
        let name = format!("{}_device_plugin_registration_total", names.component("let"));
        let help =
            "Cumulative number of device plugin registrations. Broken down by resource name.";
        Ok(Self { plugins, total: IntCounterVec::new(Opts::new(name, help), &["resource_name"])? })
    }
}

impl Collector for Registrations {
    fn desc(&self) -> Vec<&Desc> {
        self.total.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (resource, total) in self.plugins.registrations() {
            let counter = self.total.with_label_values(&[&resource]);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        self.total.collect()
    }
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = &pod.status;
    status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .chain(&status.ephemeral_container_statuses)
}

fn is_over(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

/// Whether a container of the pod is running.
fn runs(pod: &Pod) -> bool {
    pod.status.phase == "Running" || statuses(pod).any(|status| status.state.running.is_some())
}

fn state(status: &ContainerStatus) -> &'static str {
    if status.state.running.is_some() {
        "running"
    } else if status.state.terminated.is_some() {
        "exited"
    } else if status.container_id.is_empty() {
        "unknown"
    } else {
        "created"
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{ContainerState, ContainerStateRunning, ContainerStateTerminated};
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn running_containers_are_counted_when_metrics_are_collected() {
        let status = |state| ContainerStatus { state, ..ContainerStatus::default() };
        let running = ContainerState {
            running: Some(ContainerStateRunning::default()),
            ..ContainerState::default()
        };
        let ended = ContainerState {
            terminated: Some(ContainerStateTerminated::default()),
            ..ContainerState::default()
        };
        let mut pod = Pod::default();
        pod.status.container_statuses = vec![status(running.clone()), status(running)];
        pod.status.init_container_statuses = vec![status(ended)];
        pod.spec.volumes = vec![Default::default(), Default::default()];
        let operations = crate::metrics::AgentMetrics::default().operations;
        operations.record_mounted(&pod);
        operations.record_tokens("u", 0);
        assert!(operations.token_age() > Some(1_000_000_000.0), "it was issued in 1970");
        operations.record_unmounted("u");
        let gauges = PodGauges::new(
            Names::new(Profile::Kubernetes),
            operations,
            Arc::new(move || vec![pod.clone(), Pod::default()]),
        )
        .expect("names");
        let text =
            prometheus::TextEncoder::new().encode_to_string(&gauges.collect()).expect("text");
        for line in [
            "kubelet_running_pods 1\n",
            "kubelet_volume_token_oldest_age_seconds 0\n",
            "kubelet_running_containers{container_state=\"running\"} 2\n",
            "{container_state=\"exited\"} 1\n",
            "plugin_name=\"orch.io/empty-dir\",state=\"actual_state_of_world\"} 2\n",
            "plugin_name=\"orch.io/empty-dir\",state=\"desired_state_of_world\"} 2\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
