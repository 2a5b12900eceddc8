//! Others who write to what the agent shows: the node controller, users, agents that should have stopped.

use std::time::Duration;

use agent_clock as clock;
use proto_api::Time;
use proto_api::core::v1::{PodIP, PodStatus};

use super::super::world::{Book, lock};
use super::Sim;
use crate::status_patch;

/// How long another client fights with the agent over a status, and how often one agent may write meanwhile.
const FIGHT: Duration = Duration::from_secs(30);
const WRITES_MAX: u64 = 20;
/// How often each agent that starts meanwhile may write: its back-off begins again.
const WRITES_OF_NEXT_MAX: u64 = 12;

fn now() -> Time {
    Time::from_unix(clock::now().unix_seconds)
}

fn unready(status: &mut PodStatus) {
    for condition in status.conditions.iter_mut().filter(|c| c.type_ == "Ready") {
        if condition.status == "True" {
            (condition.status, condition.last_transition_time) = ("False".into(), now());
        }
    }
}

impl Sim {
    /// The node controller finds the node silent: no pod that is shown as ready is.
    pub(super) fn fall_silent(&mut self) {
        let uids: Vec<String> = lock(&self.world).books.keys().cloned().collect();
        uids.iter().for_each(|uid| self.write_over(uid, unready));
    }

    /// Pods with something to write over.
    fn shown(&self) -> Vec<String> {
        let world = lock(&self.world);
        let is_there =
            |uid: &String| world.api.pods.contains_key(uid) || self.statics.contains_key(uid);
        let shown = |(uid, book): &(&String, &Book)| {
            is_there(uid) && !matches!(book.shown.phase.as_str(), "" | "Succeeded" | "Failed")
        };
        world.books.iter().filter(shown).map(|(uid, _)| uid.clone()).collect()
    }

    /// Somebody writes over what the agent shows of a pod.
    pub(super) fn overwrite(&mut self) {
        let uids = self.shown();
        let (at, what) = {
            let chance = &mut lock(&self.world).chance;
            (chance.below(uids.len().max(1) as u64), chance.below(10))
        };
        let Some(uid) = uids.into_iter().nth(usize::try_from(at).expect("small")) else { return };
        self.write_over(&uid, |status| match what {
            0 | 1 => unready(status),
            2 => status.conditions.retain(|c| c.type_ != "Ready"),
            3 => {
                unready(status);
                status.container_statuses.iter_mut().for_each(|c| c.ready = false);
            }
            4 => status.container_statuses.clear(),
            5 => {
                status.pod_ip = "192.0.2.1".into();
                status.pod_ips = vec![PodIP { ip: status.pod_ip.clone() }];
            }
            6 => status.phase = "Pending".into(),
            7 => status.message = "by somebody else".into(),
            8 => {
                let statuses = status.init_container_statuses.iter_mut();
                let statuses = statuses.chain(&mut status.container_statuses);
                statuses.for_each(|c| c.restart_count = c.restart_count.saturating_add(5));
            }
            _ => status.start_time = Some(Time::from_unix(1)),
        });
        let ends = what == 9 && lock(&self.world).chance.one_in(4);
        if ends && !self.statics.contains_key(&uid) {
            self.end_by_word(&uid);
        }
    }

    /// Somebody shows a pod as over: its agent ends it.
    fn end_by_word(&mut self, uid: &str) {
        let phase = lock(&self.world).chance.choose(&["Succeeded", "Failed"]);
        self.dropped(uid, None);
        self.write_over(uid, |status| status.phase = phase.into());
        if let Some(book) = lock(&self.world).books.get_mut(uid) {
            book.ended_by_other = true;
        }
    }

    fn write_over(&mut self, uid: &str, change: impl FnOnce(&mut PodStatus)) {
        let world = &mut *lock(&self.world);
        let Some(book) = world.books.get_mut(uid) else { return };
        let mut status = book.shown.clone();
        change(&mut status);
        if status == book.shown {
            return;
        }
        book.contested = true;
        world.note(format!("somebody writes over what is shown of {uid}"));
        world.show(uid, status);
    }

    /// At rest, others write over what is shown, once or again and again: it is put right, and not in a storm.
    pub(super) async fn contest(&mut self) {
        for _ in 0..3 {
            if lock(&self.world).chance.one_in(3) {
                self.fall_silent();
            } else {
                self.overwrite();
            }
            self.settle().await;
        }
        let wants_to = lock(&self.world).chance.one_in(4);
        let Some(uid) = self.shown().into_iter().next().filter(|_| wants_to) else { return };
        let writes = |sim: &Self| lock(&sim.world).books.get(&uid).map_or(0, |book| book.writes);
        let agents = |sim: &Self| lock(&sim.world).incarnation;
        let (before, first, until) = (writes(self), agents(self), clock::since_began() + FIGHT);
        while clock::since_began() < until && !self.failed() {
            self.write_over(&uid, |status| status.message = "by somebody else".into());
            self.pass(Duration::from_millis(20)).await;
        }
        let (written, next) = (writes(self) - before, agents(self) - first);
        if written > WRITES_MAX + next * WRITES_OF_NEXT_MAX {
            let what = format!(
                "{written} statuses of {uid} are written in {FIGHT:?} by {} agents",
                next + 1
            );
            lock(&self.world).broken(what);
        }
        self.settle().await;
    }

    /// What is shown of a pod and is not what the agent sees.
    pub(super) fn shown_wrongly(&self, uid: &str, book: &Book) -> Option<String> {
        let pods = self.agent.as_ref()?.parts.pods.snapshots.lock().ok()?;
        let known = pods.get(uid)?;
        status_patch::differs(&book.shown, &known.status)
            .then(|| format!("{uid} shows {:?}, and the agent sees {:?}", book.shown, known.status))
    }
}
