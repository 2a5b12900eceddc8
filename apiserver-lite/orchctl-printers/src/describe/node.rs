//! A node, with the requests of its pods.

use proto_api::Quantity;
use serde_json::{Map, Value};

use super::common::{self, texts, time};
use super::{Context, Page, Related};
use crate::{age, objects};

pub(super) fn describe(page: &mut Page, node: &Value, related: &Related, context: Context<'_>) {
    page.field(0, "Name", objects::name(node));
    page.field(0, "Roles", roles(node, context));
    common::labels(page, node, context);
    common::created(page, node);
    let mut taints: Vec<&Value> = objects::list_at(node, "/spec/taints").iter().collect();
    taints.sort_by_key(|one| (objects::text_at(one, "/effect"), objects::text_at(one, "/key")));
    let taints = taints.into_iter().map(|taint| {
        let text = |pointer: &str| objects::text_at(taint, pointer);
        let value =
            if text("/value").is_empty() { String::new() } else { format!("={}", text("/value")) };
        format!("{}{value}:{}", text("/key"), text("/effect"))
    });
    let taints: Vec<String> = taints.collect();
    common::title_lines(page, 0, "Taints", &taints);
    let unschedulable = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    page.field(0, "Unschedulable", unschedulable.to_string());
    lease(page, related);
    conditions(page, node);
    page.line(0, "Addresses:");
    for address in objects::list_at(node, "/status/addresses") {
        page.field(1, objects::text_at(address, "/type"), objects::text_at(address, "/address"));
    }
    for (title, pointer) in
        [("Capacity", "/status/capacity"), ("Allocatable", "/status/allocatable")]
    {
        let amounts = objects::map_at(node, pointer);
        if amounts.is_some_and(|amounts| !amounts.is_empty()) {
            page.line(0, format!("{title}:"));
        }
        for (name, amount) in sorted(amounts) {
            page.field(1, name, crate::jsonpath::text_of(amount));
        }
    }
    system_info(page, node);
    if !objects::text_at(node, "/spec/podCIDR").is_empty() {
        page.field(0, "PodCIDR", objects::text_at(node, "/spec/podCIDR"));
        page.field(0, "PodCIDRs", texts(node, "/spec/podCIDRs").join(","));
    }
    if !objects::text_at(node, "/spec/providerID").is_empty() {
        page.field(0, "ProviderID", objects::text_at(node, "/spec/providerID"));
    }
    pods(page, node, &related.pods, context);
}

fn sorted(map: Option<&Map<String, Value>>) -> Vec<(&String, &Value)> {
    let mut pairs: Vec<_> = map.into_iter().flatten().collect();
    pairs.sort_by_key(|(key, _)| *key);
    pairs
}

