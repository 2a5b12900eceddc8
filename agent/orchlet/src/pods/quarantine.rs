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
use agent_pod::record::Memory;
use proto_api::Time;
use proto_api::core::v1::{Container, Pod, PodCondition};
use proto_daemon::panics::Panicked;
use tokio::time::Instant;

use super::in_hand::{ENDS_MAX, content};
use super::ports::StatusChange;
use super::worker::{Held, Order};
use super::{Pods, remains_of};
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
const RETRY: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Between tries to show a pod's condition.
const TELL_AGAIN: [u64; 6] = [0, 1, 4, 15, 60, 300];

/// Pods that are kept from being handled, by uid.
pub(super) struct Suspects {
    /// The one that is tried, and until when.
    trial: Option<(String, Instant)>,
    /// Those that are tried after it.
    next: BTreeMap<String, (std::time::Instant, Order)>,
    quarantined: BTreeMap<String, Order>,
    /// Pods that are begun again at a time: their tasks broke off, or they are to be taken down and ended the agent before.
    later: BTreeMap<String, (Instant, Order)>,
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
    pub(super) fn keep(&self, uid: &str) -> bool {
        self.next.contains_key(uid)
            || self.quarantined.contains_key(uid)
            || self.later.contains_key(uid)
    }

    /// When something has to be done next.
    pub(super) fn due(&self) -> Instant {
        let trial = self.trial.iter().map(|(_, until)| *until);
        let later = self.later.values().map(|(at, _)| *at);
        trial.chain(later).fold(self.settle_at, Instant::min)
    }
}

fn pause(ends: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(ends.saturating_sub(1).min(8));
    RETRY.saturating_mul(doubled).min(RETRY_MAX)
}

