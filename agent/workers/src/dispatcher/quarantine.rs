//! Quarantine: pods whose handling crashed the agent, or panicked in their own task, are retried
//! alone and then left alone, so that no pod takes the agent down for others.
//!
//! ```text
//!  active at a crash ──► counted ──again──► tried alone ──again──► quarantined ──changed──► handled
//!  its task panicked ──► retried after a delay ──again──────────►    │
//!                                                         deleted ──┴──► stopped and removed, without its volumes' spec
//! ```

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_interfaces::StatusChange;
use agent_journal::Record;
use agent_journal::active_pods::{CRASHES_MAX, content_hash};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::record::PodRecord;
use agent_telemetry::timeline::Outcome;
use proto_api::Time;
use proto_api::core::v1::{Container, Pod, PodCondition};
use proto_daemon::backoff::Backoff;
use proto_daemon::panics::Panicked;
use tokio::time::Instant;

use super::{Pods, pod_from_remains};
use crate::worker::{PodUpdate, SourcePresence};

/// Condition of a quarantined pod.
pub const CONDITION: &str = "Quarantined";
/// Reason of the condition and the event.
pub const REASON: &str = "AgentCrashed";

/// How long a suspect is tried before the next one is.
const TRIAL: Duration = Duration::from_secs(10);
/// How long the agent must run before crash counts are cleared.
const SETTLED: Duration = Duration::from_secs(600);
/// Back-off before a pod whose task panicked is retried.
const RETRY: Backoff =
    Backoff { first: Duration::from_secs(10), longest: Duration::from_secs(300) };
/// Seconds before each try to write the condition.
const WRITE_DELAYS_SECS: [u64; 6] = [0, 1, 4, 15, 60, 300];

/// Pods that are not handled now, by uid.
pub(super) struct Suspects {
    /// The suspect on trial, and the end of its trial.
    trial: Option<(String, Instant)>,
    /// Suspects that wait for their trial.
    next: BTreeMap<String, (std::time::Instant, PodUpdate)>,
    quarantined: BTreeMap<String, PodUpdate>,
    /// Pods that are retried at a given time: their task panicked, or their termination crashed an
    /// earlier agent.
    later: BTreeMap<String, (Instant, PodUpdate)>,
    began: Instant,
    settle_at: Instant,
}

impl Suspects {
    pub(super) fn new() -> Self {
        Self {
            trial: None,
            next: BTreeMap::new(),
            quarantined: BTreeMap::new(),
            later: BTreeMap::new(),
            began: Instant::now(),
            settle_at: clock::after(SETTLED),
        }
    }

    /// Whether a pod is held back, so that its containers are not orphaned.
    pub(super) fn holds_back(&self, uid: &str) -> bool {
        self.next.contains_key(uid)
            || self.quarantined.contains_key(uid)
            || self.later.contains_key(uid)
    }

    /// When [`Pods::process_suspects`] is due next.
    pub(super) fn next_due(&self) -> Instant {
        let trial = self.trial.iter().map(|(_, until)| *until);
        let later = self.later.values().map(|(at, _)| *at);
        trial.chain(later).fold(self.settle_at, Instant::min)
    }
}

fn retry_delay(crashes: u32) -> Duration {
    RETRY.delay(crashes.max(1), 1.0)
}

/// The pod reduced to what stopping and removing its containers needs: no volumes, hooks, probes or
/// environment.
fn minimal_pod(pod: &Pod) -> Pod {
    let spec = &pod.spec;
    let ephemeral = spec.ephemeral_containers.iter().map(|c| &c.ephemeral_container_common.name);
    let own = spec.init_containers.iter().chain(&spec.containers).map(|c| &c.name);
    let names: Vec<String> = own.chain(ephemeral).cloned().collect();
    let meta = &pod.metadata;
    let mut bare = pod_from_remains(&meta.uid, &meta.namespace, &meta.name, &names);
    bare.metadata.annotations.clone_from(&meta.annotations);
    bare.metadata.deletion_timestamp.clone_from(&meta.deletion_timestamp);
    bare.metadata.deletion_grace_period_seconds = meta.deletion_grace_period_seconds;
    bare.spec.termination_grace_period_seconds = spec.termination_grace_period_seconds;
    bare.spec.host_network = spec.host_network;
    for Container { name, image, .. } in &mut bare.spec.containers {
        let known = spec.init_containers.iter().chain(&spec.containers).find(|c| c.name == *name);
        *image = known.map(|c| c.image.clone()).unwrap_or_default();
    }
    bare.status = pod.status.clone();
    bare
}

