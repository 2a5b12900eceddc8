//! Rules for what makes pods: workloads of `apps` and `batch`, replication controllers, pod templates.

use super::pod::check_template;
use super::{FieldErrors, metadata};
use crate::object::Object;
use crate::value::{Map, Path, Value};

pub(super) fn check_apps(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]
    {
        check_not_negative(spec, field, &path, errors);
    }
    check_selector(spec, &path, errors);
    let template = path.field("template");
    check_template(spec.map("template"), &template, errors);
    check_restart_policy(spec, &["Always"], &template, errors);
    let (field, supported): (_, &[&str]) = match object.kind.kind {
        "Deployment" => ("strategy", &["Recreate", "RollingUpdate"]),
        "DaemonSet" | "StatefulSet" => ("updateStrategy", &["OnDelete", "RollingUpdate"]),
        _ => return,
    };
    let strategy = path.field(field);
    errors.one_of(&strategy.field("type"), spec.str_at(&[field, "type"]), supported);
    check_rolling(spec, field, &strategy, errors);
}

/// A deployment must be able to move: not both bounds at zero, and none with `Recreate`.
fn check_rolling(spec: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("rollingUpdate");
    let rolling = spec.map(field).and_then(|strategy| strategy.map("rollingUpdate"));
    if field == "strategy" && spec.str_at(&[field, "type"]) == "Recreate" && rolling.is_some() {
        errors.forbidden(&here, "may not be specified when strategy `type` is 'Recreate'");
        return;
    }
    let Some(rolling) = rolling else { return };
    let is_zero = |name: &str| match rolling.get(name) {
        Some(Value::String(text)) => text == "0%",
        value => value.and_then(Value::as_int) == Some(0),
    };
    for name in ["maxUnavailable", "maxSurge"] {
        if let Some(Value::String(text)) = rolling.get(name) {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<u32>().ok());
            if percent.is_none() {
                let detail = "must be an integer or percentage (e.g '5%%')";
                errors.invalid(&here.field(name), text.as_str(), detail);
            }
        }
    }
    if field == "strategy" && is_zero("maxUnavailable") && is_zero("maxSurge") {
        let detail = "may not be 0 when `maxSurge` is 0";
        let value = rolling.get("maxUnavailable").cloned().unwrap_or_default();
        errors.invalid(&here.field("maxUnavailable"), value, detail);
    }
}

/// The selector is there, selects something, and selects the pods of the template.
fn check_selector(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("selector");
    let Some(selector) = spec.map("selector") else {
        errors.required(&here, "");
        return;
    };
    if selector.is_empty() {
        errors.invalid(&here, Map::new(), "empty selector is invalid for deployment");
        return;
    }
    let template = spec.at(&["template", "metadata", "labels"]).and_then(Value::as_map);
    let labels = template.cloned().unwrap_or_default();
    match selector_matches(selector, &labels) {
        Err(why) => errors.invalid(&here, selector.clone(), &why),
        Ok(true) => {}
        Ok(false) => {
            let template = path.field("template");
            let metadata = template.field("metadata");
            let detail = "`selector` does not match template `labels`";
            errors.invalid(&metadata.field("labels"), labels, detail);
        }
    }
}

/// Whether a label selector, as it stands in a tree, selects `labels`.
fn selector_matches(selector: &Map, labels: &Map) -> Result<bool, String> {
    let equal = selector.map("matchLabels").into_iter().flat_map(Map::iter);
    let mut matches = equal.fold(true, |all, (key, value)| all && labels.get(key) == Some(value));
    for requirement in selector.maps("matchExpressions") {
        let value = labels.get(requirement.str("key"));
        let listed = value.is_some_and(|value| requirement.list("values").contains(value));
        matches &= match requirement.str("operator") {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => return Err(format!("{other:?} is not a valid label selector operator")),
        };
    }
    Ok(matches)
}

fn check_restart_policy(spec: &Map, allowed: &[&str], path: &Path<'_>, errors: &mut FieldErrors) {
    let policy = spec.str_at(&["template", "spec", "restartPolicy"]);
    if !policy.is_empty() && !allowed.contains(&policy) {
        let spec = path.field("spec");
        errors.not_supported(&spec.field("restartPolicy"), policy, allowed);
    }
}

fn check_not_negative(spec: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(number) = spec.int(field).filter(|&number| number < 0) {
        errors.invalid(&path.field(field), number, "must be greater than or equal to 0");
    }
}

pub(super) fn check_selector_unchanged(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    check_unchanged(old, new, "selector", &path.field("spec"), errors);
}

fn check_unchanged(
    old: &Object,
    new: &Object,
    field: &str,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let (before, after) = (old.fields.at(&["spec", field]), new.fields.at(&["spec", field]));
    if before != after {
        let value = after.cloned().unwrap_or_default();
        errors.invalid(&path.field(field), value, "field is immutable");
    }
}

pub(super) fn check_replication_controller(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_not_negative(spec, "replicas", &path, errors);
    check_not_negative(spec, "minReadySeconds", &path, errors);
    if spec.map("selector").is_none_or(Map::is_empty) {
        errors.required(&path.field("selector"), "");
    }
    let template = path.field("template");
    if spec.contains("template") {
        check_template(spec.map("template"), &template, errors);
        check_restart_policy(spec, &["Always"], &template, errors);
    } else {
        errors.required(&template, "");
    }
}

pub(super) fn check_pod_template(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    check_template(object.fields.map("template"), &path.field("template"), errors);
}

pub(super) fn check_job(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let empty = Map::new();
    check_job_spec(object.spec().unwrap_or(&empty), &path.field("spec"), errors);
}

fn check_job_spec(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ] {
        check_not_negative(spec, field, path, errors);
    }
    let template = path.field("template");
    check_template(spec.map("template"), &template, errors);
    check_restart_policy(spec, &["OnFailure", "Never"], &template, errors);
    let mode = spec.str("completionMode");
    if !mode.is_empty() {
        errors.one_of(&path.field("completionMode"), mode, &["Indexed", "NonIndexed"]);
    }
}

pub(super) fn check_job_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    for field in ["completions", "selector", "completionMode"] {
        check_unchanged(old, new, field, &path.field("spec"), errors);
    }
    let suspended = old.spec().is_some_and(|spec| spec.is_true("suspend"));
    if !suspended {
        check_unchanged(old, new, "template", &path.field("spec"), errors);
    }
}

pub(super) fn check_cron_job(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let schedule = spec.str("schedule");
    if schedule.is_empty() {
        errors.required(&path.field("schedule"), "");
    } else if !schedule.starts_with('@') && schedule.split_whitespace().count() != 5 {
        let detail =
            format!("expected exactly 5 fields, found {}", schedule.split_whitespace().count());
        errors.invalid(&path.field("schedule"), schedule, &detail);
    }
    let policies = &["Allow", "Forbid", "Replace"];
    errors.one_of(&path.field("concurrencyPolicy"), spec.str("concurrencyPolicy"), policies);
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"]
    {
        check_not_negative(spec, field, &path, errors);
    }
    let template = path.field("jobTemplate");
    let job = spec.map("jobTemplate");
    if let Some(labels) =
        job.and_then(|job| job.map("metadata")).and_then(|meta| meta.map("labels"))
    {
        let meta = template.field("metadata");
        metadata::check_labels(labels, &meta.field("labels"), errors);
    }
    let job_spec = job.and_then(|job| job.map("spec")).unwrap_or(&empty);
    check_job_spec(job_spec, &template.field("spec"), errors);
}
