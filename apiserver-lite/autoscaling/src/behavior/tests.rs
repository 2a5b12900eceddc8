use super::*;
use crate::testing::{NOW, steady};

fn bounds(min: i32, max: i32, current: i32, desired: i32) -> ReplicaBounds {
    ReplicaBounds { min, max, current, desired }
}

fn by_default(
    bounds: ReplicaBounds,
    history: &mut ScaleHistory,
    at: i64,
) -> (i32, &'static str, &'static str) {
    let decision = decide_by_default(bounds, history, &AutoscalerSettings::default(), steady(at));
    (decision.replicas, decision.able.0, decision.limited.1)
}

#[test]
fn without_rules_replicas_double_at_most() {
    for (limits, replicas, limited) in [
        (bounds(1, 10, 3, 5), 5, "DesiredWithinRange"),
        (bounds(1, 100, 3, 50), 6, "ScaleUpLimit"),
        (bounds(1, 100, 1, 50), 4, "ScaleUpLimit"),
        (bounds(1, 6, 3, 50), 6, "TooManyReplicas"),
        (bounds(2, 6, 3, 1), 2, "TooFewReplicas"),
        (bounds(0, 6, 3, 0), 0, "DesiredWithinRange"),
    ] {
        let mut history = ScaleHistory::default();
        let decision = by_default(limits, &mut history, NOW);
        assert_eq!(decision, (replicas, "ReadyForNewScale", limited), "{limits:?}");
    }
}

#[test]
fn without_rules_the_highest_of_five_minutes_holds() {
    let mut history = ScaleHistory::default();
    history.begin(8, steady(NOW));
    let mut at = |seconds: i64, desired: i32| {
        let (replicas, able, _) =
            by_default(bounds(1, 10, 8, desired), &mut history, NOW + seconds);
        (replicas, able)
    };
    assert_eq!(at(15, 2), (8, "ScaleDownStabilized"), "what it was at first");
    assert_eq!(at(100, 5), (8, "ScaleDownStabilized"));
    assert_eq!(at(300, 2), (8, "ScaleDownStabilized"), "the window has not ended");
    assert_eq!(at(301, 2), (5, "ScaleDownStabilized"));
    assert_eq!(at(400, 2), (5, "ScaleDownStabilized"));
    assert_eq!(at(401, 2), (2, "ReadyForNewScale"));
}

fn rules(up: HPAScalingRules, down: HPAScalingRules) -> HorizontalPodAutoscalerBehavior {
    HorizontalPodAutoscalerBehavior { scale_up: Some(up), scale_down: Some(down) }
}

fn policies(window: Option<i32>, select: &str, all: &[(&str, i32, i32)]) -> HPAScalingRules {
    let policy = |(type_, value, period_seconds): &(&str, i32, i32)| HPAScalingPolicy {
        type_: (*type_).to_owned(),
        value: *value,
        period_seconds: *period_seconds,
    };
    HPAScalingRules {
        stabilization_window_seconds: window,
        select_policy: Some(select.to_owned()),
        policies: all.iter().map(policy).collect(),
    }
}

/// Decides, and remembers that the target was scaled.
fn by_rules(
    limits: ReplicaBounds,
    rules: &HorizontalPodAutoscalerBehavior,
    history: &mut ScaleHistory,
    at: i64,
) -> (i32, &'static str, &'static str) {
    let now = steady(NOW + at);
    let decision = decide_by_rules(limits, rules, history, &AutoscalerSettings::default(), now);
    if decision.replicas != limits.current {
        history.scaled(limits.current, decision.replicas, now, longest_period(rules));
    }
    (decision.replicas, decision.able.0, decision.limited.1)
}

