//! A service.

use serde_json::Value;

use super::common::{self, number, texts, word};
use super::{Context, Page, Related};
use crate::objects;

/// Most endpoints of a line.
const ENDPOINTS_MAX: usize = 3;

pub(super) fn describe(page: &mut Page, service: &Value, related: &Related, context: Context<'_>) {
    let text = |pointer: &str| objects::text_at(service, pointer);
    common::name(page, service);
    common::labels(page, service, context);
    page.field(0, "Selector", objects::pairs(objects::map_at(service, "/spec/selector")));
    page.field(0, "Type", text("/spec/type"));
    if !text("/spec/ipFamilyPolicy").is_empty() {
        page.field(0, "IP Family Policy", text("/spec/ipFamilyPolicy"));
    }
    let list = |pointer: &str| {
        let all = texts(service, pointer);
        if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
    };
    page.field(0, "IP Families", list("/spec/ipFamilies"));
    page.field(0, "IP", text("/spec/clusterIP"));
    page.field(0, "IPs", list("/spec/clusterIPs"));
    let external = texts(service, "/spec/externalIPs");
    if !external.is_empty() {
        page.field(0, "External IPs", external.join(","));
    }
    for (name, pointer) in [
        ("Desired LoadBalancer IP", "/spec/loadBalancerIP"),
        ("External Name", "/spec/externalName"),
    ] {
        if !text(pointer).is_empty() {
            page.field(0, name, text(pointer));
        }
    }
    let ingress = load_balancer(service);
    if !ingress.is_empty() {
        page.field(0, "LoadBalancer Ingress", ingress.join(", "));
    }
    for port in objects::list_at(service, "/spec/ports") {
        describe_port(page, port, related);
    }
    page.field(0, "Session Affinity", text("/spec/sessionAffinity"));
    // kubectl says it since 1.29, also where it is what every Service has.
    if text("/spec/internalTrafficPolicy") == "Local" {
        page.field(0, "Internal Traffic Policy", "Local");
    }
    for (name, pointer) in [
        ("External Traffic Policy", "/spec/externalTrafficPolicy"),
        ("HealthCheck NodePort", "/spec/healthCheckNodePort"),
    ] {
        if service.pointer(pointer).is_some_and(|value| *value != 0) {
            page.field(0, name, word(service, pointer, ""));
        }
    }
    let ranges = texts(service, "/spec/loadBalancerSourceRanges");
    if !ranges.is_empty() {
        page.field(0, "LoadBalancer Source Ranges", ranges.join(","));
    }
}

/// Addresses and names of what balances the load of a service or an ingress.
pub(super) fn load_balancer(object: &Value) -> Vec<&str> {
    objects::list_at(object, "/status/loadBalancer/ingress")
        .iter()
        .map(|one| match objects::text_at(one, "/ip") {
            "" => objects::text_at(one, "/hostname"),
            ip => ip,
        })
        .collect()
}

fn describe_port(page: &mut Page, port: &Value, related: &Related) {
    let name = objects::text_at(port, "/name");
    let shown = if name.is_empty() { "<unset>" } else { name };
    let protocol = objects::text_at(port, "/protocol");
    page.line(0, format!("Port:\t{shown}\t{}/{protocol}", number(port, "/port")));
    page.field(0, "TargetPort", format!("{}/{protocol}", word(port, "/targetPort", "0")));
    if number(port, "/nodePort") > 0 {
        page.line(0, format!("NodePort:\t{shown}\t{}/{protocol}", number(port, "/nodePort")));
    }
    page.field(0, "Endpoints", endpoints(related.endpoints.as_ref(), name));
}

/// Addresses of the endpoints of a port.
pub(super) fn endpoints(endpoints: Option<&Value>, port: &str) -> String {
    let mut all = Vec::new();
    for subset in endpoints.map_or(&[][..], |endpoints| objects::list_at(endpoints, "/subsets")) {
        for one in objects::list_at(subset, "/ports") {
            if objects::text_at(one, "/name") != port {
                continue;
            }
            for address in objects::list_at(subset, "/addresses") {
                let ip = objects::text_at(address, "/ip");
                let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
                all.push(format!("{ip}:{}", number(one, "/port")));
            }
        }
    }
    let more = all.len().saturating_sub(ENDPOINTS_MAX);
    all.truncate(ENDPOINTS_MAX);
    match (all.is_empty(), more) {
        (true, _) => "<none>".to_owned(),
        (false, 0) => all.join(","),
        (false, more) => format!("{} + {more} more...", all.join(",")),
    }
}
