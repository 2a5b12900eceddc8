//! Validation of the pod failure policy of a Job.

use super::FieldErrors;
use super::names::qualified_name;
use crate::enums;
use crate::value::{Map, Path, Value};

/// Most rules of a policy, and patterns of a rule.
const ENTRIES_MAX: usize = 20;
/// Most exit codes of a rule.
const EXIT_CODES_MAX: usize = 255;

/// Checks `spec.podFailurePolicy` of the Job's spec at `path`.
pub(super) fn check(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(policy) = spec.map("podFailurePolicy") else { return };
    let restarts = spec.str_at(&["template", "spec", "restartPolicy"]);
    if restarts != "Never" {
        let template = path.field("template");
        let pod = template.field("spec");
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.invalid(&pod.field("restartPolicy"), restarts, detail);
    }
    let path = path.field("podFailurePolicy");
    let path = path.field("rules");
    errors.at_most(&path, policy.list("rules").len(), ENTRIES_MAX);
    let pod = spec.map("template").and_then(|template| template.map("spec"));
    for (at, rule) in policy.maps("rules").enumerate().take(ENTRIES_MAX) {
        check_rule(rule, pod, &path.index(at), errors);
    }
}

fn check_rule(rule: &Map, pod: Option<&Map>, path: &Path<'_>, errors: &mut FieldErrors) {
    errors.one_of(&path.field("action"), rule.str("action"), enums::FAILURE_ACTIONS);
    let (codes, conditions) = (rule.map("onExitCodes"), rule.list("onPodConditions"));
    match (codes.is_some(), conditions.is_empty()) {
        (true, false) => {
            let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
            errors.invalid_part(path, detail);
        }
        (false, true) => {
            let detail = "specifying one of OnExitCodes and OnPodConditions is required";
            errors.invalid_part(path, detail);
        }
        _ => {}
    }
    if let Some(codes) = codes {
        check_exit_codes(codes, pod, &path.field("onExitCodes"), errors);
    }
    let path = path.field("onPodConditions");
    errors.at_most(&path, conditions.len(), ENTRIES_MAX);
    for (at, pattern) in rule.maps("onPodConditions").enumerate().take(ENTRIES_MAX) {
        let path = path.index(at);
        let kind = pattern.str("type");
        errors.complaints(&path.field("type"), kind, qualified_name(kind));
        let status = pattern.str("status");
        errors.one_of(&path.field("status"), status, &["False", "True", "Unknown"]);
    }
}

fn check_exit_codes(codes: &Map, pod: Option<&Map>, path: &Path<'_>, errors: &mut FieldErrors) {
    let operator = codes.str("operator");
    errors.one_of(&path.field("operator"), operator, enums::EXIT_CODE_OPERATORS);
    if let Some(name) = codes.get("containerName").and_then(Value::as_str) {
        let has = |list| pod.is_some_and(|pod| pod.maps(list).any(|one| one.str("name") == name));
        if !has("containers") && !has("initContainers") {
            let detail = "must be one of the container or initContainer names in the pod template";
            errors.invalid(&path.field("containerName"), name, detail);
        }
    }
    let path = path.field("values");
    let values = codes.list("values");
    if values.is_empty() {
        errors.invalid(&path, values.to_vec(), "at least one value is required");
    }
    errors.at_most(&path, values.len(), EXIT_CODES_MAX);
    let values: Vec<i64> = values.iter().take(EXIT_CODES_MAX).filter_map(Value::as_int).collect();
    for (at, value) in values.iter().enumerate() {
        if operator == "In" && *value == 0 {
            errors.invalid(&path.index(at), *value, "must not be 0 for the In operator");
        }
        if values.iter().take(at).any(|earlier| earlier == value) {
            errors.duplicate(&path.index(at), *value);
        }
    }
    if !values.is_sorted() {
        let values: Vec<Value> = values.into_iter().map(Value::from).collect();
        errors.invalid(&path, values, "must be ordered");
    }
}
