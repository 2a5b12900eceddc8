//! Revisions: replica sets are numbered in the order in which they became the newest, and carry the deployment's annotations, for
//! `kubectl rollout history` and `rollout undo`.

use std::collections::BTreeMap;

use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use serde_json::{Map, Value, json};

/// The largest revision, which is signed in Kubernetes. Stored annotations may have any text.
const REVISION_MAX: u64 = i64::MAX as u64;
/// Maximum length of the revision history annotation in bytes, as in Kubernetes.
const HISTORY_MAX: usize = 2000;

/// The revision of the newest set. An undo gives an old set a new revision.
pub struct DeploymentRevision {
    annotation: String,
    history: String,
    /// Annotations that are not copied to replica sets.
    not_copied: [String; 6],
    newest: u64,
}

impl DeploymentRevision {
    /// One more than the revision of any older set.
    pub fn new(
        names: &Names,
        deployment: &Deployment,
        newest: Option<&ReplicaSet>,
        old: &[&ReplicaSet],
    ) -> Self {
        let annotation = names.sub_label("deployment", "revision");
        let history = names.sub_label("deployment", "revision-history");
        let not_copied = [
            names.sub_label("kubectl", "last-applied-configuration"),
            annotation.clone(),
            history.clone(),
            names.sub_label("deployment", "desired-replicas"),
            names.sub_label("deployment", "max-replicas"),
            "deprecated.deployment.rollback.to".to_owned(),
        ];
        let number = |metadata: &ObjectMeta| number(metadata, &annotation);
        let oldest = old.iter().map(|set| number(&set.metadata)).max().unwrap_or(0);
        let current = newest.map_or(0, |set| number(&set.metadata));
        let paused = deployment.spec.paused && newest.is_none();
        let next = oldest.saturating_add(1).min(REVISION_MAX);
        let newest = if paused { oldest } else { current.max(next) };
        Self { annotation, history, not_copied, newest }
    }

    /// The annotations of the newest set: `before`, the deployment's, and the revision.
    pub fn annotations(
        &self,
        deployment: &Deployment,
        before: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut annotations = before.clone();
        let given = deployment.metadata.annotations.iter();
        let given = given.filter(|(key, _)| !self.not_copied.contains(key));
        annotations.extend(given.map(|(key, value)| (key.clone(), value.clone())));
        let now = self.newest.to_string();
        let former = annotations.insert(self.annotation.clone(), now.clone());
        if let Some(former) = former.filter(|former| *former != now) {
            let history = annotations.entry(self.history.clone()).or_default();
            if !history.is_empty() {
                history.push(',');
            }
            history.push_str(&former);
            // The oldest are removed first.
            while history.len() > HISTORY_MAX {
                let rest = history.split_once(',').map(|(_, rest)| rest.to_owned());
                *history = rest.unwrap_or_default();
            }
        }
        annotations
    }

    /// The revision of a set; 0 if it has none.
    pub fn of_set(&self, set: &ReplicaSet) -> u64 {
        number(&set.metadata, &self.annotation)
    }

    /// Whether the deployment is annotated with the number.
    pub fn marks(&self, deployment: &Deployment) -> bool {
        let text = deployment.metadata.annotations.get(&self.annotation);
        text.is_some_and(|text| *text == self.newest.to_string())
    }

    /// Annotates the deployment with the number. It is written with the status, as in Kubernetes: a write of its own would be another version, and what comes
    /// with the new revision would be lost.
    pub fn mark(&self, deployment: &mut Deployment) {
        let annotations = &mut deployment.metadata.annotations;
        annotations.insert(self.annotation.clone(), self.newest.to_string());
    }
}

/// The merge patch of the fields of the newest set that are not part of the template, if they change.
pub fn update_newest(
    revision: &DeploymentRevision,
    deployment: &Deployment,
    newest: &ReplicaSet,
) -> Option<Value> {
    let metadata = &newest.metadata;
    let wanted = revision.annotations(deployment, &metadata.annotations);
    let changed: BTreeMap<_, _> = wanted
        .iter()
        .filter(|(key, value)| metadata.annotations.get(*key) != Some(value))
        .collect();
    let mut patch = Map::new();
    if !changed.is_empty() {
        patch.insert("metadata".to_owned(), json!({ "annotations": changed }));
    }
    let min_ready_seconds = deployment.spec.min_ready_seconds;
    if newest.spec.min_ready_seconds != min_ready_seconds {
        patch.insert("spec".to_owned(), json!({ "minReadySeconds": min_ready_seconds }));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The revision of an object; 0 if it has none.
fn number(metadata: &ObjectMeta, annotation: &str) -> u64 {
    let number = metadata.annotations.get(annotation).and_then(|text| text.parse().ok());
    number.unwrap_or(0).min(REVISION_MAX)
}
