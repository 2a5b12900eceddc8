//! The node's answer to a pod: what keeps it out, and what makes room for it.

use std::time::Duration;

use agent_node::admission::{Refusal, admit};
use agent_node::preempt::{Victim, victims};
use agent_node::priority::is_critical;
use agent_node::{pressure, shutdown, support};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::memory::Admission;
use agent_pod::want::{Source, Verdict};

use super::act::Scene;
use super::parts::Parts;

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
            let event = PodEvent {
                severity: Severity::Warning,
                reason: word(&reason),
                message: message.clone(),
                field_path: String::new(),
            };
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
    support::check(&scene.pod, &parts.provision.abilities)?;
    let fits = || {
        let (node, load) = parts.node_and_load(&scene.pod.metadata.uid);
        admit(&scene.pod, &node, &load, is_static)
    };
    match fits() {
        Err(refusal)
            if refusal.reason.starts_with("OutOf") && is_critical(&scene.pod, is_static) =>
        {
            if !make_room(parts, scene, is_static).await {
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
async fn make_room(parts: &Parts, scene: &Scene, is_static: bool) -> bool {
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
        let grace = victim.pod.spec.termination_grace_period_seconds.unwrap_or(30);
        slowest = slowest.max(Duration::from_secs(u64::try_from(grace).unwrap_or(0)));
        let event = PodEvent {
            severity: Severity::Warning,
            reason: PREEMPTED,
            message: PREEMPTED_MESSAGE.to_owned(),
            field_path: String::new(),
        };
        parts.reports.event(&victim.pod, event);
        let verdict = Verdict {
            reason: PREEMPTED.to_owned(),
            message: PREEMPTED_MESSAGE.to_owned(),
            grace: None,
        };
        parts.end(&victim.pod.metadata.uid, verdict);
    }
    let wait = (slowest + PREEMPTION_EXTRA).min(PREEMPTION_MAX);
    parts.ended(&chosen, tokio::time::Instant::now() + wait).await
}

/// Events carry words that are known beforehand.
fn word(reason: &str) -> &'static str {
    const WORDS: [&str; 15] = [
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "OutOfephemeral-storage",
        "NodePorts",
        "NodeAffinity",
        "TaintToleration",
        "Evicted",
        "NodeShutdown",
        "TopologyAffinityError",
        "SysctlForbidden",
        "AppArmor",
        "PodOSNotSupported",
        "SMTAlignmentError",
        "UnsupportedField",
    ];
    WORDS.into_iter().find(|word| *word == reason).unwrap_or("UnexpectedAdmissionError")
}
