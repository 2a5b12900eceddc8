//! The conditions of an autoscaler.

use proto_api::Time;
use proto_api::autoscaling::v2::HorizontalPodAutoscalerCondition;

/// The controller can get and change the target's scale.
pub const ABLE_TO_SCALE: &str = "AbleToScale";
/// Replicas can be calculated from metrics.
pub const SCALING_ACTIVE: &str = "ScalingActive";
/// Replicas are held back by bounds or rates.
pub const SCALING_LIMITED: &str = "ScalingLimited";

/// Sets a condition; its time is that of the last change of its status.
pub fn set(
    conditions: &mut Vec<HorizontalPodAutoscalerCondition>,
    type_: &str,
    is_true: bool,
    (reason, message): (&str, &str),
    now: Time,
) {
    let status = if is_true { "True" } else { "False" };
    let known = conditions.iter().position(|condition| condition.type_ == type_);
    let mut condition = known.map(|at| conditions.remove(at)).unwrap_or_default();
    if condition.status != status {
        condition.last_transition_time = now;
    }
    let condition = HorizontalPodAutoscalerCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..condition
    };
    conditions.insert(known.unwrap_or(conditions.len()), condition);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change() {
        let mut conditions = Vec::new();
        for (at, is_true, expected) in [(1, true, 1), (2, true, 1), (3, false, 3), (4, false, 3)] {
            set(&mut conditions, SCALING_ACTIVE, is_true, ("R", "m"), Time::from_unix(at));
            set(&mut conditions, ABLE_TO_SCALE, true, ("S", "n"), Time::from_unix(at));
            assert_eq!(conditions[0].last_transition_time, Time::from_unix(expected));
            assert_eq!(conditions.len(), 2);
        }
        assert_eq!(
            (conditions[0].status.as_str(), conditions[1].status.as_str()),
            ("False", "True")
        );
    }
}
