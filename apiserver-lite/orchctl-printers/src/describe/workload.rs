//! Workloads: deployments, replica sets, stateful sets, daemon sets, jobs, cron jobs.

use proto_api::names::Names;
use serde_json::Value;

use super::common::{self, controller, number, selector, time, word};
use super::container::{self, ContainerSection};
use super::{Context, Page, Related, volume};
use crate::{age, objects};

/// How often pods of a job may fail where it does not say.
const BACKOFF_LIMIT: i64 = 6;

pub(super) fn describe_deployment(
    page: &mut Page,
    object: &Value,
    related: &Related,
    context: Context<'_>,
) {
    common::name(page, object);
    common::created(page, object);
    common::labels(page, object, context);
    page.field(0, "Selector", selector(object, "/spec/selector"));
    page.field(
        0,
        "Replicas",
        format!(
            "{} desired | {} updated | {} total | {} available | {} unavailable",
            number(object, "/spec/replicas"),
            number(object, "/status/updatedReplicas"),
            number(object, "/status/replicas"),
            number(object, "/status/availableReplicas"),
            number(object, "/status/unavailableReplicas")
        ),
    );
    page.field(0, "StrategyType", objects::text_at(object, "/spec/strategy/type"));
    page.field(0, "MinReadySeconds", number(object, "/spec/minReadySeconds").to_string());
    if let Some(rolling) = object.pointer("/spec/strategy/rollingUpdate") {
        page.field(
            0,
            "RollingUpdateStrategy",
            format!(
                "{} max unavailable, {} max surge",
                word(rolling, "/maxUnavailable", ""),
                word(rolling, "/maxSurge", "")
            ),
        );
    }
    template(page, object, "/spec/template", context.names);
    common::conditions(page, object);
    if !related.replica_sets.is_empty() {
        let (new, old): (Vec<&Value>, Vec<&Value>) =
            related.replica_sets.iter().partition(|set| is_current(object, set, context));
        page.field(0, "OldReplicaSets", sets(&old));
        page.field(0, "NewReplicaSet", sets(&new));
    }
}

/// Whether a replica set has the revision of its deployment.
fn is_current(deployment: &Value, set: &Value, context: Context<'_>) -> bool {
    let key = context.names.sub_label("deployment", "revision");
    let revision = |object: &Value| {
        let annotations = objects::map_at(object, "/metadata/annotations")?;
        annotations.get(&key).and_then(Value::as_str).map(str::to_owned)
    };
    revision(deployment).is_some() && revision(deployment) == revision(set)
}

