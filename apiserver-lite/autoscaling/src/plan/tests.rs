use proto_api::autoscaling::v2::{MetricSpec, MetricTarget, PodsMetricSource};
use proto_api::{Quantity, autoscaling::v2 as api};

use super::*;
use crate::testing::{NOW, autoscaler, average, clocks, cpu_percent, pod, time, usage};

fn scale(replicas: i32) -> Scale {
    Scale { replicas, selector: "app=web".to_owned() }
}

/// Plans for a target whose pods use these thousandths of a CPU each.
fn plan_for(hpa: &HorizontalPodAutoscaler, scale: &Scale, used: &[i64]) -> ScalePlan {
    plan_at(hpa, scale, used, &mut ScaleHistory::default(), clocks(NOW))
}

fn plan_at(
    hpa: &HorizontalPodAutoscaler,
    scale: &Scale,
    used: &[i64],
    history: &mut ScaleHistory,
    now: Clocks,
) -> ScalePlan {
    let named = |at: usize| format!("p{at}");
    let pods: Vec<Pod> = (0..used.len()).map(|at| pod(&named(at))).collect();
    let pods: Vec<&Pod> = pods.iter().collect();
    let usage = Ok(used.iter().enumerate().map(|(at, milli)| usage(&named(at), *milli)).collect());
    let observed = ObservedAutoscaler { scale, pods: &pods, usage: &usage };
    plan(hpa, &observed, history, &AutoscalerSettings::default(), now)
}

/// Plans for a target with one pod whose usage cannot be read, for this reason.
fn plan_without_usage(hpa: &HorizontalPodAutoscaler, scale: &Scale, why: &str) -> ScalePlan {
    let usage = Err(NoUsage(why.to_owned()));
    let pod = pod("p0");
    let observed = ObservedAutoscaler { scale, pods: &[&pod], usage: &usage };
    plan(hpa, &observed, &mut ScaleHistory::default(), &AutoscalerSettings::default(), clocks(NOW))
}

/// Type, status and reason of the conditions.
fn conditions(status: &HorizontalPodAutoscalerStatus) -> Vec<(&str, &str, &str)> {
    let all = status.conditions.iter();
    all.map(|it| (it.type_.as_str(), it.status.as_str(), it.reason.as_str())).collect()
}

fn message<'a>(status: &'a HorizontalPodAutoscalerStatus, type_: &str) -> &'a str {
    let mut all = status.conditions.iter().filter(|it| it.type_ == type_);
    all.next().map_or("", |it| it.message.as_str())
}

fn notes(outcome: &Outcome) -> Vec<(&str, &str)> {
    outcome.notes.iter().map(|note| (note.reason, note.message.as_str())).collect()
}

#[test]
fn a_target_is_scaled_and_the_status_says_so() {
    let hpa = autoscaler(1, 10, vec![cpu_percent(50)]);
    let plan = plan_for(&hpa, &scale(2), &[800, 1000]);
    assert_eq!(plan.scale_to, Some(4), "ceil(2 * 90/50)");
    let mut history = ScaleHistory::default();
    let outcome = plan.clone().scaled(&hpa, 4, &mut history, clocks(NOW));
    let status = &outcome.status;
    assert_eq!(
        conditions(status),
        [
            ("AbleToScale", "True", "SucceededRescale"),
            ("ScalingActive", "True", "ValidMetricFound"),
            ("ScalingLimited", "False", "DesiredWithinRange"),
        ]
    );
    assert_eq!(
        message(status, "AbleToScale"),
        "the HPA controller was able to update the target scale to 4"
    );
    let metric = "cpu resource utilization (percentage of request)";
    assert_eq!(
        message(status, "ScalingActive"),
        format!("the HPA was able to successfully calculate a replica count from {metric}")
    );
    assert_eq!((status.current_replicas, status.desired_replicas), (2, 4));
    assert_eq!(status.last_scale_time, Some(time(NOW)));
    let current = status.current_metrics[0].resource.as_ref().map(|it| it.current.clone());
    let expected = api::MetricValueStatus {
        average_value: Some(Quantity::from_milli(900)),
        average_utilization: Some(90),
        value: None,
    };
    assert_eq!(current, Some(expected));
    let said = format!("New size: 4; reason: {metric} above target");
    assert_eq!(notes(&outcome), [("SuccessfulRescale", said.as_str())]);

    let failed = plan.not_scaled(&hpa, 4, "no", time(NOW));
    assert_eq!(conditions(&failed.status)[0], ("AbleToScale", "False", "FailedUpdateScale"));
    assert_eq!((failed.status.desired_replicas, failed.status.last_scale_time), (0, None));
    let said = format!("New size: 4; reason: {metric} above target; error: no");
    assert_eq!(notes(&failed), [("FailedRescale", said.as_str())]);
}

