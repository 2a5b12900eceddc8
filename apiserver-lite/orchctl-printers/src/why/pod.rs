//! A pod: node, volumes, sandbox, init containers, containers, readiness gates.

use serde_json::Value;

use super::container::{Container, ended_as, missing_source};
use super::{Finding, Lookup, PodCase, Verdict, deletion, last_event, reason_of, scheduling};
use crate::{objects, state};

/// Why a pod is not ready.
pub(super) fn explain(case: &PodCase, now: i64) -> Verdict {
    let pod = &case.pod;
    let mut findings: Vec<Finding> = deletion(pod, now).into_iter().collect();
    match objects::text_at(pod, "/status/phase") {
        "Succeeded" if findings.is_empty() => {
            return Verdict::Well("it has ended, and all its containers with success".to_owned());
        }
        "Succeeded" => return Verdict::Wrong(findings),
        "Failed" => {
            findings.push(explain_failure(case));
            return Verdict::Wrong(findings);
        }
        _ => {}
    }
    if objects::text_at(pod, "/spec/nodeName").is_empty() {
        findings.extend(claims(case));
        findings.extend(scheduling::explain(pod));
        return Verdict::Wrong(findings);
    }
    let ready = state::condition(pod, "Ready");
    let is_ready = ready.is_some_and(|one| objects::text_at(one, "/status") == "True");
    if is_ready && findings.is_empty() {
        return Verdict::Well(well(case, ready));
    }
    if is_ready {
        return Verdict::Wrong(findings);
    }
    findings.extend(node(case));
    findings.extend(claims(case));
    let preparation = preparation(case);
    let prepared = preparation.is_empty();
    findings.extend(preparation);
    findings.extend(containers(case, prepared && findings.is_empty()));
    findings.extend(gates(pod));
    if findings.is_empty() {
        let evidence = ready.map(reason_of).filter(|text| !text.is_empty());
        let evidence = evidence.unwrap_or_else(|| "it has no condition Ready yet".to_owned());
        findings.push(Finding::waiting("it is not ready", evidence, "wait for its node to report"));
    }
    Verdict::Wrong(findings)
}

fn well(case: &PodCase, ready: Option<&Value>) -> String {
    let since = ready.map_or("", |one| objects::text_at(one, "/lastTransitionTime"));
    let statuses = objects::list_at(&case.pod, "/status/containerStatuses");
    let mut text = format!("it is ready since {since}");
    for one in statuses {
        let times = one.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
        if let Some(ended) = one.pointer("/lastState/terminated").filter(|_| times > 0) {
            let name = objects::text_at(one, "/name");
            let ended = ended_as(ended);
            text =
                format!("{text}; container {name} was restarted {times} times, last after {ended}");
        }
    }
    text
}

