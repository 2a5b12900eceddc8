//! Table rows of Services, Endpoints, EndpointSlices, Ingresses and NetworkPolicies.

use proto_api::names::Names;

use super::text::{int_or_string, labels, selector, some_of, strings};
use super::{Cells, count, or_none};
use crate::object::Object;
use crate::value::{Map, Value};

/// Most items in a cell; further ones are counted.
const SHOWN: usize = 3;

pub(super) fn service_cells(service: &Object, cells: &mut Cells) {
    let empty = Map::new();
    let spec = service.spec().unwrap_or(&empty);
    cells.set("Type", spec.str("type"));
    cells.set("Cluster-IP", or_none(spec.str("clusterIP")));
    cells.set("External-IP", external_ip(service, spec));
    let ports: Vec<String> = spec
        .maps("ports")
        .map(|port| match port.int("nodePort") {
            Some(node) if node != 0 => {
                format!("{}:{node}/{}", count(Some(port), "port"), port.str("protocol"))
            }
            _ => format!("{}/{}", count(Some(port), "port"), port.str("protocol")),
        })
        .collect();
    cells.set("Port(s)", or_none(&ports.join(",")));
    cells.set("Selector", labels(spec.map("selector")));
}

fn external_ip(service: &Object, spec: &Map) -> String {
    let mut addresses = strings(spec.list("externalIPs"));
    match spec.str("type") {
        "ExternalName" => return spec.str("externalName").to_owned(),
        "LoadBalancer" => {
            let ingress = service.fields.at(&["status", "loadBalancer", "ingress"]);
            let ingress = ingress.and_then(Value::as_list).unwrap_or_default();
            let shown = ingress.iter().filter_map(Value::as_map).map(|entry| {
                if entry.str("ip").is_empty() { entry.str("hostname") } else { entry.str("ip") }
            });
            addresses.extend(shown);
            if addresses.is_empty() {
                return "<pending>".to_owned();
            }
        }
        _ => {}
    }
    or_none(&addresses.join(","))
}

pub(super) fn endpoints_cells(endpoints: &Object, cells: &mut Cells) {
    let mut shown = Vec::new();
    for subset in endpoints.fields.maps("subsets") {
        let mut ports = subset.maps("ports").peekable();
        if ports.peek().is_none() {
            shown.extend(subset.maps("addresses").map(|address| address.str("ip").to_owned()));
        }
        for port in ports {
            let number = count(Some(port), "port");
            let addresses = subset.maps("addresses");
            shown.extend(addresses.map(|address| join_port(address.str("ip"), number)));
        }
    }
    cells.set("Endpoints", some_of(&shown, SHOWN));
}

fn join_port(address: &str, port: i64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

pub(super) fn slice_cells(slice: &Object, cells: &mut Cells) {
    cells.set("AddressType", slice.fields.str("addressType"));
    let ports: Vec<String> = slice
        .fields
        .maps("ports")
        .map(|port| port.int("port").map_or("*".to_owned(), |port| port.to_string()))
        .collect();
    let ports = if ports.is_empty() { "<unset>".to_owned() } else { some_of(&ports, SHOWN) };
    cells.set("Ports", ports);
    let addresses: Vec<String> = slice
        .fields
        .maps("endpoints")
        .flat_map(|endpoint| strings(endpoint.list("addresses")))
        .map(str::to_owned)
        .collect();
    let addresses =
        if addresses.is_empty() { "<unset>".to_owned() } else { some_of(&addresses, SHOWN) };
    cells.set("Endpoints", addresses);
}

pub(super) fn networking_cells(names: &'static Names, object: &Object, cells: &mut Cells) {
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    match object.kind.kind() {
        "NetworkPolicy" => cells.set("Pod-Selector", selector(spec.map("podSelector"))),
        "IngressClass" => {
            cells.set("Controller", spec.str("controller"));
            let parameters = spec.map("parameters").map(|parameters| {
                let group = match parameters.str("apiGroup") {
                    "" => String::new(),
                    group => format!(".{group}"),
                };
                format!("{}{group}/{}", parameters.str("kind"), parameters.str("name"))
            });
            cells.set("Parameters", or_none(&parameters.unwrap_or_default()));
        }
        "Ingress" => {
            let old = names.label("ingress.class");
            let class = match spec.str("ingressClassName") {
                "" => object.annotations().get(&old).cloned().unwrap_or_default(),
                class => class.to_owned(),
            };
            cells.set("Class", or_none(&class));
            let hosts: Vec<String> = spec
                .maps("rules")
                .map(|rule| rule.str("host").to_owned())
                .filter(|host| !host.is_empty())
                .collect();
            let hosts = if hosts.is_empty() { "*".to_owned() } else { some_of(&hosts, SHOWN) };
            cells.set("Hosts", hosts);
            let ingress = object.fields.at(&["status", "loadBalancer", "ingress"]);
            let ingress = ingress.and_then(Value::as_list).unwrap_or_default().iter();
            let addresses: Vec<&str> = ingress
                .filter_map(Value::as_map)
                .map(|entry| {
                    if entry.str("ip").is_empty() { entry.str("hostname") } else { entry.str("ip") }
                })
                .collect();
            cells.set("Address", addresses.join(","));
            cells.set("Ports", if spec.list("tls").is_empty() { "80" } else { "80, 443" });
        }
        _ => {}
    }
}

/// An int-or-string bound; `N/A` if unset.
pub(super) fn bound(value: Option<&Value>) -> String {
    int_or_string(value).unwrap_or_else(|| "N/A".to_owned())
}
