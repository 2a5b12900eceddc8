//! Validation of workloads of `apps` and `batch`, ReplicationControllers and PodTemplates.

use apiserver_cron::schedule::Schedule;
use apiserver_cron::zone::Zone;

use super::numbers::{self, CountOrPercent, SECONDS_MAX, not_negative};
use super::pod::check_template;
use super::{FieldErrors, failure_policy, metadata, selector};
use crate::object::Object;
use crate::value::{Map, Path, Value};

pub(super) fn check_apps(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]
    {
        not_negative(spec, field, &path, errors);
    }
    check_selector(spec, &path, errors);
    let template = path.field("template");
    let claims: Vec<&str> =
        spec.maps("volumeClaimTemplates").map(|c| c.str_at(&["metadata", "name"])).collect();
    check_template(spec.map("template"), &claims, &template, errors);
    check_restart_policy(spec, &["Always"], &template, errors);
    let (field, supported): (_, &[&str]) = match object.kind.kind() {
        "Deployment" => ("strategy", &["Recreate", "RollingUpdate"]),
        "DaemonSet" | "StatefulSet" => ("updateStrategy", &["OnDelete", "RollingUpdate"]),
        _ => return,
    };
    let strategy = path.field(field);
    errors.one_of(&strategy.field("type"), spec.str_at(&[field, "type"]), supported);
    check_rolling(spec, field, object.kind.kind(), &strategy, errors);
    if object.kind.kind() == "Deployment" {
        check_deadlines(spec, &path, errors);
    }
    let management = spec.str("podManagementPolicy");
    if object.kind.kind() == "StatefulSet" && !matches!(management, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.invalid(&path.field("podManagementPolicy"), management, detail);
    }
}

/// Checks the update strategy: `maxSurge` and `maxUnavailable` are not both zero, and `Recreate` has neither.
fn check_rolling(spec: &Map, field: &str, kind: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("rollingUpdate");
    let rolling = spec.map(field).and_then(|strategy| strategy.map("rollingUpdate"));
    if field == "strategy" && spec.str_at(&[field, "type"]) == "Recreate" && rolling.is_some() {
        errors.forbidden(&here, "may not be specified when strategy `type` is 'Recreate'");
        return;
    }
    let Some(rolling) = rolling else { return };
    let value = |name: &str| rolling.get(name).cloned().unwrap_or_default();
    let zero = |share: Option<CountOrPercent>| share.is_some_and(CountOrPercent::is_zero);
    match kind {
        "Deployment" => {
            let surge = numbers::count_or_percent(rolling, "maxSurge", &here, errors);
            let away = numbers::count_or_percent_of_whole(rolling, "maxUnavailable", &here, errors);
            if zero(surge) && zero(away) {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.invalid(&here.field("maxUnavailable"), value("maxUnavailable"), detail);
            }
        }
        "DaemonSet" => {
            let surge = numbers::count_or_percent_of_whole(rolling, "maxSurge", &here, errors);
            let away = numbers::count_or_percent_of_whole(rolling, "maxUnavailable", &here, errors);
            let none = |share: Option<CountOrPercent>| share.is_none_or(CountOrPercent::is_zero);
            if none(surge) && none(away) {
                let detail = "cannot be 0 when maxSurge is 0";
                errors.required(&here.field("maxUnavailable"), detail);
            } else if !none(surge) && !none(away) {
                let detail = "may not be set when maxUnavailable is non-zero";
                errors.invalid(&here.field("maxSurge"), value("maxSurge"), detail);
            }
        }
        _ => {
            not_negative(rolling, "partition", &here, errors);
            numbers::count_or_percent_of_whole(rolling, "maxUnavailable", &here, errors);
        }
    }
}

/// Checks that `progressDeadlineSeconds` is longer than `minReadySeconds`.
fn check_deadlines(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(deadline) = spec.int("progressDeadlineSeconds") else { return };
    if deadline <= spec.int("minReadySeconds").unwrap_or(0) {
        let here = path.field("progressDeadlineSeconds");
        errors.invalid(&here, deadline, "must be greater than minReadySeconds");
    }
}

/// Checks that the selector is set, not empty, and matches the template's labels.
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
    check_matching_selector(spec, selector, path, errors);
}

