//! Validation of NetworkPolicies and Ingresses.

use std::net::IpAddr;

use proto_api::names::Names;

use super::probes::check_named_port;
use super::{FieldErrors, addresses, csi, names, selector};
use crate::enums;
use crate::object::Object;
use crate::value::{Map, Path, Value};

pub(super) fn check_policy(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    selector::check(spec.map("podSelector"), &path.field("podSelector"), errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let list = path.field(direction);
        for (at, rule) in spec.maps(direction).enumerate() {
            let here = list.index(at);
            let ports = here.field("ports");
            for (at, port) in rule.maps("ports").enumerate() {
                check_policy_port(port, &ports.index(at), errors);
            }
            let list = here.field(peers);
            for (at, peer) in rule.maps(peers).enumerate() {
                check_peer(peer, &list.index(at), errors);
            }
        }
    }
    let types = path.field("policyTypes");
    if spec.list("policyTypes").len() > 2 {
        let value = spec.list("policyTypes").to_vec();
        errors.invalid(&types, value, "may not specify more than two policyTypes");
        return;
    }
    for (at, kind) in addresses::texts(spec, "policyTypes") {
        if !enums::POLICY_TYPES.contains(&kind) {
            errors.not_supported(&types.index(at), kind, enums::POLICY_TYPES);
        }
    }
}

fn check_policy_port(port: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let protocol = port.str("protocol");
    if port.contains("protocol") && !enums::PROTOCOLS.contains(&protocol) {
        errors.not_supported(&path.field("protocol"), protocol, enums::PROTOCOLS);
    }
    let first = port.get("port");
    if first.is_some() {
        check_named_port(first, &path.field("port"), errors);
    }
    let Some(last) = port.int("endPort") else { return };
    let here = path.field("endPort");
    match first {
        None => errors.invalid(&here, last, "may not be specified when `port` is not specified"),
        Some(Value::String(_)) => {
            errors.invalid(&here, last, "may not be specified when `port` is non-numeric");
        }
        Some(first) => {
            if first.as_int().is_some_and(|first| last < first) {
                errors.invalid(&here, last, "must be greater than or equal to `port`");
            }
            for detail in names::port_number(last) {
                errors.invalid(&here, last, &detail);
            }
        }
    }
}

fn check_peer(peer: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let selectors = ["podSelector", "namespaceSelector"];
    for field in selectors {
        selector::check(peer.map(field), &path.field(field), errors);
    }
    let selects = selectors.iter().any(|field| peer.contains(field));
    match peer.map("ipBlock") {
        Some(block) => {
            check_block(block, &path.field("ipBlock"), errors);
            if selects {
                errors.forbidden(path, "may not specify both ipBlock and another peer");
            }
        }
        None if selects => {}
        None => errors.required(path, "must specify a peer"),
    }
}

fn check_block(block: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let text = block.str("cidr");
    let here = path.field("cidr");
    if text.is_empty() {
        errors.required(&here, "");
        return;
    }
    let Some(whole) = network(text) else {
        addresses::check_cidr(text, &here, errors);
        return;
    };
    let list = path.field("except");
    for (at, text) in addresses::texts(block, "except") {
        match network(text) {
            None => addresses::check_cidr(text, &list.index(at), errors),
            Some(part) if !is_within(part, whole) => {
                errors.invalid(&list.index(at), text, "must be a strict subset of `cidr`");
            }
            Some(_) => {}
        }
    }
}

/// IP family, network address as a 128-bit number, and prefix length.
fn network(text: &str) -> Option<(bool, u128, u32)> {
    let (address, length) = text.split_once('/')?;
    let (address, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
    let (bits, width) = match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    (length <= width).then(|| (address.is_ipv4(), bits & mask(length), length))
}

/// A mask of the first `length` of 128 bits.
fn mask(length: u32) -> u128 {
    128_u32.checked_sub(length).and_then(|rest| u128::MAX.checked_shl(rest)).unwrap_or(0)
}

fn is_within(part: (bool, u128, u32), whole: (bool, u128, u32)) -> bool {
    part.0 == whole.0 && part.2 > whole.2 && part.1 & mask(whole.2) == whole.1
}

pub(super) fn check_ingress(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    if spec.list("rules").is_empty() && !spec.contains("defaultBackend") {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.invalid(&path, spec.list("rules").to_vec(), detail);
    }
    if let Some(backend) = spec.map("defaultBackend") {
        check_backend(backend, &path.field("defaultBackend"), errors);
    }
    let list = path.field("rules");
    for (at, rule) in spec.maps("rules").enumerate() {
        check_rule(rule, &list.index(at), errors);
    }
    let list = path.field("tls");
    for (at, tls) in spec.maps("tls").enumerate() {
        let here = list.index(at);
        let hosts = here.field("hosts");
        for (at, host) in addresses::texts(tls, "hosts") {
            errors.complaints(&hosts.index(at), host, host_name(host));
        }
        let secret = tls.str("secretName");
        if !secret.is_empty() {
            errors.complaints(&here.field("secretName"), secret, names::dns_subdomain(secret));
        }
    }
    let class = spec.str("ingressClassName");
    if spec.contains("ingressClassName") {
        errors.complaints(&path.field("ingressClassName"), class, names::dns_subdomain(class));
    }
}

/// Checks that a new Ingress names its class in one way. Those that are stored may do so in both.
pub(super) fn check_new_ingress(names: &Names, object: &Object, errors: &mut FieldErrors) {
    let annotation = names.label("ingress.class");
    let annotations = object.metadata().and_then(|metadata| metadata.map("annotations"));
    let older = annotations.and_then(|all| all.get(&annotation)).and_then(Value::as_str);
    let is_named = object.spec().is_some_and(|spec| spec.contains("ingressClassName"));
    if let (Some(older), true) = (older, is_named) {
        let path = Path::ROOT.field("annotations");
        let detail = "can not be set when the class field is also set";
        errors.invalid(&path.field(&annotation), older, detail);
    }
}

/// Longest name of an ingress controller.
const CONTROLLER_LEN_MAX: usize = 250;

pub(super) fn check_ingress_class(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let (controller, here) = (spec.str("controller"), path.field("controller"));
    if controller.is_empty() {
        errors.required(&here, "");
    } else {
        if controller.len() > CONTROLLER_LEN_MAX {
            errors.too_long(&here, CONTROLLER_LEN_MAX);
        }
        errors.complaints(&here, controller, names::domain_path(controller));
    }
    if let Some(parameters) = spec.map("parameters") {
        check_class_parameters(parameters, &path.field("parameters"), errors);
    }
}

/// Checks that a class stays that of its controller.
pub(super) fn check_ingress_class_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let (path, empty) = (Path::ROOT.field("spec"), Map::new());
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    csi::check_unchanged(before, after, &["controller"], &path, errors);
}

