//! A service: why it has no endpoints, or no address of a load balancer.

use serde_json::Value;

use super::{Case, Finding, Lookup, Verdict, deletion, workload};
use crate::{objects, state};

/// Why a service does not answer.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let service = &case.object;
    let mut findings: Vec<Finding> = deletion(service, now).into_iter().collect();
    if objects::text_at(service, "/spec/type") == "ExternalName" && findings.is_empty() {
        let name = objects::text_at(service, "/spec/externalName");
        return Verdict::Well(format!("it is another name of {name} and has no endpoints"));
    }
    findings.extend(no_load_balancer(service));
    let (ready, not_ready) = addresses(case);
    findings.extend(missing_nodes(case));
    if ready > 0 && findings.is_empty() {
        let text = format!("it has {ready} ready endpoints, and {not_ready} that are not ready");
        return Verdict::Well(text);
    }
    if ready == 0 {
        findings.extend(no_endpoints(case, now));
    }
    Verdict::Wrong(findings)
}

/// That a load balancer's address is missing, which nothing in the cluster may give.
fn no_load_balancer(service: &Value) -> Option<Finding> {
    if objects::text_at(service, "/spec/type") != "LoadBalancer"
        || !objects::list_at(service, "/status/loadBalancer/ingress").is_empty()
    {
        return None;
    }
    let class = objects::text_at(service, "/spec/loadBalancerClass");
    let (evidence, next) = match class {
        "" => (
            "status.loadBalancer is empty".to_owned(),
            "use its node ports, or have a controller that gives addresses: a cloud's, or orch-controller-manager \
             with --service-load-balancer-addresses"
                .to_owned(),
        ),
        class => (
            format!("status.loadBalancer is empty, and its class is {class}"),
            format!("look whether the controller of the class {class} runs"),
        ),
    };
    Some(Finding::waiting("it has no address of a load balancer", evidence, next))
}

/// Numbers of ready addresses and of others.
fn addresses(case: &Case) -> (usize, usize) {
    let Some(Lookup::Found(endpoints)) = &case.endpoints else { return (0, 0) };
    let count = |pointer: &str| {
        let subsets = objects::list_at(endpoints, "/subsets").iter();
        subsets.map(|subset| objects::list_at(subset, pointer).len()).sum()
    };
    (count("/addresses"), count("/notReadyAddresses"))
}

/// That ready pods are in its Endpoints, but in none of its EndpointSlices, which kube-proxy reads.
fn missing_nodes(case: &Case) -> Option<Finding> {
    let publishes_all = case.object.pointer("/spec/publishNotReadyAddresses");
    if publishes_all.and_then(Value::as_bool) == Some(true) {
        return None;
    }
    let evidence = match &*case.left_out {
        [] => return None,
        [one] => format!("pod {one} is ready, and in no EndpointSlice"),
        all => format!("{} ready pods are in no EndpointSlice: {}, ...", all.len(), all[0]),
    };
    Some(Finding::waiting(
        "pods that it selects are on nodes that do not exist",
        evidence,
        "wait until they are deleted, or start the kubelets of these nodes: they register them",
    ))
}

fn no_endpoints(case: &Case, now: i64) -> Vec<Finding> {
    let service = &case.object;
    let (namespace, name) = (objects::namespace(service), objects::name(service));
    let selector = objects::map_at(service, "/spec/selector").filter(|map| !map.is_empty());
    let Some(selector) = selector else {
        return vec![Finding::stuck(
            "it has no selector, and no Endpoints were created for it",
            format!("spec.selector is empty, and the Endpoints {name} have no address"),
            "set spec.selector, or write the Endpoints or EndpointSlices yourself",
        )];
    };
    let selector = objects::pairs(Some(selector));
    if case.pods.is_empty() {
        return vec![Finding::stuck(
            "no pod has the labels that it selects",
            format!(
                "spec.selector is {selector}; no pod of namespace {namespace} has these labels"
            ),
            format!("compare them: orchctl get pods -n {namespace} --show-labels"),
        )];
    }
    let mut findings = missing_ports(case);
    findings.extend(workload::of_pods(case, now));
    if findings.is_empty() {
        let ready = case.pods.iter().filter(|one| is_ready(&one.pod)).count();
        let evidence = format!("{ready} of {} pods with {selector} are ready", case.pods.len());
        findings.push(match ready {
            0 => Finding::stuck(
                "none of the pods that it selects runs",
                evidence,
                format!("look at them: orchctl get pods -n {namespace} -l {selector}"),
            ),
            _ => Finding::waiting(
                "its endpoints are not written yet",
                evidence,
                "wait, or look whether the controller manager runs",
            ),
        });
    }
    findings
}

fn is_ready(pod: &Value) -> bool {
    state::condition_status(pod, "Ready") == "True"
}

/// Target ports by name that no container has.
fn missing_ports(case: &Case) -> Vec<Finding> {
    let has_port = |pod: &Value, name: &str| {
        let containers = objects::list_at(pod, "/spec/containers").iter();
        let mut ports = containers.flat_map(|one| objects::list_at(one, "/ports"));
        ports.any(|port| objects::text_at(port, "/name") == name)
    };
    objects::list_at(&case.object, "/spec/ports")
        .iter()
        .map(|port| objects::text_at(port, "/targetPort"))
        .filter(|target| !target.is_empty())
        .filter(|target| !case.pods.iter().any(|one| has_port(&one.pod, target)))
        .map(|target| {
            Finding::stuck(
                format!("no container has a port with the name {target}"),
                format!("spec.ports has the targetPort {target}"),
                "name the port in the pods' containers, or use its number as targetPort",
            )
        })
        .collect()
}
