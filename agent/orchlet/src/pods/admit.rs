//! The node's answer to a pod: what keeps it out, and what makes room for it.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

use agent_node::admission::{Refusal, admit};
use agent_node::preempt::{Victim, victims};
use agent_node::priority::is_critical;
use agent_node::{pressure, shutdown, unsupported_fields};
use agent_pod::desired::{Source, Verdict, grace_of};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::record::Admission;

use super::action_context::Scene;
use super::pod_context::Parts;

/// Reason of pods that end for a critical one.
const PREEMPTED: &str = "Preempting";
const PREEMPTED_MESSAGE: &str = "Preempted in order to admit critical pod";
/// Longest wait for them, beyond the grace of the slowest.
const PREEMPTION_EXTRA: Duration = Duration::from_secs(60);
/// Longest wait for them at all.
const PREEMPTION_MAX: Duration = Duration::from_secs(900);

/// Decides about a pod; tells its refusal as an event.
pub async fn answer(parts: &Parts, scene: &Scene) -> Admission {
    match decide(parts, scene).await {
        Ok(()) => Admission::Admitted,
        Err(Refusal { reason, message }) => {
            parts.take_back(&scene.pod.metadata.uid);
            let event = PodEvent::new(Severity::Warning, reason.clone(), message.clone());
            parts.reports.event(&scene.pod, event);
            Admission::Refused { reason, message }
        }
    }
}

async fn decide(parts: &Parts, scene: &Scene) -> Result<(), Refusal> {
    let is_static = scene.source == Source::Static;
    let strain = *parts.strain.borrow();
    if strain.shutting_down {
        let (reason, message) = (shutdown::REFUSED_REASON, shutdown::REFUSED_MESSAGE);
        return Err(Refusal { reason: reason.to_owned(), message: message.to_owned() });
    }
    pressure::admit(&scene.pod, strain.pressure, parts.names, is_static)?;
    unsupported_fields::check(&scene.pod, &parts.provision.abilities)?;
    let fits = || {
        let (node, load) = parts.node_and_load(&scene.pod.metadata.uid);
        admit(&scene.pod, &node, &load, is_static).inspect(|()| parts.promise(&scene.pod))
    };
    match fits() {
        Err(refusal)
            if refusal.reason.starts_with("OutOf") && is_critical(&scene.pod, is_static) =>
        {
            if !make_room(parts, scene, is_static, &refusal).await {
                return Err(refusal);
            }
            fits()?;
        }
        answer => answer?,
    }
    // Last: what is given is given to a pod that runs.
    parts.provision.give(&scene.pod).await
}

