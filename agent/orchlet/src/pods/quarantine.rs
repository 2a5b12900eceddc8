//! Pods whose handling ended the agent, or their own task, are tried alone and then not at all: no pod ends the agent for others.
//!
//! ```text
//!  in hand when the agent ended ──► counted ──again──► tried alone ──again──► quarantined ──changed──► handled
//!  its task panicked ─────────────► tried again after a pause ──again──────────►   │
//!                                                                    deleted ──────┴──► taken down by what its name says alone
//! ```

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_pod::events::{PodEvent, Severity};
use agent_pod::record::PodRecord;
use proto_api::Time;
use proto_api::core::v1::{Container, Pod, PodCondition};
use proto_daemon::backoff::Backoff;
use proto_daemon::panics::Panicked;
use tokio::time::Instant;

use super::active_pods::{CRASHES_MAX, content_hash};
use super::ports::StatusChange;
use super::worker::{Presence, PodUpdate};
use super::{Pods, pod_from_remains};
use crate::clock;
use crate::journal::Record;
use crate::timeline::Outcome;

/// Condition of a pod that is not handled.
pub const CONDITION: &str = "Quarantined";
/// Its reason, and that of the event.
pub const REASON: &str = "AgentCrashed";

/// How long a suspect is handled before the next one is.
const TRIAL: Duration = Duration::from_secs(10);
/// How long the agent runs before it forgets whom it suspected.
const SETTLED: Duration = Duration::from_secs(600);
/// Before a pod whose task broke off is tried again, doubled with each time.
const RETRY: Backoff =
    Backoff { first: Duration::from_secs(10), longest: Duration::from_secs(300) };
/// Between tries to show a pod's condition.
const TELL_AGAIN: [u64; 6] = [0, 1, 4, 15, 60, 300];

/// Pods that are kept from being handled, by uid.
pub(super) struct Suspects {
    /// The one that is tried, and until when.
    trial: Option<(String, Instant)>,
    /// Those that are tried after it.
    next: BTreeMap<String, (std::time::Instant, PodUpdate)>,
    quarantined: BTreeMap<String, PodUpdate>,
    /// Pods that are begun again at a time: their tasks broke off, or they are to be taken down and ended the agent before.
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

    /// Whether a pod is kept, so that what is there of it is not remains.
    pub(super) fn holds_back(&self, uid: &str) -> bool {
        self.next.contains_key(uid)
            || self.quarantined.contains_key(uid)
            || self.later.contains_key(uid)
    }

    /// When something has to be done next.
    pub(super) fn next_due(&self) -> Instant {
        let trial = self.trial.iter().map(|(_, until)| *until);
        let later = self.later.values().map(|(at, _)| *at);
        trial.chain(later).fold(self.settle_at, Instant::min)
    }
}

fn retry_delay(crashes: u32) -> Duration {
    RETRY.delay(crashes.max(1), 1.0)
}

/// The pod as far as it takes to stop and remove what runs of it: no volumes, hooks, probes, environment.
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
    update.presence == Presence::Dropped || update.pod.metadata.deletion_timestamp.is_some()
}

impl Pods {
    /// What is handled of a pod: of one that is quarantined only its end, and of that as little as it takes. Lifts the quarantine of one
    /// that was changed.
    pub(super) fn restrict_quarantined(&mut self, update: PodUpdate) -> PodUpdate {
        let uid = &update.pod.metadata.uid;
        let Some(record) = self.shared.active_pods.record(uid).filter(|record| record.is_quarantined) else {
            return update;
        };
        if is_leaving(&update) {
            self.suspects.quarantined.remove(uid);
            return PodUpdate { pod: Arc::new(minimal_pod(&update.pod)), ..update };
        }
        if record.content != content_hash(&update.pod) {
            self.shared.active_pods.update(uid, |record| (record.crashes, record.is_quarantined) = (0, false));
            self.suspects.quarantined.remove(uid);
            self.show_quarantine(&update, None);
        }
        update
    }

