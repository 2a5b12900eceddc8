//! The deployment controller: one replica set per pod template; the newest is scaled up and the others down as the strategy allows.

mod revision;
mod rollout;
mod size_annotations;
mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use proto_api::core::v1::ObjectReference;
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::names::Names;
use proto_api::selectors::Selector;
use proto_api::{Kind, ObjectKey, Time, merge_patch};
use serde_json::{Value, json};

use crate::api_writes::{ApiWrite, ObjectKind, Part};
use crate::name_hash::name_hash;
use crate::owners::{adopt, controlled_by, release};
use crate::replica_failure::FailureStatus;
use crate::write_events::{ReplicaOperation, WriteEvent};
use crate::{Adopter, Plan};
use revision::DeploymentRevision;
use rollout::{OldPods, SetScale, Sizes};
use size_annotations::SizeAnnotations;

pub use rollout::recreates;

/// Label with the hash of the pod template. It has no domain.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Default of `revisionHistoryLimit`.
const HISTORY_LEN: i32 = 10;

/// Longest time between two sets of one template that are stored with another.
const COLLISION_WAIT_SECS_MAX: u64 = 3600;

/// Plans the next step of a rollout. `sets` are the replica sets of the namespace. `has_pods` returns for the uid of a set whether it has unfinished
/// pods, including terminating ones, which no status counts; it is only called for deployments that [`recreates`].
pub fn plan<S: AsRef<ReplicaSet>>(
    names: &Names,
    deployment: &Deployment,
    sets: &[S],
    has_pods: &dyn Fn(&str) -> bool,
    now: Time,
) -> Plan {
    if deployment.metadata.deletion_timestamp.is_some() {
        return plan_deleted(names, deployment, sets, now);
    }
    let mut plan = Plan::default();
    let is_in_use = |name: &str| sets.iter().any(|set| set.as_ref().metadata.name == name);
    let Some(mut sets) = claim(names, deployment, sets, &mut plan) else { return plan };
    if !plan.writes.is_empty() {
        // Ownership is written before sizes.
        return plan;
    }
    let (newest, old) = split_sets(deployment, &mut sets);

    // A set that has not observed its size may have created pods that no cache shows.
    let may_have_pods = |set: &&ReplicaSet| {
        has_pods(&set.metadata.uid) || set.status.observed_generation < set.metadata.generation
    };
    let old_pods = match recreates(deployment) && old.iter().any(may_have_pods) {
        true => OldPods::Left,
        false => OldPods::Gone,
    };
    let revision = DeploymentRevision::new(names, deployment, newest, &old);
    let about = proto_api::event_report::reference(deployment, names);
    let size_annotations = SizeAnnotations::from_deployment(names, deployment);
    let scales = rollout::is_scaled(deployment, &size_annotations, newest, &old);
    let (mut made, mut update) = (Made::Nothing, None);
    match newest {
        // A deployment whose replicas have changed is scaled first: with a new set there would be more pods than it may have.
        None if deployment.spec.paused || scales => {}
        None => {
            let sizes = Sizes::from_sets(None, &old);
            if let Some(to) = rollout::first_size(deployment, &sizes, old_pods) {
                let set = new_set(names, deployment, &revision, to);
                made = push_new_set(&mut plan, &about, set, is_in_use);
            }
        }
        Some(newest) => update = revision::update_newest(&revision, deployment, newest),
    }
    for step in rollout::steps(deployment, &size_annotations, newest, &old, old_pods) {
        // Two writes of one set would be of two versions.
        let is_newest = newest.is_some_and(|newest| std::ptr::eq(newest, step.set));
        let update = if is_newest { update.take() } else { None };
        push_scale(&mut plan, &about, &step, &size_annotations, update);
    }
    plan.writes.extend(newest.zip(update).map(|(newest, update)| patch_set(newest, update)));
    let mut status = status::compute_status(deployment, newest, &old, now);
    let deletes = deployment.spec.paused || status::is_complete(deployment, &status);
    let is_new = (newest.is_some() || matches!(made, Made::Set(_))) && !revision.marks(deployment);
    note_made(&mut plan, deployment, &made, &old, &mut status, now);
    if let Some(newest) = newest.filter(|_| is_new) {
        status::mark_found_set(deployment, &newest.metadata.name, &mut status, now);
    }
    if let Some(due) = status::deadline_in(deployment, &status, now) {
        plan.requeue_in(due);
    }
    if is_new || status != deployment.status {
        let mut next = with_status(deployment, status);
        if is_new {
            revision.mark(&mut next);
        }
        plan.writes.push(ApiWrite::UpdateStatus(next.into()));
    }
    if deletes {
        plan.writes.extend(delete_old_sets(deployment, &revision, &old));
    }
    plan
}