fn sets(sets: &[&Value]) -> String {
    let shown = sets.iter().map(|set| {
        let (made, wanted) = (number(set, "/status/replicas"), number(set, "/spec/replicas"));
        format!("{} ({made}/{wanted} replicas created)", objects::name(set))
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "<none>".to_owned() } else { shown.join(", ") }
}

/// A replica set or a replication controller.
pub(super) fn describe_replica_set(
    page: &mut Page,
    object: &Value,
    related: &Related,
    context: Context<'_>,
) {
    common::name(page, object);
    let pods = objects::pod_selector(object);
    page.field(0, "Selector", pods.as_deref().unwrap_or("<none>"));
    common::labels(page, object, context);
    if let Some(controller) = controller(object) {
        page.field(0, "Controlled By", controller);
    }
    let (current, desired) = (number(object, "/status/replicas"), number(object, "/spec/replicas"));
    page.field(0, "Replicas", format!("{current} current / {desired} desired"));
    pods_status(page, &related.pods);
    template(page, object, "/spec/template", context.names);
    common::conditions(page, object);
}

pub(super) fn describe_stateful_set(
    page: &mut Page,
    object: &Value,
    related: &Related,
    context: Context<'_>,
) {
    common::name(page, object);
    common::created(page, object);
    page.field(0, "Selector", selector(object, "/spec/selector"));
    common::labels(page, object, context);
    let (desired, total) = (number(object, "/spec/replicas"), number(object, "/status/replicas"));
    page.field(0, "Replicas", format!("{desired} desired | {total} total"));
    page.field(0, "Update Strategy", objects::text_at(object, "/spec/updateStrategy/type"));
    if object.pointer("/spec/updateStrategy/rollingUpdate/partition").is_some() {
        let partition = number(object, "/spec/updateStrategy/rollingUpdate/partition");
        page.field(1, "Partition", partition.to_string());
    }
    pods_status(page, &related.pods);
    template(page, object, "/spec/template", context.names);
    claim_templates(page, object);
}

/// What each pod of a stateful set claims.
fn claim_templates(page: &mut Page, object: &Value) {
    let claims = objects::list_at(object, "/spec/volumeClaimTemplates");
    if claims.is_empty() {
        page.field(0, "Volume Claims", "<none>");
    } else {
        page.line(0, "Volume Claims:");
    }
    for claim in claims {
        page.field(1, "Name", objects::name(claim));
        page.field(1, "StorageClass", objects::text_at(claim, "/spec/storageClassName"));
        for (title, pointer) in
            [("Labels", "/metadata/labels"), ("Annotations", "/metadata/annotations")]
        {
            common::label_lines(page, 1, title, objects::map_at(claim, pointer));
        }
        let storage = word(claim, "/spec/resources/requests/storage", "<default>");
        page.field(1, "Capacity", storage);
        let modes = common::texts(claim, "/spec/accessModes").join(" ");
        page.field(1, "Access Modes", format!("[{modes}]"));
    }
}

pub(super) fn describe_daemon_set(
    page: &mut Page,
    object: &Value,
    related: &Related,
    context: Context<'_>,
) {
    page.field(0, "Name", objects::name(object));
    page.field(0, "Selector", selector(object, "/spec/selector"));
    let nodes = objects::map_at(object, "/spec/template/spec/nodeSelector");
    page.field(0, "Node-Selector", objects::pairs(nodes));
    common::labels(page, object, context);
    for (title, field) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        // These titles are sentences of their own: they do not widen the column of others.
        page.line(0, format!("{title}: {}", number(object, &format!("/status/{field}"))));
    }
    pods_status(page, &related.pods);
    template(page, object, "/spec/template", context.names);
}

pub(super) fn describe_job(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    page.field(0, "Selector", selector(object, "/spec/selector"));
    common::labels(page, object, context);
    if let Some(controller) = controller(object) {
        page.field(0, "Controlled By", controller);
    }
    page.field(0, "Parallelism", number(object, "/spec/parallelism").to_string());
    page.field(0, "Completions", word(object, "/spec/completions", "<unset>"));
    if object.pointer("/spec/completionMode").is_some() {
        page.field(0, "Completion Mode", objects::text_at(object, "/spec/completionMode"));
    }
    job_limits(page, object);
    for (title, pointer) in
        [("Start Time", "/status/startTime"), ("Completed At", "/status/completionTime")]
    {
        if object.pointer(pointer).is_some() {
            page.field(0, title, time(object, pointer));
        }
    }
    let seconds = |pointer: &str| age::seconds_of(objects::text_at(object, pointer));
    if let (Some(start), Some(end)) =
        (seconds("/status/startTime"), seconds("/status/completionTime"))
    {
        let lasted = u64::try_from(end.saturating_sub(start)).unwrap_or_default();
        page.field(0, "Duration", age::of_seconds(lasted));
    }
    if object.pointer("/spec/activeDeadlineSeconds").is_some() {
        let seconds = number(object, "/spec/activeDeadlineSeconds");
        page.field(0, "Active Deadline Seconds", format!("{seconds}s"));
    }
    let count = |field: &str| number(object, &format!("/status/{field}"));
    let mut active = count("active").to_string();
    if object.pointer("/status/ready").is_some() {
        active = format!("{active} Active ({} Ready)", count("ready"));
    } else {
        active = format!("{active} Active");
    }
    let (succeeded, failed) = (count("succeeded"), count("failed"));
    page.field(0, "Pods Statuses", format!("{active} / {succeeded} Succeeded / {failed} Failed"));
    if !objects::text_at(object, "/status/completedIndexes").is_empty() {
        let indexes = objects::text_at(object, "/status/completedIndexes");
        page.field(0, "Completed Indexes", indexes);
    }
    template(page, object, "/spec/template", context.names);
}

/// What kubectl says since 1.31, where it is not what every job has.
fn job_limits(page: &mut Page, object: &Value) {
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        page.field(0, "Suspend", "true");
    }
    let retries = object.pointer("/spec/backoffLimit").and_then(Value::as_i64);
    if let Some(retries) = retries.filter(|retries| *retries != BACKOFF_LIMIT) {
        page.field(0, "Backoff Limit", retries.to_string());
    }
    if object.pointer("/spec/ttlSecondsAfterFinished").is_some() {
        let seconds = number(object, "/spec/ttlSecondsAfterFinished");
        page.field(0, "TTL Seconds After Finished", seconds.to_string());
    }
}

