//! Rules of LimitRanges: one limit, and the errors in Kubernetes' words.

use serde_json::{Value as Json, json};

use super::complaints;

fn errors_of(limits: &Json) -> Vec<String> {
    complaints(&json!({"apiVersion": "v1", "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": "d"}, "spec": {"limits": limits}}))
}

#[test]
fn bounds_and_defaults_agree() {
    for good in [
        json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"},
            "maxLimitRequestRatio": {"cpu": "2"}}),
        json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "300m"},
            "maxLimitRequestRatio": {"cpu": "3"}}),
        json!({"type": "Container", "min": {"cpu": "0"}, "max": {"cpu": "0"},
            "maxLimitRequestRatio": {"cpu": "1"}}),
        json!({"type": "Container", "min": {"memory": "1"}, "max": {"memory": "9223372036854775807"},
            "maxLimitRequestRatio": {"memory": "9223372036854775807"}}),
        json!({"type": "Container", "default": {"example.com/gpu": "2"}}),
        json!({"type": "Container", "default": {"memory": "2"}, "defaultRequest": {"memory": "1"}}),
        json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}}),
        json!({"type": "example.com/mine", "max": {"cpu": "1"}}),
    ] {
        assert_eq!(errors_of(&json!([good])), Vec::<String>::new(), "{good}");
    }
}

#[test]
fn bounds_and_defaults_that_disagree_are_refused() {
    for (limit, error) in [
        (
            json!({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}),
            "min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
        ),
        (
            json!({"type": "Container", "min": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
            "defaultRequest[cpu]: Invalid value: \"1\": min value 2 is greater than default request value 1",
        ),
        (
            json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
            "defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than default limit value 1",
        ),
        (
            json!({"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}, "max": {"cpu": "1"}}),
            "default[cpu]: Invalid value: \"2\": default value 2 is greater than max value 1",
        ),
        (
            json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}}),
            "maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
        ),
        (
            json!({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2500m"}, "maxLimitRequestRatio": {"cpu": "3"}}),
            "maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.500000",
        ),
        (
            json!({"type": "Pod", "min": {"memory": "1"}, "max": {"memory": "1"}, "maxLimitRequestRatio": {"memory": "1E"}}),
            "maxLimitRequestRatio[memory]: Invalid value: \"1E\": ratio 1E is greater than max/min = 1.000000",
        ),
        (
            json!({"type": "Container", "default": {"example.com/gpu": "2"}, "defaultRequest": {"example.com/gpu": "1"}}),
            "defaultRequest[example.com/gpu]: Invalid value: \"1\": default value 2 must equal to defaultRequest value 1 in example.com/gpu",
        ),
        (
            json!({"type": "Container", "default": {"hugepages-2Mi": "4Mi"}, "defaultRequest": {"hugepages-2Mi": "2Mi"}}),
            "defaultRequest[hugepages-2Mi]: Invalid value: \"2Mi\": default value 4Mi must equal to defaultRequest value 2Mi in hugepages-2Mi",
        ),
        (
            json!({"type": "Pod", "defaultRequest": {"cpu": "1"}}),
            "defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
        ),
        (
            json!({"type": "PersistentVolumeClaim", "min": {"cpu": "1"}}),
            "limits: Required value: either minimum or maximum storage value is required, but neither was provided",
        ),
        (
            json!({"type": "Node"}),
            "type: Invalid value: \"Node\": must be a standard limit type or fully qualified",
        ),
        (
            json!({"type": "Pod", "max": {"storage": "1"}}),
            "max[storage]: Invalid value: \"storage\": must be a standard resource for containers",
        ),
    ] {
        assert_eq!(errors_of(&json!([limit])), [format!("spec.limits[0].{error}")], "{limit}");
    }
    let twice = json!([{"type": "Pod"}, {"type": "Pod"}]);
    assert_eq!(errors_of(&twice), ["spec.limits[1].type: Duplicate value: \"Pod\""]);
}