fn with_status(deployment: &Deployment, status: DeploymentStatus) -> Deployment {
    Deployment { status, ..deployment.clone() }
}

/// Plans the status of a deployment that waits for its dependents to be deleted. Its sets stay as they are.
fn plan_deleted<S: AsRef<ReplicaSet>>(
    names: &Names,
    deployment: &Deployment,
    sets: &[S],
    now: Time,
) -> Plan {
    let mut unused = Plan::default();
    let Some(mut sets) = claim(names, deployment, sets, &mut unused) else { return unused };
    let is_owned = |set: &&ReplicaSet| {
        let mut owners = set.metadata.owner_references.iter();
        owners.any(|owner| owner.controller == Some(true) && owner.uid == deployment.metadata.uid)
    };
    sets.retain(is_owned);
    let (newest, old) = split_sets(deployment, &mut sets);
    let status = status::count_pods(deployment, newest, &old, now);
    let changes = status != deployment.status;
    let update = || ApiWrite::UpdateStatus(with_status(deployment, status).into());
    Plan::from_writes(changes.then(update))
}

/// The set of the deployment's template, and the others, the oldest first.
fn split_sets<'a>(
    deployment: &Deployment,
    sets: &mut [&'a ReplicaSet],
) -> (Option<&'a ReplicaSet>, Vec<&'a ReplicaSet>) {
    sets.sort_by_key(|set| (set.metadata.creation_timestamp.unix(), set.metadata.name.clone()));
    let newest = newest_set(deployment, sets);
    let uid = newest.map(|newest| newest.metadata.uid.as_str());
    let is_old = |set: &&ReplicaSet| Some(set.metadata.uid.as_str()) != uid;
    (newest, sets.iter().copied().filter(is_old).collect())
}

/// The sets that the deployment controls and selects, and the orphans that it selects and adopts. None if its selector is invalid.
fn claim<'a, S: AsRef<ReplicaSet>>(
    names: &Names,
    deployment: &Deployment,
    sets: &'a [S],
    plan: &mut Plan,
) -> Option<Vec<&'a ReplicaSet>> {
    let selector = deployment.spec.selector.as_ref();
    let selector = selector.map(|s| Selector::from_label_selector(s, "spec.selector"));
    // Validation rejects such selectors, but stored objects may have them.
    let selector = selector.and_then(Result::ok).filter(|selector| !selector.is_everything())?;
    let selects = |set: &ReplicaSet| selector.matches(&set.metadata.labels);
    let mut claimed = Vec::new();
    for set in sets.iter().map(AsRef::as_ref) {
        let (kind, metadata) = (ObjectKind::ReplicaSet, &set.metadata);
        let controller = metadata.owner_references.iter().find(|o| o.controller == Some(true));
        match controller {
            Some(owner) if owner.uid != deployment.metadata.uid => {}
            Some(owner) if !selects(set) => {
                plan.writes.push(release(kind, metadata, &owner.uid));
            }
            None if !selects(set) || metadata.deletion_timestamp.is_some() => {}
            None => {
                plan.writes.push(adopt(kind, metadata, reference(names, deployment)));
                plan.adopter = Some(Adopter::new(ObjectKind::Deployment, &deployment.metadata));
                claimed.push(set);
            }
            Some(_) => claimed.push(set),
        }
    }
    Some(claimed)
}

