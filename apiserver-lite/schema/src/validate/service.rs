//! Validation of Services, Endpoints and EndpointSlices.

use std::collections::BTreeSet;

use super::numbers;
use super::probes::check_named_port;
use super::{FieldErrors, addresses, metadata, names};
use crate::enums;
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// Longest client-IP affinity, in seconds.
const AFFINITY_SECONDS_MAX: i64 = 86_400;

pub(super) fn check(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let kind = spec.str("type");
    errors.one_of(&path.field("type"), kind, enums::SERVICE_TYPES);
    let headless = spec.str("clusterIP") == "None";
    if spec.list("ports").is_empty() && !headless && kind != "ExternalName" {
        errors.required(&path.field("ports"), "");
    }
    check_ports(spec, kind, headless, &path, errors);
    if let Some(selector) = spec.map("selector") {
        metadata::check_labels(selector, &path.field("selector"), errors);
    }
    check_addresses(spec, kind, headless, &path, errors);
    errors.one_of(
        &path.field("sessionAffinity"),
        spec.str("sessionAffinity"),
        enums::SESSION_AFFINITIES,
    );
    let timeout = spec.at(&["sessionAffinityConfig", "clientIP", "timeoutSeconds"]);
    if let Some(seconds) = timeout.and_then(Value::as_int)
        && !(1..=AFFINITY_SECONDS_MAX).contains(&seconds)
    {
        let config = path.field("sessionAffinityConfig");
        let client = config.field("clientIP");
        let detail =
            format!("must be greater than 0 and less than or equal to {AFFINITY_SECONDS_MAX}");
        errors.invalid(&client.field("timeoutSeconds"), seconds, &detail);
    }
    for field in ["externalTrafficPolicy", "internalTrafficPolicy"] {
        let policy = spec.str(field);
        if !policy.is_empty() {
            errors.one_of(&path.field(field), policy, enums::TRAFFIC_POLICIES);
        }
    }
}

fn check_ports(spec: &Map, kind: &str, headless: bool, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("ports");
    let several = spec.list("ports").len() > 1;
    let (mut seen_names, mut seen_ports) = (BTreeSet::new(), BTreeSet::new());
    let mut seen_node_ports = BTreeSet::new();
    let uses_node_ports = matches!(kind, "NodePort" | "LoadBalancer");
    for (at, port) in spec.maps("ports").enumerate() {
        let here = list.index(at);
        let name = port.str("name");
        if name.is_empty() && several {
            errors.required(&here.field("name"), "");
        } else if !name.is_empty() {
            errors.complaints(&here.field("name"), name, names::dns_label(name));
            if !seen_names.insert(name) {
                errors.duplicate(&here.field("name"), name);
            }
        }
        let number = port.int("port").unwrap_or(0);
        for detail in names::port_number(number) {
            errors.invalid(&here.field("port"), number, &detail);
        }
        let protocol = port.str("protocol");
        errors.one_of(&here.field("protocol"), protocol, enums::PROTOCOLS);
        if !seen_ports.insert((protocol, number)) {
            errors.duplicate(&here, format!("{protocol}/{number}"));
        }
        if let Some(protocol) = port.get("appProtocol").and_then(Value::as_str) {
            let here = here.field("appProtocol");
            errors.complaints(&here, protocol, names::qualified_name(protocol));
        }
        if !headless || port.contains("targetPort") {
            check_named_port(port.get("targetPort"), &here.field("targetPort"), errors);
        }
        if let Some(node_port) = port.int("nodePort").filter(|&number| number != 0) {
            numbers::between(port, "nodePort", (1, 65535), &here, errors);
            if !uses_node_ports {
                let detail = format!("may not be used when `type` is '{kind}'");
                errors.forbidden(&here.field("nodePort"), &detail);
            }
            if !seen_node_ports.insert((protocol, node_port)) {
                errors.duplicate(&here.field("nodePort"), node_port);
            }
        }
    }
}

