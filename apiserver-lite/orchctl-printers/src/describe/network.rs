//! Ingresses, network policies, endpoints and their slices.

use serde_json::Value;

use super::common::{self, texts, word};
use super::{Context, Page, Related, ServiceWithEndpoints, Unread, service};
use crate::objects;

pub(super) fn describe_ingress(
    page: &mut Page,
    object: &Value,
    related: &Related,
    context: Context<'_>,
) {
    page.field(0, "Name", objects::name(object));
    common::label_lines(page, 0, "Labels", objects::map_at(object, "/metadata/labels"));
    page.field(0, "Namespace", objects::namespace(object));
    page.field(0, "Address", service::load_balancer(object).join(","));
    page.field(0, "Ingress Class", word(object, "/spec/ingressClassName", "<none>"));
    let default = object.pointer("/spec/defaultBackend");
    let default = default.map_or("<default>".to_owned(), |one| backend(one, related));
    page.field(0, "Default backend", &default);
    let tls = objects::list_at(object, "/spec/tls");
    if !tls.is_empty() {
        page.line(0, "TLS:");
    }
    for one in tls {
        let hosts = texts(one, "/hosts").join(",");
        match objects::text_at(one, "/secretName") {
            "" => page.line(1, format!("SNI routes {hosts}")),
            secret => page.line(1, format!("{secret} terminates {hosts}")),
        }
    }
    page.line(0, "Rules:");
    page.line(1, "Host\tPath\tBackends");
    page.line(1, "----\t----\t--------");
    let rules = objects::list_at(object, "/spec/rules").iter();
    let rules: Vec<&Value> = rules.filter(|rule| rule.get("http").is_some()).collect();
    for rule in &rules {
        let host = objects::text_at(rule, "/host");
        page.line(1, format!("{}\t", if host.is_empty() { "*" } else { host }));
        for path in objects::list_at(rule, "/http/paths") {
            let to = path.pointer("/backend").map(|one| backend(one, related)).unwrap_or_default();
            page.line(2, format!("\t{} \t{to}", objects::text_at(path, "/path")));
        }
    }
    if rules.is_empty() {
        page.line(1, format!("*\t*\t{default}"));
    }
    common::annotations(page, object, context);
}

/// Where requests go: a port of a service with its endpoints, or an object of another kind.
fn backend(backend: &Value, related: &Related) -> String {
    if let Some(object) = backend.get("resource") {
        let text = |pointer: &str| objects::text_at(object, pointer);
        let group = word(object, "/apiGroup", "<none>");
        return format!("APIGroup: {group}, Kind: {}, Name: {}", text("/kind"), text("/name"));
    }
    let Some(named) = backend.get("service") else { return String::new() };
    let name = objects::text_at(named, "/name");
    let (number, word) =
        (common::number(named, "/port/number"), objects::text_at(named, "/port/name"));
    let shown = if number > 0 { format!("{name}:{number}") } else { format!("{name}:{word}") };
    match related.backends.get(name) {
        None => shown,
        Some(Err(Unread(why))) => format!("{shown} (<error: {why}>)"),
        Some(Ok(ServiceWithEndpoints { service, endpoints })) => {
            let is_it = |port: &&Value| match number {
                0 => !word.is_empty() && objects::text_at(port, "/name") == word,
                number => common::number(port, "/port") == number,
            };
            let port = objects::list_at(service, "/spec/ports").iter().rfind(is_it);
            let port = port.map(|port| objects::text_at(port, "/name")).unwrap_or_default();
            format!("{shown} ({})", service::endpoints(Some(endpoints), port))
        }
    }
}

pub(super) fn describe_endpoints(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    common::labels(page, object, context);
    page.line(0, "Subsets:");
    for subset in objects::list_at(object, "/subsets") {
        for (title, pointer) in
            [("Addresses", "/addresses"), ("NotReadyAddresses", "/notReadyAddresses")]
        {
            let addresses = objects::list_at(subset, pointer).iter();
            let addresses: Vec<&str> = addresses.map(|one| objects::text_at(one, "/ip")).collect();
            let shown =
                if addresses.is_empty() { "<none>".to_owned() } else { addresses.join(",") };
            page.field(1, title, shown);
        }
        let ports = objects::list_at(subset, "/ports");
        if !ports.is_empty() {
            page.line(1, "Ports:");
        }
        port_rows(page, 2, ports);
        page.line(0, "");
    }
}

/// Name, number and protocol of ports, below their titles.
fn port_rows(page: &mut Page, level: usize, ports: &[Value]) {
    if !ports.is_empty() {
        page.line(level, "Name\tPort\tProtocol");
        page.line(level, "----\t----\t--------");
    }
    for port in ports {
        let name = match objects::text_at(port, "/name") {
            "" => "<unset>",
            name => name,
        };
        let number = word(port, "/port", "<unset>");
        page.line(level, format!("{name}\t{number}\t{}", objects::text_at(port, "/protocol")));
    }
}

