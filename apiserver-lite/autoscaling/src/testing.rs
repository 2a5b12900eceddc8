//! Pods, metrics and autoscalers for tests.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proto_api::autoscaling::v2::{
    HorizontalPodAutoscaler, MetricSpec, MetricTarget, ResourceMetricSource,
};
use proto_api::core::v1::{Container, Pod, PodCondition};
use proto_api::{Quantity, Time};

use crate::clocks::Clocks;
use crate::metrics::{ContainerUsage, PodUsage};

/// The current time of tests.
pub const NOW: i64 = 1_000_000;

pub fn time(at: i64) -> Time {
    Time::from_unix(at)
}

/// What the steady clock shows at a time, if none was set.
pub fn steady(at: i64) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    start + Duration::from_secs(u64::try_from(at).expect("not before 1970"))
}

/// Both clocks at a time.
pub fn clocks(at: i64) -> Clocks {
    Clocks { steady: steady(at), wall: time(at) }
}

/// A running pod that has been ready for long and requests one CPU and 1000 bytes.
pub fn pod(name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = name.to_owned();
    pod.status.phase = "Running".to_owned();
    pod.status.start_time = Some(time(NOW - 10_000));
    pod.status.conditions = vec![ready("True", NOW - 9_000)];
    let mut container = Container { name: "c".to_owned(), ..Container::default() };
    let requests = [("cpu", Quantity::from_units(1)), ("memory", Quantity::from_bytes(1000))];
    container.resources.requests = requests.map(|(name, amount)| (name.to_owned(), amount)).into();
    pod.spec.containers = vec![container];
    pod
}

/// The condition Ready since a time.
pub fn ready(status: &str, since: i64) -> PodCondition {
    PodCondition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        last_transition_time: time(since),
        ..PodCondition::default()
    }
}

/// A pod that uses thousandths of a CPU, and as many bytes.
pub fn usage(name: &str, milli: i64) -> PodUsage {
    let used = BTreeMap::from([
        ("cpu".to_owned(), Quantity::from_milli(milli)),
        ("memory".to_owned(), Quantity::from_bytes(milli)),
    ]);
    PodUsage {
        name: name.to_owned(),
        at: time(NOW - 5),
        window: Duration::from_secs(15),
        containers: vec![ContainerUsage { name: "c".to_owned(), used }],
    }
}

/// A metric of CPU with a target in percent.
pub fn cpu_percent(percent: i32) -> MetricSpec {
    let target = MetricTarget {
        type_: "Utilization".to_owned(),
        average_utilization: Some(percent),
        ..MetricTarget::default()
    };
    resource("cpu", target)
}

/// A metric with a target on average.
pub fn average(name: &str, value: Quantity) -> MetricSpec {
    let target = MetricTarget {
        type_: "AverageValue".to_owned(),
        average_value: Some(value),
        ..MetricTarget::default()
    };
    resource(name, target)
}

fn resource(name: &str, target: MetricTarget) -> MetricSpec {
    let source = ResourceMetricSource { name: name.to_owned(), target };
    MetricSpec { type_: "Resource".to_owned(), resource: Some(source), ..MetricSpec::default() }
}

/// An autoscaler between bounds.
pub fn autoscaler(min: i32, max: i32, metrics: Vec<MetricSpec>) -> HorizontalPodAutoscaler {
    let mut hpa = HorizontalPodAutoscaler::default();
    hpa.metadata.name = "web".to_owned();
    hpa.metadata.namespace = "a".to_owned();
    hpa.spec.min_replicas = Some(min);
    hpa.spec.max_replicas = max;
    hpa.spec.metrics = metrics;
    hpa
}