fn reference(names: &Names, deployment: &Deployment) -> OwnerReference {
    let api_version = names.api_version(Deployment::GROUP, Deployment::VERSION);
    controlled_by(api_version, Deployment::KIND, &deployment.metadata)
}

// === Templates ===

/// The first set of the deployment's template. The label with the hash does not count, in neither of the two.
fn newest_set<'a>(deployment: &Deployment, sets: &[&'a ReplicaSet]) -> Option<&'a ReplicaSet> {
    let template = &deployment.spec.template;
    let mut metadata = template.metadata.clone();
    let mut is_same = |set: &ReplicaSet| {
        let of_set = &set.spec.template;
        match of_set.metadata.labels.get(TEMPLATE_HASH) {
            Some(hash) => metadata.labels.insert(TEMPLATE_HASH.to_owned(), hash.clone()),
            None => metadata.labels.remove(TEMPLATE_HASH),
        };
        // Without a copy: there may be hundreds of sets, of megabytes each.
        of_set.spec == template.spec && of_set.metadata == metadata
    };
    sets.iter().copied().find(|set| is_same(set))
}

/// The hash of a template. The deployment's collision count is hashed too.
fn template_hash(deployment: &Deployment) -> String {
    let template = serde_json::to_vec(&deployment.spec.template).unwrap_or_default();
    let collisions = deployment.status.collision_count.unwrap_or(0).to_le_bytes();
    name_hash(&[&template, &collisions])
}

fn new_set(
    names: &Names,
    deployment: &Deployment,
    revision: &DeploymentRevision,
    replicas: i64,
) -> ReplicaSet {
    let hash = template_hash(deployment);
    let mut template = deployment.spec.template.clone();
    template.metadata.labels.insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let mut selector = deployment.spec.selector.clone().unwrap_or_default();
    selector.match_labels.insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let mut annotations = revision.annotations(deployment, &BTreeMap::new());
    annotations
        .extend(SizeAnnotations::from_deployment(names, deployment).entries().into_iter().cloned());
    ReplicaSet {
        metadata: ObjectMeta {
            name: format!("{}-{hash}", deployment.metadata.name),
            namespace: deployment.metadata.namespace.clone(),
            labels: template.metadata.labels.clone(),
            annotations,
            owner_references: vec![reference(names, deployment)],
            ..ObjectMeta::default()
        },
        spec: ReplicaSetSpec {
            replicas: Some(rollout::clamp_to_i32(replicas)),
            min_ready_seconds: deployment.spec.min_ready_seconds,
            selector: Some(selector),
            template,
        },
        ..ReplicaSet::default()
    }
}

// === Writes ===

/// Adds the write of a size and of what else changes, with an event if it is another size than before.
fn push_scale(
    plan: &mut Plan,
    about: &ObjectReference,
    SetScale { set, replicas }: &SetScale<'_>,
    annotations: &SizeAnnotations,
    update: Option<Value>,
) {
    let before = rollout::size(set);
    let mut patch = update.unwrap_or_else(|| json!({}));
    merge_patch::apply(&mut patch, &scale(set, *replicas, annotations));
    let write = patch_set(set, patch);
    if *replicas == before {
        return plan.writes.push(write);
    }
    let operation = ReplicaOperation::Scale { from: Some(before), to: *replicas };
    plan.push_with_event(write, WriteEvent { about: about.clone(), operation });
}

fn scale(set: &ReplicaSet, replicas: i64, annotations: &SizeAnnotations) -> Value {
    let version = &set.metadata.resource_version;
    let annotations: BTreeMap<_, _> =
        annotations.entries().into_iter().map(|(name, value)| (name, value)).collect();
    json!({
        "metadata": { "resourceVersion": version, "annotations": annotations },
        "spec": { "replicas": replicas },
    })
}