fn is_leaving(update: &PodUpdate) -> bool {
    update.presence == SourcePresence::Dropped || update.pod.metadata.deletion_timestamp.is_some()
}

impl Pods {
    /// Restricts a quarantined pod to its termination, in a minimal form. Lifts the quarantine if
    /// its spec was changed.
    pub(super) fn restrict_quarantined(&mut self, update: PodUpdate) -> PodUpdate {
        let uid = &update.pod.metadata.uid;
        let Some(record) =
            self.shared.active_pods.record(uid).filter(|record| record.is_quarantined)
        else {
            return update;
        };
        if is_leaving(&update) {
            self.suspects.quarantined.remove(uid);
            return PodUpdate { pod: Arc::new(minimal_pod(&update.pod)), ..update };
        }
        if record.content != content_hash(&update.pod) {
            self.shared
                .active_pods
                .update(uid, |record| (record.crashes, record.is_quarantined) = (0, false));
            self.suspects.quarantined.remove(uid);
            self.show_quarantine(&update, None);
        }
        update
    }

    /// Holds back a pod that must not have a task now. Returns whether it did.
    pub(super) fn hold_back(&mut self, update: &PodUpdate, asked: std::time::Instant) -> bool {
        let uid = update.pod.metadata.uid.clone();
        if let Some((_, later)) = self.suspects.later.get_mut(&uid) {
            *later = update.clone();
            return true;
        }
        let Some(record) = self.shared.active_pods.record(&uid) else { return false };
        if record.is_quarantined {
            return self.keep_quarantined(uid, update, record.crashes);
        }
        if !record.is_on_trial() {
            return false;
        }
        match &self.suspects.trial {
            Some((other, _)) if *other != uid => {
                self.suspects.next.insert(uid, (asked, update.clone()));
                true
            }
            _ => {
                tracing::warn!(
                    uid,
                    crashes = record.crashes,
                    "the agent crashed while it processed this pod; the pod is tried alone"
                );
                self.suspects.trial = Some((uid, clock::after(TRIAL)));
                false
            }
        }
    }

    fn keep_quarantined(&mut self, uid: String, update: &PodUpdate, crashes: u32) -> bool {
        if !is_leaving(update) {
            // Its running containers hold resources of the node.
            if self
                .unclaimed
                .records
                .get(&uid)
                .is_some_and(|record| record.memory.holds_resources())
            {
                self.shared.pods.reserve(&update.pod);
            }
            if self.suspects.quarantined.insert(uid, update.clone()).is_none() {
                self.show_quarantine(update, Some(crashes));
            }
            return true;
        }
        // Its termination may have crashed the agent as well: the back-off counts from the start.
        let more = crashes.saturating_sub(CRASHES_MAX);
        let since = self.suspects.began;
        let at = since.checked_add(retry_delay(more)).filter(|at| more > 0 && *at > Instant::now());
        let waits = at.is_some();
        if let Some(at) = at {
            self.suspects.later.insert(uid, (at, update.clone()));
        }
        waits
    }

    /// Drops a pod that left its source; its containers are orphaned now.
    pub(super) fn drop_suspect(&mut self, uid: &str) {
        self.suspects.next.remove(uid);
        self.suspects.quarantined.remove(uid);
        if let Some((_, update)) = self.suspects.later.get_mut(uid) {
            update.presence = SourcePresence::Dropped;
        }
    }

    /// Handles a panic in a pod's task: the pod is retried with back-off or quarantined; other pods
    /// are not affected.
    pub(super) fn task_panicked(&mut self, uid: &str, panicked: &Panicked) {
        let Some(task) = self.tasks.remove(uid) else { return };
        let memory = task.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let update = task.update.borrow().clone();
        self.retry_later(update, memory, panicked);
        self.start_relist();
    }

