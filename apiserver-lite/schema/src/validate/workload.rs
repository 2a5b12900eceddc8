//! Validation of workloads of `apps` and `batch`, ReplicationControllers and PodTemplates.

use apiserver_cron::schedule::Schedule;
use apiserver_cron::zone::Zone;

use super::numbers::{self, CountOrPercent, SECONDS_MAX, not_negative};
use super::pod::check_template;
use super::{FieldErrors, failure_policy, metadata, names, selector};
use crate::enums;
use crate::field_gates::FieldGates;
use crate::object::Object;
use crate::value::{Map, Path, Value};

pub(super) fn check_apps(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]
    {
        not_negative(spec, field, &path, errors);
    }
    let kind = object.kind.kind();
    check_selector(spec, kind, &path, errors);
    let template = path.field("template");
    let claims: Vec<&str> =
        spec.maps("volumeClaimTemplates").map(|c| c.str_at(&["metadata", "name"])).collect();
    check_template(spec.map("template"), &claims, gates, &template, errors);
    check_restart_policy(spec, &["Always"], &template, errors);
    // A Deployment's template is checked as that of its ReplicaSets.
    let of = if kind == "Deployment" { "ReplicaSet" } else { kind };
    check_no_deadline(spec, of, &template, errors);
    let (field, supported): (_, &[&str]) = match kind {
        "Deployment" => ("strategy", enums::DEPLOYMENT_STRATEGIES),
        "DaemonSet" | "StatefulSet" => ("updateStrategy", enums::UPDATE_STRATEGIES),
        _ => return,
    };
    let strategy = path.field(field);
    match spec.str_at(&[field, "type"]) {
        "" => errors.required(&strategy.field("type"), ""),
        known if supported.contains(&known) => {}
        other if kind == "StatefulSet" => {
            errors.invalid(&strategy, other, "must be 'RollingUpdate' or 'OnDelete'");
        }
        other => errors.not_supported(&strategy, other, supported),
    }
    check_rolling(spec, field, kind, &strategy, errors);
    match kind {
        "Deployment" => check_deadlines(spec, &path, errors),
        "StatefulSet" => check_retention(spec, &path, errors),
        _ => {}
    }
    let management = spec.str("podManagementPolicy");
    if kind == "StatefulSet" && !enums::POD_MANAGEMENT_POLICIES.contains(&management) {
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
            let away = numbers::count_or_percent_of_whole(rolling, "maxUnavailable", &here, errors);
            if zero(away) {
                let at = here.field("maxUnavailable");
                errors.invalid(&at, value("maxUnavailable"), "cannot be 0");
            }
        }
    }
}

