//! The pods that a job creates and deletes.

use std::collections::BTreeMap;

use apiserver_controllers::Plan;
use apiserver_controllers::addresses::is_ready;
use apiserver_controllers::api_writes::ApiWrite;
use apiserver_controllers::burst::BurstSize;
use apiserver_controllers::write_events::{ReplicaOperation, WriteEvent};
use proto_api::Message;
use proto_api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use proto_api::names::Names;

use super::counts::Counts;
use super::{
    BURST_MAX, Work, finalizer, index_annotation, index_of, is_indexed, is_suspended, is_tracked,
    retry_delay, untrack,
};
use crate::pods::{delete, from_template};

/// The variable with the index of a container's pod.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// Longest name without the random characters at its end.
const GENERATE_NAME_MAX: usize = 58;

/// Pods to create and delete.
#[derive(Default)]
pub(super) struct PodChanges<'a> {
    /// New pods, with their indexes.
    pub(super) create: Vec<Option<i32>>,
    /// Pods that have to go.
    pub(super) delete: Vec<&'a Pod>,
}

impl Work<'_> {
    /// The pods that the job lacks, or has too many of. Either the one or the other.
    pub(super) fn changes<'p>(
        &self,
        counts: &Counts<'_>,
        active: &[&'p Pod],
        plan: &mut Plan,
    ) -> PodChanges<'p> {
        let delete_first = |mut delete: Vec<&'p Pod>| {
            delete.truncate(BURST_MAX);
            PodChanges { delete, ..PodChanges::default() }
        };
        if is_suspended(self.job) {
            return delete_first(active.to_vec());
        }
        let is_held = |pod: &&Pod| is_tracked(self.names, pod);
        // One without the finalizer would not be counted: its deletion was interrupted.
        let (held, mut delete): (Vec<&Pod>, Vec<&Pod>) = active.iter().copied().partition(is_held);
        let wanted = self.count_desired(counts, held.len());
        delete.extend(self.removable(&held, held.len().saturating_sub(wanted)));
        if !delete.is_empty() {
            return delete_first(delete);
        }
        let missing = wanted.saturating_sub(active.len()).min(BURST_MAX);
        if missing == 0 {
            return PodChanges::default();
        }
        if let Some(left) = retry_delay::remaining_delay(self.job, self.pods, self.now) {
            plan.requeue_in(left);
            return PodChanges::default();
        }
        let first = is_indexed(self.job).then_some(0);
        let (bytes, mut burst) = (self.new_pod(first).encoded_len(), BurstSize::default());
        let missing = (0..missing).take_while(|_| burst.takes(bytes)).count();
        let create = match is_indexed(self.job) {
            true => self.pending_indexes(counts, active, missing),
            false => vec![None; missing],
        };
        PodChanges { create, ..PodChanges::default() }
    }

    /// The number of pods that should be active.
    fn count_desired(&self, counts: &Counts<'_>, active: usize) -> usize {
        let spec = &self.job.spec;
        let parallelism = usize::try_from(spec.parallelism.unwrap_or(1)).unwrap_or(0);
        match spec.completions {
            // After the first success those that run are left to end.
            None if counts.succeeded() > 0 => active,
            None => parallelism,
            Some(completions) => {
                let left = completions.saturating_sub(counts.succeeded());
                usize::try_from(left).unwrap_or(0).min(parallelism)
            }
        }
    }

    /// At least `excess` pods, the least valuable first; of an indexed job all without a valid index, and all but one of each.
    fn removable<'p>(&self, active: &[&'p Pod], excess: usize) -> Vec<&'p Pod> {
        let mut ranked = active.to_vec();
        ranked.sort_by_cached_key(|pod| value(pod));
        let (mut delete, mut rest) = (Vec::new(), Vec::new());
        match is_indexed(self.job) {
            false => rest = ranked,
            true => {
                let mut last: BTreeMap<i32, &Pod> = BTreeMap::new();
                for pod in ranked {
                    match index_of(self.names, self.job, &pod.metadata) {
                        None => delete.push(pod),
                        Some(index) => delete.extend(last.insert(index, pod)),
                    }
                }
                rest.extend(last.into_values());
                rest.sort_by_cached_key(|pod| value(pod));
            }
        }
        let more = excess.saturating_sub(delete.len());
        delete.extend(rest.into_iter().take(more));
        delete
    }

    /// The lowest indexes that have neither succeeded nor a pod.
    fn pending_indexes(
        &self,
        counts: &Counts<'_>,
        active: &[&Pod],
        len: usize,
    ) -> Vec<Option<i32>> {
        let indexes = active.iter().filter_map(|pod| index_of(self.names, self.job, &pod.metadata));
        let taken: std::collections::BTreeSet<i32> = indexes.collect();
        let pending = counts.indexes.missing(self.job.spec.completions.unwrap_or(0));
        pending.filter(|index| !taken.contains(index)).take(len).map(Some).collect()
    }

    fn new_pod(&self, index: Option<i32>) -> Pod {
        let (job, names) = (self.job, self.names);
        let mut pod = from_template(&job.spec.template, &job.metadata, self.claimant.reference());
        let finalizer = finalizer(names);
        if !pod.metadata.finalizers.contains(&finalizer) {
            pod.metadata.finalizers.push(finalizer);
        }
        let Some(index) = index else { return pod };
        let name = &job.metadata.name;
        pod.metadata.annotations.insert(index_annotation(names), index.to_string());
        pod.spec.hostname = format!("{name}-{index}");
        let suffix = format!("-{index}-");
        let start: String =
            name.chars().take(GENERATE_NAME_MAX.saturating_sub(suffix.len())).collect();
        pod.metadata.generate_name = format!("{start}{suffix}");
        let spec = &mut pod.spec;
        for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
            add_index_variable(names, container);
        }
        pod
    }
}

