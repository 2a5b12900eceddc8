//! Runs the probes of a pod's containers: one task per probe while the plan wants it. Only changed
//! results reach the pod's task; concurrency is bounded ([`super::probe_limiter`]).

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_clock as clock;
use agent_journal::active_pods::ActivityMark;
use agent_pod::desired::DesiredPod;
use agent_pod::events;
use agent_pod::handler::Handler;
use agent_pod::probe::{ProbeCounter, ProbeKind, ProbeOrder, ProbeOutcome, ends_probe};
use agent_probe::{ANSWER_BYTES, PodKey, Prober, run_probe};
use agent_runtime::runtime::ExecOutput;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::panics::{self, Panicked};
use tokio::task::{AbortHandle, JoinSet};

use super::inbox::Inbox;
use super::pod_context::PodContext;
use super::probe_limiter::ProbeLimitError;

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

/// The probes of a pod that run: a task for each container and kind of probe.
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
        // One copy for all probes that begin now: a pod may have many.
        let mut shared_want = None;
        for order in orders {
            let key = (order.id.clone(), order.kind);
            if self.running.contains_key(&key) {
                continue;
            }
            let probe = Probe {
                shared: self.shared.clone(),
                pod: pod.clone(),
                want: shared_want.get_or_insert_with(|| Arc::new(want.clone())).clone(),
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
    want: Arc<DesiredPod>,
    order: ProbeOrder,
    report: Arc<Inbox<ProbeChange>>,
}

impl Probe {
    async fn run(self, adopted: bool) {
        let order = &self.order;
        let mut tally = ProbeCounter::new(order.kind, order.result);
        let mut due = order.first_run(clock::boot(), adopted);
        let mut limited = false;
        loop {
            tokio::time::sleep_until(clock::instant(due)).await;
            let outcome = match self.probe().await {
                Ok(outcome) => outcome,
                Err(error) => {
                    if !std::mem::replace(&mut limited, true) {
                        self.log_limited(error);
                    }
                    // Without a run there is no result, as in Kubernetes.
                    ProbeOutcome::Error(error.to_string())
                }
            };
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

    /// Once per instance and probe; each run is counted and has an event.
    fn log_limited(&self, error: ProbeLimitError) {
        tracing::warn!(
            pod = self.want.name,
            namespace = self.want.namespace,
            container = self.order.container,
            probe = self.order.kind.title(),
            %error,
            "probe has no result; further ones of this container instance are not logged"
        );
    }

    fn pod_key(&self) -> PodKey<'_> {
        PodKey { namespace: &self.want.namespace, uid: &self.want.uid }
    }

    async fn probe(&self) -> Result<ProbeOutcome, ProbeLimitError> {
        let handler = &self.order.probe.handler;
        // Connections and calls of the runtime are large; a probe that waits for its period has none.
        self.shared.probes.run(handler, self.pod_key(), Box::pin(self.run_handler())).await
    }

    async fn run_handler(&self) -> ProbeOutcome {
        let (order, probes) = (&self.order, &self.shared.probes);
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
                let asker = Prober {
                    ip: &order.ip,
                    user_agent: &probes.user_agent,
                    timeout: order.probe.timeout,
                    names: &probes.names,
                    pod: self.pod_key(),
                };
                run_probe(handler, asker).await
            }
        }
    }
}

/// The beginning of a command's stdout and stderr.
pub fn command_output(ran: &ExecOutput) -> String {
    let bytes: Vec<u8> = ran.stdout.iter().chain(&ran.stderr).copied().take(ANSWER_BYTES).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use agent_pod::desired::{ConfigState, PodSource};
    use agent_pod::probe::DesiredProbe;

    use super::*;

    /// A node has thousands of probes, nearly all of which wait.
    #[tokio::test]
    async fn a_probe_that_waits_takes_little_memory() {
        let dir = tempfile::tempdir().expect("directory");
        let runtime = Arc::new(agent_runtime::fake::FakeRuntime::new().0);
        let pod = Arc::new(Pod::default());
        let want = DesiredPod::from_pod(&pod, PodSource::Api, "", &[], |_| ConfigState::Ready);
        let order = ProbeOrder {
            container: "c".into(),
            id: "i".into(),
            kind: ProbeKind::Liveness,
            probe: DesiredProbe::from_probe(&Default::default(), &Default::default()),
            since: std::time::Duration::ZERO,
            result: None,
            ip: String::new(),
        };
        let probe = Probe {
            shared: crate::test_support::plain_context(runtime, dir.path()),
            pod,
            want: Arc::new(want),
            order,
            report: Arc::default(),
        };
        let size = size_of_val(&probe.run(false));
        assert!(size <= 4096, "{size} bytes");
    }
}
