//! The PostFilter extension point: ends pods of lower priority for a pod that fits on no node, and nominates the node for it.

use std::sync::Arc;

use apiserver_scheduling::nodes::NodeLoad;
use apiserver_scheduling::pod_affinity::NamespaceLabels;
use apiserver_scheduling::pod_info::{PodInfo, PodPhase};
use apiserver_scheduling::preemption::{
    Candidate, Preemption, SearchBounds, find_preemptions, refuse_preemption, select_candidate,
};
use apiserver_scheduling::select_node::{FitError, PodFilters, SelectionRules, StorageView};
use apiserver_scheduling::volumes::StorageSnapshot;
use proto_api::core::v1::Pod;
use proto_api::event_report::EventKind;
use proto_client::{Patch, WriteParams};
use proto_daemon::exit::chain;
use proto_daemon::panics::isolate_sync;
use serde_json::json;

use super::Scheduler;
use super::end_victim::{VictimEnd, end_victim};
use crate::extenders::ExtenderError;

/// What became of `status.nominatedNodeName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nomination {
    /// It stays.
    Unchanged,
    /// It is this node now; empty for none.
    Node(String),
}

impl Scheduler {
    /// Tries to make room for a pod that fits on no node. Returns the message for users, and its nomination.
    pub(super) async fn preempt(
        &mut self,
        pod: &Arc<PodInfo>,
        loads: &[NodeLoad],
        namespaces: &NamespaceLabels,
        storage: &StorageSnapshot,
        error: &FitError,
    ) -> (Option<String>, Nomination) {
        let Some(profile) = self.profile_of(pod) else { return (None, Nomination::Unchanged) };
        let Some(candidates) = profile.preemption.filter(|_| !loads.is_empty()) else {
            return (None, Nomination::Unchanged);
        };
        let nominated = self.nominations.node_of(pod).to_owned();
        let found = {
            let budgets = self.caches.budgets.objects();
            let storage_view = StorageView { storage, annotations: &self.annotations };
            let rules = SelectionRules { profile: &profile, namespaces };
            let attempt = self.backoff.count_failures(&pod.key, &pod.uid);
            let bounds = SearchBounds { attempt, candidates };
            isolate_sync(|| match PodFilters::new(pod, rules, storage_view) {
                Ok(filters) => {
                    find_preemptions(pod, loads, error, &nominated, &budgets, &filters, bounds)
                }
                // No node suits its claims: a nomination is useless.
                Err(_) => refuse_preemption(pod, loads, error, &nominated),
            })
        };
        match found {
            Ok(Preemption::Candidates(candidates)) => {
                let candidate = match self.choose_candidate(pod, candidates, loads).await {
                    Ok(Some(candidate)) => candidate,
                    Ok(None) => {
                        let why = "no candidate node for preemption".to_owned();
                        return (Some(why), Nomination::Unchanged);
                    }
                    Err(error) => return (Some(chain(&error)), Nomination::Unchanged),
                };
                let node = loads.get(candidate.nth).map(|load| load.node.name.clone());
                let node = node.unwrap_or_default();
                if self.is_current(pod, &node, &candidate)
                    && self.end_victims(pod, &node, &candidate).await
                {
                    self.drop_lower_nominations(pod, &node).await;
                    self.nominations.set(pod, &node);
                    return (None, Nomination::Node(node));
                }
                (None, Nomination::Unchanged)
            }
            Ok(Preemption::Impossible { why, clears }) => {
                let dropped = if clears { nominated.as_str() } else { "" };
                (Some(why), self.drop_nomination(pod, dropped))
            }
            Err(panicked) => {
                tracing::error!(pod = %pod.key, uid = pod.uid, %panicked, "preemption for the pod panicked; the pod waits for a cluster change");
                (None, Nomination::Unchanged)
            }
        }
    }

    /// The preemption that does the least harm, of those that extenders leave.
    async fn choose_candidate(
        &self,
        pod: &PodInfo,
        candidates: Vec<Candidate>,
        loads: &[NodeLoad],
    ) -> Result<Option<Candidate>, ExtenderError> {
        let left = self.extenders.choose_preemptions(pod, candidates, loads).await?;
        Ok(select_candidate(left))
    }

    /// Takes back a nomination, if there is one.
    fn drop_nomination(&mut self, pod: &PodInfo, nominated: &str) -> Nomination {
        if nominated.is_empty() {
            return Nomination::Unchanged;
        }
        self.nominations.set(pod, "");
        Nomination::Node(String::new())
    }

    /// Whether the pod still waits for a node, and its victims are where the cycle saw them: it may have taken a while.
    fn is_current(&self, pod: &PodInfo, node: &str, candidate: &Candidate) -> bool {
        let waits = |found: &PodInfo| {
            found.uid == pod.uid && found.node.is_empty() && found.phase == PodPhase::Active
        };
        let runs = |victim: &Arc<PodInfo>| {
            let found = self.caches.pods.get(&victim.key);
            // A pod that this scheduler has just bound is shown later.
            found.is_some_and(|found| {
                found.uid == victim.uid && (found.node == node || found.node.is_empty())
            })
        };
        self.caches.pods.get(&pod.key).is_some_and(|found| waits(&found))
            && candidate.victims.iter().all(runs)
    }

    /// Deletes the victims. False if one of them could not be deleted; the pod is tried again after its back-off.
    async fn end_victims(&self, pod: &PodInfo, node: &str, candidate: &Candidate) -> bool {
        let adds_condition =
            self.profile_of(pod).is_some_and(|of| of.features.disruption_conditions);
        for victim in &candidate.victims {
            match end_victim(&self.client, victim, adds_condition).await {
                Ok(VictimEnd::Deleted) => {}
                Ok(VictimEnd::WasGone) => continue,
                Err(error) => {
                    tracing::warn!(pod = %pod.key, victim = %victim.key, node, error = chain(&error), "cannot delete a pod of lower priority; retried after the pod's back-off");
                    return false;
                }
            }
            let message = format!("Preempted by {} on node {node}", pod.key);
            self.record(pod, &victim.reference, EventKind::Normal, "Preempted", &message);
            tracing::info!(pod = %pod.key, uid = pod.uid, victim = %victim.key, victim_uid = victim.uid, node, "pod of lower priority deleted");
        }
        self.counters.observe_victims(candidate.victims.len());
        true
    }

    /// Pods of lower priority that are nominated to the node have to look for another one.
    async fn drop_lower_nominations(&mut self, pod: &PodInfo, node: &str) {
        let mut lower = self.caches.pods.objects();
        lower.retain(|other| {
            other.node.is_empty()
                && other.priority < pod.priority
                && self.nominations.node_of(other) == node
        });
        for other in lower {
            self.nominations.set(&other, "");
            let patch = Patch::Strategic(json!({
                "metadata": { "uid": other.uid },
                "status": { "nominatedNodeName": null },
            }));
            let api = self.client.within::<Pod>(&other.key.namespace);
            let written = api.patch_status(&other.key.name, &patch, &WriteParams::default()).await;
            if let Err(error) = written {
                tracing::debug!(pod = %other.key, uid = other.uid, error = chain(&error), "cannot clear status.nominatedNodeName of the pod");
            }
        }
    }
}