/// Checks that a selector is valid, and matches the labels of the template.
fn check_matching_selector(spec: &Map, selector: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let before = errors.0.len();
    selector::check(Some(selector), &path.field("selector"), errors);
    if errors.0.len() > before {
        return;
    }
    let template = spec.at(&["template", "metadata", "labels"]).and_then(Value::as_map);
    let labels = template.cloned().unwrap_or_default();
    if !selector_matches(selector, &labels) {
        let template = path.field("template");
        let metadata = template.field("metadata");
        let detail = "`selector` does not match template `labels`";
        errors.invalid(&metadata.field("labels"), labels, detail);
    }
}

/// Whether a valid label selector matches `labels`.
fn selector_matches(selector: &Map, labels: &Map) -> bool {
    let equal = selector.map("matchLabels").into_iter().flat_map(Map::iter);
    let mut matches = equal.fold(true, |all, (key, value)| all && labels.get(key) == Some(value));
    for requirement in selector.maps("matchExpressions") {
        let value = labels.get(requirement.str("key"));
        let listed = value.is_some_and(|value| requirement.list("values").contains(value));
        matches &= match requirement.str("operator") {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            _ => value.is_none(),
        };
    }
    matches
}

fn check_restart_policy(spec: &Map, allowed: &[&str], path: &Path<'_>, errors: &mut FieldErrors) {
    let policy = spec.str_at(&["template", "spec", "restartPolicy"]);
    if !policy.is_empty() && !allowed.contains(&policy) {
        let spec = path.field("spec");
        errors.not_supported(&spec.field("restartPolicy"), policy, allowed);
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
    not_negative(spec, "replicas", &path, errors);
    not_negative(spec, "minReadySeconds", &path, errors);
    let template = path.field("template");
    match spec.map("selector").filter(|selector| !selector.is_empty()) {
        None => errors.required(&path.field("selector"), ""),
        Some(selector) if spec.contains("template") => {
            let labels = spec.at(&["template", "metadata", "labels"]).and_then(Value::as_map);
            let labels = labels.cloned().unwrap_or_default();
            if !selector.iter().all(|(key, value)| labels.get(key) == Some(value)) {
                let detail = "`selector` does not match template `labels`";
                errors.invalid(&template.field("metadata").field("labels"), labels, detail);
            }
        }
        Some(_) => {}
    }
    if spec.contains("template") {
        check_template(spec.map("template"), &[], &template, errors);
        check_restart_policy(spec, &["Always"], &template, errors);
    } else {
        errors.required(&template, "");
    }
}

pub(super) fn check_pod_template(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    check_template(object.fields.map("template"), &[], &path.field("template"), errors);
}

pub(super) fn check_revision(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    if !object.fields.contains("data") {
        errors.required(&path.field("data"), "data is mandatory");
    }
    not_negative(&object.fields, "revision", &path, errors);
}

pub(super) fn check_job(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_job_spec(spec, &path, errors);
    // Without `manualSelector` the server has made it.
    match spec.map("selector") {
        None if spec.is_true("manualSelector") => errors.required(&path.field("selector"), ""),
        None => {}
        Some(selector) => check_matching_selector(spec, selector, &path, errors),
    }
}

fn check_job_spec(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ] {
        not_negative(spec, field, path, errors);
    }
    check_seconds(spec, "activeDeadlineSeconds", path, errors);
    check_completion(spec, path, errors);
    failure_policy::check(spec, path, errors);
    let template = path.field("template");
    check_template(spec.map("template"), &[], &template, errors);
    check_restart_policy(spec, &["OnFailure", "Never"], &template, errors);
    let mode = spec.str("completionMode");
    if !mode.is_empty() {
        errors.one_of(&path.field("completionMode"), mode, &["Indexed", "NonIndexed"]);
    }
}

/// Checks a number of seconds. Kubernetes has no upper bound; larger values overflow timestamps.
fn check_seconds(spec: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(seconds) = spec.int(field).filter(|seconds| *seconds > SECONDS_MAX) {
        let detail = format!("must be less than or equal to {SECONDS_MAX}");
        errors.invalid(&path.field(field), seconds, &detail);
    }
}

