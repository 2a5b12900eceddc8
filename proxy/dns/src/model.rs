//! Services and EndpointSlices, reduced to what DNS records need.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::net::IpAddr;

use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::Names;

/// A Service with DNS records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedService {
    /// The kind of its records.
    pub leads: ServiceTarget,
    pub ports: Box<[NamedPort]>,
}

/// What the name of a Service resolves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceTarget {
    /// Its cluster IPs.
    ToItself(Box<[IpAddr]>),
    /// Its endpoints: it is headless.
    ToEndpoints,
    /// Another name: ExternalName.
    ToName(Box<str>),
}

/// A port that has an SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// In lower case; empty for a single port.
    pub name: Box<str>,
    /// `tcp`, `udp` or `sctp`, as in SRV names.
    pub protocol: &'static str,
    /// Its number.
    pub port: u16,
}

/// An EndpointSlice of a headless Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSlice {
    /// Namespace of the EndpointSlice and its Service.
    pub namespace: Box<str>,
    /// Name of the Service.
    pub service: Box<str>,
    pub ports: Box<[NamedPort]>,
    /// Its ready endpoints.
    pub endpoints: Box<[NamedEndpoint]>,
}

/// A ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEndpoint {
    pub address: IpAddr,
    /// First label of its name, in lower case: `hostname`, else derived from its address.
    pub hostname: Box<str>,
}

/// The records of a Service; `None` for one without addresses.
pub fn name_service(service: &Service) -> Option<NamedService> {
    let spec = &service.spec;
    let leads = if spec.type_ == "ExternalName" {
        let name = spec.external_name.trim_end_matches('.');
        (!name.is_empty()).then(|| ServiceTarget::ToName(name.into()))?
    } else if spec.cluster_ip == "None" {
        ServiceTarget::ToEndpoints
    } else {
        let single = std::slice::from_ref(&spec.cluster_ip);
        let listed = if spec.cluster_ips.is_empty() { single } else { &spec.cluster_ips };
        let addresses: Box<[IpAddr]> = listed.iter().filter_map(|ip| ip.parse().ok()).collect();
        (!addresses.is_empty()).then_some(ServiceTarget::ToItself(addresses))?
    };
    Some(NamedService { leads, ports: spec.ports.iter().filter_map(service_port).collect() })
}

fn service_port(port: &ServicePort) -> Option<NamedPort> {
    Some(NamedPort {
        name: port.name.to_lowercase().into(),
        protocol: protocol(&port.protocol)?,
        port: u16::try_from(port.port).ok()?,
    })
}

/// The ready endpoints of an EndpointSlice; `None` if its Service has a cluster IP, which its controller indicates by
/// omitting the headless label.
pub fn name_slice(slice: &EndpointSlice, names: &Names) -> Option<NamedSlice> {
    let labels = &slice.metadata.labels;
    let service = labels.get(&names.label("service-name")).filter(|name| !name.is_empty())?;
    if !matches!(slice.address_type.as_str(), "IPv4" | "IPv6") {
        return None;
    }
    // EndpointSlices written by users may lack the label.
    let managed = labels.contains_key(&names.sub_label("endpointslice", "managed-by"));
    if managed && !labels.contains_key(&names.sub_label("service", "headless")) {
        return None;
    }
    Some(NamedSlice {
        namespace: slice.metadata.namespace.as_str().into(),
        service: service.as_str().into(),
        ports: slice.ports.iter().filter_map(endpoint_port).collect(),
        endpoints: slice.endpoints.iter().filter_map(endpoint).collect(),
    })
}

fn endpoint_port(port: &EndpointPort) -> Option<NamedPort> {
    Some(NamedPort {
        name: port.name.as_deref().unwrap_or_default().to_lowercase().into(),
        protocol: protocol(port.protocol.as_deref().unwrap_or_default())?,
        port: u16::try_from(port.port?).ok()?,
    })
}

