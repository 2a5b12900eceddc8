//! The next steps of a set, in the order of its ordinals: create what is missing, delete what is too much, then update.

use std::sync::Arc;
use std::time::Duration;

use apiserver_controllers::Plan;
use apiserver_controllers::addresses::{is_ready, is_terminating};
use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, Part};
use apiserver_controllers::burst::BurstSize;
use apiserver_controllers::owners::set_owners;
use apiserver_controllers::write_events::{ReplicaOperation, WriteEvent};
use proto_api::apps::v1::{StatefulSet, StatefulSetStatus};
use proto_api::core::v1::{PersistentVolumeClaim, Pod};
use proto_api::event_report::{EventKind, EventReport};
use proto_api::meta::v1::OwnerReference;
use proto_api::names::Names;
use proto_api::{IntOrString, Message, ObjectKey, Time};
use serde_json::json;

use super::claim_owners::{ClaimUser, Retention};
use super::identity::{claim_name, name_label, new_claim, new_pod, ordinal, pod_name};
use super::{ClaimRetention, MaxUnavailable, ObservedStatefulSet, Revision};
use crate::claim::Claimant;
use crate::pods::{available_in, delete, is_available, revision};

/// When a pod is tried again whose name another pod has, or whose claim is being deleted: no watch of the set reports it.
const RETRY: Duration = Duration::from_secs(5);

/// Maximum number of replicas that one plan looks at, of pods that it creates, and of pods whose claims it gives other owners.
const BURST_MAX: usize = 500;

/// When what was too much for one plan is looked at: no watch of the set reports claims.
const NEXT_BURST: Duration = Duration::from_secs(1);

/// What the steps depend on.
pub(super) struct Steps<'a> {
    pub(super) names: &'a Names,
    pub(super) seen: &'a ObservedStatefulSet<'a>,
    pub(super) has_pod: &'a dyn Fn(&str) -> bool,
    pub(super) claimant: &'a Claimant<'a, StatefulSet>,
    pub(super) current: &'a Revision<'a>,
    pub(super) update: &'a Revision<'a>,
    pub(super) now: Time,
}

/// Whether a plan may go on to the next ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Wait,
}