    /// The same for a pod whose task could not be created.
    pub(super) fn retry_later(
        &mut self,
        update: PodUpdate,
        memory: Option<PodRecord>,
        panicked: &Panicked,
    ) {
        let uid = update.pod.metadata.uid.clone();
        let record = self.shared.active_pods.update(&uid, |record| {
            record.crashes = record.crashes.saturating_add(1);
            if !record.is_quarantined {
                record.content = content_hash(&update.pod);
            }
            record.is_quarantined |= record.crashes >= CRASHES_MAX;
        });
        let next = match (record.is_quarantined, is_leaving(&update)) {
            (true, false) => {
                "the pod is quarantined: it is not handled until it is changed or deleted"
            }
            (true, true) => "the pod is quarantined; its termination is retried after a delay",
            (false, _) => "the pod is retried after a delay; it is quarantined if it happens again",
        };
        tracing::error!(uid, crashes = record.crashes, error = %panicked, next, "the task of the pod panicked");
        if let Some(memory) = memory {
            let (namespace, name) = super::full_name(&update.pod);
            self.unclaimed.records.insert(uid.clone(), Record { namespace, name, memory });
        }
        self.suspects.later.insert(uid, (clock::after(retry_delay(record.crashes)), update));
    }

    /// Ends trials, starts retries and clears old crash counts that are due.
    pub(super) fn process_suspects(&mut self) {
        let now = Instant::now();
        if self.suspects.settle_at <= now {
            self.shared.active_pods.clear_suspicion();
            self.suspects.settle_at = clock::after(SETTLED);
        }
        self.end_trial(now);
        let due = self.suspects.later.iter().filter(|(_, (at, _))| *at <= now);
        let due: Vec<String> = due.map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            if !self.relist.running.is_empty() {
                // A relist that covers the pod is in flight.
                if let Some((at, _)) = self.suspects.later.get_mut(&uid) {
                    *at = clock::after(Duration::from_secs(1));
                }
                continue;
            }
            let Some((_, update)) = self.suspects.later.remove(&uid) else { continue };
            match update.presence {
                SourcePresence::Present if !is_leaving(&update) => {
                    self.update_pod(update, std::time::Instant::now())
                }
                SourcePresence::Present => {
                    let update = self.restrict_quarantined(update);
                    self.start_task(update, std::time::Instant::now());
                }
                SourcePresence::Dropped => self.remove_orphan(&uid),
            }
        }
    }

    fn end_trial(&mut self, now: Instant) {
        let Some((uid, _)) = self.suspects.trial.take_if(|(_, until)| *until <= now) else {
            return;
        };
        if self.tasks.get(&uid).is_some_and(|task| task.mark.is_marked()) {
            // Its task is running code.
            self.suspects.trial = Some((uid, clock::after(Duration::from_secs(1))));
            return;
        }
        self.shared.active_pods.update(&uid, |record| {
            if !record.is_quarantined {
                record.crashes = 0;
            }
        });
        let next = std::mem::take(&mut self.suspects.next);
        next.into_values().for_each(|(asked, update)| self.update_pod(update, asked));
    }

    /// Shows in the pod's conditions that it is quarantined after `ends` crashes, or no longer is.
    /// The rest of its status stays.
    fn show_quarantine(&self, update: &PodUpdate, crashes: Option<u32>) {
        let pod = update.pod.clone();
        let (status, message) = match crashes {
            Some(crashes) => {
                let message = format!(
                    "the node agent crashed {crashes} times while it handled this pod: its containers keep running, and \
                     it is not handled until it is changed or deleted"
                );
                let (outcome, reports) = (Outcome::Failed(message.clone()), &self.shared.reports);
                self.shared.timelines.step(&pod, "Quarantine".into(), Duration::ZERO, outcome);
                reports.event(&pod, PodEvent::new(Severity::Warning, REASON, message.clone()));
                let meta = &pod.metadata;
                let (name, namespace) = (&meta.name, &meta.namespace);
                tracing::error!(
                    pod = name,
                    namespace,
                    uid = meta.uid,
                    message,
                    "pod is quarantined"
                );
                ("True", message)
            }
            None => ("False", String::new()),
        };
        let mut after = pod.status.clone();
        after.conditions.retain(|condition| condition.type_ != CONDITION);
        after.conditions.push(PodCondition {
            type_: CONDITION.to_owned(),
            status: status.to_owned(),
            reason: REASON.to_owned(),
            message,
            last_transition_time: Time::from_unix(clock::now().unix_seconds),
            ..PodCondition::default()
        });
        let reports = self.shared.reports.clone();
        tokio::spawn(async move {
            for secs in WRITE_DELAYS_SECS {
                tokio::time::sleep(Duration::from_secs(secs)).await;
                let change = StatusChange { from: &pod.status, to: &after, whole: false };
                match reports.status(&pod, change).await {
                    Ok(_) => return,
                    Err(error) => {
                        tracing::debug!(%error, "cannot write the condition Quarantined; retried")
                    }
                }
            }
        });
    }
}
