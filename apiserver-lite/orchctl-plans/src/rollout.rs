//! How far a workload is with its update, in words, and what restarts, pauses and rolls it back.

use proto_api::names::Names;
use serde_json::{Value, json};

use crate::ArgumentError;
use crate::apply::last_applied_annotation;
use crate::keep::{int_at, items_at, map_at, text_at};

/// How far an update is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutProgress {
    /// For the user, one line.
    pub text: String,
    /// Whether nothing is left to wait for.
    pub done: bool,
}

fn waiting(text: String) -> Result<RolloutProgress, ArgumentError> {
    Ok(RolloutProgress { text, done: false })
}

fn done(text: String) -> Result<RolloutProgress, ArgumentError> {
    Ok(RolloutProgress { text, done: true })
}

/// How far a Deployment, DaemonSet or StatefulSet is. `revision` is the one that must be running; 0 for any.
///
/// # Errors
/// When it will not get any further, or the kind or its strategy has no updates.
pub fn progress(
    object: &Value,
    revision: i64,
    revision_annotation: &str,
) -> Result<RolloutProgress, ArgumentError> {
    match text_at(object, "/kind") {
        "Deployment" => {
            let annotations = object.pointer("/metadata/annotations");
            let running = annotations.and_then(|map| map.get(revision_annotation));
            let running = running.and_then(Value::as_str).and_then(|text| text.parse().ok());
            let running: i64 = running.unwrap_or_default();
            if revision > 0 && revision != running {
                return Err(ArgumentError::new(format!(
                    "desired revision ({revision}) is different from the running revision ({running})"
                )));
            }
            deployment(object)
        }
        "DaemonSet" => daemon_set(object),
        "StatefulSet" => stateful_set(object),
        other => Err(ArgumentError::new(format!(
            "no status viewer has been implemented for {other}: expected a Deployment, DaemonSet or StatefulSet"
        ))),
    }
}

fn is_observed(object: &Value) -> bool {
    int_at(object, "/metadata/generation") <= int_at(object, "/status/observedGeneration")
}

fn deployment(object: &Value) -> Result<RolloutProgress, ArgumentError> {
    let name = text_at(object, "/metadata/name");
    if !is_observed(object) {
        return waiting("Waiting for deployment spec update to be observed...".into());
    }
    let stuck = items_at(object, "/status/conditions").iter().any(|condition| {
        text_at(condition, "/type") == "Progressing"
            && text_at(condition, "/reason") == "ProgressDeadlineExceeded"
    });
    if stuck {
        return Err(ArgumentError::new(format!(
            "deployment {name:?} exceeded its progress deadline"
        )));
    }
    let wanted = int_at(object, "/spec/replicas");
    let status = |field: &str| int_at(object, &format!("/status/{field}"));
    let (all, updated, available) =
        (status("replicas"), status("updatedReplicas"), status("availableReplicas"));
    let head = format!("Waiting for deployment {name:?} rollout to finish");
    if updated < wanted {
        return waiting(format!(
            "{head}: {updated} out of {wanted} new replicas have been updated..."
        ));
    }
    if all > updated {
        let old = all.saturating_sub(updated);
        return waiting(format!("{head}: {old} old replicas are pending termination..."));
    }
    if available < updated {
        return waiting(format!(
            "{head}: {available} of {updated} updated replicas are available..."
        ));
    }
    done(format!("deployment {name:?} successfully rolled out"))
}

fn require_rolling_update(object: &Value) -> Result<(), ArgumentError> {
    match text_at(object, "/spec/updateStrategy/type") {
        "RollingUpdate" => Ok(()),
        _ => Err(ArgumentError::new(
            "rollout status is only available for RollingUpdate strategy type",
        )),
    }
}

fn daemon_set(object: &Value) -> Result<RolloutProgress, ArgumentError> {
    require_rolling_update(object)?;
    let name = text_at(object, "/metadata/name");
    if !is_observed(object) {
        return waiting("Waiting for daemon set spec update to be observed...".into());
    }
    let status = |field: &str| int_at(object, &format!("/status/{field}"));
    let (wanted, updated, available) = (
        status("desiredNumberScheduled"),
        status("updatedNumberScheduled"),
        status("numberAvailable"),
    );
    let head = format!("Waiting for daemon set {name:?} rollout to finish");
    if updated < wanted {
        return waiting(format!("{head}: {updated} out of {wanted} new pods have been updated..."));
    }
    if available < wanted {
        return waiting(format!("{head}: {available} of {wanted} updated pods are available..."));
    }
    done(format!("daemon set {name:?} successfully rolled out"))
}