#[test]
fn a_target_that_is_right_stays() {
    let mut hpa = autoscaler(1, 10, vec![average("cpu", Quantity::from_milli(500))]);
    hpa.status.last_scale_time = Some(time(5));
    let plan = plan_for(&hpa, &scale(2), &[500, 510]);
    assert_eq!(plan.scale_to, None);
    let outcome = plan.unchanged();
    assert_eq!(
        conditions(&outcome.status),
        [
            ("AbleToScale", "True", "ReadyForNewScale"),
            ("ScalingActive", "True", "ValidMetricFound"),
            ("ScalingLimited", "False", "DesiredWithinRange"),
        ]
    );
    assert_eq!(outcome.status.desired_replicas, 2);
    assert_eq!(outcome.status.last_scale_time, Some(time(5)));
    assert_eq!(outcome.notes, []);
    // What was said is said again only when it changes.
    let again = HorizontalPodAutoscaler { status: outcome.status.clone(), ..hpa };
    assert_eq!(plan_for(&again, &scale(2), &[500, 510]).unchanged().status, outcome.status);
}

#[test]
fn bounds_need_no_metrics() {
    let hpa = autoscaler(2, 5, vec![cpu_percent(50)]);
    for (current, to, why) in [
        (7, 5, "Current number of replicas above Spec.MaxReplicas"),
        (1, 2, "Current number of replicas below Spec.MinReplicas"),
    ] {
        assert_eq!(needs_metrics(&hpa, &scale(current)), None);
        let plan = plan_for(&hpa, &scale(current), &[]);
        assert_eq!(plan.scale_to, Some(to));
        let outcome = plan.scaled(&hpa, to, &mut ScaleHistory::default(), clocks(NOW));
        let said = format!("New size: {to}; reason: {why}");
        assert_eq!(notes(&outcome), [("SuccessfulRescale", said.as_str())]);
    }
    let off = plan_for(&hpa, &scale(0), &[]);
    assert_eq!(off.scale_to, None);
    let status = off.unchanged().status;
    assert_eq!(conditions(&status)[1], ("ScalingActive", "False", "ScalingDisabled"));
    assert_eq!((status.current_replicas, status.desired_replicas), (0, 0));
    assert!(needs_metrics(&hpa, &scale(3)).is_some_and(|selector| !selector.is_everything()));
    // A minimum of zero does not switch it off.
    assert!(needs_metrics(&autoscaler(0, 5, Vec::new()), &scale(0)).is_some());
}

#[test]
fn the_metric_with_the_highest_proposal_wins() {
    let memory = average("memory", Quantity::from_bytes(100));
    let hpa = autoscaler(1, 10, vec![cpu_percent(50), memory]);
    // CPU: 30 % of 50 % of two pods; memory: 300 of 100 bytes each.
    let plan = plan_for(&hpa, &scale(2), &[300, 300]);
    assert_eq!(plan.scale_to, Some(4), "6, of which at most twice as many");
    let outcome = plan.scaled(&hpa, 4, &mut ScaleHistory::default(), clocks(NOW));
    assert_eq!(conditions(&outcome.status)[2], ("ScalingLimited", "True", "ScaleUpLimit"));
    let said = "New size: 4; reason: memory resource above target";
    assert_eq!(notes(&outcome), [("SuccessfulRescale", said)]);
    assert_eq!(outcome.status.current_metrics.len(), 2);
}