fn check_addresses(
    spec: &Map,
    kind: &str,
    headless: bool,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let (address, external) = (spec.str("clusterIP"), spec.str("externalName"));
    if kind == "ExternalName" {
        if external.is_empty() {
            errors.required(&path.field("externalName"), "");
        } else {
            let wrong = names::dns_subdomain(external.trim_end_matches('.'));
            errors.complaints(&path.field("externalName"), external, wrong);
        }
        if !address.is_empty() {
            errors.forbidden(
                &path.field("clusterIP"),
                "may not be set when `type` is 'ExternalName'",
            );
        }
    } else if !address.is_empty() && !headless {
        errors.complaints(&path.field("clusterIP"), address, names::ip_address(address));
    }
    if headless && matches!(kind, "NodePort" | "LoadBalancer") {
        let detail = format!("may not be set to 'None' for {kind} services");
        errors.invalid(&path.field("clusterIP"), address, &detail);
    }
    check_cluster_addresses(spec, kind, path, errors);
    let list = path.field("externalIPs");
    for (at, text) in addresses::texts(spec, "externalIPs") {
        addresses::check_reachable(text, &list.index(at), errors);
    }
    check_balancer(spec, kind, path, errors);
}

/// Checks that cluster IPs and IP families correspond: one per family, in the same order.
fn check_cluster_addresses(spec: &Map, kind: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("clusterIPs");
    if kind == "ExternalName" {
        for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if spec.contains(field) {
                errors.forbidden(&path.field(field), "may not be set for ExternalName services");
            }
        }
        return;
    }
    let policies = enums::IP_FAMILY_POLICIES;
    let policy = spec.str("ipFamilyPolicy");
    if !policy.is_empty() {
        errors.one_of(&path.field("ipFamilyPolicy"), policy, policies);
    }
    for field in ["clusterIPs", "ipFamilies"] {
        addresses::check_unique(spec, field, path, errors);
        if spec.list(field).len() > 2 {
            errors.invalid(&path.field(field), "", "may only hold up to 2 values");
        }
    }
    let families = path.field("ipFamilies");
    for (at, family) in addresses::texts(spec, "ipFamilies") {
        if !enums::IP_FAMILIES.contains(&family) {
            errors.not_supported(&families.index(at), family, enums::IP_FAMILIES);
        }
    }
    let first = spec.list("clusterIPs").first().and_then(Value::as_str);
    if first.is_some_and(|first| first != spec.str("clusterIP")) && spec.contains("clusterIP") {
        let value = spec.list("clusterIPs").to_vec();
        errors.invalid(&list, value, "first value must match `clusterIP`");
    }
    if spec.list("clusterIPs").len() > 2 {
        return;
    }
    let mut seen = BTreeSet::new();
    for (at, text) in addresses::texts(spec, "clusterIPs") {
        let here = list.index(at);
        let family = spec.list("ipFamilies").get(at).and_then(Value::as_str);
        match text.parse::<std::net::IpAddr>() {
            _ if text == "None" && at == 0 && spec.list("clusterIPs").len() == 1 => {}
            _ if text == "None" => {
                errors.invalid(&here, text, "'None' must be the first and only value");
            }
            Err(_) => errors.complaints(&here, text, names::ip_address(text)),
            Ok(address) => {
                if !seen.insert(address.is_ipv4()) {
                    let detail = "may specify no more than one IP for each IP family";
                    errors.invalid(&list, spec.list("clusterIPs").to_vec(), detail);
                }
                let is = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                if family.is_some_and(|family| family != is) {
                    let detail = format!(
                        "expected an {} value as indicated by `ipFamilies[{at}]`",
                        family.unwrap_or_default()
                    );
                    errors.invalid(&here, text, &detail);
                }
            }
        }
    }
}

