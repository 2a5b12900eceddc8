//! Validation of network addresses that traffic is sent to.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{FieldErrors, names};
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// Why an address is special and cannot be that of an endpoint or Service; `None` for a regular one.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    // An IPv4-mapped address counts as its IPv4 address.
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.is_unspecified() {
        Some("may not be unspecified (0.0.0.0 or ::)")
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if address.is_multicast() {
        Some("may not be in the multicast range")
    } else if matches!(address, IpAddr::V4(v4) if v4.is_broadcast()) {
        Some("may not be the broadcast address (255.255.255.255)")
    } else {
        None
    }
}

/// Checks that traffic can be sent to an address.
pub(super) fn check_reachable(text: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    match text.parse::<IpAddr>() {
        Ok(address) => {
            if let Some(detail) = special(address) {
                errors.invalid(path, text, detail);
            }
        }
        Err(_) => errors.complaints(path, text, names::ip_address(text)),
    }
}

/// Checks the addresses in a pod's status: at most one pod IP per family, and the host's.
pub(super) fn check_pod_status(object: &Object, errors: &mut FieldErrors) {
    let empty = Map::new();
    let status = object.status().unwrap_or(&empty);
    let path = Path::ROOT;
    let path = path.field("status");
    // A pod with `hostNetwork` has the node's addresses.
    let shares = object.spec().is_some_and(|spec| spec.is_true("hostNetwork"));
    let of_pod: Check = if shares { check_node_address } else { check_reachable };
    for (field, list, check) in
        [("hostIP", "hostIPs", check_node_address as Check), ("podIP", "podIPs", of_pod)]
    {
        let text = status.str(field);
        if !text.is_empty() {
            check(text, &path.field(field), errors);
        }
        check_pod_list(status, list, check, &path, errors);
    }
}

/// A check of one address.
type Check = fn(&str, &Path<'_>, &mut FieldErrors);

fn check_pod_list(
    status: &Map,
    field: &str,
    check: Check,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let list = path.field(field);
    let mut families = BTreeSet::new();
    for (at, item) in status.maps(field).enumerate() {
        let text = item.str("ip");
        check(text, &list.index(at), errors);
        families.insert(text.parse::<IpAddr>().map(|ip| ip.is_ipv4()).ok());
    }
    if families.len() < status.list(field).len() {
        let detail = "may specify no more than one IP for each IP family";
        errors.invalid(&list, status.list(field).to_vec(), detail);
    }
}

/// Checks the addresses in a node's status; the API server connects to them. Each may occur once.
pub(super) fn check_node_status(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("status");
    let list = path.field("addresses");
    let empty = Map::new();
    let mut seen = BTreeSet::new();
    for (at, address) in object.status().unwrap_or(&empty).maps("addresses").enumerate() {
        let here = list.index(at);
        let (kind, text) = (address.str("type"), address.str("address"));
        if !seen.insert((kind, text)) {
            errors.duplicate(&here, address.clone());
        }
        if matches!(kind, "InternalIP" | "ExternalIP") {
            check_node_address(text, &here.field("address"), errors);
        }
    }
}

/// Checks a node address; loopback is valid for a single-machine cluster.
fn check_node_address(text: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    match text.parse::<IpAddr>() {
        Ok(address) if address.to_canonical().is_loopback() => {}
        _ => check_reachable(text, path, errors),
    }
}

pub(super) fn check_cidr(text: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    errors.complaints(path, text, names::cidr(text));
}

/// The strings of a list with their indexes.
pub(super) fn texts<'a>(map: &'a Map, field: &str) -> impl Iterator<Item = (usize, &'a str)> {
    map.list(field).iter().enumerate().filter_map(|(at, value)| Some((at, value.as_str()?)))
}

/// Checks that the strings of a list are unique.
pub(super) fn check_unique(map: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field(field);
    let mut seen = BTreeSet::new();
    for (at, text) in texts(map, field) {
        if !seen.insert(text) {
            errors.duplicate(&list.index(at), Value::from(text));
        }
    }
}
