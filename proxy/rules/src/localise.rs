//! Converts API objects into the node-local model; `None` for what this node does not forward.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;

use crate::model::{
    Choice, Cidr, EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality,
    Policy, Protocol, ServiceId, SlicePort, Topology,
};

/// `sessionAffinityConfig.clientIP.timeoutSeconds` by default.
const STICKY_SECONDS_DEFAULT: u32 = 3 * 3600;

/// Label selector of the Services and EndpointSlices that this proxy forwards: not those of headless Services, and not
/// those with another `service-proxy-name`.
pub fn selector(names: &Names) -> String {
    let headless = names.sub_label("service", "headless");
    format!("!{headless},!{}", names.sub_label("service", "service-proxy-name"))
}

/// Whether [`selector`] matches these labels.
pub fn is_forwarded(metadata: &ObjectMeta, names: &Names) -> bool {
    let others = ["headless", "service-proxy-name"];
    !others.iter().any(|label| metadata.labels.contains_key(&names.sub_label("service", label)))
}

/// The Service as this node forwards it; `None` for headless Services, ExternalName, and Services without a cluster
/// IP.
pub fn localise_service(service: &Service, names: &Names) -> Option<LocalService> {
    let spec = &service.spec;
    if spec.type_ == "ExternalName" {
        return None;
    }
    let single = std::slice::from_ref(&spec.cluster_ip);
    let listed = if spec.cluster_ips.is_empty() { single } else { &spec.cluster_ips };
    let cluster_ips = addresses(listed.iter());
    if cluster_ips.is_empty() {
        return None;
    }
    let balanced = spec.type_ == "LoadBalancer";
    let ingress = service.status.load_balancer.ingress.iter().filter(|_| balanced);
    let has_node_ports = balanced || spec.type_ == "NodePort";
    // Only these types have the policy; a value left over from another type is ignored.
    let external = spec.external_traffic_policy.as_str();
    let external = policy(if has_node_ports { external } else { "" });
    let is_asked = balanced && external == Policy::Local;
    let health_check_port = number(spec.health_check_node_port);
    let ranges = spec.load_balancer_source_ranges.iter().filter(|_| balanced);
    Some(LocalService {
        cluster_ips,
        external_ips: addresses(spec.external_ips.iter()),
        load_balancer_ips: addresses(ingress.map(|i| &i.ip)),
        announced_by: announcing_node(service, names).filter(|_| balanced),
        source_ranges: ranges.filter_map(|text| source_range(text.trim())).collect(),
        internal: policy(spec.internal_traffic_policy.as_deref().unwrap_or_default()),
        external,
        choice: choice(service, names),
        topology: topology(service, names),
        health_check_port: health_check_port.filter(|_| is_asked),
        ports: spec.ports.iter().filter_map(|port| service_port(port, has_node_ports)).collect(),
    })
}

/// The node that announces the addresses of a load balancer, unless its class is another controller's.
fn announcing_node(service: &Service, names: &Names) -> Option<Box<str>> {
    let class = service.spec.load_balancer_class.as_deref().unwrap_or_default();
    let is_ours = class.is_empty() || class == names.load_balancer_class();
    let node = service.metadata.annotations.get(&names.load_balancer_node());
    node.filter(|node| is_ours && !node.is_empty()).map(|node| node.as_str().into())
}

/// `sessionAffinity` takes precedence over the proxy's annotation.
fn choice(service: &Service, names: &Names) -> Choice {
    let spec = &service.spec;
    if spec.session_affinity == "ClientIP" {
        let client_ip = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
        let seconds = client_ip.and_then(|c| c.timeout_seconds);
        let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
        return Choice::sticky(seconds.unwrap_or(STICKY_SECONDS_DEFAULT));
    }
    match service.metadata.annotations.get(&names.label("load-balancing")).map(String::as_str) {
        Some("consistent") => Choice::Consistent,
        _ => Choice::Random,
    }
}

/// The annotation has two names: that of release 1.23 and that of 1.27.
fn topology(service: &Service, names: &Names) -> Topology {
    let annotations = &service.metadata.annotations;
    let hints = ["topology-aware-hints", "topology-mode"]
        .into_iter()
        .find_map(|name| annotations.get(&names.sub_label("service", name)));
    match hints.map(String::as_str) {
        Some("Auto" | "auto") => Topology::Hints,
        _ => Topology::Ignored,
    }
}