/// Checks what becomes of the claims of a StatefulSet.
fn check_retention(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(policy) = spec.map(RETENTION_POLICY) else { return };
    let path = path.field(RETENTION_POLICY);
    for field in ["whenDeleted", "whenScaled"] {
        let word = policy.str(field);
        if !enums::CLAIM_RETENTION_POLICIES.contains(&word) {
            errors.not_supported(&path.field(field), word, enums::CLAIM_RETENTION_POLICIES);
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

/// Checks that pods of a template have no deadline of their own: what runs them replaces those that end.
fn check_no_deadline(spec: &Map, kind: &str, template: &Path<'_>, errors: &mut FieldErrors) {
    if spec.at(&["template", "spec", "activeDeadlineSeconds"]).is_some() {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.forbidden(&template.field("spec").field("activeDeadlineSeconds"), &detail);
    }
}

/// Checks that the selector is set, not empty, and matches the template's labels.
fn check_selector(spec: &Map, kind: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("selector");
    let Some(selector) = spec.map("selector") else {
        errors.required(&here, "");
        refuse_labels(spec, path, errors);
        return;
    };
    if selector.is_empty() {
        // Those of ReplicaSets are said to be a Deployment's, as in Kubernetes.
        let whose = match kind {
            "DaemonSet" => "daemonset",
            "StatefulSet" => "statefulset",
            _ => "deployment",
        };
        errors.invalid(&here, Map::new(), &format!("empty selector is invalid for {whose}"));
        return;
    }
    let is_valid = check_matching_selector(spec, selector, path, errors);
    if !is_valid && kind != "DaemonSet" {
        errors.invalid(&here, selector.clone(), "invalid label selector");
    }
}

/// Checks that a selector is valid, and matches the labels of the template; whether it is valid.
fn check_matching_selector(
    spec: &Map,
    selector: &Map,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) -> bool {
    let before = errors.0.len();
    selector::check(Some(selector), &path.field("selector"), errors);
    if errors.0.len() > before {
        return false;
    }
    let labels = spec.at(&["template", "metadata", "labels"]).and_then(Value::as_map);
    if !selector_matches(selector, labels.unwrap_or(&Map::new())) {
        refuse_labels(spec, path, errors);
    }
    true
}

/// Adds the error of labels that the selector does not match; no selector matches none.
fn refuse_labels(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let labels = spec.at(&["template", "metadata", "labels"]).and_then(Value::as_map);
    let template = path.field("template");
    let metadata = template.field("metadata");
    let detail = "`selector` does not match template `labels`";
    errors.invalid(&metadata.field("labels"), labels.cloned().unwrap_or_default(), detail);
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

/// Checks that pods of a job end; `Always`, also as the default, is no choice.
fn check_job_restart_policy(spec: &Map, template: &Path<'_>, errors: &mut FieldErrors) {
    let pod = template.field("spec");
    let here = pod.field("restartPolicy");
    match spec.str_at(&["template", "spec", "restartPolicy"]) {
        "" | "Always" => errors.required(&here, r#"valid values: "OnFailure", "Never""#),
        "Never" | "OnFailure" => {}
        other => errors.not_supported(&here, other, &["OnFailure", "Never"]),
    }
}

pub(super) fn check_selector_unchanged(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    check_unchanged(old, new, "selector", &path.field("spec"), errors);
}

const RETENTION_POLICY: &str = "persistentVolumeClaimRetentionPolicy";

/// Fields of a StatefulSet's spec that an update may change.
const STATEFUL_CHANGEABLE: [&str; 5] =
    ["minReadySeconds", RETENTION_POLICY, "replicas", "template", "updateStrategy"];

/// Checks that an update of a StatefulSet changes nothing that its pods and claims are made from.
pub(super) fn check_stateful_set_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let empty = Map::new();
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    let fields = before.iter().chain(after.iter()).map(|(field, _)| field);
    let mut kept = fields.filter(|field| !STATEFUL_CHANGEABLE.contains(field));
    if kept.any(|field| before.get(field) != after.get(field)) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'template', 'updateStrategy', \
                      'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.forbidden(&Path::ROOT.field("spec"), detail);
    }
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

pub(super) fn check_replication_controller(
    object: &Object,
    gates: FieldGates,
    errors: &mut FieldErrors,
) {
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
        check_template(spec.map("template"), &[], gates, &template, errors);
        check_restart_policy(spec, &["Always"], &template, errors);
        check_no_deadline(spec, "ReplicationController", &template, errors);
    } else {
        errors.required(&template, "");
    }
}

pub(super) fn check_pod_template(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    check_template(object.fields.map("template"), &[], gates, &path.field("template"), errors);
}

pub(super) fn check_revision(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    if !object.fields.contains("data") {
        errors.required(&path.field("data"), "data is mandatory");
    }
    not_negative(&object.fields, "revision", &path, errors);
}

pub(super) fn check_job(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_job_spec(spec, gates, &path, errors);
    check_last_hostname(object, spec, errors);
    // Without `manualSelector` the server has made it.
    match spec.map("selector") {
        None if spec.is_true("manualSelector") => {
            errors.required(&path.field("selector"), "");
            refuse_labels(spec, &path, errors);
        }
        None => {}
        Some(selector) => {
            check_matching_selector(spec, selector, &path, errors);
        }
    }
}

fn check_job_spec(spec: &Map, gates: FieldGates, path: &Path<'_>, errors: &mut FieldErrors) {
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
    check_template(spec.map("template"), &[], gates, &template, errors);
    check_job_restart_policy(spec, &template, errors);
    let mode = spec.str("completionMode");
    if !mode.is_empty() {
        errors.one_of(&path.field("completionMode"), mode, enums::COMPLETION_MODES);
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

/// Checks that the name of the last index is a DNS label: it is the hostname of that pod. Neither the name nor the completions may change later.
fn check_last_hostname(object: &Object, spec: &Map, errors: &mut FieldErrors) {
    let completions = spec.int("completions").filter(|completions| *completions > 0);
    let Some(last) = completions.and_then(|completions| completions.checked_sub(1)) else { return };
    let hostname = format!("{}-{last}", object.name());
    if spec.str("completionMode") == "Indexed" && !names::dns_label(&hostname).is_empty() {
        let name = Path::ROOT;
        let name = name.field("metadata");
        let detail = format!("will not able to create pod with invalid DNS label: {hostname}");
        errors.invalid(&name.field("name"), object.name(), &detail);
    }
}

pub(super) fn check_job_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    for field in ["completions", "selector", "completionMode", "podFailurePolicy"] {
        check_unchanged(old, new, field, &path.field("spec"), errors);
    }
    let suspended = old.spec().is_some_and(|spec| spec.is_true("suspend"));
    let has_started = old.status().is_some_and(|status| status.contains("startTime"));
    if !suspended || has_started {
        return check_unchanged(old, new, "template", &path.field("spec"), errors);
    }
    let fixed = |job: &Object| job.spec().and_then(|spec| spec.map("template")).map(fixed_part);
    if fixed(old) != fixed(new) {
        let value = new.fields.at(&["spec", "template"]).cloned().unwrap_or_default();
        errors.invalid(&path.field("spec").field("template"), value, "field is immutable");
    }
}

/// A Job's template without what may change until the Job starts: labels, annotations, and which nodes its pods may run on.
fn fixed_part(template: &Map) -> Map {
    let mut fixed = template.clone();
    remove_below(&mut fixed, "metadata", &["labels", "annotations"]);
    if let Some(spec) = fixed.map_mut("spec") {
        remove_below(spec, "affinity", &["nodeAffinity"]);
        for field in ["nodeSelector", "tolerations"] {
            spec.remove(field);
        }
    }
    fixed
}

/// Removes fields of the map under `name`, and the map if nothing is left in it.
fn remove_below(map: &mut Map, name: &str, fields: &[&str]) {
    let Some(inner) = map.map_mut(name) else { return };
    for field in fields {
        inner.remove(field);
    }
    if inner.is_empty() {
        map.remove(name);
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

pub(super) fn check_cron_job(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
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
    if schedule.contains("TZ") && spec.contains("timeZone") {
        let detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
        errors.invalid(&path.field("schedule"), schedule, detail);
    }
    check_time_zone(spec, &path, errors);
    let policies = enums::CONCURRENCY_POLICIES;
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
    check_job_spec(job_spec, gates, &here, errors);
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

/// Counts of a status that are at most another one, by kind. All pods of a workload are among its replicas, and the available ones among the ready ones.
const AT_MOST: &[(&str, &str, &str)] = &[
    ("Deployment", "updatedReplicas", "replicas"),
    ("Deployment", "readyReplicas", "replicas"),
    ("Deployment", "availableReplicas", "replicas"),
    ("Deployment", "availableReplicas", "readyReplicas"),
    ("ReplicaSet", "fullyLabeledReplicas", "replicas"),
    ("ReplicaSet", "readyReplicas", "replicas"),
    ("ReplicaSet", "availableReplicas", "replicas"),
    ("ReplicaSet", "availableReplicas", "readyReplicas"),
    ("ReplicationController", "fullyLabeledReplicas", "replicas"),
    ("ReplicationController", "readyReplicas", "replicas"),
    ("ReplicationController", "availableReplicas", "replicas"),
    ("ReplicationController", "availableReplicas", "readyReplicas"),
    ("StatefulSet", "readyReplicas", "replicas"),
    ("StatefulSet", "currentReplicas", "replicas"),
    ("StatefulSet", "updatedReplicas", "replicas"),
    ("StatefulSet", "availableReplicas", "replicas"),
    ("StatefulSet", "availableReplicas", "readyReplicas"),
];

/// Checks that counts in a status are not negative and fit each other.
pub(super) fn check_status(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let empty = Map::new();
    let status = object.status().unwrap_or(&empty);
    for field in COUNTS {
        not_negative(status, field, &path.field("status"), errors);
    }
    let path = path.field("status");
    let count = |field: &str| status.int(field).unwrap_or(0);
    for (_, field, bound) in AT_MOST.iter().filter(|(kind, ..)| *kind == object.kind.kind()) {
        if count(field) > count(bound) {
            let bound = if *bound == "replicas" { "status.replicas" } else { bound };
            let detail = format!("cannot be greater than {bound}");
            errors.invalid(&path.field(field), count(field), &detail);
        }
    }
}
