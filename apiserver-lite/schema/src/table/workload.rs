//! Table rows of workloads and their controllers.

use super::service::bound;
use super::text::{containers, labels, selector};
use super::{Cells, age, count, human_duration, or_none};
use crate::object::Object;
use crate::scalar::seconds_of;
use crate::value::{Map, Value};

pub(super) fn cells(object: &Object, now: i64, cells: &mut Cells) {
    let empty = Map::new();
    let (spec, status) = (object.spec().unwrap_or(&empty), object.status().unwrap_or(&empty));
    let template = match object.kind.kind() {
        "PodTemplate" => object.fields.at(&["template", "spec"]),
        "CronJob" => spec.at(&["jobTemplate", "spec", "template", "spec"]),
        _ => spec.at(&["template", "spec"]),
    };
    let (names, images) = containers(template.and_then(Value::as_map));
    cells.set("Containers", names);
    cells.set("Images", images);
    cells.set("Selector", selector(spec.map("selector")));
    let of = |field: &str| count(Some(status), field);
    let desired = count(Some(spec), "replicas");
    match object.kind.kind() {
        "Deployment" => {
            cells.set("Ready", format!("{}/{desired}", of("readyReplicas")));
            cells.set("Up-to-date", of("updatedReplicas"));
            cells.set("Available", of("availableReplicas"));
        }
        "Scale" => {
            cells.set("Desired", desired);
            cells.set("Available", of("replicas"));
        }
        "StatefulSet" => cells.set("Ready", format!("{}/{desired}", of("readyReplicas"))),
        "ReplicaSet" | "ReplicationController" => {
            cells.set("Desired", desired);
            cells.set("Current", of("replicas"));
            cells.set("Ready", of("readyReplicas"));
            if object.kind.kind() == "ReplicationController" {
                cells.0.retain(|(column, _)| *column != "Selector");
                cells.set("Selector", labels(spec.map("selector")));
            }
        }
        "DaemonSet" => daemon_set(template.and_then(Value::as_map), status, cells),
        "Job" => job(spec, status, now, cells),
        "CronJob" => {
            cells.set("Schedule", spec.str("schedule"));
            cells.set("Suspend", if spec.is_true("suspend") { "True" } else { "False" });
            cells.set("Active", status.list("active").len() as i64);
            let last = status.get("lastScheduleTime");
            cells.set("Last Schedule", last.map_or("<none>".to_owned(), |_| age(last, now)));
        }
        "PodTemplate" => {
            let labels_of = object.fields.at(&["template", "metadata", "labels"]);
            cells.set("Pod Labels", labels(labels_of.and_then(Value::as_map)));
        }
        "ControllerRevision" => {
            cells.set("Controller", or_none(&controller(object)));
            cells.set("Revision", count(Some(&object.fields), "revision"));
        }
        "PodDisruptionBudget" => {
            cells.set("Min Available", bound(spec.get("minAvailable")));
            cells.set("Max Unavailable", bound(spec.get("maxUnavailable")));
            cells.set("Allowed Disruptions", of("disruptionsAllowed"));
        }
        "HorizontalPodAutoscaler" => {
            let target = spec.map("scaleTargetRef").unwrap_or(&empty);
            cells.set("Reference", format!("{}/{}", target.str("kind"), target.str("name")));
            cells.set("Targets", super::metrics::targets(spec, status));
            cells.set("MinPods", bound(spec.get("minReplicas")).replace("N/A", "<unset>"));
            cells.set("MaxPods", count(Some(spec), "maxReplicas"));
            cells.set("Replicas", of("currentReplicas"));
        }
        _ => {}
    }
}

fn job(spec: &Map, status: &Map, now: i64, cells: &mut Cells) {
    let succeeded = count(Some(status), "succeeded");
    let parallel = count(Some(spec), "parallelism");
    cells.set(
        "Completions",
        match spec.int("completions") {
            Some(wanted) => format!("{succeeded}/{wanted}"),
            None if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
            None => format!("{succeeded}/1"),
        },
    );
    let seconds = |field: &str| status.get(field).and_then(seconds_of);
    let duration = seconds("startTime").map(|start| {
        let end = seconds("completionTime").unwrap_or(now);
        human_duration(end.saturating_sub(start))
    });
    cells.set("Duration", duration.unwrap_or_default());
}

fn daemon_set(pods: Option<&Map>, status: &Map, cells: &mut Cells) {
    for (column, field) in [
        ("Desired", "desiredNumberScheduled"),
        ("Current", "currentNumberScheduled"),
        ("Ready", "numberReady"),
        ("Up-to-date", "updatedNumberScheduled"),
        ("Available", "numberAvailable"),
    ] {
        cells.set(column, count(Some(status), field));
    }
    cells.set("Node Selector", labels(pods.and_then(|pods| pods.map("nodeSelector"))));
}

/// The controller of an object: `statefulset.apps/web`; empty if it has none.
fn controller(object: &Object) -> String {
    let mut owners = object.metadata().into_iter().flat_map(|meta| meta.maps("ownerReferences"));
    let Some(owner) = owners.find(|owner| owner.is_true("controller")) else {
        return String::new();
    };
    let kind = owner.str("kind").to_ascii_lowercase();
    match owner.str("apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", owner.str("name")),
        None => format!("{kind}/{}", owner.str("name")),
    }
}
