//! One look at an autoscaler: what its target should be scaled to, and the status and events that say so.

use proto_api::Time;
use proto_api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus,
};
use proto_api::core::v1::Pod;
use proto_api::selectors::Selector;

use crate::behavior::{
    ReplicaBounds, ScaleDecision, decide_by_default, decide_by_rules, longest_period,
};
use crate::clocks::Clocks;
use crate::conditions::{ABLE_TO_SCALE, SCALING_ACTIVE, SCALING_LIMITED, set};
use crate::error::NoUsage;
use crate::history::ScaleHistory;
use crate::metrics::PodUsage;
use crate::replicas::{Inputs, MeasuredMetric, Measurements, NotFound, of_metric};
use crate::settings::AutoscalerSettings;

/// Most metrics of an autoscaler: the API has no bound, and each look goes through all of them. With more nothing is scaled, because the rest could ask for
/// more.
const METRICS_MAX: usize = 100;

/// The scale of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// `spec.replicas`.
    pub replicas: i32,
    /// `status.selector`.
    pub selector: String,
}

/// What an autoscaler is decided by.
pub struct ObservedAutoscaler<'a> {
    /// The target's scale.
    pub scale: &'a Scale,
    /// The pods of the namespace that the target's selector selects; empty if [`needs_metrics`] has none.
    pub pods: &'a [&'a Pod],
    /// Their metrics, or why there are none.
    pub usage: &'a Result<Vec<PodUsage>, NoUsage>,
}

/// Whether an event reports a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It does not.
    Normal,
    /// It does.
    Warning,
}

/// An event about the autoscaler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoscalerEvent {
    /// Whether it reports a problem.
    pub severity: Severity,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// What to write about an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub status: HorizontalPodAutoscalerStatus,
    /// Its events.
    pub notes: Vec<AutoscalerEvent>,
}

/// What to do about an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalePlan {
    /// The replicas that the target should have; unset if nothing changes.
    pub scale_to: Option<i32>,
    /// Status and events; of a target that is to be scaled without the result of that.
    outcome: Outcome,
    current: i32,
    why: String,
}

/// The outcome for a target whose scale cannot be read.
pub fn without_scale(hpa: &HorizontalPodAutoscaler, why: &str, now: Time) -> Outcome {
    let mut status = hpa.status.clone();
    let message = format!("the HPA controller was unable to get the target's current scale: {why}");
    set(&mut status.conditions, ABLE_TO_SCALE, false, ("FailedGetScale", &message), now);
    let note = AutoscalerEvent {
        severity: Severity::Warning,
        reason: "FailedGetScale",
        message: why.to_owned(),
    };
    Outcome { status, notes: vec![note] }
}

/// The selector of the pods whose metrics the decision needs; `None` if it needs none.
pub fn needs_metrics(hpa: &HorizontalPodAutoscaler, scale: &Scale) -> Option<Selector> {
    let is_within = (min_replicas(hpa)..=hpa.spec.max_replicas).contains(&scale.replicas);
    let is_set = is_within && !scale.selector.is_empty() && hpa.spec.metrics.len() <= METRICS_MAX;
    is_set.then(|| Selector::parse(&scale.selector).ok()).flatten()
}

fn min_replicas(hpa: &HorizontalPodAutoscaler) -> i32 {
    hpa.spec.min_replicas.unwrap_or(1)
}