/// Ends pods so that a critical one fits; whether they have ended.
async fn make_room(parts: &Parts, scene: &Scene, is_static: bool, short: &Refusal) -> bool {
    let own = &scene.pod.metadata.uid;
    let others = parts.current_pods().into_iter().filter(|known| known.pod.metadata.uid != *own);
    let running: Vec<Victim> = others
        .map(|known| Victim { is_static: known.source == Source::Static, pod: known.pod })
        .collect();
    let Some(chosen) = victims(&scene.pod, is_static, &running, &parts.allocatable()) else {
        return false;
    };
    let mut slowest = Duration::ZERO;
    for victim in running.iter().filter(|v| chosen.contains(&v.pod.metadata.uid)) {
        slowest = slowest.max(grace_of(&victim.pod));
        let event = PodEvent::new(Severity::Warning, PREEMPTED, PREEMPTED_MESSAGE);
        parts.reports.event(&victim.pod, event);
        let verdict = Verdict {
            reason: PREEMPTED.to_owned(),
            message: PREEMPTED_MESSAGE.to_owned(),
            grace: None,
        };
        parts.end(&victim.pod.metadata.uid, verdict);
        parts.metrics.acts.preempted(short.reason.trim_start_matches("OutOf"));
    }
    let wait = slowest.saturating_add(PREEMPTION_EXTRA).min(PREEMPTION_MAX);
    parts.ended(&chosen, crate::clock::after(wait)).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_runtime::fake::FakeRuntime;
    use proto_api::core::v1::{Container, Pod};
    use proto_api::names::{Names, Profile};
    use proto_daemon::metrics::{BuildInfo, Metrics};

    use super::*;
    use crate::metrics::AgentMetrics;
    use crate::pods::pod_context::{Counts, Known};
    use crate::pods::test_support::{self, Api};

    fn scene(name: &str, cpu: &str, priority: i32) -> Scene {
        let mut pod = Pod::default();
        pod.metadata.uid = name.into();
        pod.spec.priority = Some(priority);
        let mut container = Container::default();
        container.resources.requests.insert("cpu".into(), cpu.parse().expect("quantity"));
        pod.spec.containers = vec![container];
        Scene {
            pod: Arc::new(pod),
            source: Source::Api,
            sources: Arc::default(),
            mounted: Arc::default(),
            pod_ips: Vec::new(),
            running: Default::default(),
            ending: tokio::sync::watch::channel(None).1,
        }
    }

    #[tokio::test]
    async fn what_was_promised_is_taken_at_once() {
        let dir = tempfile::tempdir().expect("tempdir");
        let parts = test_support::plain(Arc::new(FakeRuntime::new().0), dir.path());
        let (first, second) = (scene("a", "600m", 0), scene("b", "600m", 0));
        assert_eq!(answer(&parts, &first).await, Admission::Admitted);
        let refused = answer(&parts, &second).await;
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == "OutOfcpu"));
        assert_eq!(answer(&parts, &first).await, Admission::Admitted, "not against itself");
        parts.forget("a");
        assert_eq!(answer(&parts, &second).await, Admission::Admitted);
    }

    #[tokio::test]
    async fn a_node_that_is_short_or_shuts_down_lets_only_few_in() {
        let dir = tempfile::tempdir().expect("tempdir");
        let parts = test_support::plain(Arc::new(FakeRuntime::new().0), dir.path());
        parts.strain.send_modify(|strain| strain.pressure.disk = true);
        let refused = answer(&parts, &scene("a", "1m", 0)).await;
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == "Evicted"));
        let critical = scene("c", "1m", 2_000_000_000);
        assert_eq!(answer(&parts, &critical).await, Admission::Admitted);
        parts.strain.send_modify(|strain| strain.shutting_down = true);
        let refused = answer(&parts, &critical).await;
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == "NodeShutdown"));
    }

    #[tokio::test]
    async fn a_critical_pod_ends_others_and_each_is_told_and_counted() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut parts = test_support::plain(Arc::new(FakeRuntime::new().0), dir.path());
        let registry = Metrics::new("x", BuildInfo { version: "1", commit: "c" }).expect("names");
        let metrics = AgentMetrics::register(&registry, Names::new(Profile::Kubernetes), "n");
        Arc::get_mut(&mut parts).expect("nobody else's").metrics = metrics.expect("names");
        let known = |name: &str, counts| Known {
            pod: scene(name, "500m", 0).pod,
            status: Arc::default(),
            counts,
            source: Source::Api,
        };
        let others = ["a", "b"];
        others.iter().for_each(|name| parts.know(known(name, Counts::Yes)));
        let critical = scene("c", "1", 2_000_000_000);
        let (asked, ()) = tokio::join!(answer(&parts, &critical), async {
            for name in others {
                let poke = parts.poke(name);
                poke.notified().await;
                assert_eq!(parts.verdict(name).map(|v| v.reason), Some(PREEMPTED.to_owned()));
                parts.know(known(name, Counts::No));
            }
        });
        assert_eq!(asked, Admission::Admitted);
        let counted = "kubelet_preemptions{preemption_signal=\"cpu\"} 2\n";
        assert!(registry.text().contains(counted), "{}", registry.text());
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_its_own_words() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut parts = test_support::plain(Arc::new(FakeRuntime::new().0), dir.path());
        let api = Arc::new(Api::default());
        Arc::get_mut(&mut parts).expect("nobody else's").reports = api.clone();
        let resource = "example.com/dongle";
        let has = (resource.to_owned(), "1".parse().expect("quantity"));
        parts.node.write().expect("lock").status.allocatable.extend([has]);
        let mut asks = scene("a", "0", 0);
        let requests = &mut Arc::make_mut(&mut asks.pod).spec.containers[0].resources.requests;
        requests.insert(resource.into(), "2".parse().expect("quantity"));
        let refused = answer(&parts, &asks).await;
        let expect = "OutOfexample.com/dongle";
        assert!(matches!(&refused, Admission::Refused { reason, .. } if reason == expect));
        assert_eq!(api.reasons(), [expect]);
    }
}
