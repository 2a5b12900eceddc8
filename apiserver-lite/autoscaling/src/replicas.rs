//! The metrics of an autoscaler, one by one: what each asks for, and the status that shows it.

use proto_api::autoscaling::v2::{
    ContainerResourceMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
    ResourceMetricStatus,
};
use proto_api::core::v1::Pod;
use proto_api::{Quantity, Time};

use crate::error::{MetricError, NoUsage, SizingError};
use crate::metrics::{PodUsage, amounts};
use crate::settings::Settings;
use crate::sizing::{Proposal, Sizing};

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
    pub settings: &'a Settings,
    /// The current time.
    pub now: Time,
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
pub fn of_metric(spec: &MetricSpec, inputs: &Inputs<'_>) -> Result<MeasuredMetric, NotFound> {
    match (spec.type_.as_str(), &spec.resource, &spec.container_resource) {
        ("Resource", Some(source), _) => {
            let proposed = inputs.propose(&source.name, None, &source.target);
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
            let proposed = inputs.propose(&source.name, Some(&source.container), &source.target);
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

impl Inputs<'_> {
    /// The proposal of a resource metric, and what the metric is called.
    fn propose(
        &self,
        resource: &str,
        container: Option<&str>,
        target: &MetricTarget,
    ) -> Result<(Proposal, String), MetricError> {
        let sizing = || self.sizing(resource, container);
        let failed = |cause| MetricError::Sizing { resource: resource.to_owned(), cause };
        // A target of zero has no ratio; the API server refuses it.
        if let Some(average) = target.average_value.filter(|value| value.as_milli() > 0) {
            let proposal = sizing().and_then(|sizing| sizing.by_average(average.as_milli()));
            return Ok((proposal.map_err(failed)?, format!("{resource} resource")));
        }
        if let Some(percent) = target.average_utilization.filter(|percent| *percent > 0) {
            let proposal = sizing().and_then(|sizing| sizing.by_utilization(percent, container));
            let name = format!("{resource} resource utilization (percentage of request)");
            return Ok((proposal.map_err(failed)?, name));
        }
        Err(MetricError::NoTarget)
    }

    fn sizing<'a>(
        &'a self,
        resource: &'a str,
        container: Option<&str>,
    ) -> Result<Sizing<'a>, SizingError> {
        let amounts = match self.usage {
            Ok(usage) => amounts(usage, resource, container, self.namespace),
            Err(cause) => Err(SizingError::Fetch(cause.clone())),
        };
        let amounts = amounts.map_err(|cause| SizingError::Unavailable {
            resource: resource.to_owned(),
            cause: Box::new(cause),
        })?;
        Ok(Sizing {
            pods: self.pods,
            amounts,
            resource,
            current: self.current,
            settings: self.settings,
            now: self.now,
        })
    }
}

fn current(proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_value: Some(Quantity::from_milli(proposal.average)),
        average_utilization: proposal.utilization,
        ..MetricValueStatus::default()
    }
}