/// Decides about an autoscaler.
pub fn plan(
    hpa: &HorizontalPodAutoscaler,
    observed: &ObservedAutoscaler<'_>,
    history: &mut ScaleHistory,
    settings: &AutoscalerSettings,
    clocks: Clocks,
) -> ScalePlan {
    let Clocks { steady, wall: now } = clocks;
    let (current, min, max) = (observed.scale.replicas, min_replicas(hpa), hpa.spec.max_replicas);
    history.begin(current, steady);
    let mut making = Making { status: hpa.status.clone(), notes: Vec::new(), now };
    let able = "the HPA controller was able to get the target's current scale";
    making.set(ABLE_TO_SCALE, true, ("SucceededGetScale", able));
    if current == 0 && min != 0 {
        let said = "scaling is disabled since the replica count of the target is zero";
        making.set(SCALING_ACTIVE, false, ("ScalingDisabled", said));
        return making.end(current, None, String::new(), Vec::new());
    }
    if current > max {
        let why = "Current number of replicas above Spec.MaxReplicas".to_owned();
        return making.end(current, Some(max), why, Vec::new());
    }
    if current < min {
        let why = "Current number of replicas below Spec.MinReplicas".to_owned();
        return making.end(current, Some(min), why, Vec::new());
    }
    let inputs = Inputs {
        namespace: &hpa.metadata.namespace,
        pods: observed.pods,
        usage: observed.usage,
        current,
        settings,
        now,
    };
    let Some(wanted) = making.compute_desired(hpa, observed.scale, &inputs) else {
        return making.give_up(current);
    };
    let bounds = ReplicaBounds { min, max, current, desired: wanted.replicas };
    let decision = match &hpa.spec.behavior {
        None => decide_by_default(bounds, history, settings, steady),
        Some(rules) => decide_by_rules(bounds, rules, history, settings, steady),
    };
    let ScaleDecision { replicas, able, limited: (is_limited, reason, message) } = decision;
    making.set(ABLE_TO_SCALE, true, able);
    making.set(SCALING_LIMITED, is_limited, (reason, message));
    let why = match wanted.replicas {
        more if more > current => format!("{} above target", wanted.metric),
        _ => "All metrics below target".to_owned(),
    };
    let scale_to = Some(replicas).filter(|replicas| *replicas != current);
    making.end(current, scale_to, why, wanted.statuses)
}

/// The replicas that all metrics require together.
struct DesiredReplicas {
    replicas: i32,
    metric: String,
    statuses: Vec<MetricStatus>,
}

/// A plan in the making.
struct Making {
    status: HorizontalPodAutoscalerStatus,
    notes: Vec<AutoscalerEvent>,
    now: Time,
}

impl Making {
    fn set(&mut self, condition: &str, is_true: bool, said: (&str, &str)) {
        set(&mut self.status.conditions, condition, is_true, said, self.now);
    }