/// Validates the fields of load balancers.
fn check_balancer(spec: &Map, kind: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("loadBalancerSourceRanges");
    let ranges = spec.list("loadBalancerSourceRanges");
    if !ranges.is_empty() && kind != "LoadBalancer" {
        errors.forbidden(&list, "may only be used when `type` is 'LoadBalancer'");
    }
    for (at, text) in addresses::texts(spec, "loadBalancerSourceRanges") {
        // Kubernetes trims source ranges.
        addresses::check_cidr(text.trim(), &list.index(at), errors);
    }
    let number = spec.int("healthCheckNodePort").unwrap_or(0);
    if number != 0 {
        numbers::between(spec, "healthCheckNodePort", (1, 65535), path, errors);
        if kind != "LoadBalancer" || spec.str("externalTrafficPolicy") != "Local" {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(&path.field("healthCheckNodePort"), number, detail);
        }
    }
    let external = spec.str("externalTrafficPolicy");
    if !external.is_empty()
        && !matches!(kind, "NodePort" | "LoadBalancer")
        && spec.list("externalIPs").is_empty()
    {
        let detail = "may only be set when `type` is 'NodePort' or 'LoadBalancer'";
        errors.invalid(&path.field("externalTrafficPolicy"), external, detail);
    }
    if spec.contains("allocateLoadBalancerNodePorts") && kind != "LoadBalancer" {
        let detail = "may only be used when `type` is 'LoadBalancer'";
        errors.forbidden(&path.field("allocateLoadBalancerNodePorts"), detail);
    }
    let class = spec.str("loadBalancerClass");
    if !class.is_empty() {
        let here = path.field("loadBalancerClass");
        if kind != "LoadBalancer" {
            errors.forbidden(&here, "may only be used when `type` is 'LoadBalancer'");
        }
        errors.complaints(&here, class, names::qualified_name(class));
    }
}

/// Validates the load balancer's addresses in the status.
pub(super) fn check_status(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let status = path.field("status");
    let balancer = status.field("loadBalancer");
    let list = balancer.field("ingress");
    let ingress = object.fields.at(&["status", "loadBalancer"]).and_then(Value::as_map);
    for (at, point) in ingress.into_iter().flat_map(|map| map.maps("ingress")).enumerate() {
        let (here, ip, host) = (list.index(at), point.str("ip"), point.str("hostname"));
        if !ip.is_empty() {
            errors.complaints(&here.field("ip"), ip, names::ip_address(ip));
        }
        if !host.is_empty() {
            errors.complaints(&here.field("hostname"), host, names::dns_subdomain(host));
            if host.parse::<std::net::IpAddr>().is_ok() {
                let detail = "must be a DNS name, not an IP address";
                errors.invalid(&here.field("hostname"), host, detail);
            }
        }
    }
}

/// Checks that a Service keeps its cluster IP, unless its type changes from or to ExternalName, and a load balancer its class.
pub(super) fn check_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    check_class_update(old, new, errors);
    let address = |object: &Object| object.str_at(&["spec", "clusterIP"]).to_owned();
    let external = |object: &Object| object.str_at(&["spec", "type"]) == "ExternalName";
    let (before, after) = (address(old), address(new));
    if before.is_empty() || before == after || external(old) || external(new) {
        return;
    }
    let path = Path::ROOT;
    let spec = path.field("spec");
    let addresses = vec![Value::from(after)];
    let first = spec.field("clusterIPs");
    errors.invalid(&first.index(0), addresses, "may not change once set");
}

fn check_class_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let class = |service: &Object| service.fields.at(&["spec", "loadBalancerClass"]).cloned();
    let is_balanced = |service: &Object| service.str_at(&["spec", "type"]) == "LoadBalancer";
    if is_balanced(old) && is_balanced(new) && class(old) != class(new) {
        let path = Path::ROOT.field("spec");
        let value = class(new).unwrap_or_default();
        errors.invalid(&path.field("loadBalancerClass"), value, "may not change once set");
    }
}