pub(super) fn describe_endpoint_slice(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    common::labels(page, object, context);
    page.field(0, "AddressType", objects::text_at(object, "/addressType"));
    let ports = objects::list_at(object, "/ports");
    page.line(0, if ports.is_empty() { "Ports: <unset>" } else { "Ports:" });
    port_rows(page, 1, ports);
    let endpoints = objects::list_at(object, "/endpoints");
    page.line(0, if endpoints.is_empty() { "Endpoints: <none>" } else { "Endpoints:" });
    for one in endpoints {
        let addresses = texts(one, "/addresses");
        let shown = if addresses.is_empty() { "<none>".to_owned() } else { addresses.join(",") };
        page.line(1, format!("- Addresses:\t{shown}"));
        page.line(2, "Conditions:");
        page.field(3, "Ready", word(one, "/conditions/ready", "<unset>"));
        page.field(2, "Hostname", word(one, "/hostname", "<unset>"));
        if let Some(target) = one.get("targetRef") {
            let text = |pointer: &str| objects::text_at(target, pointer);
            page.field(2, "TargetRef", format!("{}/{}", text("/kind"), text("/name")));
        }
        page.field(2, "NodeName", word(one, "/nodeName", "<unset>"));
        page.field(2, "Zone", word(one, "/zone", "<unset>"));
    }
}

/// One direction of a policy.
struct Direction {
    /// As the API lists it among the types of a policy.
    kind: &'static str,
    /// Field of the rules, and that of the peers in each.
    rules: &'static str,
    peers: &'static str,
    /// The same in words.
    word: &'static str,
    peer: &'static str,
    /// What is not restricted without peers.
    end: &'static str,
}

const DIRECTIONS: [Direction; 2] = [
    Direction {
        kind: "Ingress",
        rules: "/spec/ingress",
        peers: "/from",
        word: "ingress",
        peer: "From",
        end: "source",
    },
    Direction {
        kind: "Egress",
        rules: "/spec/egress",
        peers: "/to",
        word: "egress",
        peer: "To",
        end: "destination",
    },
];

pub(super) fn describe_policy(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    let created = objects::text_at(object, "/metadata/creationTimestamp");
    let created = created.replace('T', " ").replace('Z', " +0000 UTC");
    page.field(0, "Created on", created);
    common::labels(page, object, context);
    page.line(0, "Spec:");
    let pods = objects::label_selector(object, "/spec/podSelector");
    let all = "<none> (Allowing the specific traffic to all pods in this namespace)".to_owned();
    page.line(1, format!("PodSelector:     {}", pods.unwrap_or(all)));
    let types = texts(object, "/spec/policyTypes");
    for direction in &DIRECTIONS {
        let word = direction.word;
        if types.contains(&direction.kind) {
            page.line(1, format!("Allowing {word} traffic:"));
            policy_rules(page, object, direction);
        } else {
            page.line(1, format!("Not affecting {word} traffic"));
        }
    }
    page.line(1, format!("Policy Types: {}", types.join(", ")));
}

fn policy_rules(page: &mut Page, object: &Value, direction: &Direction) {
    let Direction { word, peer, end, .. } = direction;
    let rules = objects::list_at(object, direction.rules);
    if rules.is_empty() {
        page.line(2, format!("<none> (Selected pods are isolated for {word} connectivity)"));
    }
    for (at, rule) in rules.iter().enumerate() {
        if at > 0 {
            page.line(2, "----------");
        }
        let ports = objects::list_at(rule, "/ports");
        if ports.is_empty() {
            page.line(2, "To Port: <any> (traffic allowed to all ports)");
        }
        for port in ports {
            let protocol = self::word(port, "/protocol", "TCP");
            let first = self::word(port, "/port", "<nil>");
            match port.get("endPort") {
                Some(last) => {
                    page.line(2, format!("To Port Range: {first}-{last}/{protocol}"));
                }
                None => page.line(2, format!("To Port: {first}/{protocol}")),
            }
        }
        let peers = objects::list_at(rule, direction.peers);
        if peers.is_empty() {
            page.line(2, format!("{peer}: <any> (traffic not restricted by {end})"));
        }
        for one in peers {
            page.line(2, format!("{peer}:"));
            describe_peer(page, one);
        }
    }
}

fn describe_peer(page: &mut Page, peer: &Value) {
    let mut is_selector = false;
    for (title, field) in
        [("NamespaceSelector", "namespaceSelector"), ("PodSelector", "podSelector")]
    {
        if peer.get(field).is_some() {
            is_selector = true;
            let selector = common::selector(peer, &format!("/{field}"));
            page.line(3, format!("{title}: {selector}"));
        }
    }
    if let Some(block) = peer.get("ipBlock").filter(|_| !is_selector) {
        page.line(3, "IPBlock:");
        page.line(4, format!("CIDR: {}", objects::text_at(block, "/cidr")));
        page.line(4, format!("Except: {}", texts(block, "/except").join(", ")));
    }
}