fn add_index_variable(names: &Names, container: &mut Container) {
    if container.env.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    let field = ObjectFieldSelector {
        field_path: format!("metadata.annotations['{}']", index_annotation(names)),
        ..ObjectFieldSelector::default()
    };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    container.env.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value_from: Some(source),
        ..EnvVar::default()
    });
}

/// The rank of a pod; the lowest is deleted first: unassigned, then pending, then not ready, then young pods.
fn value(pod: &Pod) -> impl Ord + use<> {
    let created = pod.metadata.creation_timestamp.unix().unwrap_or(i64::MAX);
    (
        !pod.spec.node_name.is_empty(),
        pod.status.phase == "Running",
        is_ready(pod),
        std::cmp::Reverse(created),
        pod.metadata.name.clone(),
    )
}

impl PodChanges<'_> {
    /// Adds the writes and their events.
    pub(super) fn push(&self, work: &Work<'_>, plan: &mut Plan) {
        let about = proto_api::event_report::reference(work.job, work.names);
        for index in &self.create {
            let event = WriteEvent { about: about.clone(), operation: ReplicaOperation::Create };
            plan.push_with_event(ApiWrite::Create(work.new_pod(*index).into()), event);
        }
        for pod in &self.delete {
            if is_tracked(work.names, pod) {
                // Conditional on its version: one that has ended meanwhile is counted.
                plan.writes.push(untrack(work.names, pod));
            }
            push_deletions(work, &[*pod], plan);
        }
    }
}

/// Deletes pods, with the events of it.
pub(super) fn push_deletions(work: &Work<'_>, pods: &[&Pod], plan: &mut Plan) {
    let about = proto_api::event_report::reference(work.job, work.names);
    for pod in pods.iter().take(BURST_MAX) {
        let event = WriteEvent { about: about.clone(), operation: ReplicaOperation::Delete };
        plan.push_with_event(delete(pod), event);
    }
}
