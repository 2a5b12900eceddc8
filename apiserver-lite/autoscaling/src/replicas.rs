//! The metrics of an autoscaler, one by one: what each asks for, and the status that shows it.

use std::collections::BTreeMap;

use proto_api::autoscaling::v2::{
    ContainerResourceMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
    ResourceMetricStatus,
};
use proto_api::core::v1::Pod;
use proto_api::{Quantity, Time};

use crate::error::{MetricError, NoUsage, SizingError};
use crate::metrics::{PodUsage, amounts};
use crate::settings::AutoscalerSettings;
use crate::sizing::{Measured, Proposal, Sizing};

/// What all metrics are calculated from.
pub struct Inputs<'a> {
    pub namespace: &'a str,
    /// The pods of the target.
    pub pods: &'a [&'a Pod],
    /// Their metrics, or why there are none.
    pub usage: &'a Result<Vec<PodUsage>, NoUsage>,
    /// The target's replicas.
    pub current: i32,
    /// The controller's settings.
    pub settings: &'a AutoscalerSettings,
    /// The current time.
    pub now: Time,
}

/// What was measured for the metrics of an autoscaler, by resource and container: many metrics may be of the same.
#[derive(Default)]
pub struct Measurements<'a> {
    by_source: BTreeMap<(&'a str, Option<&'a str>), Result<Measured, SizingError>>,
    /// How often all pods were looked at.
    #[cfg(test)]
    pub made: usize,
}

/// A metric that says something.
pub struct MeasuredMetric {
    /// The replicas that it requires.
    pub replicas: i32,
    /// What it is called in texts.
    pub name: String,
    pub status: MetricStatus,
}

/// A metric that says nothing.
pub struct NotFound {
    /// The reason of the condition and of the event.
    pub reason: &'static str,
    /// Of the event, and of the condition behind a few words.
    pub message: String,
    /// Before the message in the text about all metrics; empty if nothing.
    pub context: String,
}

/// The replicas that a metric requires.
pub fn of_metric<'a>(
    spec: &'a MetricSpec,
    inputs: &Inputs<'_>,
    measurements: &mut Measurements<'a>,
) -> Result<MeasuredMetric, NotFound> {
    match (spec.type_.as_str(), &spec.resource, &spec.container_resource) {
        ("Resource", Some(source), _) => {
            let measured = measurements.measure(inputs, &source.name, None);
            let proposed = propose(&source.name, measured, &source.target);
            let (proposal, name) = proposed.map_err(|error| NotFound {
                reason: "FailedGetResourceMetric",
                message: error.to_string(),
                context: format!("failed to get {} resource metric value: ", source.name),
            })?;
            let resource =
                ResourceMetricStatus { name: source.name.clone(), current: current(&proposal) };
            let status = MetricStatus {
                type_: spec.type_.clone(),
                resource: Some(resource),
                ..MetricStatus::default()
            };
            Ok(MeasuredMetric { replicas: proposal.replicas, name, status })
        }
        ("ContainerResource", _, Some(source)) => {
            let measured = measurements.measure(inputs, &source.name, Some(&source.container));
            let proposed = propose(&source.name, measured, &source.target);
            let (proposal, name) = proposed.map_err(|error| NotFound {
                reason: "FailedGetContainerResourceMetric",
                message: error.to_string(),
                context: format!("failed to get {} container metric value: ", source.name),
            })?;
            let resource = ContainerResourceMetricStatus {
                name: source.name.clone(),
                container: source.container.clone(),
                current: current(&proposal),
            };
            let status = MetricStatus {
                type_: spec.type_.clone(),
                container_resource: Some(resource),
                ..MetricStatus::default()
            };
            Ok(MeasuredMetric { replicas: proposal.replicas, name, status })
        }
        _ => Err(not_served(spec, inputs.namespace)),
    }
}