/// A metric of the custom metrics API.
fn of_pods() -> MetricSpec {
    let target = MetricTarget { type_: "AverageValue".to_owned(), ..MetricTarget::default() };
    let metric = api::MetricIdentifier { name: "requests".to_owned(), selector: None };
    let source = PodsMetricSource { metric, target };
    MetricSpec { type_: "Pods".to_owned(), pods: Some(source), ..MetricSpec::default() }
}

#[test]
fn metrics_that_are_missing_scale_up_only() {
    let hpa = autoscaler(1, 10, vec![of_pods(), cpu_percent(50)]);
    let up = plan_for(&hpa, &scale(2), &[1000, 1000]);
    assert_eq!(up.scale_to, Some(4));
    let status = up.scaled(&hpa, 4, &mut ScaleHistory::default(), clocks(NOW)).status;
    assert_eq!(status.current_metrics[0], MetricStatus::default(), "each keeps its place");
    let down = plan_for(&hpa, &scale(2), &[10, 10]);
    assert_eq!(down.scale_to, None);
    let outcome = down.unchanged();
    let api = "unable to get metric requests: unable to fetch metrics from custom metrics API: no custom metrics API registered";
    let first = format!(
        "invalid metrics (1 invalid out of 2), first error is: failed to get pods metric value: {api}"
    );
    assert_eq!(
        notes(&outcome),
        [("FailedGetPodsMetric", api), ("FailedComputeMetricsReplicas", first.as_str())]
    );
    assert_eq!(
        conditions(&outcome.status),
        [
            ("AbleToScale", "True", "SucceededGetScale"),
            ("ScalingActive", "False", "FailedGetPodsMetric"),
        ]
    );
    assert_eq!(
        message(&outcome.status, "ScalingActive"),
        format!("the HPA was unable to compute the replica count: {api}")
    );
}

#[test]
fn with_too_many_metrics_nothing_is_scaled_and_the_status_says_so() {
    let with = |count: usize| autoscaler(1, 10, vec![cpu_percent(50); count]);
    let most = with(METRICS_MAX);
    assert!(needs_metrics(&most, &scale(2)).is_some());
    assert_eq!(plan_for(&most, &scale(2), &[1000, 1000]).scale_to, Some(4));
    let too_many = with(20_000);
    assert_eq!(needs_metrics(&too_many, &scale(2)), None, "nothing is read");
    let plan = plan_for(&too_many, &scale(2), &[1000, 1000]);
    assert_eq!(plan.scale_to, None);
    let outcome = plan.unchanged();
    let said = "the HPA has 20000 metrics, and may have 100 at most";
    assert_eq!(notes(&outcome), [("FailedComputeMetricsReplicas", said)]);
    assert_eq!(conditions(&outcome.status)[1], ("ScalingActive", "False", "TooManyMetrics"));
    assert_eq!(message(&outcome.status, "ScalingActive"), said);
    assert!(outcome.status.current_metrics.is_empty());
    // Bounds need no metrics.
    assert_eq!(plan_for(&too_many, &scale(12), &[]).scale_to, Some(10));
}

#[test]
fn metrics_that_fail_for_one_reason_are_one_event() {
    let hpa = autoscaler(1, 10, [vec![of_pods(); 40], vec![cpu_percent(50); 60]].concat());
    let plan = plan_without_usage(&hpa, &scale(1), "away");
    let outcome = plan.unchanged();
    let reasons: Vec<&str> = outcome.notes.iter().map(|note| note.reason).collect();
    assert_eq!(
        reasons,
        ["FailedGetPodsMetric", "FailedGetResourceMetric", "FailedComputeMetricsReplicas"]
    );
    let all = "invalid metrics (100 invalid out of 100), first error is: ";
    assert!(outcome.notes[2].message.starts_with(all), "{:?}", outcome.notes);
}

