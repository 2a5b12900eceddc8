//! What the probes of all pods of a node share: turns to ask, and the counts of the answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use agent_pod::desired::PodWant;
use agent_pod::handler::Handler;
use agent_pod::probe::{Outcome, ProbeKind, ProbeOrder};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Questions over the network at a time on the node.
const ASKED_MAX: usize = 64;
/// Commands at a time on the node; each costs processes and milliseconds of CPU.
const COMMANDS_MAX: usize = 8;

/// What they share.
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

    /// Waits for a turn to ask that; over when what is given back is dropped.
    pub async fn turn(&self, handler: &Handler) -> Option<SemaphorePermit<'_>> {
        let turns = match handler {
            Handler::Exec(_) => &self.commands,
            _ => &self.asked,
        };
        // They are never closed.
        turns.acquire().await.ok()
    }

    /// Counts an answer.
    pub fn count(&self, want: &PodWant, order: &ProbeOrder, outcome: &Outcome) {
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
            *count = count.saturating_add(u64::from(result == outcome.label()));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agent_pod::desired::{Config, Source};
    use proto_api::core::v1::Pod;

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