/// Checks an indexed Job: completions are set, and parallelism is bounded.
fn check_completion(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    const PARALLEL_MAX: i64 = 100_000;
    if spec.str("completionMode") != "Indexed" {
        return;
    }
    if !spec.contains("completions") {
        errors.required(&path.field("completions"), "when completion mode is Indexed");
    }
    if let Some(many) = spec.int("parallelism").filter(|many| *many > PARALLEL_MAX) {
        let detail =
            format!("must be less than or equal to {PARALLEL_MAX} when completion mode is Indexed");
        errors.invalid(&path.field("parallelism"), many, &detail);
    }
}

pub(super) fn check_job_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    for field in ["completions", "selector", "completionMode", "podFailurePolicy"] {
        check_unchanged(old, new, field, &path.field("spec"), errors);
    }
    let suspended = old.spec().is_some_and(|spec| spec.is_true("suspend"));
    if !suspended {
        check_unchanged(old, new, "template", &path.field("spec"), errors);
    }
}

/// Longest name of a CronJob: the names of its Jobs are 11 characters longer.
const CRON_JOB_NAME_MAX: usize = 52;

/// Checks that a time zone exists.
fn check_time_zone(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(zone) = spec.get("timeZone").and_then(Value::as_str) else { return };
    let here = path.field("timeZone");
    if zone.is_empty() {
        errors.invalid(&here, zone, "timeZone must be nil or non-empty string");
    } else if zone.eq_ignore_ascii_case("Local") {
        errors.invalid(
            &here,
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    } else if Zone::named(zone).is_none() {
        errors.invalid(&here, zone, &format!("unknown time zone {zone}"));
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
    } else if let Err(fault) = Schedule::parse(schedule) {
        errors.invalid(&path.field("schedule"), schedule, &fault.to_string());
    }
    check_time_zone(spec, &path, errors);
    let policies = &["Allow", "Forbid", "Replace"];
    errors.one_of(&path.field("concurrencyPolicy"), spec.str("concurrencyPolicy"), policies);
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"]
    {
        not_negative(spec, field, &path, errors);
    }
    check_seconds(spec, "startingDeadlineSeconds", &path, errors);
    let template = path.field("jobTemplate");
    let job = spec.map("jobTemplate");
    if let Some(labels) =
        job.and_then(|job| job.map("metadata")).and_then(|meta| meta.map("labels"))
    {
        let meta = template.field("metadata");
        metadata::check_labels(labels, &meta.field("labels"), errors);
    }
    if object.name().len() > CRON_JOB_NAME_MAX {
        let metadata = Path::ROOT;
        let metadata = metadata.field("metadata");
        let detail = format!("must be no more than {CRON_JOB_NAME_MAX} characters");
        errors.invalid(&metadata.field("name"), object.name(), &detail);
    }
    let job_spec = job.and_then(|job| job.map("spec")).unwrap_or(&empty);
    let here = template.field("spec");
    check_job_spec(job_spec, &here, errors);
    // The selectors of its Jobs are made.
    if let Some(selector) = job_spec.map("selector") {
        errors.invalid(
            &here.field("selector"),
            selector.clone(),
            "`selector` will be auto-generated",
        );
    }
    if job_spec.is_true("manualSelector") {
        errors.not_supported(&here.field("manualSelector"), "true", &["nil", "false"]);
    }
}

/// Pod counts of a status.
const COUNTS: &[&str] = &[
    "active",
    "availableReplicas",
    "collisionCount",
    "currentNumberScheduled",
    "currentReplicas",
    "desiredNumberScheduled",
    "failed",
    "fullyLabeledReplicas",
    "numberAvailable",
    "numberMisscheduled",
    "numberReady",
    "numberUnavailable",
    "observedGeneration",
    "ready",
    "readyReplicas",
    "replicas",
    "succeeded",
    "unavailableReplicas",
    "updatedNumberScheduled",
    "updatedReplicas",
];

/// Checks that counts in a status are not negative.
pub(super) fn check_status(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let empty = Map::new();
    let status = object.status().unwrap_or(&empty);
    for field in COUNTS {
        not_negative(status, field, &path.field("status"), errors);
    }
}