    /// Adds a warning. Many metrics may fail for the same reason.
    fn warn(&mut self, reason: &'static str, message: String) {
        let note = AutoscalerEvent { severity: Severity::Warning, reason, message };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The most that a metric asks for. `None` if none says anything, and if some say nothing and the others would scale down.
    fn compute_desired(
        &mut self,
        hpa: &HorizontalPodAutoscaler,
        scale: &Scale,
        inputs: &Inputs<'_>,
    ) -> Option<DesiredReplicas> {
        if scale.selector.is_empty() {
            self.warn("SelectorRequired", "selector is required".to_owned());
            let said = "the HPA target's scale is missing a selector";
            self.set(SCALING_ACTIVE, false, ("InvalidSelector", said));
            self.fail("selector is required".to_owned());
            return None;
        }
        if let Err(error) = Selector::parse(&scale.selector) {
            let said = format!(
                "couldn't convert selector into a corresponding internal selector object: {error}"
            );
            self.warn("InvalidSelector", said.clone());
            self.set(SCALING_ACTIVE, false, ("InvalidSelector", &said));
            self.fail(said);
            return None;
        }
        if hpa.spec.metrics.len() > METRICS_MAX {
            let count = hpa.spec.metrics.len();
            let said = format!("the HPA has {count} metrics, and may have {METRICS_MAX} at most");
            self.set(SCALING_ACTIVE, false, ("TooManyMetrics", &said));
            self.fail(said);
            return None;
        }
        let mut most: Option<MeasuredMetric> = None;
        let (mut statuses, mut failures) = (Vec::new(), Vec::new());
        let mut measurements = Measurements::default();
        for spec in &hpa.spec.metrics {
            match of_metric(spec, inputs, &mut measurements) {
                Ok(found) => {
                    statuses.push(found.status.clone());
                    if most.as_ref().is_none_or(|most| found.replicas > most.replicas) {
                        most = Some(found);
                    }
                }
                Err(failure) => {
                    self.warn(failure.reason, failure.message.clone());
                    statuses.push(MetricStatus::default());
                    failures.push(failure);
                }
            }
        }
        let trusted = most.filter(|most| failures.is_empty() || most.replicas >= inputs.current);
        let Some(most) = trusted else {
            self.refuse(&failures, hpa.spec.metrics.len());
            return None;
        };
        let said = format!(
            "the HPA was able to successfully calculate a replica count from {}",
            most.name
        );
        self.set(SCALING_ACTIVE, true, ("ValidMetricFound", &said));
        Some(DesiredReplicas { replicas: most.replicas, metric: most.name, statuses })
    }

    fn refuse(&mut self, failures: &[NotFound], count: usize) {
        let Some(first) = failures.first() else {
            // The API server gives every autoscaler a metric.
            let said = "the HPA has no metrics";
            self.set(SCALING_ACTIVE, false, ("InvalidMetricSourceType", said));
            return self.fail(said.to_owned());
        };
        let said = format!("the HPA was unable to compute the replica count: {}", first.message);
        self.set(SCALING_ACTIVE, false, (first.reason, &said));
        self.fail(format!(
            "invalid metrics ({} invalid out of {count}), first error is: {}{}",
            failures.len(),
            first.context,
            first.message
        ));
    }

    fn fail(&mut self, message: String) {
        self.warn("FailedComputeMetricsReplicas", message);
    }

    /// The plan of an autoscaler whose metrics say nothing.
    fn give_up(self, current: i32) -> ScalePlan {
        let status = HorizontalPodAutoscalerStatus { current_replicas: current, ..self.status };
        let outcome = Outcome { status, notes: self.notes };
        ScalePlan { scale_to: None, outcome, current, why: String::new() }
    }

    fn end(
        self,
        current: i32,
        scale_to: Option<i32>,
        why: String,
        current_metrics: Vec<MetricStatus>,
    ) -> ScalePlan {
        let status = HorizontalPodAutoscalerStatus {
            observed_generation: None,
            last_scale_time: self.status.last_scale_time,
            current_replicas: current,
            desired_replicas: scale_to.unwrap_or(current),
            current_metrics,
            conditions: self.status.conditions,
        };
        ScalePlan { scale_to, outcome: Outcome { status, notes: self.notes }, current, why }
    }
}

impl ScalePlan {
    /// What to write when nothing is to be scaled.
    pub fn unchanged(self) -> Outcome {
        self.outcome
    }

    /// What to write once the target has been scaled to `replicas`.
    pub fn scaled(
        self,
        hpa: &HorizontalPodAutoscaler,
        replicas: i32,
        history: &mut ScaleHistory,
        clocks: Clocks,
    ) -> Outcome {
        let Clocks { steady, wall: now } = clocks;
        let Outcome { mut status, mut notes } = self.outcome;
        let said = format!("the HPA controller was able to update the target scale to {replicas}");
        set(&mut status.conditions, ABLE_TO_SCALE, true, ("SucceededRescale", &said), now);
        status.last_scale_time = Some(now);
        let message = format!("New size: {replicas}; reason: {}", self.why);
        notes.push(AutoscalerEvent {
            severity: Severity::Normal,
            reason: "SuccessfulRescale",
            message,
        });
        if let Some(rules) = &hpa.spec.behavior {
            history.scaled(self.current, replicas, steady, longest_period(rules));
        }
        Outcome { status, notes }
    }

    /// What to write when the target could not be scaled.
    pub fn not_scaled(
        self,
        hpa: &HorizontalPodAutoscaler,
        replicas: i32,
        error: &str,
        now: Time,
    ) -> Outcome {
        let Outcome { mut status, mut notes } = self.outcome;
        let said = format!("the HPA controller was unable to update the target scale: {error}");
        set(&mut status.conditions, ABLE_TO_SCALE, false, ("FailedUpdateScale", &said), now);
        status.desired_replicas = hpa.status.desired_replicas;
        status.current_metrics = hpa.status.current_metrics.clone();
        let message = format!("New size: {replicas}; reason: {}; error: {error}", self.why);
        notes.push(AutoscalerEvent {
            severity: Severity::Warning,
            reason: "FailedRescale",
            message,
        });
        Outcome { status, notes }
    }
}

#[cfg(test)]
mod tests;
