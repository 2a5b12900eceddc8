//! A pod.

use serde_json::Value;

use super::common::{self, controller, number, time};
use super::container::{self, ContainerSection};
use super::{Context, Page, volume};
use crate::{age, objects};

pub(super) fn describe(page: &mut Page, pod: &Value, context: Context<'_>) {
    head(page, pod, context);
    let place = ContainerSection { space: "", level: 1, is_pod: true, owner: pod };
    let titles = [
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ];
    for (title, field, statuses) in titles {
        list(page, title, field, statuses, &place);
    }
    let gates = objects::list_at(pod, "/spec/readinessGates");
    if !gates.is_empty() {
        page.line(0, "Readiness Gates:\n  Type\tStatus");
        for gate in gates {
            let kind = objects::text_at(gate, "/conditionType");
            let status = condition(pod, kind).unwrap_or("<none>");
            page.line(1, format!("{kind} \t{status} "));
        }
    }
    let conditions = objects::list_at(pod, "/status/conditions");
    if !conditions.is_empty() {
        page.line(0, "Conditions:\n  Type\tStatus");
        for one in conditions {
            let text = |pointer: &str| objects::text_at(one, pointer);
            page.line(1, format!("{} \t{} ", text("/type"), text("/status")));
        }
    }
    volume::list(page, pod, 0);
    page.field(0, "QoS Class", objects::text_at(pod, "/status/qosClass"));
    common::placement(page, 0, pod, true);
    common::spread(page, 0, pod);
}

/// Containers stand one level deeper than their title.
fn list(page: &mut Page, title: &str, field: &str, statuses: &str, place: &ContainerSection<'_>) {
    if !objects::list_at(place.owner, &format!("/spec/{field}")).is_empty() {
        page.line(0, format!("{title}:"));
        container::list(page, field, statuses, place);
    }
}

fn head(page: &mut Page, pod: &Value, context: Context<'_>) {
    let text = |pointer: &str| objects::text_at(pod, pointer);
    let mut optional = Vec::new();
    for (name, pointer) in [
        ("Priority Class Name", "/spec/priorityClassName"),
        ("Runtime Class Name", "/spec/runtimeClassName"),
        ("Service Account", "/spec/serviceAccountName"),
    ] {
        optional
            .extend(Some(text(pointer)).filter(|text| !text.is_empty()).map(|text| (name, text)));
    }
    common::name(page, pod);
    if pod.pointer("/spec/priority").is_some() {
        page.field(0, "Priority", number(pod, "/spec/priority").to_string());
    }
    for (name, value) in optional {
        page.field(0, name, value);
    }
    match (text("/spec/nodeName"), text("/status/hostIP")) {
        ("", _) => page.field(0, "Node", "<none>"),
        (node, address) => page.field(0, "Node", format!("{node}/{address}")),
    }
    if pod.pointer("/status/startTime").is_some() {
        page.field(0, "Start Time", time(pod, "/status/startTime"));
    }
    common::labels(page, pod, context);
    match pod.pointer("/metadata/deletionTimestamp").and_then(Value::as_str) {
        Some(since) => {
            let lasts = age::since(Some(since), context.now);
            page.field(0, "Status", format!("Terminating (lasts {lasts})"));
            let grace = number(pod, "/metadata/deletionGracePeriodSeconds");
            page.field(0, "Termination Grace Period", format!("{grace}s"));
        }
        None => page.field(0, "Status", text("/status/phase")),
    }
    for (name, pointer) in [("Reason", "/status/reason"), ("Message", "/status/message")] {
        if !text(pointer).is_empty() {
            page.field(0, name, text(pointer));
        }
    }
    common::seccomp(page, 0, pod.get("spec").unwrap_or(&Value::Null));
    page.field(0, "IP", text("/status/podIP"));
    let addresses = objects::list_at(pod, "/status/podIPs");
    if addresses.is_empty() {
        page.field(0, "IPs", "<none>");
    } else {
        page.line(0, "IPs:");
        for address in addresses {
            page.field(1, "IP", objects::text_at(address, "/ip"));
        }
    }
    if let Some(controller) = controller(pod) {
        page.field(0, "Controlled By", controller);
    }
    if !text("/status/nominatedNodeName").is_empty() {
        page.field(0, "NominatedNodeName", text("/status/nominatedNodeName"));
    }
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a str> {
    let mut conditions = objects::list_at(pod, "/status/conditions").iter();
    let one = conditions.find(|one| objects::text_at(one, "/type") == kind)?;
    Some(objects::text_at(one, "/status"))
}