/// Maximum of addresses of one kind per Service; the API has no limit of its own.
const ADDRESSES_MAX: usize = 1024;

/// The forwardable addresses among `texts`, each once; `None` of headless Services is no address.
fn addresses<'a>(texts: impl Iterator<Item = &'a String>) -> Box<[IpAddr]> {
    let mut seen = BTreeSet::new();
    texts
        .filter_map(|text| parse_address(text))
        .filter(|address| is_forwardable(*address) && seen.insert(*address))
        .take(ADDRESSES_MAX)
        .collect()
}

/// An address. As in Kubernetes, the numbers of an IPv4 address are decimal and may have leading zeros.
fn parse_address(text: &str) -> Option<IpAddr> {
    let stripped = |number: &str| match number.trim_start_matches('0') {
        "" if !number.is_empty() => "0".to_owned(),
        digits => digits.to_owned(),
    };
    let of_decimals = || {
        let numbers: Vec<String> = text.split('.').map(stripped).collect();
        numbers.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4)
    };
    text.parse().ok().or_else(of_decimals)
}

/// A range of clients of a load balancer. A balancer without a range admits all clients: a text that is no range stands
/// for one without a client, so that it cannot open the balancer.
fn source_range(text: &str) -> Option<Cidr> {
    let range = text.split_once('/');
    let range = range.and_then(|(ip, bits)| Cidr::new(parse_address(ip)?, bits.parse().ok()?));
    range.or_else(|| {
        if text.contains(':') {
            Cidr::new(Ipv6Addr::UNSPECIFIED.into(), 128)
        } else {
            Cidr::new(Ipv4Addr::UNSPECIFIED.into(), 32)
        }
    })
}

/// Whether an address may be a Service's or an endpoint's. Loopback, link-local (among them metadata services),
/// multicast, unspecified and broadcast addresses are the node's or its neighbours'; a Service with one would take
/// over the node's own traffic. The API server rejects them too, but stored objects may be older than its validation.
pub fn is_forwardable(address: IpAddr) -> bool {
    let common = !address.is_loopback() && !address.is_unspecified() && !address.is_multicast();
    common
        && match address {
            IpAddr::V4(v4) => !v4.is_link_local() && v4 != Ipv4Addr::BROADCAST,
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
        }
}

fn policy(name: &str) -> Policy {
    if name == "Local" { Policy::Local } else { Policy::Cluster }
}

fn service_port(port: &ServicePort, has_node_ports: bool) -> Option<LocalPort> {
    let node_port = number(port.node_port);
    Some(LocalPort {
        name: port.name.as_str().into(),
        protocol: Protocol::from_name(&port.protocol)?,
        port: number(port.port)?,
        node_port: node_port.filter(|_| has_node_ports),
    })
}

/// The usable endpoints of an EndpointSlice, as seen from the node `node_name`; `None` if it belongs to no Service.
pub fn localise_slice(slice: &EndpointSlice, names: &Names, node_name: &str) -> Option<LocalSlice> {
    let service = slice.metadata.labels.get(&names.label("service-name"))?;
    if service.is_empty() || !matches!(slice.address_type.as_str(), "IPv4" | "IPv6") {
        return None;
    }
    let used = slice.endpoints.iter().filter_map(|e| Some((endpoint(e, node_name)?, hints(e))));
    let (endpoints, mut hints): (Vec<_>, Vec<_>) = used.unzip();
    if hints.iter().all(|zones| zones.is_empty()) {
        hints.clear();
    }
    Some(LocalSlice {
        service: ServiceId::new(&slice.metadata.namespace, service),
        ports: slice.ports.iter().filter_map(slice_port).collect(),
        endpoints: endpoints.into(),
        hints: hints.into(),
    })
}

/// The zones in an endpoint's hints.
fn hints(endpoint: &Endpoint) -> Box<[Box<str>]> {
    let zones = endpoint.hints.iter().flat_map(|hints| &hints.for_zones);
    zones.map(|zone| zone.name.as_str().into()).collect()
}