fn explain_failure(case: &PodCase) -> Finding {
    let status = case.pod.get("status").unwrap_or(&Value::Null);
    let mut parts: Vec<String> = Some(reason_of(status)).into_iter().collect();
    for list in ["/initContainerStatuses", "/containerStatuses"] {
        for one in objects::list_at(status, list) {
            let ended = one.pointer("/state/terminated");
            let code = ended.and_then(|ended| ended.get("exitCode")).and_then(Value::as_i64);
            if let Some(ended) = ended.filter(|_| code != Some(0)) {
                let name = objects::text_at(one, "/name");
                parts.push(format!("container {name} ended with {}", ended_as(ended)));
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    let (namespace, name) = (objects::namespace(&case.pod), objects::name(&case.pod));
    let next = match objects::text_at(status, "/reason") {
        "Evicted" => {
            "free what the node lacks, or give the pod requests that it can keep to; then delete it"
                .to_owned()
        }
        "" => format!("read its output: orchctl logs -n {namespace} {name} --all-containers"),
        _ => "see to the reason, then delete the pod: it will not run again".to_owned(),
    };
    Finding::stuck("it has failed and will not run again", parts.join("; "), next)
}

fn node(case: &PodCase) -> Option<Finding> {
    let name = objects::text_at(&case.pod, "/spec/nodeName");
    let node = match case.node.as_ref()? {
        Lookup::Found(node) => node,
        Lookup::Missing => {
            return Some(Finding::stuck(
                format!("its node {name} does not exist"),
                "spec.nodeName names no node",
                "delete the pod: it cannot move to another node",
            ));
        }
        Lookup::Unread => return None,
    };
    let ready = state::condition(node, "Ready");
    if ready.is_some_and(|one| objects::text_at(one, "/status") == "True") {
        return None;
    }
    let evidence = ready.map_or_else(|| "it has no condition Ready".to_owned(), reason_of);
    Some(Finding::stuck(
        format!("its node {name} is not ready"),
        evidence,
        format!("look whether its kubelet and container runtime run: orchctl describe node {name}"),
    ))
}

fn claims(case: &PodCase) -> Vec<Finding> {
    let namespace = objects::namespace(&case.pod);
    let mut findings = Vec::new();
    for (name, claim) in &case.claims {
        match claim {
            Lookup::Missing => findings.push(Finding::stuck(
                format!("the claim {name} does not exist"),
                "a volume of the pod names it",
                "create the PersistentVolumeClaim, or correct its name in the pod's volumes",
            )),
            Lookup::Found(claim) if objects::text_at(claim, "/status/phase") != "Bound" => {
                let phase = objects::text_at(claim, "/status/phase");
                findings.push(Finding::waiting(
                    format!("the claim {name} has no volume"),
                    format!("its phase is {phase}"),
                    format!("ask why: orchctl why -n {namespace} pvc/{name}"),
                ));
            }
            Lookup::Found(_) | Lookup::Unread => {}
        }
    }
    findings
}

/// What comes before containers: volumes and the sandbox.
fn preparation(case: &PodCase) -> Vec<Finding> {
    let all = Container::all(case, "initContainers", "initContainerStatuses", "init container");
    let all = all.into_iter().chain(plain_containers(case)).collect::<Vec<_>>();
    if !all.iter().all(Container::is_not_begun) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if let Some(message) = last_event(&case.events, &["FailedMount", "FailedMapVolume"]) {
        let general = Finding::stuck(
            "a volume cannot be mounted",
            message,
            "see to what the node says: the driver on the node, the source of the volume, its options",
        );
        findings.push(missing_source(message).unwrap_or(general));
    }
    if let Some(message) = last_event(&case.events, &["FailedAttachVolume"]) {
        findings.push(Finding::stuck(
            "a volume cannot be attached to the node",
            message,
            "look whether another node still has it: orchctl get volumeattachments",
        ));
    }
    if let Some(message) = last_event(&case.events, &["FailedCreatePodSandBox", "NetworkNotReady"])
    {
        findings.push(Finding::stuck(
            "the sandbox or network of the pod cannot be made",
            message,
            "look at the network plugin and the container runtime of the node",
        ));
    }
    findings
}

fn plain_containers(case: &PodCase) -> Vec<Container<'_>> {
    Container::all(case, "containers", "containerStatuses", "container")
}

/// `says_not_begun`: whether containers that have not begun are worth a finding.
fn containers(case: &PodCase, says_not_begun: bool) -> Vec<Finding> {
    let init = Container::all(case, "initContainers", "initContainerStatuses", "init container");
    let count = init.len();
    let not_begun = |container: &Container<'_>| {
        if let Some(pulling) = container.image_pull() {
            return pulling;
        }
        let next = format!(
            "wait for the node: orchctl describe pod -n {} {}",
            objects::namespace(&case.pod),
            objects::name(&case.pod)
        );
        let evidence = objects::text_at(container.status, "/state/waiting/reason");
        let evidence =
            if evidence.is_empty() { "its node has not said anything of it" } else { evidence };
        Finding::waiting(format!("{} is not made yet", container.called()), evidence, next)
    };
    // Those after the first that is not done have not had their turn.
    if let Some((at, container)) = init.iter().enumerate().find(|(_, one)| !one.is_done()) {
        if container.is_not_begun() {
            return says_not_begun.then(|| not_begun(container)).into_iter().collect();
        }
        if container.status.pointer("/state/running").is_some() {
            let (namespace, name) = (objects::namespace(&case.pod), objects::name(&case.pod));
            let container_name = objects::text_at(container.spec, "/name");
            return vec![Finding::waiting(
                format!("{} still runs", container.called()),
                format!(
                    "{at} of {count} init containers are done; containers start after the last"
                ),
                format!(
                    "read what it waits for: orchctl logs -n {namespace} {name} -c {container_name}"
                ),
            )];
        }
        return container.explain();
    }
    let mut findings = Vec::new();
    for container in plain_containers(case).iter().filter(|one| !one.is_ready()) {
        match container.is_not_begun() {
            // It runs meanwhile, which the status does not show before the hook is done.
            true if says_not_begun => {
                findings.push(container.failed_post_start().unwrap_or_else(|| not_begun(container)))
            }
            true => {}
            false => findings.extend(container.explain()),
        }
    }
    findings
}

fn gates(pod: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gate in objects::list_at(pod, "/spec/readinessGates") {
        let kind = objects::text_at(gate, "/conditionType");
        let condition = state::condition(pod, kind);
        let evidence = match condition {
            Some(one) if objects::text_at(one, "/status") == "True" => continue,
            Some(one) => format!("it is {} {}", objects::text_at(one, "/status"), reason_of(one)),
            None => "it is not set".to_owned(),
        };
        findings.push(Finding::waiting(
            format!("its readiness gate {kind} is not met"),
            evidence,
            "see to the controller that sets this condition",
        ));
    }
    findings
}
