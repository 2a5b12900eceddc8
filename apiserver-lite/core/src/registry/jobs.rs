//! Fields of Jobs and CronJobs whose feature is off: they are dropped, as in Kubernetes, unless the stored object has them.

use apiserver_schema::{Map, Object};

use crate::config::Config;

const FAILURE_POLICY: &str = "podFailurePolicy";

/// Drops what is disabled from an object that is written. `before` is the stored version of an update.
pub(super) fn drop_disabled(config: &Config, object: &mut Object, before: Option<&Object>) {
    let had = before.and_then(job_spec).is_some_and(has_policy);
    if config.gated_fields.pod_failure_policies || had || !job_spec(object).is_some_and(has_policy)
    {
        return;
    }
    let is_template = object.kind.kind() == "CronJob";
    let mut spec = object.fields.map_or_insert("spec");
    if is_template {
        spec = spec.map_or_insert("jobTemplate").map_or_insert("spec");
    }
    spec.remove(FAILURE_POLICY);
}

fn has_policy(spec: &Map) -> bool {
    spec.contains(FAILURE_POLICY)
}

/// The spec of a Job, or of the Jobs of a CronJob.
fn job_spec(object: &Object) -> Option<&Map> {
    match object.kind.kind() {
        "CronJob" => object.spec()?.map("jobTemplate")?.map("spec"),
        _ => object.spec(),
    }
}
