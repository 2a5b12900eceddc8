//! Asks the instances of a pod how they are: one task a probe, as long as the plan wants it. Only a verdict that changes reaches
//! the pod's task; how many ask at a time is bounded for the node ([`super::probes`]).

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_pod::desired::PodWant;
use agent_pod::events;
use agent_pod::handler::Handler;
use agent_pod::probe::{Outcome, ProbeKind, ProbeOrder, Tally, is_last};
use agent_probe::{ANSWER_BYTES, Asker, ask};
use agent_runtime::runtime::ExecOutput;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::panics::{self, Panicked};
use tokio::task::{AbortHandle, JoinSet};

use super::in_hand::Hand;
use super::inbox::Inbox;
use super::pod_context::Parts;
use crate::clock;

/// A verdict that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Name of the container.
    pub container: String,
    /// The runtime's id of the instance.
    pub id: String,
    /// Which probe.
    pub kind: ProbeKind,
    /// What it is now.
    pub good: bool,
}

/// The probes of one pod.
pub struct Probing {
    parts: Arc<Parts>,
    report: Arc<Inbox<Verdict>>,
    running: BTreeMap<(String, ProbeKind), AbortHandle>,
    /// Ends all of them with the pod's task.
    tasks: JoinSet<Result<(), Panicked>>,
    /// Whether the first orders are still to come: what they are about ran before this process did.
    first: bool,
}

impl Probing {
    /// Probes that tell changed verdicts to `report`.
    pub fn new(parts: Arc<Parts>, report: Arc<Inbox<Verdict>>) -> Self {
        let (running, tasks) = (BTreeMap::new(), JoinSet::new());
        Self { parts, report, running, tasks, first: true }
    }

    /// Sees to it that the probes that run are those that are ordered. One that has come to its last verdict stays until it is
    /// not ordered any more.
    ///
    /// # Errors
    /// One of them has panicked since.
    pub fn follow(
        &mut self,
        orders: &[ProbeOrder],
        pod: &Arc<Pod>,
        want: &PodWant,
    ) -> Result<(), Panicked> {
        while let Some(ended) = self.tasks.try_join_next() {
            ended.unwrap_or(Ok(()))?;
        }
        let adopted = std::mem::take(&mut self.first);
        if orders.is_empty() && self.running.is_empty() {
            return Ok(());
        }
        self.running.retain(|(id, kind), task| {
            let ordered = orders.iter().any(|o| o.id == *id && o.kind == *kind);
            if !ordered {
                task.abort();
            }
            ordered
        });
        for order in orders {
            let key = (order.id.clone(), order.kind);
            if self.running.contains_key(&key) {
                continue;
            }
            let probe = Probe {
                parts: self.parts.clone(),
                pod: pod.clone(),
                want: want.clone(),
                order: order.clone(),
                report: self.report.clone(),
            };
            let run = Hand::current().around(panics::isolate(probe.run(adopted)));
            self.running.insert(key, self.tasks.spawn(run));
        }
        Ok(())
    }
}

struct Probe {
    parts: Arc<Parts>,
    pod: Arc<Pod>,
    want: PodWant,
    order: ProbeOrder,
    report: Arc<Inbox<Verdict>>,
}

impl Probe {
    async fn run(self, adopted: bool) {
        let order = &self.order;
        let mut tally = Tally::new(order.kind, order.verdict);
        let mut due = order.first_at(clock::boot(), adopted);
        loop {
            tokio::time::sleep_until(clock::instant(due)).await;
            let outcome = self.ask().await;
            self.parts.probes.count(&self.want, order, &outcome);
            if let Some(event) = events::probed(&self.want, &order.container, order.kind, &outcome)
            {
                self.parts.reports.event(&self.pod, event);
            }
            let good = outcome.is_good();
            if let Some(good) = good.and_then(|good| tally.count(&order.probe, good)) {
                let (container, id, kind) = (order.container.clone(), order.id.clone(), order.kind);
                self.report.renew(Verdict { container, id, kind, good }, |older| {
                    older.id == order.id && older.kind == kind
                });
                if is_last(kind, good) {
                    return;
                }
            }
            // What was missed while an answer took long is not made up for.
            due = due.saturating_add(order.probe.period).max(clock::boot());
        }
    }

    async fn ask(&self) -> Outcome {
        let (order, probes) = (&self.order, &self.parts.probes);
        let _turn = probes.turn(&order.probe.handler).await;
        match &order.probe.handler {
            Handler::Exec(command) => {
                let runtime = &self.parts.runtime;
                let ran = runtime.exec(&order.id, command, order.probe.timeout, ANSWER_BYTES).await;
                match ran {
                    Ok(ran) if ran.code == 0 => Outcome::Success,
                    Ok(ran) => Outcome::Failure(output(&ran)),
                    Err(error) if error.is_timeout() => {
                        Outcome::Failure(format!("command {:?} timed out", command.join(" ")))
                    }
                    Err(error) => Outcome::Error(chain(&error)),
                }
            }
            handler => {
                let (ip, user_agent) = (order.ip.as_str(), probes.user_agent.as_str());
                ask(handler, Asker { ip, user_agent, timeout: order.probe.timeout }).await
            }
        }
    }
}

/// What a command said, both streams, the beginning of it.
pub fn output(ran: &ExecOutput) -> String {
    let bytes: Vec<u8> = ran.stdout.iter().chain(&ran.stderr).copied().take(ANSWER_BYTES).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