fn roles(node: &Value, context: Context<'_>) -> String {
    let prefix = context.names.sub_label("node-role", "");
    let older = context.names.label("role");
    let mut roles: Vec<&str> = objects::map_at(node, "/metadata/labels")
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix(&prefix) {
            None if *key == older => value.as_str(),
            role => role,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn lease(page: &mut Page, related: &Related) {
    match &related.lease {
        None => {}
        Some(Err(why)) => page.field(0, "Lease", format!("Failed to get lease: {why}")),
        Some(Ok(lease)) => {
            page.line(0, "Lease:");
            let holder = objects::text_at(lease, "/spec/holderIdentity");
            page.field(1, "HolderIdentity", if holder.is_empty() { "<unset>" } else { holder });
            for (name, pointer) in
                [("AcquireTime", "/spec/acquireTime"), ("RenewTime", "/spec/renewTime")]
            {
                let shown = time(lease, pointer);
                page.field(1, name, if shown.is_empty() { "<unset>" } else { &shown });
            }
        }
    }
}

fn conditions(page: &mut Page, node: &Value) {
    let conditions = objects::list_at(node, "/status/conditions");
    if conditions.is_empty() {
        return;
    }
    page.line(
        0,
        "Conditions:\n  Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage\n  \
         ----\t------\t-----------------\t------------------\t------\t-------",
    );
    for one in conditions {
        let text = |pointer: &str| objects::text_at(one, pointer);
        page.line(
            1,
            format!(
                "{} \t{} \t{} \t{} \t{} \t{}",
                text("/type"),
                text("/status"),
                time(one, "/lastHeartbeatTime"),
                time(one, "/lastTransitionTime"),
                text("/reason"),
                text("/message")
            ),
        );
    }
}

fn system_info(page: &mut Page, node: &Value) {
    page.line(0, "System Info:");
    for (title, field) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
        ("Kube-Proxy Version", "kubeProxyVersion"),
    ] {
        page.field(1, title, objects::text_at(node, &format!("/status/nodeInfo/{field}")));
    }
}

/// The pods that have not ended, and the sums of their requests.
fn pods(page: &mut Page, node: &Value, pods: &[Value], context: Context<'_>) {
    let ended = ["Succeeded", "Failed"];
    let pods: Vec<&Value> = pods
        .iter()
        .filter(|pod| !ended.contains(&objects::text_at(pod, "/status/phase")))
        .collect();
    page.field(0, "Non-terminated Pods", format!("({} in total)", pods.len()));
    page.line(
        1,
        "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge",
    );
    page.line(
        1,
        "---------\t----\t\t------------\t----------\t---------------\t-------------\t---",
    );
    let allocatable = |name: &str| quantity(objects::map_at(node, "/status/allocatable"), name);
    for pod in &pods {
        let cell = |kind: &str, name: &str| share(sum_requests(pod, kind, name), allocatable(name));
        page.line(
            1,
            format!(
                "{}\t{}\t\t{}\t{}\t{}\t{}\t{}",
                objects::namespace(pod),
                objects::name(pod),
                cell("requests", "cpu"),
                cell("limits", "cpu"),
                cell("requests", "memory"),
                cell("limits", "memory"),
                age::since(Some(objects::text_at(pod, "/metadata/creationTimestamp")), context.now)
            ),
        );
    }
    page.line(
        0,
        "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)",
    );
    page.line(1, "Resource\tRequests\tLimits\n  --------\t--------\t------");
    let sum = |kind: &str, name: &str| {
        let amounts = pods.iter().map(|pod| sum_requests(pod, kind, name));
        amounts.fold(Quantity::default(), |sum, one| sum + one)
    };
    let (shared, counted) = more_resources(node);
    for name in ["cpu", "memory", "ephemeral-storage"].into_iter().chain(shared) {
        let cell = |kind: &str| share(sum(kind, name), allocatable(name));
        page.line(1, format!("{name}\t{}\t{}", cell("requests"), cell("limits")));
    }
    for name in counted {
        page.line(1, format!("{name}\t{}\t{}", sum("requests", name), sum("limits", name)));
    }
}

/// What else a node has for pods, by name: pages of memory, and what others count.
fn more_resources(node: &Value) -> (Vec<&str>, Vec<&str>) {
    let all = objects::map_at(node, "/status/allocatable").into_iter().flatten();
    let mut names: Vec<&str> = all.map(|(name, _)| name.as_str()).collect();
    names.retain(|name| !["cpu", "memory", "ephemeral-storage", "pods"].contains(name));
    names.sort_unstable();
    names.into_iter().partition(|name| name.starts_with("hugepages-"))
}

fn quantity(map: Option<&Map<String, Value>>, name: &str) -> Quantity {
    let text = map.and_then(|map| map.get(name)).and_then(Value::as_str);
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The requests of a pod: the sum of its containers, or those of an init container if larger; and its overhead.
fn sum_requests(pod: &Value, kind: &str, name: &str) -> Quantity {
    let of = |container: &Value| {
        quantity(objects::map_at(container, &format!("/resources/{kind}")), name)
    };
    let containers = objects::list_at(pod, "/spec/containers").iter().map(of);
    let sum = containers.fold(Quantity::default(), |sum, one| sum + one);
    let init = objects::list_at(pod, "/spec/initContainers").iter().map(of);
    let sum = init.fold(sum, |most, one| if one > most { one } else { most });
    let overhead = quantity(objects::map_at(pod, "/spec/overhead"), name);
    if sum.is_zero() { sum } else { sum + overhead }
}

fn share(amount: Quantity, all: Quantity) -> String {
    let percent = amount.as_milli().saturating_mul(100).checked_div(all.as_milli());
    format!("{amount} ({}%)", percent.unwrap_or_default())
}
