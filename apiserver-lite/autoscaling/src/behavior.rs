//! From the replicas that metrics ask for to those that the target gets: stabilization, rates, minimum and maximum.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proto_api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior,
};

use crate::history::ScaleHistory;
use crate::settings::AutoscalerSettings;

/// Without rules the replicas at most double, or become this many.
const SCALE_UP_MIN: i32 = 4;

/// The bounds of an autoscaler and the replicas between them.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaBounds {
    /// `spec.minReplicas`.
    pub min: i32,
    /// `spec.maxReplicas`.
    pub max: i32,
    /// The target's.
    pub current: i32,
    /// The replicas that the metrics require.
    pub desired: i32,
}

/// A decision, with what the conditions say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleDecision {
    pub replicas: i32,
    /// Reason and message of the condition AbleToScale.
    pub able: (&'static str, &'static str),
    /// Whether they are limited, with reason and message of the condition ScalingLimited.
    pub limited: (bool, &'static str, &'static str),
}

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);
const TOO_MANY: (&str, &str) =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const WITHIN: (&str, &str) =
    ("DesiredWithinRange", "the desired count is within the acceptable range");

/// Decides without rules of the autoscaler's own: the highest of the last minutes, and at most twice as many.
pub fn decide_by_default(
    bounds: ReplicaBounds,
    history: &mut ScaleHistory,
    settings: &AutoscalerSettings,
    now: Instant,
) -> ScaleDecision {
    // A recommendation counts up to the very end of the window.
    history.recommend(bounds.desired, now, seconds(settings.downscale_stabilization));
    let stabilized = history.highest().unwrap_or(bounds.desired);
    let able = if stabilized == bounds.desired { READY } else { DOWN_STABILIZED };
    let rate = bounds.current.saturating_mul(2).max(SCALE_UP_MIN);
    let most = if bounds.max > rate { (rate, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
    let (replicas, said) = match stabilized {
        few if few < bounds.min => (bounds.min, TOO_FEW),
        many if many > most.0 => most,
        within => (within, WITHIN),
    };
    ScaleDecision { replicas, able, limited: (replicas != stabilized, said.0, said.1) }
}

/// Decides by the autoscaler's rules.
pub fn decide_by_rules(
    bounds: ReplicaBounds,
    rules: &HorizontalPodAutoscalerBehavior,
    history: &mut ScaleHistory,
    settings: &AutoscalerSettings,
    now: Instant,
) -> ScaleDecision {
    let (up, down) = (Rules::up(rules), Rules::down(rules, settings));
    let ReplicaBounds { current, desired, .. } = bounds;
    let lowest = history.within(up.window, now).fold(desired, i32::min);
    let highest = history.within(down.window, now).fold(desired, i32::max);
    let stabilized = current.max(lowest).min(highest);
    history.recommend(desired, now, up.window.max(down.window));
    let able = match stabilized {
        same if same == desired => READY,
        _ if desired >= current => UP_STABILIZED,
        _ => DOWN_STABILIZED,
    };
    let (replicas, said) = if stabilized > current {
        let rate = up.limit(current, history, now, Direction::Up).max(current);
        let most = if bounds.max > rate { (rate, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
        if stabilized > most.0 { most } else { (stabilized, WITHIN) }
    } else if stabilized < current {
        let rate = down.limit(current, history, now, Direction::Down).min(current);
        let least = if bounds.min < rate { (rate, DOWN_LIMIT) } else { (bounds.min, TOO_FEW) };
        if stabilized < least.0 { least } else { (stabilized, WITHIN) }
    } else {
        (stabilized, WITHIN)
    };
    ScaleDecision { replicas, able, limited: (replicas != stabilized, said.0, said.1) }
}

/// The longest period of the rules: a change counts against those of both directions.
pub fn longest_period(rules: &HorizontalPodAutoscalerBehavior) -> Duration {
    let both = [&rules.scale_up, &rules.scale_down];
    let policies = both.into_iter().flatten().flat_map(|rules| &rules.policies);
    let periods = policies.map(|policy| i64::from(policy.period_seconds));
    seconds(periods.chain([DEFAULT_PERIOD]).max().unwrap_or(DEFAULT_PERIOD))
}

/// A length in seconds, none of which is negative.
fn seconds(length: i64) -> Duration {
    Duration::from_secs(u64::try_from(length).unwrap_or(0))
}

/// The period of the rules that hold where there are none.
const DEFAULT_PERIOD: i64 = 15;

enum Direction {
    Up,
    Down,
}

/// The rules of a direction, with Kubernetes' defaults.
struct Rules<'a> {
    window: Duration,
    select: &'a str,
    policies: Vec<HPAScalingPolicy>,
}

impl<'a> Rules<'a> {
    fn up(rules: &'a HorizontalPodAutoscalerBehavior) -> Self {
        Self::new(rules.scale_up.as_ref(), 0, &[("Pods", 4), ("Percent", 100)])
    }

    fn down(rules: &'a HorizontalPodAutoscalerBehavior, settings: &AutoscalerSettings) -> Self {
        let window = settings.downscale_stabilization;
        Self::new(rules.scale_down.as_ref(), window, &[("Percent", 100)])
    }

    fn new(given: Option<&'a HPAScalingRules>, window: i64, default: &[(&str, i32)]) -> Self {
        let default = default.iter().map(|(type_, value)| HPAScalingPolicy {
            type_: (*type_).to_owned(),
            value: *value,
            period_seconds: 15,
        });
        let own = given.map(|rules| rules.policies.clone()).unwrap_or_default();
        let given_window = given.and_then(|rules| rules.stabilization_window_seconds);
        Self {
            window: seconds(given_window.map_or(window, i64::from)),
            select: given.and_then(|rules| rules.select_policy.as_deref()).unwrap_or("Max"),
            policies: if own.is_empty() { default.collect() } else { own },
        }
    }

    /// The replicas that were added and removed in each period of the policies: there may be tens of thousands of these, and at most 1,800 periods.
    fn changes(&self, history: &ScaleHistory, now: Instant) -> BTreeMap<i32, (i64, i64)> {
        let mut changes = BTreeMap::new();
        for HPAScalingPolicy { period_seconds, .. } in &self.policies {
            let changed = || history.changed(now, seconds(i64::from(*period_seconds)));
            changes.entry(*period_seconds).or_insert_with(changed);
        }
        changes
    }

    /// The farthest that the policies allow from the replicas at the start of their periods.
    fn limit(
        &self,
        current: i32,
        history: &ScaleHistory,
        now: Instant,
        direction: Direction,
    ) -> i32 {
        if self.select == "Disabled" {
            return current;
        }
        let changes = self.changes(history, now);
        let allowed = self.policies.iter().map(|policy| {
            let (added, removed) = changes.get(&policy.period_seconds).copied().unwrap_or_default();
            let start = i64::from(current).saturating_sub(added).saturating_add(removed);
            let by = i64::from(policy.value);
            match (&direction, policy.type_.as_str()) {
                (Direction::Up, "Percent") => {
                    // Rounded up, because a small count would never grow.
                    (start as f64 * (1.0 + by as f64 / 100.0)).ceil() as i64
                }
                (Direction::Down, "Percent") => (start as f64 * (1.0 - by as f64 / 100.0)) as i64,
                (Direction::Up, _) => start.saturating_add(by),
                (Direction::Down, _) => start.saturating_sub(by),
            }
        });
        // `Min` is the policy with the smallest change.
        let farthest = match (&direction, self.select) {
            (Direction::Up, "Min") => allowed.min(),
            (Direction::Up, _) | (Direction::Down, "Min") => allowed.max(),
            (Direction::Down, _) => allowed.min(),
        };
        let farthest = farthest.unwrap_or(i64::from(current)).clamp(0, i64::from(i32::MAX));
        i32::try_from(farthest).unwrap_or(i32::MAX)
    }
}

#[cfg(test)]
mod tests;