impl Steps<'_> {
    fn set(&self) -> &StatefulSet {
        self.seen.set
    }

    /// Plans the steps, which change the counts of the pods that there are.
    pub(super) fn plan(&self, pods: &[&Pod], status: &mut StatefulSetStatus, plan: &mut Plan) {
        if self.set().metadata.deletion_timestamp.is_some() {
            return;
        }
        let wanted = self.set().spec.replicas.unwrap_or(1).max(0);
        let (mut replicas, mut condemned): (Vec<&Pod>, Vec<&Pod>) = pods
            .iter()
            .copied()
            .filter(|pod| ordinal(pod) >= 0)
            .partition(|pod| ordinal(pod) < wanted);
        replicas.sort_by_key(|pod| ordinal(pod));
        condemned.sort_by_key(|pod| ordinal(pod));
        if self.change_owners(&replicas, wanted, plan) == Next::Wait
            || self.fill(&replicas, wanted, status, plan) == Next::Wait
            || self.change_owners(&condemned, wanted, plan) == Next::Wait
            || self.shrink(&condemned, status, plan) == Next::Wait
            || self.set().spec.update_strategy.type_ == "OnDelete"
        {
            return;
        }
        self.update(&replicas, status, plan);
    }

    /// The status with the counts of the pods that there are.
    pub(super) fn count(&self, pods: &[&Pod], plan: &mut Plan) -> StatefulSetStatus {
        let set = self.set();
        let mut status = StatefulSetStatus {
            observed_generation: set.metadata.generation,
            current_revision: self.current.name.to_owned(),
            update_revision: self.update.name.to_owned(),
            collision_count: Some(set.status.collision_count.unwrap_or(0)),
            conditions: set.status.conditions.clone(),
            ..StatefulSetStatus::default()
        };
        for pod in pods {
            add(&mut status.replicas, 1);
            if runs_ready(pod) {
                add(&mut status.ready_replicas, 1);
                match available_in(pod, set.spec.min_ready_seconds, self.now) {
                    Some(Duration::ZERO) => add(&mut status.available_replicas, 1),
                    Some(left) => plan.requeue_in(left),
                    None => {}
                }
            }
            if !is_terminating(pod) {
                self.count_revision(&mut status, revision(pod), 1);
            }
        }
        status
    }

    fn count_revision(&self, status: &mut StatefulSetStatus, revision: &str, change: i32) {
        if revision == self.current.name {
            add(&mut status.current_replicas, change);
        }
        if revision == self.update.name {
            add(&mut status.updated_replicas, change);
        }
    }

    fn is_ordered(&self) -> bool {
        self.set().spec.pod_management_policy != "Parallel"
    }

    /// Whether the pod runs and has been ready for long enough.
    fn is_available(&self, pod: &Pod) -> bool {
        runs_ready(pod) && is_available(pod, self.set().spec.min_ready_seconds, self.now)
    }

    /// Creates missing pods, and repairs others.
    fn fill(
        &self,
        replicas: &[&Pod],
        wanted: i32,
        status: &mut StatefulSetStatus,
        plan: &mut Plan,
    ) -> Next {
        let mut present = replicas.iter().copied().peekable();
        let (mut created, mut burst) = (0_usize, BurstSize::default());
        for nth in 0..wanted {
            let Some(pod) = present.next_if(|pod| ordinal(pod) == nth) else {
                if self.has_stale_claim(nth) {
                    plan.requeue_in(RETRY);
                    return Next::Wait;
                }
                if self.create(nth, status, plan, &mut burst) == Next::Wait {
                    return Next::Wait;
                }
                created = created.saturating_add(1);
                if self.is_ordered() || created == BURST_MAX {
                    return Next::Wait;
                }
                continue;
            };
            if pod.status.phase == "Failed" && !is_terminating(pod) {
                // Its successor is created once it is gone: both have one name.
                plan.reports.push(self.recreates(pod));
                self.delete(pod, plan);
                self.count_revision(status, revision(pod), -1);
                add(&mut status.replicas, -1);
                if self.is_ordered() {
                    return Next::Wait;
                }
                continue;
            }
            if self.is_ordered() && (is_terminating(pod) || !self.is_available(pod)) {
                return Next::Wait;
            }
            self.repair(pod, plan);
        }
        Next::Continue
    }

    /// Deletes the pods beyond the number of replicas, the highest ordinal first.
    fn shrink(&self, condemned: &[&Pod], status: &mut StatefulSetStatus, plan: &mut Plan) -> Next {
        // In order the replicas are healthy by now.
        let is_healthy = |pod: &&&Pod| runs_ready(pod) && !is_terminating(pod);
        let first_unhealthy = condemned.iter().find(|pod| !is_healthy(pod)).map(|pod| ordinal(pod));
        for pod in condemned.iter().rev() {
            if is_terminating(pod) {
                if self.is_ordered() {
                    return Next::Wait;
                }
                continue;
            }
            let is_first = first_unhealthy == Some(ordinal(pod));
            if self.is_ordered() && !self.is_available(pod) && !is_first {
                return Next::Wait;
            }
            self.delete(pod, plan);
            self.count_revision(status, revision(pod), -1);
            if self.is_ordered() {
                return Next::Wait;
            }
        }
        Next::Continue
    }

    /// How many pods may be unavailable while others are updated; none if that does not count.
    fn max_unavailable(&self) -> Option<usize> {
        let rolling = self.set().spec.update_strategy.rolling_update.as_ref()?;
        let value = rolling.max_unavailable.as_ref()?;
        let wanted = i64::from(self.set().spec.replicas.unwrap_or(1).max(0));
        let part = match value {
            IntOrString::Int(number) => i64::from(*number),
            IntOrString::String(text) => {
                let percent = text.strip_suffix('%').and_then(|text| text.parse::<i64>().ok());
                wanted.saturating_mul(percent.unwrap_or(0)).div_euclid(100)
            }
        };
        let counts = self.seen.features.max_unavailable == MaxUnavailable::Counts;
        counts.then(|| usize::try_from(part.max(1)).unwrap_or(usize::MAX))
    }

    /// Deletes the highest ordinals that are not updated, as long as no more than `most` pods are unavailable. Pods that are not ready, which may
    /// be what the update is to mend, go first: without them no more are unavailable; but no more than `most` are replaced at a time.
    fn update_several(
        &self,
        replicas: &[&Pod],
        most: usize,
        status: &mut StatefulSetStatus,
        plan: &mut Plan,
    ) {
        let stays = |pod: &Pod| self.is_available(pod) && !is_terminating(pod);
        // Failed pods are being replaced already.
        let is_old = |pod: &Pod| {
            revision(pod) != self.update.name
                && !is_terminating(pod)
                && pod.status.phase != "Failed"
        };
        let wanted = usize::try_from(self.set().spec.replicas.unwrap_or(1)).unwrap_or(0);
        let without = |pods: usize| most.saturating_sub(wanted.saturating_sub(pods));
        let available = replicas.iter().filter(|pod| stays(pod)).count();
        let at_rest = replicas.iter().filter(|pod| stays(pod) || is_old(pod)).count();
        let old = replicas.iter().rev().take_while(|pod| ordinal(pod) >= self.partition());
        let (ready, broken): (Vec<&Pod>, Vec<&Pod>) =
            old.filter(|pod| is_old(pod)).partition(|pod| runs_ready(pod));
        let broken = broken.into_iter().take(without(at_rest));
        for pod in broken.chain(ready.into_iter().take(without(available))) {
            self.delete(pod, plan);
            add(&mut status.current_replicas, -1);
        }
    }

    fn partition(&self) -> i32 {
        let rolling = self.set().spec.update_strategy.rolling_update.as_ref();
        rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
    }

    /// Deletes the highest ordinal that is not updated; waits for those above it.
    fn update(&self, replicas: &[&Pod], status: &mut StatefulSetStatus, plan: &mut Plan) {
        if let Some(most) = self.max_unavailable() {
            return self.update_several(replicas, most, status, plan);
        }
        let partition = self.partition();
        // With the policy `Parallel` pods may be missing still: they are waited for.
        let mut above = self.set().spec.replicas.unwrap_or(1).max(0);
        for pod in replicas.iter().rev() {
            let nth = ordinal(pod);
            if nth < partition || nth.saturating_add(1) != above {
                return;
            }
            above = nth;
            if revision(pod) != self.update.name && !is_terminating(pod) {
                self.delete(pod, plan);
                add(&mut status.current_replicas, -1);
                return;
            }
            if !runs_ready(pod) || is_terminating(pod) {
                return;
            }
        }
    }

    /// Creates a pod and the claims that it lacks. Waits if the plan is large already.
    fn create(
        &self,
        nth: i32,
        status: &mut StatefulSetStatus,
        plan: &mut Plan,
        burst: &mut BurstSize,
    ) -> Next {
        let set = self.set();
        let pod = pod_name(set, nth);
        let taken = (self.has_pod)(&pod);
        let (mut new, mut owned) = (Vec::new(), Vec::new());
        for template in &set.spec.volume_claim_templates {
            let name = claim_name(set, template, nth);
            match (self.seen.claim)(&name) {
                None => new.push(template),
                Some(old) if old.metadata.deletion_timestamp.is_some() => {
                    let why = format!("pvc {name} is being deleted");
                    plan.reports.push(self.failed("create", &pod, &why));
                    plan.requeue_in(RETRY);
                    return Next::Continue;
                }
                Some(old) => {
                    let user = ClaimUser { name: &pod, pod: None, is_wanted: true };
                    owned.extend(self.owners_write(&old, user));
                }
            }
        }
        plan.writes.extend(owned);
        for template in new {
            if self.create_claim(template, nth, plan, burst) == Next::Wait {
                return Next::Wait;
            }
        }
        if taken {
            // Another owner's pod has the name.
            plan.requeue_in(RETRY);
            return Next::Continue;
        }
        let revision = self.revision_of(nth);
        let new = new_pod(self.names, set, revision, self.reference(), nth);
        if !burst.takes(new.encoded_len()) {
            plan.requeue_in(NEXT_BURST);
            return Next::Wait;
        }
        plan.push_with_event(ApiWrite::Create(new.into()), self.pod_event("create", &pod));
        add(&mut status.replicas, 1);
        self.count_revision(status, revision.name, 1);
        Next::Continue
    }

    fn create_claim(
        &self,
        template: &PersistentVolumeClaim,
        nth: i32,
        plan: &mut Plan,
        burst: &mut BurstSize,
    ) -> Next {
        let mut claim = new_claim(self.set(), template, nth);
        claim.metadata.owner_references.extend(self.owners_of_new_claim());
        if !burst.takes(claim.encoded_len()) {
            plan.requeue_in(NEXT_BURST);
            return Next::Wait;
        }
        let (pod, name) = (pod_name(self.set(), nth), &claim.metadata.name);
        let set = &self.set().metadata.name;
        let done = format!("create Claim {name} Pod {pod} in StatefulSet {set} success");
        let failed =
            format!("create Claim {name} for Pod {pod} in StatefulSet {set} failed error: ");
        let event = self.event(("SuccessfulCreate", done), ("FailedCreate", failed));
        plan.push_with_event(ApiWrite::Create(claim.into()), event);
        Next::Continue
    }

    // === Owners of claims ===

    /// By which rules claims have owners; none if they are left as they are.
    fn retention(&self) -> Option<Retention> {
        let counts = self.seen.features.claim_retention == ClaimRetention::Counts;
        counts.then(|| Retention::from_set(self.set()))
    }

    /// Gives the claims of pods their owners: those of wanted ordinals before anything that waits, as until then a pod that ends could take its claim
    /// with it, and those of condemned pods before they are deleted.
    fn change_owners(&self, pods: &[&Pod], wanted: i32, plan: &mut Plan) -> Next {
        if self.retention().is_none() {
            return Next::Continue;
        }
        let mut changed = 0_usize;
        for pod in pods {
            let (name, is_wanted) = (&pod.metadata.name, ordinal(pod) < wanted);
            let user = ClaimUser { name, pod: Some(pod), is_wanted };
            let write = |claim: Arc<PersistentVolumeClaim>| self.owners_write(&claim, user);
            let mut writes = self.claims_of(ordinal(pod)).filter_map(write);
            let Some(first) = writes.next() else { continue };
            if changed == BURST_MAX {
                plan.requeue_in(NEXT_BURST);
                return Next::Wait;
            }
            changed = changed.saturating_add(1);
            // As in Kubernetes, where a condemned pod is not said to be updated.
            match is_wanted {
                true => plan.push_with_event(first, self.pod_event("update", name)),
                false => plan.writes.push(first),
            }
            plan.writes.extend(writes);
        }
        Next::Continue
    }

    /// The claims that there are of an ordinal.
    fn claims_of(&self, nth: i32) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
        let templates = self.set().spec.volume_claim_templates.iter();
        let names = templates.map(move |template| claim_name(self.set(), template, nth));
        names.filter_map(move |name| (self.seen.claim)(&name))
    }

    fn owners_of_new_claim(&self) -> Vec<OwnerReference> {
        let owners = self.retention().map(|by| by.of_new_claim(self.names, self.set()));
        owners.unwrap_or_default()
    }

    /// The write that gives a claim its owners; none if it has them.
    fn owners_write(&self, claim: &PersistentVolumeClaim, user: ClaimUser<'_>) -> Option<ApiWrite> {
        let owners = self.retention()?.change_owners(self.names, self.set(), claim, user)?;
        Some(set_owners(ObjectKind::PersistentVolumeClaim, &claim.metadata, owners))
    }

    /// Whether a claim of this ordinal waits for its deletion after an earlier pod.
    fn has_stale_claim(&self, nth: i32) -> bool {
        let Some(retention) = self.retention() else { return false };
        let pod = pod_name(self.set(), nth);
        self.claims_of(nth).any(|claim| retention.is_stale(&claim, &pod))
    }

    // === Parts of pods ===

    fn reference(&self) -> OwnerReference {
        self.claimant.reference()
    }

    /// The revision of a new pod: below the partition the current one.
    fn revision_of(&self, nth: i32) -> &Revision<'_> {
        let set = self.set();
        let rolling = set.spec.update_strategy.rolling_update.as_ref();
        let partition = match rolling {
            Some(rolling) => rolling.partition.unwrap_or(0),
            None if set.spec.update_strategy.type_ == "RollingUpdate" => {
                set.status.current_replicas
            }
            None => 0,
        };
        if nth < partition { self.current } else { self.update }
    }

    /// Restores the label with the name of a pod. Its volumes do not change: an adopted pod without the claims of its ordinal stays without them.
    fn repair(&self, pod: &Pod, plan: &mut Plan) {
        let metadata = &pod.metadata;
        let label = name_label(self.names);
        if metadata.labels.get(&label) == Some(&metadata.name) {
            return;
        }
        let patch = json!({ "metadata": {
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
            "labels": { label: metadata.name },
        } });
        let (kind, key) = (ObjectKind::Pod, ObjectKey::from_metadata(metadata));
        let write = ApiWrite::Patch { kind, key, part: Part::Main, patch };
        plan.push_with_event(write, self.pod_event("update", &metadata.name));
    }

    fn delete(&self, pod: &Pod, plan: &mut Plan) {
        plan.push_with_event(delete(pod), self.pod_event("delete", &pod.metadata.name));
    }

    // === Events ===

    fn pod_event(&self, verb: &str, pod: &str) -> WriteEvent {
        let (done, failed) = match verb {
            "create" => ("SuccessfulCreate", "FailedCreate"),
            "delete" => ("SuccessfulDelete", "FailedDelete"),
            _ => ("SuccessfulUpdate", "FailedUpdate"),
        };
        let what = format!("{verb} Pod {pod} in StatefulSet {}", self.set().metadata.name);
        self.event((done, format!("{what} successful")), (failed, format!("{what} failed error: ")))
    }

    fn event(&self, done: (&'static str, String), failed: (&'static str, String)) -> WriteEvent {
        let about = proto_api::event_report::reference(self.set(), self.names);
        WriteEvent { about, operation: ReplicaOperation::Other { done, failed } }
    }

    fn failed(&self, verb: &str, pod: &str, why: &str) -> EventReport {
        let set = &self.set().metadata.name;
        let message = format!("{verb} Pod {pod} in StatefulSet {set} failed error: {why}");
        self.warning("FailedCreate", message)
    }

    fn recreates(&self, pod: &Pod) -> EventReport {
        let ObjectKey { namespace, name } = ObjectKey::from_metadata(&self.set().metadata);
        let pod = &pod.metadata.name;
        let message = format!("StatefulSet {namespace}/{name} is recreating failed Pod {pod}");
        self.warning("RecreatingFailedPod", message)
    }

    fn warning(&self, reason: &'static str, message: String) -> EventReport {
        let about = proto_api::event_report::reference(self.set(), self.names);
        EventReport { about, kind: EventKind::Warning, reason: reason.into(), message }
    }
}

fn runs_ready(pod: &Pod) -> bool {
    pod.status.phase == "Running" && is_ready(pod)
}

fn add(counter: &mut i32, change: i32) {
    *counter = counter.saturating_add(change);
}