fn check_class_parameters(parameters: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(group) = parameters.get("apiGroup").and_then(Value::as_str) {
        errors.complaints(&path.field("apiGroup"), group, names::dns_subdomain(group));
    }
    for field in ["kind", "name"] {
        let (text, here) = (parameters.str(field), path.field(field));
        match text.is_empty() {
            true => errors.required(&here, &format!("{field} is required")),
            false => errors.complaints(&here, text, names::path_segment(text)),
        }
    }
    let (scope, namespace) = (parameters.str("scope"), parameters.get("namespace"));
    match scope {
        "" => errors.required(&path.field("scope"), ""),
        "Cluster" if namespace.is_some() => {
            let detail = "`parameters.scope` is set to 'Cluster'";
            errors.forbidden(&path.field("namespace"), detail);
        }
        "Namespace" => {
            let here = path.field("namespace");
            match namespace.and_then(Value::as_str).unwrap_or_default() {
                "" => errors.required(&here, "`parameters.scope` is set to 'Namespace'"),
                name => errors.complaints(&here, name, names::dns_label(name)),
            }
        }
        "Cluster" => {}
        other => errors.not_supported(&path.field("scope"), other, &["Cluster", "Namespace"]),
    }
}

/// Checks a host name, optionally after `*.`.
fn host_name(host: &str) -> Vec<String> {
    names::dns_subdomain(host.strip_prefix("*.").unwrap_or(host))
}

fn check_rule(rule: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let (host, here) = (rule.str("host"), path.field("host"));
    if host.parse::<IpAddr>().is_ok() {
        errors.invalid(&here, host, "must be a DNS name, not an IP address");
    } else if !host.is_empty() {
        errors.complaints(&here, host, host_name(host));
    }
    let Some(http) = rule.map("http") else { return };
    let http_path = path.field("http");
    let list = http_path.field("paths");
    if http.list("paths").is_empty() {
        errors.required(&list, "");
    }
    for (at, entry) in http.maps("paths").enumerate() {
        let here = list.index(at);
        check_path(entry, &here, errors);
        let empty = Map::new();
        let backend = entry.map("backend").unwrap_or(&empty);
        check_backend(backend, &here.field("backend"), errors);
    }
}

fn check_path(entry: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let (kind, text, here) = (entry.str("pathType"), entry.str("path"), path.field("path"));
    match kind {
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                errors.invalid(&here, text, "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.contains(part) {
                    errors.invalid(&here, text, &format!("must not contain '{part}'"));
                }
            }
            for end in ["/..", "/."] {
                if text.ends_with(end) {
                    errors.invalid(&here, text, &format!("cannot end with '{end}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                errors.invalid(&here, text, "must be an absolute path");
            }
        }
        "" => errors.required(&path.field("pathType"), "pathType must be specified"),
        other => errors.not_supported(&path.field("pathType"), other, enums::PATH_TYPES),
    }
}

fn check_backend(backend: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    match (backend.map("service"), backend.map("resource")) {
        (Some(_), Some(_)) => {
            errors.invalid(path, "", "cannot set both resource and service backends");
        }
        (None, None) => errors.required(path, "resource or service backend is required"),
        (None, Some(resource)) => {
            let here = path.field("resource");
            for field in ["kind", "name"] {
                if resource.str(field).is_empty() {
                    errors.required(&here.field(field), "");
                }
            }
        }
        (Some(service), None) => check_service(service, path, errors),
    }
}

fn check_service(service: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("service");
    let name = service.str("name");
    if name.is_empty() {
        errors.required(&here.field("name"), "");
    } else {
        errors.complaints(&here.field("name"), name, names::dns_1035_label(name));
    }
    let empty = Map::new();
    let port = service.map("port").unwrap_or(&empty);
    let ports = here.field("port");
    let (name, number) = (port.str("name"), port.int("number").unwrap_or(0));
    match (name.is_empty(), number) {
        (true, 0) => errors.required(path, "port name or number is required"),
        (false, 0) => errors.complaints(&ports.field("name"), name, names::port_name(name)),
        (true, number) => {
            for detail in names::port_number(number) {
                errors.invalid(&ports.field("number"), number, &detail);
            }
        }
        (false, _) => errors.invalid(path, "", "cannot set both port name & port number"),
    }
}