/// Only the first address counts: the others are the same endpoint's. `publishNotReadyAddresses` is included in the
/// condition already.
fn endpoint(endpoint: &Endpoint) -> Option<NamedEndpoint> {
    if !endpoint.conditions.ready.unwrap_or(true) {
        return None;
    }
    let address = endpoint.addresses.first()?.parse().ok()?;
    let chosen = endpoint.hostname.as_deref().filter(|name| !name.is_empty());
    let hostname = chosen.map_or_else(|| dashed(address), str::to_lowercase);
    Some(NamedEndpoint { address, hostname: hostname.into() })
}

fn protocol(name: &str) -> Option<&'static str> {
    match name {
        "" | "TCP" => Some("tcp"),
        "UDP" => Some("udp"),
        "SCTP" => Some("sctp"),
        _ => None,
    }
}

/// An address as a label: `10-244-0-7`, `fd00--1`.
pub fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// The address of such a label.
pub fn undashed(label: &str) -> Option<IpAddr> {
    let v4 = label.replace('-', ".").parse::<std::net::Ipv4Addr>().map(IpAddr::from);
    let v6 = || label.replace('-', ":").parse::<std::net::Ipv6Addr>().map(IpAddr::from);
    v4.or_else(|_| v6()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::discovery::v1::EndpointConditions;
    use proto_api::names::Profile;

    #[test]
    fn the_target_of_a_service_name_depends_on_its_type() {
        let leads = |type_: &str, ip: &str, external: &str| {
            let mut service = Service::default();
            service.spec.type_ = type_.into();
            service.spec.cluster_ip = ip.into();
            service.spec.external_name = external.into();
            name_service(&service).map(|named| named.leads)
        };
        let itself = ServiceTarget::ToItself(["10.96.0.1".parse().unwrap()].into());
        assert_eq!(leads("ClusterIP", "10.96.0.1", ""), Some(itself));
        assert_eq!(leads("ClusterIP", "None", ""), Some(ServiceTarget::ToEndpoints));
        assert_eq!(
            leads("ExternalName", "", "a.example."),
            Some(ServiceTarget::ToName("a.example".into()))
        );
        assert_eq!(leads("ExternalName", "", ""), None);
        assert_eq!(leads("ClusterIP", "", ""), None);
    }

    #[test]
    fn ready_endpoints_of_headless_services_have_names() {
        let names = Names::new(Profile::Kubernetes);
        let mut slice = EndpointSlice { address_type: "IPv4".into(), ..Default::default() };
        let endpoint = |address: &str, ready, hostname: Option<&str>| Endpoint {
            addresses: vec![address.into()],
            conditions: EndpointConditions { ready, ..Default::default() },
            hostname: hostname.map(str::to_owned),
            ..Endpoint::default()
        };
        slice.endpoints = vec![
            endpoint("10.0.0.1", None, Some("Db-0")),
            endpoint("10.0.0.2", Some(true), None),
            endpoint("10.0.0.3", Some(false), Some("db-2")),
        ];
        assert_eq!(name_slice(&slice, names), None);
        let mut label = |name: &str, value: &str| {
            slice.metadata.labels.insert(name.into(), value.into());
            name_slice(&slice, names)
        };
        let named = label("kubernetes.io/service-name", "db").unwrap();
        let hostnames: Vec<&str> = named.endpoints.iter().map(|e| &*e.hostname).collect();
        assert_eq!(hostnames, ["db-0", "10-0-0-2"]);
        assert_eq!(label("endpointslice.kubernetes.io/managed-by", "x"), None);
        assert_eq!(label("service.kubernetes.io/headless", ""), Some(named));
    }

    #[test]
    fn addresses_are_labels_and_back() {
        for address in ["10.244.0.7", "fd00::1", "::1", "2001:db8::a:0:0:1"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(undashed(&dashed(address)), Some(address), "{address}");
        }
        for label in ["", "a", "10-0-0", "10-0-0-256", "1-2-3-4-5", "-"] {
            assert_eq!(undashed(label), None, "{label}");
        }
    }
}