/// Metrics of other APIs, which no program here serves. The texts are those of a cluster without an adapter.
fn not_served(spec: &MetricSpec, namespace: &str) -> NotFound {
    const CUSTOM: &str =
        "unable to fetch metrics from custom metrics API: no custom metrics API registered";
    const EXTERNAL: &str = "unable to fetch metrics from external metrics API: the server could not find the requested resource";
    let (object, pods, external) = (&spec.object, &spec.pods, &spec.external);
    let (reason, message, context) = match (spec.type_.as_str(), object, pods, external) {
        ("Object", Some(source), _, _) => {
            let (metric, on) = (&source.metric.name, &source.described_object);
            let of = format!("{} {namespace}/{}", on.kind, on.name);
            let message = format!("unable to get metric {metric}: {of}: {CUSTOM}");
            ("FailedGetObjectMetric", message, "failed to get object metric value: ")
        }
        ("Pods", _, Some(source), _) => {
            let message = format!("unable to get metric {}: {CUSTOM}", source.metric.name);
            ("FailedGetPodsMetric", message, "failed to get pods metric value: ")
        }
        ("External", _, _, Some(source)) => {
            let name = &source.metric.name;
            let message = format!("unable to get external metric {namespace}/{name}: {EXTERNAL}");
            ("FailedGetExternalMetric", message, "failed to get external metric value: ")
        }
        (other, ..) => {
            let message = format!("unknown metric source type {other:?}");
            ("InvalidMetricSourceType", message, "")
        }
    };
    NotFound { reason, message, context: context.to_owned() }
}

impl<'a> Measurements<'a> {
    /// What pods use of a resource, in all containers or in the one named.
    fn measure(
        &mut self,
        inputs: &Inputs<'_>,
        resource: &'a str,
        container: Option<&'a str>,
    ) -> &Result<Measured, SizingError> {
        self.by_source.entry((resource, container)).or_insert_with(|| {
            #[cfg(test)]
            {
                self.made += 1;
            }
            inputs.measure(resource, container)
        })
    }
}

/// The proposal of a resource metric, and what the metric is called.
fn propose(
    resource: &str,
    measured: &Result<Measured, SizingError>,
    target: &MetricTarget,
) -> Result<(Proposal, String), MetricError> {
    let measured = || measured.as_ref().map_err(SizingError::clone);
    let failed = |cause| MetricError::Sizing { resource: resource.to_owned(), cause };
    // A target of zero has no ratio; the API server refuses it.
    if let Some(average) = target.average_value.filter(|value| value.as_milli() > 0) {
        let proposal = measured().and_then(|measured| measured.by_average(average.as_milli()));
        return Ok((proposal.map_err(failed)?, format!("{resource} resource")));
    }
    if let Some(percent) = target.average_utilization.filter(|percent| *percent > 0) {
        let proposal = measured().and_then(|measured| measured.by_utilization(percent));
        let name = format!("{resource} resource utilization (percentage of request)");
        return Ok((proposal.map_err(failed)?, name));
    }
    Err(MetricError::NoTarget)
}

impl Inputs<'_> {
    fn measure(&self, resource: &str, container: Option<&str>) -> Result<Measured, SizingError> {
        let amounts = match self.usage {
            Ok(usage) => amounts(usage, resource, container, self.namespace),
            Err(cause) => Err(SizingError::Fetch(cause.clone())),
        };
        let amounts = amounts.map_err(|cause| SizingError::Unavailable {
            resource: resource.to_owned(),
            cause: Box::new(cause),
        })?;
        let sizing = Sizing {
            pods: self.pods,
            amounts,
            resource,
            container,
            current: self.current,
            settings: self.settings,
            now: self.now,
        };
        sizing.measure()
    }
}

fn current(proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_value: Some(Quantity::from_milli(proposal.average)),
        average_utilization: proposal.utilization,
        ..MetricValueStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, average, cpu_percent, pod, time, usage};

    #[test]
    fn pods_are_looked_at_once_for_each_resource() {
        let metrics: Vec<MetricSpec> = (1..=100).map(cpu_percent).collect();
        let memory = average("memory", Quantity::from_bytes(100));
        let (one, settings) = (pod("p0"), AutoscalerSettings::default());
        let pods = [&one];
        let known = Ok(vec![usage("p0", 300)]);
        let unknown = Err(NoUsage("away".to_owned()));
        for usage in [&known, &unknown] {
            let (current, now) = (1, time(NOW));
            let settings = &settings;
            let inputs = Inputs { namespace: "a", pods: &pods, usage, current, settings, now };
            let mut measurements = Measurements::default();
            for spec in metrics.iter().chain([&memory]) {
                let found = of_metric(spec, &inputs, &mut measurements);
                assert_eq!(found.is_ok(), usage.is_ok());
            }
            assert_eq!(measurements.made, 2);
        }
    }
}