pub(super) fn describe_cron_job(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    common::labels(page, object, context);
    page.field(0, "Schedule", objects::text_at(object, "/spec/schedule"));
    if !objects::text_at(object, "/spec/timeZone").is_empty() {
        page.field(0, "Time Zone", objects::text_at(object, "/spec/timeZone"));
    }
    page.field(0, "Concurrency Policy", objects::text_at(object, "/spec/concurrencyPolicy"));
    page.field(0, "Suspend", common::boolean(object, "/spec/suspend"));
    for (title, field) in [
        ("Successful Job History Limit", "successfulJobsHistoryLimit"),
        ("Failed Job History Limit", "failedJobsHistoryLimit"),
    ] {
        page.field(0, title, word(object, &format!("/spec/{field}"), "<unset>"));
    }
    let seconds = |pointer: &str| object.pointer(pointer).map(|seconds| format!("{seconds}s"));
    let deadline = seconds("/spec/startingDeadlineSeconds");
    page.field(0, "Starting Deadline Seconds", deadline.as_deref().unwrap_or("<unset>"));
    let job = |field: &str| format!("/spec/jobTemplate/spec/{field}");
    let pods = match object.pointer(&job("selector")) {
        Some(_) => selector(object, &job("selector")),
        None => "<unset>".to_owned(),
    };
    page.field(0, "Selector", pods);
    page.field(0, "Parallelism", word(object, &job("parallelism"), "<unset>"));
    page.field(0, "Completions", word(object, &job("completions"), "<unset>"));
    if let Some(seconds) = seconds(&job("activeDeadlineSeconds")) {
        page.field(0, "Active Deadline Seconds", seconds);
    }
    template(page, object, &job("template"), context.names);
    let last = time(object, "/status/lastScheduleTime");
    page.field(0, "Last Schedule Time", if last.is_empty() { "<unset>" } else { &last });
    let active = objects::list_at(object, "/status/active").iter();
    let active: Vec<&str> = active.map(|job| objects::text_at(job, "/name")).collect();
    let active = if active.is_empty() { "<none>".to_owned() } else { active.join(", ") };
    page.field(0, "Active Jobs", active);
}

/// How many of the pods are in which phase.
fn pods_status(page: &mut Page, pods: &[Value]) {
    let count = |phase: &str| {
        pods.iter().filter(|pod| objects::text_at(pod, "/status/phase") == phase).count()
    };
    page.field(
        0,
        "Pods Status",
        format!(
            "{} Running / {} Waiting / {} Succeeded / {} Failed",
            count("Running"),
            count("Pending"),
            count("Succeeded"),
            count("Failed")
        ),
    );
}

/// The template of the workload's pods.
pub(super) fn template(page: &mut Page, object: &Value, pointer: &str, names: &Names) {
    let empty = Value::Null;
    let template = object.pointer(pointer).unwrap_or(&empty);
    page.line(0, "Pod Template:");
    common::label_lines(page, 1, "Labels", objects::map_at(template, "/metadata/labels"));
    let annotations = objects::map_at(template, "/metadata/annotations");
    let lines = common::annotation_lines(annotations, names);
    if !lines.is_empty() {
        common::title_lines(page, 1, "Annotations", &lines);
    }
    let account = objects::text_at(template, "/spec/serviceAccountName");
    if !account.is_empty() {
        page.field(1, "Service Account", account);
    }
    let place = ContainerSection { space: " ", level: 1, is_pod: false, owner: template };
    for (title, field) in [("Init Containers", "initContainers"), ("Containers", "containers")] {
        if !objects::list_at(template, &format!("/spec/{field}")).is_empty() {
            page.line(1, format!("{title}:"));
            container::list(page, field, "", &place);
        }
    }
    volume::list(page, template, 1);
    common::spread(page, 1, template);
    let priority_class = objects::text_at(template, "/spec/priorityClassName");
    if !priority_class.is_empty() {
        page.field(1, "Priority Class Name", priority_class);
    }
    common::placement(page, 1, template, false);
}