fn stateful_set(object: &Value) -> Result<RolloutProgress, ArgumentError> {
    require_rolling_update(object)?;
    if int_at(object, "/status/observedGeneration") == 0 || !is_observed(object) {
        return waiting("Waiting for statefulset spec update to be observed...".into());
    }
    let status = |field: &str| int_at(object, &format!("/status/{field}"));
    let wanted = int_at(object, "/spec/replicas");
    let (ready, updated) = (status("readyReplicas"), status("updatedReplicas"));
    if ready < wanted {
        let missing = wanted.saturating_sub(ready);
        return waiting(format!("Waiting for {missing} pods to be ready..."));
    }
    let revision = text_at(object, "/status/updateRevision");
    if let Some(partition) = object.pointer("/spec/updateStrategy/rollingUpdate/partition") {
        let rest = wanted.saturating_sub(partition.as_i64().unwrap_or_default());
        if updated < rest {
            return waiting(format!(
                "Waiting for partitioned roll out to finish: {updated} out of {rest} new pods have been updated..."
            ));
        }
        return done(format!(
            "partitioned roll out complete: {updated} new pods have been updated..."
        ));
    }
    if revision != text_at(object, "/status/currentRevision") {
        return waiting(format!(
            "waiting for statefulset rolling update to complete {updated} pods at revision {revision}..."
        ));
    }
    let current = status("currentReplicas");
    done(format!("statefulset rolling update complete {current} pods at revision {revision}..."))
}

/// The object whose pods are all replaced: the template has an annotation with the time.
///
/// # Errors
/// When the kind has no updates, or the Deployment is paused.
pub fn restarted(object: &Value, annotation: &str, now: &str) -> Result<Value, ArgumentError> {
    match text_at(object, "/kind") {
        "Deployment" | "DaemonSet" | "StatefulSet" => {}
        other => return Err(ArgumentError::new(format!("restarting is not supported: {other}"))),
    }
    if object.pointer("/spec/paused") == Some(&Value::Bool(true)) {
        return Err(ArgumentError::new(
            "can't restart paused deployment (run rollout resume first)",
        ));
    }
    let mut changed = object.clone();
    map_at(&mut changed, &["spec", "template", "metadata", "annotations"])
        .insert(annotation.to_owned(), json!(now));
    Ok(changed)
}

/// The Deployment that is paused or resumed.
///
/// # Errors
/// When it is already, or the kind cannot be paused.
pub fn paused(object: &Value, pause: bool) -> Result<Value, ArgumentError> {
    let verb = if pause { "pausing" } else { "resuming" };
    if text_at(object, "/kind") != "Deployment" {
        return Err(ArgumentError::new(format!("{verb} is not supported")));
    }
    let is_paused = object.pointer("/spec/paused") == Some(&Value::Bool(true));
    match (pause, is_paused) {
        (true, true) => return Err(ArgumentError::new("is already paused")),
        (false, false) => return Err(ArgumentError::new("is not paused")),
        _ => {}
    }
    let mut changed = object.clone();
    let spec = map_at(&mut changed, &["spec"]);
    if pause {
        spec.insert("paused".into(), Value::Bool(true));
    } else {
        spec.remove("paused");
    }
    Ok(changed)
}

/// A revision of a workload: its number, why it was made, and the template of its pods.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadRevision {
    pub number: i64,
    /// The annotation `change-cause`; empty if there is none.
    pub cause: String,
    /// The object that holds it: a ReplicaSet or a ControllerRevision.
    pub object: Value,
}