    /// Keeps a pod that has no task and must not have one now; whether it did.
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
                    "the agent ended with this pod in mark, it is tried alone"
                );
                self.suspects.trial = Some((uid, clock::after(TRIAL)));
                false
            }
        }
    }

    fn keep_quarantined(&mut self, uid: String, update: &PodUpdate, crashes: u32) -> bool {
        if !is_leaving(update) {
            // What runs of it takes of the node.
            if self.records.get(&uid).is_some_and(|record| record.memory.takes_of_the_node()) {
                self.shared.reserve(&update.pod);
            }
            if self.suspects.quarantined.insert(uid, update.clone()).is_none() {
                self.show_quarantine(update, Some(crashes));
            }
            return true;
        }
        // Its end may have ended the agent as well: the pause counts from the start.
        let more = crashes.saturating_sub(CRASHES_MAX);
        let since = self.suspects.began;
        let at = since.checked_add(retry_delay(more)).filter(|at| more > 0 && *at > Instant::now());
        let waits = at.is_some();
        if let Some(at) = at {
            self.suspects.later.insert(uid, (at, update.clone()));
        }
        waits
    }

    /// A pod's source has it no more; what is there of it is remains now.
    pub(super) fn drop_suspect(&mut self, uid: &str) {
        self.suspects.next.remove(uid);
        self.suspects.quarantined.remove(uid);
        if let Some((_, update)) = self.suspects.later.get_mut(uid) {
            update.presence = Presence::Dropped;
        }
    }

    /// The task of a pod panicked. The others go on; it is begun again after a pause, or quarantined.
    pub(super) fn task_panicked(&mut self, uid: &str, panicked: &Panicked) {
        let Some(task) = self.tasks.remove(uid) else { return };
        let memory = task.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let update = task.update.borrow().clone();
        self.retry_later(update, memory, panicked);
        self.start_relist();
    }

    /// The same where it is not begun.
    pub(super) fn retry_later(&mut self, update: PodUpdate, memory: Option<PodRecord>, panicked: &Panicked) {
        let uid = update.pod.metadata.uid.clone();
        let record = self.shared.active_pods.update(&uid, |record| {
            record.crashes = record.crashes.saturating_add(1);
            if !record.is_quarantined {
                record.content = content_hash(&update.pod);
            }
            record.is_quarantined |= record.crashes >= CRASHES_MAX;
        });
        tracing::error!(uid, crashes = record.crashes, error = %panicked, "the task of a pod broke off");
        if let Some(memory) = memory {
            let (namespace, name) = super::full_name(&update.pod);
            self.records.insert(uid.clone(), Record { namespace, name, memory });
        }
        self.suspects.later.insert(uid, (clock::after(retry_delay(record.crashes)), update));
    }

    /// Does what is due.
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
            if !self.relists.is_empty() {
                // What the runtime has of it is being asked for.
                if let Some((at, _)) = self.suspects.later.get_mut(&uid) {
                    *at = clock::after(Duration::from_secs(1));
                }
                continue;
            }
            let Some((_, update)) = self.suspects.later.remove(&uid) else { continue };
            match update.presence {
                Presence::Present if !is_leaving(&update) => self.update_pod(update, std::time::Instant::now()),
                Presence::Present => {
                    let update = self.restrict_quarantined(update);
                    self.start_task(update, std::time::Instant::now());
                }
                Presence::Dropped => self.remove_orphan(&uid),
            }
        }
    }

    fn end_trial(&mut self, now: Instant) {
        let Some((uid, _)) = self.suspects.trial.take_if(|(_, until)| *until <= now) else {
            return;
        };
        if self.tasks.get(&uid).is_some_and(|task| task.mark.is_marked()) {
            // It is being worked on.
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

    /// Shows that a pod is quarantined, after so many ends, or that it is no more. What else is shown of it stays as it was.
    fn show_quarantine(&self, update: &PodUpdate, crashes: Option<u32>) {
        let pod = update.pod.clone();
        let (status, message) = match crashes {
            Some(crashes) => {
                let message = format!(
                    "the node agent ended {crashes} times while it handled this pod: its containers are left as they are, and nothing is \
                     done for it until it is changed or deleted"
                );
                let (outcome, reports) = (Outcome::Failed(message.clone()), &self.shared.reports);
                self.shared.timelines.step(&pod, "Quarantine".into(), Duration::ZERO, outcome);
                reports.event(&pod, PodEvent::new(Severity::Warning, REASON, message.clone()));
                tracing::error!(uid = pod.metadata.uid, message, "quarantined");
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
            for secs in TELL_AGAIN {
                tokio::time::sleep(Duration::from_secs(secs)).await;
                let change = StatusChange { from: &pod.status, to: &after, whole: false };
                match reports.status(&pod, change).await {
                    Ok(_) => return,
                    Err(error) => tracing::debug!(%error, "a quarantine is not shown"),
                }
            }
        });
    }
}
