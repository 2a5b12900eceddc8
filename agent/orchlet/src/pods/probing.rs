//! Asks the instances of a pod how they are: one task a probe, as long as the plan wants it. Only a verdict that changes reaches
//! the pod's task; how many ask at a time is bounded for the node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use agent_pod::events;
use agent_pod::handler::Handler;
use agent_pod::probe::{Outcome, ProbeKind, ProbeOrder, Tally, is_last};
use agent_pod::want::PodWant;
use agent_probe::{ANSWER_BYTES, Asker, ask};
use agent_runtime::runtime::ExecOutput;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use super::inbox::Inbox;
use super::parts::Parts;
use crate::clock;

/// Questions over the network at a time on the node.
const ASKED_MAX: usize = 64;
/// Commands at a time on the node; each costs processes and milliseconds of CPU.
const COMMANDS_MAX: usize = 8;

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

/// What the probes of all pods share.
#[derive(Debug)]
pub struct NodeProbes {
    /// How the agent calls itself to servers.
    pub user_agent: String,
    asked: Semaphore,
    commands: Semaphore,
    counts: Mutex<BTreeMap<CountOf, [u64; 3]>>,
}

/// Whose answers are counted. The uid comes first: the counts of a pod stand together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CountOf {
    uid: String,
    namespace: String,
    pod: String,
    container: String,
    kind: ProbeKind,
}

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

impl NodeProbes {
    /// `user_agent` is how the agent calls itself to the servers that it asks.
    pub fn new(user_agent: String) -> Self {
        Self {
            user_agent,
            asked: Semaphore::new(ASKED_MAX),
            commands: Semaphore::new(COMMANDS_MAX),
            counts: Mutex::default(),
        }
    }

    fn count(&self, want: &PodWant, order: &ProbeOrder, outcome: &Outcome) {
        let of = CountOf {
            uid: want.uid.clone(),
            namespace: want.namespace.clone(),
            pod: want.name.clone(),
            container: order.container.clone(),
            kind: order.kind,
        };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = counts.entry(of).or_default();
        for (count, result) in counted.iter_mut().zip(RESULTS) {
            *count += u64::from(result == outcome.label());
        }
    }

    /// Drops the counts of a pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).retain(|of, _| of.uid != uid);
    }

    /// The counts as metrics, in the text format.
    pub fn metrics(&self) -> String {
        let mut text = "# HELP prober_probe_total [ALPHA] Cumulative number of a liveness, readiness or startup probe for a \
                        container by result.\n# TYPE prober_probe_total counter\n"
            .to_owned();
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (of, counted) in counts.iter() {
            for (count, result) in counted.iter().zip(RESULTS).filter(|(count, _)| **count > 0) {
                // Names of objects need no escapes; writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "prober_probe_total{{container=\"{}\",namespace=\"{}\",pod=\"{}\",pod_uid=\"{}\",probe_type=\"{}\",\
                     result=\"{result}\"}} {count}",
                    of.container,
                    of.namespace,
                    of.pod,
                    of.uid,
                    of.kind.title(),
                );
            }
        }
        text
    }
}

/// The probes of one pod.
pub struct Probing {
    parts: Arc<Parts>,
    report: Arc<Inbox<Verdict>>,
    running: BTreeMap<(String, ProbeKind), AbortHandle>,
    /// Ends all of them with the pod's task.
    tasks: JoinSet<()>,
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
    pub fn follow(&mut self, orders: &[ProbeOrder], pod: &Arc<Pod>, want: &PodWant) {
        while self.tasks.try_join_next().is_some() {}
        let adopted = std::mem::take(&mut self.first);
        if orders.is_empty() && self.running.is_empty() {
            return;
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
            self.running.insert(key, self.tasks.spawn(probe.run(adopted)));
        }
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
            due = (due + order.probe.period).max(clock::boot());
        }
    }

    async fn ask(&self) -> Outcome {
        let (order, probes) = (&self.order, &self.parts.probes);
        match &order.probe.handler {
            Handler::Exec(command) => {
                let _turn = probes.commands.acquire().await;
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
                let _turn = probes.asked.acquire().await;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agent_pod::want::{Config, Source};

    use super::*;

    #[test]
    fn counts_are_metrics_until_the_pod_is_gone() {
        let probes = NodeProbes::new("agent/1".into());
        let mut pod = Pod::default();
        (pod.metadata.uid, pod.metadata.name) = ("u".into(), "p".into());
        pod.metadata.namespace = "ns".into();
        let want = PodWant::from_pod(&pod, Source::Api, "", &[], |_| Config::Ready);
        let order = ProbeOrder {
            container: "c".into(),
            id: "i".into(),
            kind: ProbeKind::Liveness,
            probe: agent_pod::probe::ProbeWant::of(&Default::default(), &Default::default()),
            since: Duration::ZERO,
            verdict: None,
            ip: String::new(),
        };
        probes.count(&want, &order, &Outcome::Success);
        probes.count(&want, &order, &Outcome::Warning("w".into()));
        probes.count(&want, &order, &Outcome::Failure("f".into()));
        let expect = "prober_probe_total{container=\"c\",namespace=\"ns\",pod=\"p\",pod_uid=\"u\",\
                      probe_type=\"Liveness\",result=\"successful\"} 2\n";
        assert!(probes.metrics().contains(expect), "{}", probes.metrics());
        assert!(probes.metrics().contains("result=\"failed\"} 1\n"));
        probes.forget("u");
        assert!(!probes.metrics().contains("pod=\"p\""));
    }
}
