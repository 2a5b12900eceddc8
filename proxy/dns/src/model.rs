//! What names are made of: services and endpoints, reduced to what the naming rules look at.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::net::IpAddr;

use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::Names;

/// A service that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedService {
    /// What its name leads to.
    pub leads: ServiceTarget,
    /// Its ports.
    pub ports: Box<[NamedPort]>,
}

/// What the name of a service leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceTarget {
    /// To its cluster addresses.
    ToItself(Box<[IpAddr]>),
    /// To its endpoints: it is headless.
    ToEndpoints,
    /// To another name.
    ToName(Box<str>),
}

/// A port with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Its name, in lower case; empty for a single port.
    pub name: Box<str>,
    /// Its protocol as names write it: `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
    /// Its number.
    pub port: u16,
}

/// Some of the endpoints of a headless service: one EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSlice {
    /// Namespace of the slice and its service.
    pub namespace: Box<str>,
    /// Name of the service.
    pub service: Box<str>,
    /// Ports that the endpoints listen on.
    pub ports: Box<[NamedPort]>,
    /// Those that are ready.
    pub endpoints: Box<[NamedEndpoint]>,
}

/// An endpoint that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// The first part of its own name, in lower case: what its pod chose, else made of its address.
    pub hostname: Box<str>,
}

/// A service as far as it has a name; nothing for one without addresses.
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

/// The ready endpoints of a slice as far as they may have names: nothing for those of a service with a cluster
/// address, which its controller leaves without the label of headless services.
pub fn name_slice(slice: &EndpointSlice, names: &Names) -> Option<NamedSlice> {
    let labels = &slice.metadata.labels;
    let service = labels.get(&names.label("service-name")).filter(|name| !name.is_empty())?;
    if !matches!(slice.address_type.as_str(), "IPv4" | "IPv6") {
        return None;
    }
    // Slices that people write need not have the label.
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

/// Only the first address counts: the others are other names of the same endpoint. Whether endpoints that are not
/// ready are published was decided by who wrote the condition.
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

/// The address that a label says: the reverse of [`dashed`].
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
    fn what_a_name_leads_to_follows_the_type() {
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
