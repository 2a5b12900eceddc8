//! Defaults of workloads.

use super::pod::default_template;
use super::{set_default, storage};
use crate::value::{Map, Value};

pub(super) fn default_deployment(spec: &mut Map) {
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "progressDeadlineSeconds", 600);
    let strategy = spec.map_or_insert("strategy");
    set_default(strategy, "type", "RollingUpdate");
    if strategy.str("type") == "RollingUpdate" {
        let rolling = strategy.map_or_insert("rollingUpdate");
        set_default(rolling, "maxUnavailable", "25%");
        set_default(rolling, "maxSurge", "25%");
    }
    default_template(spec.map_or_insert("template"));
}

pub(super) fn default_replica_set(spec: &mut Map) {
    set_default(spec, "replicas", 1);
    default_template(spec.map_or_insert("template"));
}

pub(super) fn default_daemon_set(spec: &mut Map) {
    set_default(spec, "revisionHistoryLimit", 10);
    let strategy = spec.map_or_insert("updateStrategy");
    set_default(strategy, "type", "RollingUpdate");
    if strategy.str("type") == "RollingUpdate" {
        let rolling = strategy.map_or_insert("rollingUpdate");
        set_default(rolling, "maxUnavailable", 1);
        set_default(rolling, "maxSurge", 0);
    }
    default_template(spec.map_or_insert("template"));
}

pub(super) fn default_stateful_set(spec: &mut Map) {
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "podManagementPolicy", "OrderedReady");
    let strategy = spec.map_or_insert("updateStrategy");
    set_default(strategy, "type", "RollingUpdate");
    if strategy.str("type") == "RollingUpdate" {
        set_default(strategy.map_or_insert("rollingUpdate"), "partition", 0);
    }
    for claim in spec.maps_mut("volumeClaimTemplates") {
        // Protobuf has no `kind` and `apiVersion` for templates: they would exist only until the server restarts.
        claim.remove("apiVersion");
        claim.remove("kind");
        storage::default_claim(claim);
    }
    default_template(spec.map_or_insert("template"));
}

pub(super) fn default_job(fields: &mut Map) {
    let spec = fields.map_or_insert("spec");
    if !spec.contains("completions") && !spec.contains("parallelism") {
        spec.insert("completions", 1);
    }
    set_default(spec, "parallelism", 1);
    set_default(spec, "backoffLimit", 6);
    set_default(spec, "completionMode", "NonIndexed");
    set_default(spec, "suspend", false);
    default_failure_policy(spec);
    default_template(spec.map_or_insert("template"));
    labels_from_template(fields);
}

fn default_failure_policy(spec: &mut Map) {
    let Some(policy) = spec.map_mut("podFailurePolicy") else { return };
    for pattern in policy.maps_mut("rules").flat_map(|rule| rule.maps_mut("onPodConditions")) {
        set_default(pattern, "status", "True");
    }
}

pub(super) fn default_cron_job(spec: &mut Map) {
    set_default(spec, "concurrencyPolicy", "Allow");
    set_default(spec, "suspend", false);
    set_default(spec, "successfulJobsHistoryLimit", 3);
    set_default(spec, "failedJobsHistoryLimit", 1);
    let job = spec.map_or_insert("jobTemplate").map_or_insert("spec");
    default_failure_policy(job);
    default_template(job.map_or_insert("template"));
}

pub(super) fn default_replication_controller(fields: &mut Map) {
    let spec = fields.map_or_insert("spec");
    set_default(spec, "replicas", 1);
    if let Some(labels) = template_labels(spec) {
        set_default(spec, "selector", labels);
    }
    if let Some(template) = spec.map_mut("template") {
        default_template(template);
    }
    labels_from_template(fields);
}

/// Default CPU utilization target of an autoscaler, in percent of the request.
const CPU_PERCENT: i64 = 80;

/// Policies of an autoscaler's behavior that has none: type, value and period in seconds.
const SCALE_UP: &[(&str, i64, i64)] = &[("Pods", 4, 15), ("Percent", 100, 15)];
const SCALE_DOWN: &[(&str, i64, i64)] = &[("Percent", 100, 15)];

/// Defaults of an autoscaler; metrics and behavior exist from v2 on, the stored version.
pub(super) fn default_autoscaler(spec: &mut Map, version: &str) {
    set_default(spec, "minReplicas", 1);
    if let Some(behavior) = spec.map_mut("behavior") {
        let up = behavior.map_or_insert("scaleUp");
        set_default(up, "stabilizationWindowSeconds", 0);
        default_scaling_rules(up, SCALE_UP);
        default_scaling_rules(behavior.map_or_insert("scaleDown"), SCALE_DOWN);
    }
    if version == "v1" || !spec.list("metrics").is_empty() {
        return;
    }
    let mut metric = Map::new();
    metric.insert("type", "Resource");
    let resource = metric.map_or_insert("resource");
    resource.insert("name", "cpu");
    let target = resource.map_or_insert("target");
    target.insert("type", "Utilization");
    target.insert("averageUtilization", CPU_PERCENT);
    spec.insert("metrics", vec![Value::Map(metric)]);
}

fn default_scaling_rules(rules: &mut Map, policies: &[(&str, i64, i64)]) {
    set_default(rules, "selectPolicy", "Max");
    let policies = policies.iter().map(|&(kind, value, seconds)| {
        let mut policy = Map::new();
        policy.insert("type", kind);
        policy.insert("value", value);
        policy.insert("periodSeconds", seconds);
        Value::Map(policy)
    });
    set_default(rules, "policies", policies.collect::<Vec<_>>());
}

/// Labels default to those of the pod template.
fn labels_from_template(fields: &mut Map) {
    if let Some(labels) = fields.map("spec").and_then(template_labels) {
        set_default(fields.map_or_insert("metadata"), "labels", labels);
    }
}

fn template_labels(spec: &Map) -> Option<Map> {
    let labels = spec.at(&["template", "metadata", "labels"]).and_then(Value::as_map);
    labels.filter(|labels| !labels.is_empty()).cloned()
}
