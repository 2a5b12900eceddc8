//! Admission of a pod by the node, and preemption for critical pods.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

use agent_node::admission::{AdmissionRefusal, admit};
use agent_node::preempt::{PreemptionVictim, choose_victims};
use agent_node::priority::is_critical;
use agent_node::{pressure, shutdown, unsupported_fields};
use agent_pod::desired::{Disruption, PodSource, grace_period};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::record::Admission;

use super::action_context::ActionContext;
use super::pod_context::PodContext;

/// Reason of pods that are preempted by a critical pod.
const PREEMPTED: &str = "Preempting";
const PREEMPTED_MESSAGE: &str = "Preempted in order to admit critical pod";
/// How long their termination may exceed the longest grace period.
const PREEMPTION_EXTRA: Duration = Duration::from_secs(60);
/// Longest wait for preempted pods.
const PREEMPTION_MAX: Duration = Duration::from_secs(900);

/// Decides whether to admit a pod; a refusal is reported as an event.
pub async fn admit_pod(shared: &PodContext, context: &ActionContext) -> Admission {
    match decide(shared, context).await {
        Ok(()) => Admission::Admitted,
        Err(AdmissionRefusal { reason, message }) => {
            shared.pods.release_reservation(&context.pod.metadata.uid);
            let event = PodEvent::new(Severity::Warning, reason.clone(), message.clone());
            shared.reports.event(&context.pod, event);
            Admission::Refused { reason, message }
        }
    }
}

async fn decide(shared: &PodContext, context: &ActionContext) -> Result<(), AdmissionRefusal> {
    let is_static = context.source == PodSource::Static;
    let node_pressure = *shared.node_pressure.borrow();
    if node_pressure.shutting_down {
        let (reason, message) = (shutdown::REFUSED_REASON, shutdown::REFUSED_MESSAGE);
        return Err(AdmissionRefusal { reason: reason.to_owned(), message: message.to_owned() });
    }
    pressure::admit(&context.pod, node_pressure.pressure, shared.settings.names, is_static)?;
    unsupported_fields::check_supported(&context.pod, &shared.environment.abilities)?;
    let fits = || {
        let (node, load) = shared.pods.node_and_load(&context.pod.metadata.uid);
        admit(&context.pod, &node, &load, is_static).inspect(|()| shared.pods.reserve(&context.pod))
    };
    match fits() {
        Err(refusal)
            if refusal.reason.starts_with("OutOf") && is_critical(&context.pod, is_static) =>
        {
            if !preempt_pods(shared, context, is_static, &refusal).await {
                return Err(refusal);
            }
            fits()?;
        }
        answer => answer?,
    }
    // Last, so that devices are allocated only to pods that run.
    shared.environment.give(&context.pod).await
}

