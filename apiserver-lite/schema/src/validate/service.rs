//! Rules for Service, Endpoints and EndpointSlice.

use std::collections::BTreeSet;

use super::pod::check_named_port;
use super::{FieldErrors, metadata, names};
use crate::object::Object;
use crate::value::{Map, Path, Value};

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
/// Longest client-IP affinity, in seconds.
const AFFINITY_SECONDS_MAX: i64 = 86_400;

pub(super) fn check(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let kind = spec.str("type");
    errors.one_of(&path.field("type"), kind, TYPES);
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
        &["ClientIP", "None"],
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
            errors.one_of(&path.field(field), policy, &["Cluster", "Local"]);
        }
    }
}

fn check_ports(spec: &Map, kind: &str, headless: bool, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("ports");
    let several = spec.list("ports").len() > 1;
    let (mut seen_names, mut seen_ports) = (BTreeSet::new(), BTreeSet::new());
    let mut seen_node_ports = BTreeSet::new();
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
        errors.one_of(&here.field("protocol"), protocol, PROTOCOLS);
        if !seen_ports.insert((protocol, number)) {
            errors.duplicate(&here, format!("{protocol}/{number}"));
        }
        if !headless || port.contains("targetPort") {
            check_named_port(port.get("targetPort"), &here.field("targetPort"), errors);
        }
        if let Some(node_port) = port.int("nodePort").filter(|&number| number != 0) {
            if kind == "ClusterIP" {
                let detail = "may not be used when `type` is 'ClusterIP'";
                errors.forbidden(&here.field("nodePort"), detail);
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
    for (field, rule) in [
        ("externalIPs", names::ip_address as fn(&str) -> Vec<String>),
        ("loadBalancerSourceRanges", names::cidr),
    ] {
        let list = path.field(field);
        for (at, text) in spec.list(field).iter().filter_map(Value::as_str).enumerate() {
            errors.complaints(&list.index(at), text, rule(text));
        }
    }
}

/// A service keeps the address that it has, unless its type changes from or to one without.
pub(super) fn check_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let address = |object: &Object| object.str_at(&["spec", "clusterIP"]).to_owned();
    let external = |object: &Object| object.str_at(&["spec", "type"]) == "ExternalName";
    let (before, after) = (address(old), address(new));
    if before.is_empty() || before == after || external(old) || external(new) {
        return;
    }
    let path = Path::ROOT;
    let spec = path.field("spec");
    errors.invalid(&spec.field("clusterIP"), after, "field is immutable");
}

pub(super) fn check_endpoints(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let subsets = path.field("subsets");
    for (at, subset) in object.fields.maps("subsets").enumerate() {
        let here = subsets.index(at);
        for list in ["addresses", "notReadyAddresses"] {
            let list_path = here.field(list);
            for (at, address) in subset.maps(list).enumerate() {
                let item = list_path.index(at);
                check_endpoint_address(address.str("ip"), &item.field("ip"), errors);
            }
        }
        let list = here.field("ports");
        for (at, port) in subset.maps("ports").enumerate() {
            let item = list.index(at);
            let number = port.int("port").unwrap_or(0);
            for detail in names::port_number(number) {
                errors.invalid(&item.field("port"), number, &detail);
            }
            errors.one_of(&item.field("protocol"), port.str("protocol"), PROTOCOLS);
        }
    }
}

/// An address that traffic can be sent to.
fn check_endpoint_address(ip: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let Ok(address) = ip.parse::<std::net::IpAddr>() else {
        errors.complaints(path, ip, names::ip_address(ip));
        return;
    };
    let link_local = match address {
        std::net::IpAddr::V4(v4) => v4.is_link_local(),
        std::net::IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let refused = [
        (address.is_unspecified(), "may not be unspecified (0.0.0.0 or ::)"),
        (address.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (address.is_multicast(), "may not be in the multicast range"),
    ];
    for (_, detail) in refused.iter().filter(|(hit, _)| *hit) {
        errors.invalid(path, ip, detail);
    }
}

/// Endpoints that one slice may hold.
const SLICE_ENDPOINTS_MAX: usize = 1000;

pub(super) fn check_slice(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let kind = object.fields.str("addressType");
    errors.one_of(&path.field("addressType"), kind, &["FQDN", "IPv4", "IPv6"]);
    let list = path.field("endpoints");
    if object.fields.list("endpoints").len() > SLICE_ENDPOINTS_MAX {
        errors.invalid(&list, "", &format!("must have at most {SLICE_ENDPOINTS_MAX} items"));
    }
    for (at, endpoint) in object.fields.maps("endpoints").enumerate() {
        let here = list.index(at);
        let addresses = here.field("addresses");
        if endpoint.list("addresses").is_empty() {
            errors.required(&addresses, "must contain at least 1 address");
        }
        for (at, address) in endpoint.list("addresses").iter().filter_map(Value::as_str).enumerate()
        {
            let item = addresses.index(at);
            match kind {
                "FQDN" => errors.complaints(&item, address, names::dns_subdomain(address)),
                _ => check_endpoint_address(address, &item, errors),
            }
        }
    }
    let mut seen = BTreeSet::new();
    let list = path.field("ports");
    for (at, port) in object.fields.maps("ports").enumerate() {
        let here = list.index(at);
        if !seen.insert(port.str("name")) {
            errors.duplicate(&here.field("name"), port.str("name"));
        }
        errors.one_of(&here.field("protocol"), port.str("protocol"), PROTOCOLS);
    }
}
