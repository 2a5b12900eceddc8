//! Runs the probes of a pod's containers: one task per probe while the plan wants it. Only changed
//! results reach the pod's task; concurrency is bounded per node ([`super::probes`]).

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_clock as clock;
use agent_journal::active_pods::ActivityMark;
use agent_pod::desired::DesiredPod;
use agent_pod::events;
use agent_pod::handler::Handler;
use agent_pod::probe::{ProbeCounter, ProbeKind, ProbeOrder, ProbeOutcome, ends_probe};
use agent_probe::{ANSWER_BYTES, Prober, run_probe};
use agent_runtime::runtime::ExecOutput;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::panics::{self, Panicked};
use tokio::task::{AbortHandle, JoinSet};

use super::inbox::Inbox;
use super::pod_context::PodContext;

/// A changed probe result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeChange {
    pub container: String,
    /// CRI id of the container.
    pub id: String,
    pub kind: ProbeKind,
    /// Whether the container is healthy, ready or started now.
    pub good: bool,
}

/// The running probe tasks of a pod.
pub struct ProbeWorkers {
    shared: Arc<PodContext>,
    report: Arc<Inbox<ProbeChange>>,
    running: BTreeMap<(String, ProbeKind), AbortHandle>,
    /// Aborts all probes when the pod's task ends.
    tasks: JoinSet<Result<(), Panicked>>,
    /// Whether no orders came yet: containers of the first orders were started before this process.
    first: bool,
}

impl ProbeWorkers {
    /// Probes that send changed results to `report`.
    pub fn new(shared: Arc<PodContext>, report: Arc<Inbox<ProbeChange>>) -> Self {
        let (running, tasks) = (BTreeMap::new(), JoinSet::new());
        Self { shared, report, running, tasks, first: true }
    }

    /// Starts and aborts probes to match `orders`. A probe with a final result stays until it is no
    /// longer ordered.
    ///
    /// # Errors
    /// One of the probes panicked.
    pub fn sync(
        &mut self,
        orders: &[ProbeOrder],
        pod: &Arc<Pod>,
        want: &DesiredPod,
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
                shared: self.shared.clone(),
                pod: pod.clone(),
                want: want.clone(),
                order: order.clone(),
                report: self.report.clone(),
            };
            let run = ActivityMark::current().wrap(panics::isolate(probe.run(adopted)));
            self.running.insert(key, self.tasks.spawn(run));
        }
        Ok(())
    }
}

struct Probe {
    shared: Arc<PodContext>,
    pod: Arc<Pod>,
    want: DesiredPod,
    order: ProbeOrder,
    report: Arc<Inbox<ProbeChange>>,
}

impl Probe {
    async fn run(self, adopted: bool) {
        let order = &self.order;
        let mut tally = ProbeCounter::new(order.kind, order.result);
        let mut due = order.first_run(clock::boot(), adopted);
        loop {
            tokio::time::sleep_until(clock::instant(due)).await;
            let outcome = self.probe().await;
            self.shared.probes.count_result(&self.want, order, &outcome);
            if let Some(event) =
                events::probe_result(&self.want, &order.container, order.kind, &outcome)
            {
                self.shared.reports.event(&self.pod, event);
            }
            let good = outcome.is_good();
            if let Some(good) = good.and_then(|good| tally.count(&order.probe, good)) {
                let (container, id, kind) = (order.container.clone(), order.id.clone(), order.kind);
                self.report.renew(ProbeChange { container, id, kind, good }, |older| {
                    older.id == order.id && older.kind == kind
                });
                if ends_probe(kind, good) {
                    return;
                }
            }
            // Periods missed during a slow probe are skipped.
            due = due.saturating_add(order.probe.period).max(clock::boot());
        }
    }

    async fn probe(&self) -> ProbeOutcome {
        let (order, probes) = (&self.order, &self.shared.probes);
        let _turn = probes.acquire(&order.probe.handler).await;
        match &order.probe.handler {
            Handler::Exec(command) => {
                let runtime = &self.shared.runtime;
                let ran = runtime.exec(&order.id, command, order.probe.timeout, ANSWER_BYTES).await;
                match ran {
                    Ok(ran) if ran.code == 0 => ProbeOutcome::Success,
                    Ok(ran) => ProbeOutcome::Failure(command_output(&ran)),
                    Err(error) if error.is_timeout() => {
                        ProbeOutcome::Failure(format!("command {:?} timed out", command.join(" ")))
                    }
                    Err(error) => ProbeOutcome::Error(chain(&error)),
                }
            }
            handler => {
                let (ip, user_agent) = (order.ip.as_str(), probes.user_agent.as_str());
                run_probe(handler, Prober { ip, user_agent, timeout: order.probe.timeout }).await
            }
        }
    }
}

/// The beginning of a command's stdout and stderr.
pub fn command_output(ran: &ExecOutput) -> String {
    let bytes: Vec<u8> = ran.stdout.iter().chain(&ran.stderr).copied().take(ANSWER_BYTES).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
