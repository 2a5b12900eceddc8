//! ControllerRevisions: a history of pod templates. The data of a revision is a strategic merge patch that restores its template, as
//! `kubectl rollout undo` applies it.

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, Part};
use apiserver_controllers::name_hash::name_hash;
use proto_api::RawJson;
use proto_api::apps::v1::ControllerRevision;
use proto_api::core::v1::PodTemplateSpec;
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_client::ObjectKey;
use serde_json::{Value, json};

/// Default of `revisionHistoryLimit`.
const HISTORY_LEN: i32 = 10;

/// The revisions of an owner, the oldest first.
pub(crate) struct History<'a> {
    /// Those of the owner's template.
    pub(crate) equal: Vec<&'a ControllerRevision>,
    /// The others.
    pub(crate) old: Vec<&'a ControllerRevision>,
}

impl<'a> History<'a> {
    /// Compares the revisions with a template's data.
    pub(crate) fn of(mut revisions: Vec<&'a ControllerRevision>, data: &RawJson) -> Self {
        revisions.sort_by(|a, b| order(a).cmp(&order(b)));
        let template: Option<Value> = data.parse().ok();
        let is_equal = |revision: &&ControllerRevision| {
            revision.data == *data || template.is_some() && revision.data.parse().ok() == template
        };
        let (equal, old) = revisions.into_iter().partition(is_equal);
        Self { equal, old }
    }

    /// The number of a revision that follows the old ones.
    pub(crate) fn next_number(&self) -> i64 {
        let newest = self.old.iter().map(|revision| revision.revision).max();
        newest.unwrap_or(0).max(0).saturating_add(1)
    }
}

fn order(revision: &ControllerRevision) -> impl Ord + '_ {
    let metadata = &revision.metadata;
    (revision.revision, metadata.creation_timestamp.unix(), &metadata.name)
}

/// The data of a revision.
pub(crate) fn data_of(template: &PodTemplateSpec) -> RawJson {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(fields) = template.as_object_mut() {
        fields.insert("$patch".into(), json!("replace"));
    }
    RawJson::from_value(&json!({ "spec": { "template": template } })).unwrap_or_default()
}

/// The template of a revision; none if its data is something else.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut data: Value = revision.data.parse().ok()?;
    let template = data.pointer_mut("/spec/template")?;
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template.take()).ok()
}

/// A new revision without labels of its owner's kind, and its hash.
pub(crate) fn new_revision(
    owner: &ObjectMeta,
    template: &PodTemplateSpec,
    data: RawJson,
    (revision, collisions): (i64, Option<i32>),
    reference: OwnerReference,
) -> (ControllerRevision, String) {
    let collisions = collisions.map(|count| count.to_string()).unwrap_or_default();
    let hash = name_hash(&[&data.raw, collisions.as_bytes()]);
    let metadata = ObjectMeta {
        name: format!("{}-{hash}", owner.name),
        namespace: owner.namespace.clone(),
        labels: template.metadata.labels.clone(),
        annotations: owner.annotations.clone(),
        owner_references: vec![reference],
        ..ObjectMeta::default()
    };
    (ControllerRevision { metadata, data, revision }, hash)
}

/// Gives a revision a new number; conditional on its version.
pub(crate) fn renumber(revision: &ControllerRevision, number: i64) -> ApiWrite {
    let metadata = &revision.metadata;
    let metadata_patch =
        json!({ "uid": metadata.uid, "resourceVersion": metadata.resource_version });
    ApiWrite::Patch {
        kind: ObjectKind::ControllerRevision,
        key: ObjectKey::of(metadata),
        part: Part::Main,
        patch: json!({ "metadata": metadata_patch, "revision": number }),
    }
}

/// The oldest revisions beyond the limit. Those in use do not count and stay.
pub(crate) fn excess<'a>(
    old: &[&'a ControllerRevision],
    limit: Option<i32>,
    is_live: impl Fn(&ControllerRevision) -> bool,
    live_count: LiveCount,
) -> Vec<&'a ControllerRevision> {
    let limit = usize::try_from(limit.unwrap_or(HISTORY_LEN)).unwrap_or(0);
    let unused: Vec<&ControllerRevision> =
        old.iter().copied().filter(|revision| !is_live(revision)).collect();
    let counted = match live_count {
        LiveCount::Counted => old.len(),
        LiveCount::Exempt => unused.len(),
    };
    unused.into_iter().take(counted.saturating_sub(limit)).collect()
}

/// Whether the limit of a history counts revisions that pods have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveCount {
    /// It does, as for DaemonSets.
    Counted,
    /// It does not, as for StatefulSets.
    Exempt,
}