/// Only the first address counts: the others are the same endpoint's.
fn endpoint(endpoint: &Endpoint, node_name: &str) -> Option<LocalEndpoint> {
    let conditions = &endpoint.conditions;
    let ready = conditions.ready.unwrap_or(true);
    let serving = conditions.serving.unwrap_or(ready);
    let state = match (ready, serving, conditions.terminating.unwrap_or(false)) {
        (true, ..) => EndpointState::Ready,
        (false, true, true) => EndpointState::Draining,
        (false, ..) => return None,
    };
    let here = endpoint.node_name.as_deref() == Some(node_name);
    Some(LocalEndpoint {
        address: parse_address(endpoint.addresses.first()?).filter(|a| is_forwardable(*a))?,
        state,
        place: if here { Locality::Here } else { Locality::Elsewhere },
    })
}

fn slice_port(port: &EndpointPort) -> Option<SlicePort> {
    Some(SlicePort {
        name: port.name.as_deref().unwrap_or_default().into(),
        protocol: Protocol::from_name(port.protocol.as_deref().unwrap_or_default())?,
        port: number(port.port?)?,
    })
}

/// A valid port number.
fn number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::core::v1::LoadBalancerIngress;
    use proto_api::discovery::v1::EndpointConditions;
    use proto_api::names::Profile;

    fn orch() -> &'static Names {
        Names::new(Profile::default())
    }

    fn web() -> Service {
        let mut service = Service::default();
        service.spec.type_ = "NodePort".into();
        service.spec.cluster_ip = "10.96.0.1".into();
        service.spec.cluster_ips = vec!["10.96.0.1".into(), "fd00:96::1".into()];
        let port = ServicePort {
            name: "http".into(),
            protocol: "TCP".into(),
            port: 80,
            node_port: 30080,
            ..ServicePort::default()
        };
        service.spec.ports = vec![port];
        service
    }

    #[test]
    fn a_service_is_reduced_to_addresses_and_ports() {
        let mut service = web();
        service.spec.external_ips = vec!["198.51.100.1".into(), "198.51.100.1".into(), "x".into()];
        service.spec.external_traffic_policy = "Local".into();
        let local = localise_service(&service, orch()).unwrap();
        assert_eq!(local.cluster_ips.len(), 2);
        assert_eq!(*local.external_ips, [IpAddr::from([198, 51, 100, 1])]);
        assert_eq!((local.internal, local.external), (Policy::Cluster, Policy::Local));
        let port = LocalPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
        };
        assert_eq!(*local.ports, [port]);
        // A `nodePort` left over from another type is ignored.
        service.spec.type_ = "ClusterIP".into();
        assert_eq!(localise_service(&service, orch()).unwrap().ports[0].node_port, None);
    }

    #[test]
    fn addresses_of_the_node_itself_are_no_services() {
        let special = [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
        ];
        let mut service = web();
        service.spec.type_ = "LoadBalancer".into();
        service.spec.external_ips = special.map(String::from).into();
        service.spec.cluster_ips.extend(special.map(String::from));
        let ingress = special.map(|ip| LoadBalancerIngress { ip: ip.into(), ..Default::default() });
        service.status.load_balancer.ingress = ingress.into();
        let local = localise_service(&service, orch()).unwrap();
        assert_eq!((local.cluster_ips.len(), local.external_ips.len()), (2, 0));
        assert!(local.load_balancer_ips.is_empty());

        let mut slice = EndpointSlice { address_type: "IPv4".into(), ..Default::default() };
        slice.metadata.labels.insert(orch().label("service-name"), "web".into());
        let at = |ip: &str| Endpoint { addresses: vec![ip.into()], ..Endpoint::default() };
        slice.endpoints = special.map(at).into();
        slice.endpoints.push(at("10.0.0.1"));
        assert_eq!(localise_slice(&slice, orch(), "n1").unwrap().endpoints.len(), 1);
    }

    /// The API server accepts all of these; a range that is lost would open the balancer to everyone.
    #[test]
    fn every_source_range_restricts_the_balancer() {
        let table = [
            ("192.168.1.0/24", "192.168.1.0/24"),
            (" 192.168.1.7/24 ", "192.168.1.0/24"),
            ("192.168.01.000/024", "192.168.1.0/24"),
            ("fd00::/64", "fd00::/64"),
            ("10.0.0.1", "0.0.0.0/32"),
            ("300.0.0.0/8", "0.0.0.0/32"),
            ("10.0.0.0/33", "0.0.0.0/32"),
            ("fd00::1::/64", "::/128"),
        ];
        for (text, expect) in table {
            let mut service = web();
            service.spec.type_ = "LoadBalancer".into();
            service.spec.load_balancer_source_ranges = vec![text.into()];
            let local = localise_service(&service, orch()).unwrap();
            assert_eq!(*local.source_ranges, [expect.parse::<Cidr>().unwrap()], "{text}");
        }
    }

    #[test]
    fn the_announcing_node_is_read_for_load_balancers_only() {
        let mut service = web();
        service.metadata.annotations.insert("orch.io/load-balancer-node".into(), "a".into());
        let by = |service: &Service| localise_service(service, orch()).unwrap().announced_by;
        assert_eq!(by(&service), None);
        service.spec.type_ = "LoadBalancer".into();
        assert_eq!(by(&service).as_deref(), Some("a"));
        service.spec.load_balancer_class = Some("orch.io/load-balancer-addresses".into());
        assert_eq!(by(&service).as_deref(), Some("a"));
        service.spec.load_balancer_class = Some("example.com/other".into());
        assert_eq!(by(&service), None);
        service.spec.load_balancer_class = None;
        service.metadata.annotations.insert("orch.io/load-balancer-node".into(), "".into());
        assert_eq!(by(&service), None);
    }

    #[test]
    fn leading_zeros_of_an_address_mean_nothing() {
        let addresses = ["010.096.0.1", "10.96.00.2", "0.0x.0.0", "1..2.3", "1.2.3", ".", "None"];
        let read = addresses.map(|text| parse_address(text).map(|ip| ip.to_string()));
        let expect = [Some("10.96.0.1".to_owned()), Some("10.96.0.2".to_owned())];
        assert_eq!(read[..2], expect);
        assert!(read[2..].iter().all(Option::is_none), "{read:?}");
        let mut service = web();
        service.spec.external_ips = vec!["198.051.100.001".into()];
        let local = localise_service(&service, orch()).unwrap();
        assert_eq!(*local.external_ips, [IpAddr::from([198, 51, 100, 1])]);
    }

    #[test]
    fn a_service_has_a_bounded_number_of_addresses() {
        let mut service = web();
        let all = (0..70_000_u32).map(|n| Ipv4Addr::from(0x0b00_0000 + n).to_string());
        service.spec.external_ips = all.collect();
        let local = localise_service(&service, orch()).unwrap();
        assert_eq!(local.external_ips.len(), ADDRESSES_MAX);
    }

    #[test]
    fn headless_services_and_external_names_are_not_forwarded() {
        let mut service = web();
        service.spec.cluster_ip = "None".into();
        service.spec.cluster_ips = vec!["None".into()];
        assert_eq!(localise_service(&service, orch()), None);
        let mut service = web();
        service.spec.type_ = "ExternalName".into();
        assert_eq!(localise_service(&service, orch()), None);
        assert_eq!(localise_service(&Service::default(), orch()), None);
    }

    #[test]
    fn conditions_decide_how_an_endpoint_is_used() {
        let names = Names::new(Profile::Kubernetes);
        let state = |ready, serving, terminating| {
            let conditions = EndpointConditions { ready, serving, terminating };
            let endpoint = Endpoint {
                addresses: vec!["10.0.0.1".into()],
                conditions,
                node_name: Some("n1".into()),
                ..Endpoint::default()
            };
            let mut slice = EndpointSlice { address_type: "IPv4".into(), ..Default::default() };
            slice.metadata.labels.insert("kubernetes.io/service-name".into(), "web".into());
            slice.endpoints = vec![endpoint];
            let local = localise_slice(&slice, names, "n1").unwrap();
            local.endpoints.iter().next().map(|e| (e.state, e.place))
        };
        let used = |state| Some((state, Locality::Here));
        assert_eq!(state(None, None, None), used(EndpointState::Ready));
        assert_eq!(state(Some(true), Some(false), Some(true)), used(EndpointState::Ready));
        assert_eq!(state(Some(false), Some(true), Some(true)), used(EndpointState::Draining));
        assert_eq!(state(Some(false), None, Some(true)), None);
        assert_eq!(state(Some(false), Some(true), None), None);
    }

    #[test]
    fn the_selector_follows_the_profile() {
        let expected = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
        assert_eq!(selector(Names::new(Profile::Kubernetes)), expected);
    }
}