fn patch_set(set: &ReplicaSet, patch: Value) -> ApiWrite {
    let (kind, key) = (ObjectKind::ReplicaSet, ObjectKey::from_metadata(&set.metadata));
    ApiWrite::Patch { kind, key, part: Part::Main, patch }
}

/// What a plan makes of the newest template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Made {
    Nothing,
    /// A set with this name.
    Set(String),
    /// Another set has this name.
    Collision(String),
}

/// Adds the creation of a set, unless one has its name.
fn push_new_set(
    plan: &mut Plan,
    about: &ObjectReference,
    set: ReplicaSet,
    is_in_use: impl Fn(&str) -> bool,
) -> Made {
    let (name, to) = (set.metadata.name.clone(), rollout::size(&set));
    if is_in_use(&name) {
        return Made::Collision(name);
    }
    let operation = ReplicaOperation::Scale { from: None, to };
    let event = WriteEvent { about: about.clone(), operation };
    plan.push_with_event(ApiWrite::Create(set.into()), event);
    Made::Set(name)
}

/// Notes in the status what the plan makes of the newest template, and what the status is if that fails.
fn note_made(
    plan: &mut Plan,
    deployment: &Deployment,
    made: &Made,
    old: &[&ReplicaSet],
    status: &mut DeploymentStatus,
    now: Time,
) {
    match made {
        Made::Nothing => {}
        Made::Set(name) => {
            let failed = status::failed_set(deployment, name, now);
            let failed = failed.map(|failed| with_status(deployment, failed));
            plan.on_failure = failed.map(|failed| FailureStatus::new(failed, true));
            status::mark_new_set(deployment, name, status, now);
        }
        Made::Collision(name) => {
            let collisions = status.collision_count.unwrap_or(0);
            let wait = wait_after_collision(name, old, collisions, now);
            if wait.is_zero() {
                // The next plan derives another name for the same template.
                status.collision_count = Some(collisions.checked_add(1).unwrap_or(0));
            }
            plan.requeue_in(wait);
        }
    }
}

/// How long a set is left alone that has the name of the newest template's: what is stored of a set may differ from what was sent, because fields were
/// dropped or a webhook has changed them, and each further set would differ too. Doubles with each collision, from a second to an hour. None for sets of
/// others.
fn wait_after_collision(name: &str, own: &[&ReplicaSet], collisions: i32, now: Time) -> Duration {
    let made = own.iter().find(|set| set.metadata.name == name);
    let made = made.and_then(|set| set.metadata.creation_timestamp.unix());
    let (Some(made), Some(now)) = (made, now.unix()) else { return Duration::ZERO };
    let wait = 1_u64.checked_shl(collisions.unsigned_abs()).unwrap_or(u64::MAX);
    let age = u64::try_from(now.saturating_sub(made)).unwrap_or(0);
    Duration::from_secs(wait.min(COLLISION_WAIT_SECS_MAX).saturating_sub(age))
}

/// Deletes the replica sets beyond the revision history limit, those of the lowest revisions: an undo has given old sets new ones.
fn delete_old_sets(
    deployment: &Deployment,
    revision: &DeploymentRevision,
    old: &[&ReplicaSet],
) -> Vec<ApiWrite> {
    let limit = deployment.spec.revision_history_limit.unwrap_or(HISTORY_LEN);
    let mut kept = old.to_vec();
    kept.retain(|set| set.metadata.deletion_timestamp.is_none());
    // Among equals the order is that of their creation.
    kept.sort_by_key(|set| revision.of_set(set));
    let excess = kept.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    let is_idle = |set: &&ReplicaSet| {
        set.spec.replicas == Some(0)
            && set.status.replicas == 0
            && set.status.observed_generation >= set.metadata.generation
    };
    let delete = |set: &ReplicaSet| ApiWrite::Delete {
        kind: ObjectKind::ReplicaSet,
        key: ObjectKey::from_metadata(&set.metadata),
        uid: set.metadata.uid.clone(),
        grace_secs: None,
    };
    kept.into_iter().take(excess).filter(is_idle).map(delete).collect()
}

#[cfg(test)]
mod tests;