/// The pod as far as it takes to stop and remove what runs of it: no volumes, hooks, probes, environment.
fn bare(pod: &Pod) -> Pod {
    let spec = &pod.spec;
    let ephemeral = spec.ephemeral_containers.iter().map(|c| &c.ephemeral_container_common.name);
    let own = spec.init_containers.iter().chain(&spec.containers).map(|c| &c.name);
    let names: Vec<String> = own.chain(ephemeral).cloned().collect();
    let meta = &pod.metadata;
    let mut bare = remains_of(&meta.uid, &meta.namespace, &meta.name, &names);
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

fn is_leaving(order: &Order) -> bool {
    order.held == Held::No || order.pod.metadata.deletion_timestamp.is_some()
}

impl Pods {
    /// What is handled of a pod: of one that is quarantined only its end, and of that as little as it takes. Lifts the quarantine of one
    /// that was changed.
    pub(super) fn as_handled(&mut self, order: Order) -> Order {
        let uid = &order.pod.metadata.uid;
        let Some(line) = self.parts.in_hand.line(uid).filter(|line| line.is_quarantined) else {
            return order;
        };
        if is_leaving(&order) {
            self.suspects.quarantined.remove(uid);
            return Order { pod: Arc::new(bare(&order.pod)), ..order };
        }
        if line.content != content(&order.pod) {
            self.parts.in_hand.change(uid, |line| (line.ends, line.is_quarantined) = (0, false));
            self.suspects.quarantined.remove(uid);
            self.show_quarantine(&order, None);
        }
        order
    }

    /// Keeps a pod that has no task and must not have one now; whether it did.
    pub(super) fn keeps_back(&mut self, order: &Order, asked: std::time::Instant) -> bool {
        let uid = order.pod.metadata.uid.clone();
        if let Some((_, later)) = self.suspects.later.get_mut(&uid) {
            *later = order.clone();
            return true;
        }
        let Some(line) = self.parts.in_hand.line(&uid) else { return false };
        if line.is_quarantined {
            return self.keep_quarantined(uid, order, line.ends);
        }
        if !line.is_on_trial() {
            return false;
        }
        match &self.suspects.trial {
            Some((other, _)) if *other != uid => {
                self.suspects.next.insert(uid, (asked, order.clone()));
                true
            }
            _ => {
                tracing::warn!(
                    uid,
                    ends = line.ends,
                    "the agent ended with this pod in hand, it is tried alone"
                );
                self.suspects.trial = Some((uid, clock::after(TRIAL)));
                false
            }
        }
    }

    fn keep_quarantined(&mut self, uid: String, order: &Order, ends: u32) -> bool {
        if !is_leaving(order) {
            // What runs of it takes of the node.
            if self.records.get(&uid).is_some_and(|record| record.memory.takes_of_the_node()) {
                self.parts.promise(&order.pod);
            }
            if self.suspects.quarantined.insert(uid, order.clone()).is_none() {
                self.show_quarantine(order, Some(ends));
            }
            return true;
        }
        // Its end may have ended the agent as well: the pause counts from the start.
        let more = ends.saturating_sub(ENDS_MAX);
        let since = self.suspects.began;
        let at = since.checked_add(pause(more)).filter(|at| more > 0 && *at > Instant::now());
        let waits = at.is_some();
        if let Some(at) = at {
            self.suspects.later.insert(uid, (at, order.clone()));
        }
        waits
    }

    /// A pod's source has it no more; what is there of it is remains now.
    pub(super) fn drop_suspect(&mut self, uid: &str) {
        self.suspects.next.remove(uid);
        self.suspects.quarantined.remove(uid);
        if let Some((_, order)) = self.suspects.later.get_mut(uid) {
            order.held = Held::No;
        }
    }

    /// The task of a pod panicked. The others go on; it is begun again after a pause, or quarantined.
    pub(super) fn broke_off(&mut self, uid: &str, panicked: &Panicked) {
        let Some(task) = self.tasks.remove(uid) else { return };
        let memory = task.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let order = task.order.borrow().clone();
        self.put_off(order, memory, panicked);
        self.look();
    }

    /// The same where it is not begun.
    pub(super) fn put_off(&mut self, order: Order, memory: Option<Memory>, panicked: &Panicked) {
        let uid = order.pod.metadata.uid.clone();
        let line = self.parts.in_hand.change(&uid, |line| {
            line.ends = line.ends.saturating_add(1);
            if !line.is_quarantined {
                line.content = content(&order.pod);
            }
            line.is_quarantined |= line.ends >= ENDS_MAX;
        });
        tracing::error!(uid, ends = line.ends, error = %panicked, "the task of a pod broke off");
        if let Some(memory) = memory {
            let (namespace, name) = super::full_name(&order.pod);
            self.records.insert(uid.clone(), Record { namespace, name, memory });
        }
        self.suspects.later.insert(uid, (clock::after(pause(line.ends)), order));
    }

    /// Does what is due.
    pub(super) fn judge_suspects(&mut self) {
        let now = Instant::now();
        if self.suspects.settle_at <= now {
            self.parts.in_hand.settle();
            self.suspects.settle_at = clock::after(SETTLED);
        }
        self.end_trial(now);
        let due = self.suspects.later.iter().filter(|(_, (at, _))| *at <= now);
        let due: Vec<String> = due.map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            if !self.looks.is_empty() {
                // What the runtime has of it is being asked for.
                if let Some((at, _)) = self.suspects.later.get_mut(&uid) {
                    *at = clock::after(Duration::from_secs(1));
                }
                continue;
            }
            let Some((_, order)) = self.suspects.later.remove(&uid) else { continue };
            match order.held {
                Held::Yes if !is_leaving(&order) => self.wants(order, std::time::Instant::now()),
                Held::Yes => {
                    let order = self.as_handled(order);
                    self.begin(order, std::time::Instant::now());
                }
                Held::No => self.remove_remains_of(&uid),
            }
        }
    }

    fn end_trial(&mut self, now: Instant) {
        let Some((uid, _)) = self.suspects.trial.take_if(|(_, until)| *until <= now) else {
            return;
        };
        if self.tasks.get(&uid).is_some_and(|task| task.hand.is_marked()) {
            // It is being worked on.
            self.suspects.trial = Some((uid, clock::after(Duration::from_secs(1))));
            return;
        }
        self.parts.in_hand.change(&uid, |line| {
            if !line.is_quarantined {
                line.ends = 0;
            }
        });
        let next = std::mem::take(&mut self.suspects.next);
        next.into_values().for_each(|(asked, order)| self.wants(order, asked));
    }

    /// Shows that a pod is quarantined, after so many ends, or that it is no more. What else is shown of it stays as it was.
    fn show_quarantine(&self, order: &Order, ends: Option<u32>) {
        let pod = order.pod.clone();
        let (status, message) = match ends {
            Some(ends) => {
                let message = format!(
                    "the node agent ended {ends} times while it handled this pod: its containers are left as they are, and nothing is \
                     done for it until it is changed or deleted"
                );
                let (outcome, reports) = (Outcome::Failed(message.clone()), &self.parts.reports);
                self.parts.timelines.step(&pod, "Quarantine".into(), Duration::ZERO, outcome);
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
        let reports = self.parts.reports.clone();
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