/// The revisions among the objects that the workload controls, oldest first. `annotations` are those of the revision and of the cause.
pub fn revisions(
    workload: &Value,
    owned: &[Value],
    annotations: [&str; 2],
) -> Vec<WorkloadRevision> {
    let uid = text_at(workload, "/metadata/uid");
    let is_owned = |object: &&Value| {
        items_at(object, "/metadata/ownerReferences").iter().any(|owner| {
            text_at(owner, "/uid") == uid && owner.pointer("/controller") == Some(&json!(true))
        })
    };
    let annotation = |object: &Value, name: &str| {
        let found = object.pointer("/metadata/annotations").and_then(|map| map.get(name));
        found.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let mut found: Vec<WorkloadRevision> = owned
        .iter()
        .filter(is_owned)
        .map(|object| WorkloadRevision {
            number: match object.pointer("/revision").and_then(Value::as_i64) {
                Some(number) => number,
                None => annotation(object, annotations[0]).parse().unwrap_or_default(),
            },
            cause: annotation(object, annotations[1]),
            object: object.clone(),
        })
        .collect();
    found.sort_by_key(|revision| revision.number);
    found
}

/// The revision to which a workload goes back: that of the number, or the one before the last for 0.
///
/// # Errors
/// When there is none.
pub fn revision_to_undo(
    revisions: &[WorkloadRevision],
    number: i64,
) -> Result<&WorkloadRevision, ArgumentError> {
    if number != 0 {
        let found = revisions.iter().find(|revision| revision.number == number);
        let missing =
            || ArgumentError::new(format!("unable to find specified revision {number} in history"));
        return found.ok_or_else(missing);
    }
    let before = revisions.len().checked_sub(2).and_then(|at| revisions.get(at));
    before
        .ok_or_else(|| ArgumentError::new("no rollout history found: there is no earlier revision"))
}

/// Annotations that say where a Deployment stands. They are its own; all others it has in common with its ReplicaSet.
pub fn own_annotations(names: &Names) -> Vec<String> {
    let own = ["revision", "revision-history", "desired-replicas", "max-replicas"];
    let own = own.map(|name| names.sub_label("deployment", name));
    let rollback = "deprecated.deployment.rollback.to".to_owned();
    [vec![last_applied_annotation(names), rollback], own.to_vec()].concat()
}

/// The annotations of a Deployment that goes back to a revision: those of the revision, the cause of the change among them, and its `own`.
pub fn annotations_of(deployment: &Value, revision: &WorkloadRevision, own: &[String]) -> Value {
    let of = |object: &Value, is_own: bool| {
        let all = object.pointer("/metadata/annotations").and_then(Value::as_object).cloned();
        all.into_iter().flatten().filter(move |(name, _)| own.contains(name) == is_own)
    };
    let mut annotations: serde_json::Map<String, Value> = of(deployment, true).collect();
    annotations.extend(of(&revision.object, false));
    Value::Object(annotations)
}

/// The template of the pods of a revision as it is shown: of a Deployment with the cause of its change.
pub fn shown_template(revision: &WorkloadRevision, cause_annotation: &str) -> Value {
    let mut template = kept_template(revision);
    let is_replica_set = revision.object.pointer("/spec/template").is_some();
    if is_replica_set && !revision.cause.is_empty() {
        let annotations = map_at(&mut template, &["metadata", "annotations"]);
        annotations.insert(cause_annotation.to_owned(), json!(revision.cause));
    }
    template
}

/// The template of the pods of a revision, without the label that only its ReplicaSet has.
pub fn template_of(revision: &WorkloadRevision) -> Value {
    let mut template = kept_template(revision);
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove("pod-template-hash");
    }
    if let Some(map) = template.as_object_mut() {
        map.remove("$patch"); // how a ControllerRevision says that it replaces the template
    }
    template
}