#[test]
fn without_the_metrics_api_nothing_changes() {
    let mut hpa = autoscaler(1, 10, vec![cpu_percent(50)]);
    hpa.status.desired_replicas = 3;
    hpa.status.current_metrics = vec![MetricStatus::default()];
    let why = "the server could not find the requested resource";
    let plan = plan_without_usage(&hpa, &scale(3), why);
    assert_eq!(plan.scale_to, None);
    let outcome = plan.unchanged();
    let why = "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource";
    let first = format!(
        "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {why}"
    );
    assert_eq!(
        notes(&outcome),
        [("FailedGetResourceMetric", why), ("FailedComputeMetricsReplicas", first.as_str())]
    );
    assert_eq!(
        conditions(&outcome.status)[1],
        ("ScalingActive", "False", "FailedGetResourceMetric")
    );
    assert_eq!((outcome.status.current_replicas, outcome.status.desired_replicas), (3, 3));
    assert_eq!(outcome.status.current_metrics.len(), 1, "the last that was known");
}

#[test]
fn a_scale_without_a_selector_is_no_target() {
    let hpa = autoscaler(1, 10, vec![cpu_percent(50)]);
    for (selector, reason) in [("", "SelectorRequired"), ("a in (", "InvalidSelector")] {
        let scale = Scale { replicas: 2, selector: selector.to_owned() };
        assert_eq!(needs_metrics(&hpa, &scale), None);
        let plan = plan_for(&hpa, &scale, &[]);
        assert_eq!(plan.scale_to, None);
        let outcome = plan.unchanged();
        assert_eq!(conditions(&outcome.status)[1], ("ScalingActive", "False", "InvalidSelector"));
        assert_eq!(outcome.notes[0].reason, reason);
        assert_eq!(outcome.notes[1].reason, "FailedComputeMetricsReplicas");
    }
    let outcome = without_scale(&hpa, "deployments.apps \"web\" not found", time(NOW));
    assert_eq!(conditions(&outcome.status), [("AbleToScale", "False", "FailedGetScale")]);
    let said = "deployments.apps \"web\" not found";
    assert_eq!(notes(&outcome), [("FailedGetScale", said)]);
    assert_eq!(
        message(&outcome.status, "AbleToScale"),
        format!("the HPA controller was unable to get the target's current scale: {said}")
    );
}

/// The first look comes while the wall clock is a day ahead.
#[test]
fn a_clock_that_was_set_forward_and_back_holds_nothing_up() {
    let ahead = Clocks { wall: time(NOW + 86_400), ..clocks(NOW) };
    let at = |seconds: i64| clocks(NOW + seconds);
    let mut hpa = autoscaler(1, 20, vec![cpu_percent(50)]);
    // What was recommended holds for five minutes.
    let mut history = ScaleHistory::default();
    let mut look =
        |used: i64, now| plan_at(&hpa, &scale(4), &[used; 4], &mut history, now).scale_to;
    assert_eq!(look(500, ahead), None);
    assert_eq!([15, 299, 301].map(|seconds| look(10, at(seconds))), [None, None, Some(1)]);
    // Two pods a minute, up and down.
    let policy = api::HPAScalingPolicy { type_: "Pods".to_owned(), value: 2, period_seconds: 60 };
    let rules = api::HPAScalingRules {
        stabilization_window_seconds: Some(0),
        policies: vec![policy],
        ..api::HPAScalingRules::default()
    };
    hpa.spec.behavior = Some(api::HorizontalPodAutoscalerBehavior {
        scale_up: Some(rules.clone()),
        scale_down: Some(rules),
    });
    for (used, steps) in [(1000, [10, 12, 14]), (10, [10, 8, 6])] {
        let mut history = ScaleHistory::default();
        let mut look = |replicas: i32, now| {
            let used = vec![used; usize::try_from(replicas).expect("a count")];
            let plan = plan_at(&hpa, &scale(replicas), &used, &mut history, now);
            let to = plan.scale_to?;
            let status = plan.scaled(&hpa, to, &mut history, now).status;
            assert_eq!(status.last_scale_time, Some(now.wall));
            Some(to)
        };
        let [first, second, third] = steps;
        assert_eq!(look(first, ahead), Some(second));
        assert_eq!(look(second, at(59)), None, "the minute is not over");
        assert_eq!(look(second, at(60)), Some(third));
    }
}