#[test]
fn policies_limit_one_change() {
    let up = |select, all: &[(&str, i32, i32)]| {
        rules(policies(Some(0), select, all), HPAScalingRules::default())
    };
    let down = |select, all: &[(&str, i32, i32)]| {
        rules(HPAScalingRules::default(), policies(Some(0), select, all))
    };
    let (pods, percent) = (("Pods", 2, 60), ("Percent", 50, 60));
    for (name, rules, current, desired, replicas) in [
        ("the farthest", up("Max", &[pods, percent]), 10, 100, 15),
        ("the nearest", up("Min", &[pods, percent]), 10, 100, 12),
        ("none", up("Disabled", &[pods]), 10, 100, 10),
        ("rounded up", up("Max", &[("Percent", 10, 60)]), 1, 100, 2),
        ("by default 4 or twice as many", up("Max", &[]), 3, 100, 7),
        ("by default twice as many", up("Max", &[]), 9, 100, 18),
        ("the farthest", down("Max", &[pods, percent]), 10, 1, 5),
        ("the nearest", down("Min", &[pods, percent]), 10, 1, 8),
        ("none", down("Disabled", &[pods]), 10, 1, 10),
        ("rounded down", down("Max", &[("Percent", 30, 60)]), 5, 1, 3),
        ("by default all", down("Max", &[]), 10, 1, 1),
    ] {
        let limits = bounds(1, 1000, current, desired);
        let decision = by_rules(limits, &rules, &mut ScaleHistory::default(), 0);
        assert_eq!(decision.0, replicas, "{name}");
    }
    let rules = up("Max", &[("Pods", 5, 60)]);
    let decide = |max| by_rules(bounds(1, max, 10, 100), &rules, &mut ScaleHistory::default(), 0);
    assert_eq!(decide(1000), (15, "ReadyForNewScale", "ScaleUpLimit"));
    assert_eq!(decide(13), (13, "ReadyForNewScale", "TooManyReplicas"));
    let rules = down("Max", &[("Pods", 5, 60)]);
    let decide = |min| by_rules(bounds(min, 90, 10, 1), &rules, &mut ScaleHistory::default(), 0);
    assert_eq!(decide(1), (5, "ReadyForNewScale", "ScaleDownLimit"));
    assert_eq!(decide(7), (7, "ReadyForNewScale", "TooFewReplicas"));
}

#[test]
fn policies_limit_the_changes_of_a_period() {
    let rules = rules(
        policies(Some(0), "Max", &[("Pods", 4, 60)]),
        policies(Some(0), "Max", &[("Pods", 3, 60)]),
    );
    let mut history = ScaleHistory::default();
    let mut at = |seconds, current, desired| {
        by_rules(bounds(1, 100, current, desired), &rules, &mut history, seconds).0
    };
    assert_eq!(at(0, 10, 12), 12);
    assert_eq!(at(30, 12, 20), 14, "two of the four are taken");
    assert_eq!(at(45, 14, 20), 14, "all are");
    assert_eq!(at(60, 14, 20), 16, "the first two are forgotten");
    assert_eq!(at(61, 16, 1), 9, "three fewer than the 12 at the start of the minute");
}

#[test]
fn both_windows_hold_what_swings() {
    let rules = rules(policies(Some(60), "Max", &[]), policies(Some(120), "Max", &[]));
    let mut history = ScaleHistory::default();
    let mut at = |seconds, current, desired| {
        let (replicas, able, _) =
            by_rules(bounds(1, 100, current, desired), &rules, &mut history, seconds);
        (replicas, able)
    };
    assert_eq!(at(0, 5, 5), (5, "ReadyForNewScale"));
    assert_eq!(at(30, 5, 8), (5, "ScaleUpStabilized"), "the lowest of a minute");
    assert_eq!(at(59, 5, 7), (5, "ScaleUpStabilized"));
    assert_eq!(at(60, 5, 9), (7, "ScaleUpStabilized"));
    assert_eq!(at(75, 7, 2), (7, "ScaleDownStabilized"), "the highest of two minutes");
    assert_eq!(at(180, 7, 2), (2, "ReadyForNewScale"));
}

#[test]
fn changes_are_summed_once_for_each_period() {
    let all = [("Pods", 4, 60), ("Percent", 10, 30), ("Pods", 5, 60)].repeat(20_000);
    let rules = rules(policies(Some(0), "Max", &all), HPAScalingRules::default());
    let mut history = ScaleHistory::default();
    history.scaled(10, 12, steady(NOW - 45), Duration::from_secs(60));
    let changes = Rules::up(&rules).changes(&history, steady(NOW));
    assert_eq!(changes, [(30, (0, 0)), (60, (2, 0))].into());
    let limit = Rules::up(&rules).limit(12, &history, steady(NOW), Direction::Up);
    assert_eq!(limit, 15, "five more than the ten of a minute ago");
}