/// Ends pods so that a critical one fits. Returns whether they have ended.
async fn preempt_pods(
    shared: &PodContext,
    context: &ActionContext,
    is_static: bool,
    short: &AdmissionRefusal,
) -> bool {
    let own = &context.pod.metadata.uid;
    let others =
        shared.pods.current_pods().into_iter().filter(|known| known.pod.metadata.uid != *own);
    let running: Vec<PreemptionVictim> = others
        .map(|known| PreemptionVictim {
            is_static: known.source == PodSource::Static,
            pod: known.pod,
        })
        .collect();
    let Some(chosen) =
        choose_victims(&context.pod, is_static, &running, &shared.pods.allocatable())
    else {
        return false;
    };
    let mut slowest = Duration::ZERO;
    for victim in running.iter().filter(|v| chosen.contains(&v.pod.metadata.uid)) {
        slowest = slowest.max(grace_period(&victim.pod));
        let event = PodEvent::new(Severity::Warning, PREEMPTED, PREEMPTED_MESSAGE);
        shared.reports.event(&victim.pod, event);
        let verdict = Disruption {
            reason: PREEMPTED.to_owned(),
            message: PREEMPTED_MESSAGE.to_owned(),
            grace: None,
        };
        shared.pods.end_pod(&victim.pod.metadata.uid, verdict);
        shared.metrics.operations.record_preemption(short.reason.trim_start_matches("OutOf"));
    }
    let wait = slowest.saturating_add(PREEMPTION_EXTRA).min(PREEMPTION_MAX);
    shared.pods.wait_until_ended(&chosen, agent_clock::after(wait)).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_interfaces::testing::Api;
    use agent_runtime::fake::FakeRuntime;
    use agent_telemetry::metrics::AgentMetrics;
    use proto_api::core::v1::{Container, Pod};
    use proto_api::names::{Names, Profile};
    use proto_daemon::metrics::{BuildInfo, Metrics};

    use super::*;
    use crate::pod_context::{HoldsResources, PodSnapshot};
    use crate::test_support;

    fn context(name: &str, cpu: &str, priority: i32) -> ActionContext {
        let mut pod = Pod::default();
        pod.metadata.uid = name.into();
        pod.spec.priority = Some(priority);
        let mut container = Container::default();
        container.resources.requests.insert("cpu".into(), cpu.parse().expect("quantity"));
        pod.spec.containers = vec![container];
        ActionContext {
            pod: Arc::new(pod),
            source: PodSource::Api,
            objects: Arc::default(),
            services: Vec::new(),
            mounted: Arc::default(),
            pod_ips: Vec::new(),
            running: Default::default(),
            ending: tokio::sync::watch::channel(None).1,
        }
    }

    #[tokio::test]
    async fn resources_are_reserved_at_admission() {
        let dir = tempfile::tempdir().expect("tempdir");
        let shared = test_support::plain_context(Arc::new(FakeRuntime::new().0), dir.path());
        let (first, second) = (context("a", "600m", 0), context("b", "600m", 0));
        assert_eq!(admit_pod(&shared, &first).await, Admission::Admitted);
        let refused = admit_pod(&shared, &second).await;
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == "OutOfcpu"));
        assert_eq!(admit_pod(&shared, &first).await, Admission::Admitted, "not against itself");
        shared.forget("a");
        assert_eq!(admit_pod(&shared, &second).await, Admission::Admitted);
    }

    #[tokio::test]
    async fn a_node_that_is_short_or_shuts_down_lets_only_few_in() {
        let dir = tempfile::tempdir().expect("tempdir");
        let shared = test_support::plain_context(Arc::new(FakeRuntime::new().0), dir.path());
        shared.node_pressure.send_modify(|node_pressure| node_pressure.pressure.disk = true);
        let refused = admit_pod(&shared, &context("a", "1m", 0)).await;
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == "Evicted"));
        let critical = context("c", "1m", 2_000_000_000);
        assert_eq!(admit_pod(&shared, &critical).await, Admission::Admitted);
        shared.node_pressure.send_modify(|node_pressure| node_pressure.shutting_down = true);
        let refused = admit_pod(&shared, &critical).await;
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == "NodeShutdown"));
    }

    #[tokio::test]
    async fn preemption_by_a_critical_pod_is_reported_and_counted_for_each_victim() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut shared = test_support::plain_context(Arc::new(FakeRuntime::new().0), dir.path());
        let registry = Metrics::new("x", BuildInfo { version: "1", commit: "c" }).expect("names");
        let metrics = AgentMetrics::register(&registry, Names::new(Profile::Kubernetes), "n");
        Arc::get_mut(&mut shared).expect("the only reference").metrics = metrics.expect("names");
        let known = |name: &str, holds_resources| PodSnapshot {
            pod: context(name, "500m", 0).pod,
            status: Arc::default(),
            holds_resources,
            source: PodSource::Api,
        };
        let others = ["a", "b"];
        others.iter().for_each(|name| shared.update_snapshot(known(name, HoldsResources::Yes)));
        let critical = context("c", "1", 2_000_000_000);
        let (asked, ()) = tokio::join!(admit_pod(&shared, &critical), async {
            for name in others {
                let poke = shared.pods.waker(name);
                poke.notified().await;
                assert_eq!(
                    shared.pods.decision(name).map(|v| v.reason),
                    Some(PREEMPTED.to_owned())
                );
                shared.update_snapshot(known(name, HoldsResources::No));
            }
        });
        assert_eq!(asked, Admission::Admitted);
        let counted = "kubelet_preemptions{preemption_signal=\"cpu\"} 2\n";
        assert!(registry.text().contains(counted), "{}", registry.text());
    }

    #[tokio::test]
    async fn a_missing_extended_resource_is_refused_with_its_own_reason() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut shared = test_support::plain_context(Arc::new(FakeRuntime::new().0), dir.path());
        let api = Arc::new(Api::default());
        Arc::get_mut(&mut shared).expect("the only reference").reports = api.clone();
        let resource = "example.com/dongle";
        let has = (resource.to_owned(), "1".parse().expect("quantity"));
        shared.pods.node.write().expect("lock").status.allocatable.extend([has]);
        let mut asks = context("a", "0", 0);
        let requests = &mut Arc::make_mut(&mut asks.pod).spec.containers[0].resources.requests;
        requests.insert(resource.into(), "2".parse().expect("quantity"));
        let refused = admit_pod(&shared, &asks).await;
        let expect = "OutOfexample.com/dongle";
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == expect));
        assert_eq!(api.reasons(), [expect]);
    }
}
