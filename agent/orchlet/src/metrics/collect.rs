//! Gauges of what there is now, read from the pods' own tasks when somebody asks.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts};
use proto_api::core::v1::{ContainerStatus, Pod};
use proto_api::names::Names;

/// Gives the pods as they are shown now.
pub type Shown = Arc<dyn Fn() -> Vec<Pod> + Send + Sync>;

/// Pods and containers by state.
#[derive(Clone)]
pub struct PodGauges {
    shown: Shown,
    pods: IntGauge,
    containers: IntGaugeVec,
    ephemeral: IntGauge,
}

impl PodGauges {
    /// Gauges over what `shown` gives.
    ///
    /// # Errors
    /// A name is not one.
    pub fn new(names: &Names, shown: Shown) -> Result<Self, prometheus::Error> {
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
        })
    }
}

impl Collector for PodGauges {
    fn desc(&self) -> Vec<&Desc> {
        [self.pods.desc(), self.containers.desc(), self.ephemeral.desc()].concat()
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
        [self.pods.collect(), self.containers.collect(), self.ephemeral.collect()].concat()
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

/// Whether something of the pod runs.
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
    fn what_runs_is_counted_when_asked() {
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
        let gauges = PodGauges::new(
            Names::new(Profile::Kubernetes),
            Arc::new(move || vec![pod.clone(), Pod::default()]),
        )
        .expect("names");
        let text =
            prometheus::TextEncoder::new().encode_to_string(&gauges.collect()).expect("text");
        for line in [
            "kubelet_running_pods 1\n",
            "kubelet_running_containers{container_state=\"running\"} 2\n",
            "{container_state=\"exited\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