/// The template of the pods of a revision as the server keeps it.
pub fn kept_template(revision: &WorkloadRevision) -> Value {
    let object = &revision.object;
    let template =
        object.pointer("/spec/template").or_else(|| object.pointer("/data/spec/template"));
    template.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deployments_wait_in_steps() {
        let object = |replicas: i64, updated: i64, available: i64, observed: i64| {
            json!({"kind": "Deployment", "metadata": {"name": "web", "generation": 2, "annotations": {"rev": "3"}},
                "spec": {"replicas": 3}, "status": {"observedGeneration": observed, "replicas": replicas,
                "updatedReplicas": updated, "availableReplicas": available}})
        };
        let head = "Waiting for deployment \"web\" rollout to finish";
        let cases = [
            (
                object(3, 3, 3, 1),
                "Waiting for deployment spec update to be observed...".to_owned(),
                false,
            ),
            (
                object(3, 1, 3, 2),
                format!("{head}: 1 out of 3 new replicas have been updated..."),
                false,
            ),
            (
                object(4, 3, 3, 2),
                format!("{head}: 1 old replicas are pending termination..."),
                false,
            ),
            (
                object(3, 3, 2, 2),
                format!("{head}: 2 of 3 updated replicas are available..."),
                false,
            ),
            (object(3, 3, 3, 2), "deployment \"web\" successfully rolled out".to_owned(), true),
        ];
        for (object, text, done) in cases {
            assert_eq!(progress(&object, 0, "rev"), Ok(RolloutProgress { text, done }));
        }
        assert!(progress(&object(3, 3, 3, 2), 3, "rev").is_ok());
        assert!(progress(&object(3, 3, 3, 2), 2, "rev").is_err());
        let mut stuck = object(3, 1, 1, 2);
        stuck["status"]["conditions"] =
            json!([{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]);
        let error = progress(&stuck, 0, "rev").expect_err("stuck").to_string();
        assert_eq!(error, "deployment \"web\" exceeded its progress deadline");
    }

    #[test]
    fn an_undone_deployment_has_the_cause_of_the_revision() {
        let own = own_annotations(Names::new(proto_api::names::Profile::Kubernetes));
        let with = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let revision = "deployment.kubernetes.io/revision";
        let deployment =
            with(json!({"kubernetes.io/change-cause": "C=4", "note": "x", revision: "3"}));
        let back = |annotations: Value| {
            let object = with(annotations);
            let revision = WorkloadRevision { number: 1, cause: String::new(), object };
            annotations_of(&deployment, &revision, &own)
        };
        assert_eq!(back(json!({"note": "y", revision: "1"})), json!({"note": "y", revision: "3"}));
        let cause = json!({"kubernetes.io/change-cause": "C=1"});
        assert_eq!(back(cause), json!({"kubernetes.io/change-cause": "C=1", revision: "3"}));
    }

    #[test]
    fn sets_wait_in_steps() {
        let daemons = |updated: i64, available: i64| {
            json!({"kind": "DaemonSet", "metadata": {"name": "d", "generation": 1},
                "spec": {"updateStrategy": {"type": "RollingUpdate"}}, "status": {"observedGeneration": 1,
                "desiredNumberScheduled": 2, "updatedNumberScheduled": updated, "numberAvailable": available}})
        };
        assert!(!progress(&daemons(1, 2), 0, "").expect("waits").done);
        assert!(!progress(&daemons(2, 1), 0, "").expect("waits").done);
        assert!(progress(&daemons(2, 2), 0, "").expect("ends").done);
        let sets = |ready: i64, updated: i64, strategy: Value| {
            json!({"kind": "StatefulSet", "metadata": {"name": "s", "generation": 1},
                "spec": {"replicas": 2, "updateStrategy": strategy}, "status": {"observedGeneration": 1,
                "readyReplicas": ready, "updatedReplicas": updated, "updateRevision": "s-2", "currentRevision": "s-1"}})
        };
        let rolling = || json!({"type": "RollingUpdate"});
        let parts = || json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}});
        let text = |object: Value| progress(&object, 0, "").expect("progress").text;
        assert_eq!(text(sets(1, 0, rolling())), "Waiting for 1 pods to be ready...");
        assert!(text(sets(2, 1, rolling())).starts_with("waiting for statefulset rolling update"));
        assert!(
            text(sets(2, 0, parts()))
                .starts_with("Waiting for partitioned roll out to finish: 0 out of 1")
        );
        assert_eq!(
            text(sets(2, 1, parts())),
            "partitioned roll out complete: 1 new pods have been updated..."
        );
        assert!(progress(&sets(2, 2, json!({"type": "OnDelete"})), 0, "").is_err());
        assert!(progress(&json!({"kind": "Job"}), 0, "").is_err());
    }

    #[test]
    fn pauses_and_restarts_change_the_object() {
        let object = json!({"kind": "Deployment", "spec": {}});
        let stopped = paused(&object, true).expect("paused");
        assert_eq!(stopped["spec"]["paused"], json!(true));
        assert_eq!(paused(&stopped, true), Err(ArgumentError::new("is already paused")));
        assert_eq!(paused(&stopped, false), Ok(object.clone()));
        assert_eq!(paused(&object, false), Err(ArgumentError::new("is not paused")));
        assert!(restarted(&stopped, "at", "now").is_err());
        let fresh = restarted(&object, "at", "now").expect("restarted");
        assert_eq!(fresh.pointer("/spec/template/metadata/annotations/at"), Some(&json!("now")));
        assert!(restarted(&json!({"kind": "Job"}), "at", "now").is_err());
    }

    #[test]
    fn undo_goes_to_the_revision_before() {
        let owned = |number: &str, uid: &str| {
            json!({"metadata": {"annotations": {"rev": number, "why": "c"}, "ownerReferences": [{"uid": uid, "controller": true}]},
                "spec": {"template": {"metadata": {"labels": {"a": "b", "pod-template-hash": "x"}}, "n": number}}})
        };
        let workload = json!({"metadata": {"uid": "u"}});
        let all = [owned("3", "u"), owned("1", "u"), owned("2", "u"), owned("9", "other")];
        let found = revisions(&workload, &all, ["rev", "why"]);
        assert_eq!(found.iter().map(|r| r.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(revision_to_undo(&found, 0).map(|r| r.number), Ok(2));
        assert_eq!(revision_to_undo(&found, 1).map(|r| r.number), Ok(1));
        assert!(revision_to_undo(&found, 7).is_err());
        assert!(revision_to_undo(&found[..1], 0).is_err());
        let template = template_of(&found[0]);
        assert_eq!(template, json!({"metadata": {"labels": {"a": "b"}}, "n": "1"}));
        let shown = shown_template(&found[0], "why");
        assert_eq!(shown["metadata"]["labels"]["pod-template-hash"], "x");
        assert_eq!(shown["metadata"]["annotations"], json!({"why": "c"}));
    }
}
