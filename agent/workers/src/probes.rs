//! State that the node's probes share: concurrency limits, lookups of names and result counters.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use agent_pod::desired::DesiredPod;
use agent_pod::handler::Handler;
use agent_pod::probe::{ProbeKind, ProbeOrder, ProbeOutcome};
use agent_probe::{NameLookups, PodKey};

use super::probe_limiter::{ProbeBounds, ProbeLimitError, ProbeLimiter};

/// Network probes at a time.
const NETWORK_MAX: ProbeBounds = ProbeBounds { node: 64, namespace: 48, pod: 16 };
/// Network probes that take long; each costs a socket.
const SLOW_NETWORK_MAX: ProbeBounds = ProbeBounds { node: 512, namespace: 256, pod: 64 };
/// Exec probes at a time; each costs processes and milliseconds of CPU.
const EXEC_MAX: ProbeBounds = ProbeBounds { node: 8, namespace: 6, pod: 4 };
/// Exec probes that take long; each costs a call of the runtime.
const SLOW_EXEC_MAX: ProbeBounds = ProbeBounds { node: 128, namespace: 64, pod: 16 };

/// Limits and counters of all probes.
#[derive(Debug)]
pub struct NodeProbes {
    /// `User-Agent` of HTTP probes.
    pub user_agent: String,
    /// Looks up names of hosts, for hooks as well.
    pub names: NameLookups,
    network: ProbeLimiter,
    exec: ProbeLimiter,
    counts: Mutex<BTreeMap<ProbeCounterKey, [u64; 3]>>,
}

/// Key of a counter. The uid comes first, so that the counters of a pod are adjacent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProbeCounterKey {
    uid: String,
    namespace: String,
    pod: String,
    container: String,
    kind: ProbeKind,
}

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

impl NodeProbes {
    /// `user_agent` is the `User-Agent` of HTTP probes.
    pub fn new(user_agent: String) -> Self {
        Self {
            user_agent,
            names: NameLookups::default(),
            network: ProbeLimiter::new(NETWORK_MAX, SLOW_NETWORK_MAX),
            exec: ProbeLimiter::new(EXEC_MAX, SLOW_EXEC_MAX),
            counts: Mutex::default(),
        }
    }

    /// Runs `work`, a probe with this handler, within the bounds of the node, the namespace and the pod.
    ///
    /// # Errors
    /// Too many probes are in progress.
    pub async fn run<T>(
        &self,
        handler: &Handler,
        pod: PodKey<'_>,
        work: impl Future<Output = T>,
    ) -> Result<T, ProbeLimitError> {
        let limiter = match handler {
            Handler::Exec(_) => &self.exec,
            _ => &self.network,
        };
        limiter.run(pod, work).await
    }

    /// Counts a probe result.
    pub fn count_result(&self, want: &DesiredPod, order: &ProbeOrder, outcome: &ProbeOutcome) {
        let of = ProbeCounterKey {
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

    /// Drops the counters of a deleted pod.
    pub fn forget(&self, uid: &str) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).retain(|of, _| of.uid != uid);
    }

    /// The counters with one value, for the agent's reference.
    pub fn example() -> String {
        let probes = Self::new(String::new());
        let of = ProbeCounterKey {
            uid: String::new(),
            namespace: String::new(),
            pod: String::new(),
            container: String::new(),
            kind: ProbeKind::Liveness,
        };
        probes.counts.lock().unwrap_or_else(PoisonError::into_inner).insert(of, [1, 0, 0]);
        probes.metrics()
    }

    /// The counters in the Prometheus text format.
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

    use agent_pod::desired::{ConfigState, PodSource};
    use futures_util::FutureExt as _;
    use proto_api::core::v1::Pod;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_whose_probes_hang_does_not_stop_those_of_others() {
        let probes = std::sync::Arc::new(NodeProbes::new("agent/1".into()));
        let pod = |uid| PodKey { namespace: "ns", uid };
        let exec = Handler::Exec(vec!["sleep".into(), "infinity".into()]);
        let tcp = Handler::Tcp { host: String::new(), port: 80 };
        for handler in [&exec, &tcp].repeat(64) {
            let (probes, handler) = (probes.clone(), handler.clone());
            tokio::spawn(async move {
                probes.run(&handler, pod("bad"), std::future::pending::<()>()).await
            });
        }
        tokio::task::yield_now().await;
        for wait in [0, 60] {
            tokio::time::sleep(Duration::from_secs(wait)).await;
            for handler in [&exec, &tcp] {
                let ran = probes.run(handler, pod("good"), std::future::ready(()));
                assert_eq!(ran.now_or_never(), Some(Ok(())), "{handler:?} after {wait} s");
            }
        }
    }

    #[test]
    fn probe_counts_are_metrics_until_the_pod_is_deleted() {
        let probes = NodeProbes::new("agent/1".into());
        let mut pod = Pod::default();
        (pod.metadata.uid, pod.metadata.name) = ("u".into(), "p".into());
        pod.metadata.namespace = "ns".into();
        let want = DesiredPod::from_pod(&pod, PodSource::Api, "", &[], |_| ConfigState::Ready);
        let order = ProbeOrder {
            container: "c".into(),
            id: "i".into(),
            kind: ProbeKind::Liveness,
            probe: agent_pod::probe::DesiredProbe::from_probe(
                &Default::default(),
                &Default::default(),
            ),
            since: Duration::ZERO,
            result: None,
            ip: String::new(),
        };
        probes.count_result(&want, &order, &ProbeOutcome::Success);
        probes.count_result(&want, &order, &ProbeOutcome::Warning("w".into()));
        probes.count_result(&want, &order, &ProbeOutcome::Failure("f".into()));
        let expect = "prober_probe_total{container=\"c\",namespace=\"ns\",pod=\"p\",pod_uid=\"u\",\
                      probe_type=\"Liveness\",result=\"successful\"} 2\n";
        assert!(probes.metrics().contains(expect), "{}", probes.metrics());
        assert!(probes.metrics().contains("result=\"failed\"} 1\n"));
        probes.forget("u");
        assert!(!probes.metrics().contains("pod=\"p\""));
    }
}