pub(super) fn check_endpoints(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let subsets = path.field("subsets");
    for (at, subset) in object.fields.maps("subsets").enumerate() {
        let here = subsets.index(at);
        if subset.list("addresses").is_empty() && subset.list("notReadyAddresses").is_empty() {
            errors.required(&here, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in ["addresses", "notReadyAddresses"] {
            let list_path = here.field(list);
            for (at, address) in subset.maps(list).enumerate() {
                let item = list_path.index(at);
                addresses::check_reachable(address.str("ip"), &item.field("ip"), errors);
                let host = address.str("hostname");
                if !host.is_empty() {
                    errors.complaints(&item.field("hostname"), host, names::dns_label(host));
                }
                if let Some(node) = address.get("nodeName").and_then(Value::as_str) {
                    errors.complaints(&item.field("nodeName"), node, names::dns_subdomain(node));
                }
            }
        }
        let list = here.field("ports");
        for (at, port) in subset.maps("ports").enumerate() {
            let item = list.index(at);
            let number = port.int("port").unwrap_or(0);
            for detail in names::port_number(number) {
                errors.invalid(&item.field("port"), number, &detail);
            }
            errors.one_of(&item.field("protocol"), port.str("protocol"), enums::PROTOCOLS);
            let name = port.str("name");
            if !name.is_empty() {
                errors.complaints(&item.field("name"), name, names::dns_label(name));
            }
            check_app_protocol(port, &item, errors);
        }
    }
}

/// Checks the application protocol of a port: a qualified name.
fn check_app_protocol(port: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(protocol) = port.get("appProtocol").and_then(Value::as_str) {
        errors.complaints(&path.field("appProtocol"), protocol, names::qualified_name(protocol));
    }
}

/// Most endpoints of a slice.
const SLICE_ENDPOINTS_MAX: usize = 1000;
/// Most addresses of an endpoint, and most ports of a slice.
const ADDRESSES_MAX: usize = 100;

pub(super) fn check_slice(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let kind = object.fields.str("addressType");
    errors.one_of(&path.field("addressType"), kind, enums::ADDRESS_TYPES);
    let list = path.field("endpoints");
    if object.fields.list("endpoints").len() > SLICE_ENDPOINTS_MAX {
        errors.invalid(&list, "", &format!("must have at most {SLICE_ENDPOINTS_MAX} items"));
    }
    for (at, endpoint) in object.fields.maps("endpoints").enumerate() {
        let here = list.index(at);
        if let Some(host) = endpoint.get("hostname").and_then(Value::as_str) {
            errors.complaints(&here.field("hostname"), host, names::dns_label(host));
        }
        let addresses_path = here.field("addresses");
        let count = endpoint.list("addresses").len();
        if count == 0 {
            errors.required(&addresses_path, "must contain at least 1 address");
        } else if count > ADDRESSES_MAX {
            errors.invalid(
                &addresses_path,
                "",
                &format!("must have at most {ADDRESSES_MAX} items"),
            );
        }
        for (at, address) in endpoint.list("addresses").iter().filter_map(Value::as_str).enumerate()
        {
            let item = addresses_path.index(at);
            match (kind, address.parse::<std::net::IpAddr>()) {
                ("FQDN", _) => errors.complaints(&item, address, names::dns_subdomain(address)),
                ("IPv4", Ok(ip)) if !ip.is_ipv4() => {
                    errors.invalid(&item, address, "must be a valid IPv4 address");
                }
                ("IPv6", Ok(ip)) if ip.is_ipv4() => {
                    errors.invalid(&item, address, "must be a valid IPv6 address");
                }
                _ => addresses::check_reachable(address, &item, errors),
            }
        }
    }
    let mut seen = BTreeSet::new();
    let list = path.field("ports");
    if object.fields.list("ports").len() > ADDRESSES_MAX {
        errors.invalid(&list, "", &format!("must have at most {ADDRESSES_MAX} items"));
    }
    for (at, port) in object.fields.maps("ports").enumerate() {
        let here = list.index(at);
        // Kubernetes does not check the number; readers of slices store it in 16 bits.
        numbers::between(port, "port", (0, 65535), &here, errors);
        if !seen.insert(port.str("name")) {
            errors.duplicate(&here.field("name"), port.str("name"));
        }
        let name = port.str("name");
        if !name.is_empty() {
            errors.complaints(&here.field("name"), name, names::dns_label(name));
        }
        check_app_protocol(port, &here, errors);
        errors.one_of(&here.field("protocol"), port.str("protocol"), enums::PROTOCOLS);
    }
}
