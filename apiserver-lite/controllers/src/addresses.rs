//! Rules that Endpoints and EndpointSlices share: the addresses, ports and labels of Services and pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proto_api::Time;
use proto_api::core::v1::{ObjectReference, Pod, Service};
use proto_api::names::Names;
use proto_api::selectors::Selector;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The name in the API: `IPv4` or `IPv6`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The family of an address.
    pub fn from_address(address: &str) -> Self {
        if address.contains(':') { Self::V6 } else { Self::V4 }
    }
}

/// The IP families of a Service, the primary one first.
pub fn families(service: &Service) -> Vec<Family> {
    let spec = &service.spec;
    if !spec.ip_families.is_empty() {
        let named = |name: &String| if name == "IPv6" { Family::V6 } else { Family::V4 };
        return spec.ip_families.iter().map(named).collect();
    }
    vec![Family::from_address(&spec.cluster_ip)]
}

/// Whether endpoints are made from the Service's selector; otherwise a user manages them.
pub fn has_selector(service: &Service) -> bool {
    !service.spec.selector.is_empty() && service.spec.type_ != "ExternalName"
}

/// Whether the Service has endpoints of a pod's labels.
pub fn selects(service: &Service, pod: &Pod) -> bool {
    let labels = &pod.metadata.labels;
    has_selector(service)
        && service.spec.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The fields of a pod that endpoints are made from.
pub fn endpoint_fields(pod: &Pod) -> impl PartialEq + '_ {
    let (metadata, spec, status) = (&pod.metadata, &pod.spec, &pod.status);
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready").map(|c| &c.status);
    let identity = (&metadata.uid, &metadata.labels, metadata.deletion_timestamp.is_some());
    (identity, &spec.node_name, &status.pod_ip, &status.pod_ips, &status.phase, ready)
}

/// Whether the Service has no cluster IP.
pub fn is_headless(service: &Service) -> bool {
    service.spec.cluster_ip == "None"
}

/// The pods that the Service selects; `pods` are those of its namespace.
pub fn selected<'a, P: AsRef<Pod>>(service: &Service, pods: &'a [P]) -> Vec<&'a Pod> {
    let selector = Selector::from_map(&service.spec.selector);
    let matches = |pod: &&Pod| selector.matches(&pod.metadata.labels);
    pods.iter().map(AsRef::as_ref).filter(matches).collect()
}

/// The pod's address of a family if an endpoint may have it: the server rejects the whole object otherwise.
pub fn ip(pod: &Pod, family: Family) -> Option<&str> {
    let all = pod.status.pod_ips.iter().map(|ip| ip.ip.as_str());
    let mut all = all.chain([pod.status.pod_ip.as_str()]);
    all.find(|ip| Family::from_address(ip) == family && is_reachable(ip))
}

/// Whether the server accepts the address for an endpoint.
fn is_reachable(text: &str) -> bool {
    let Ok(address) = text.parse::<IpAddr>() else { return false };
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// Whether the pod's condition `Ready` is true.
pub fn is_ready(pod: &Pod) -> bool {
    pod.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Whether the pod is in a terminal phase.
pub fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Failed" | "Succeeded")
}

/// Whether the pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The protocol; TCP if empty.
pub fn protocol(name: &str) -> &str {
    if name.is_empty() { "TCP" } else { name }
}

/// The pod's DNS hostname in the Service's subdomain, if it has one.
pub fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let (spec, metadata) = (&pod.spec, &service.metadata);
    let matches = !spec.hostname.is_empty() && spec.subdomain == metadata.name;
    (matches && pod.metadata.namespace == metadata.namespace).then(|| spec.hostname.clone())
}

/// The target reference of a pod's endpoint.
pub fn target_ref(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: "Pod".to_owned(),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The object that events about a pod refer to.
pub fn pod_reference(pod: &Pod) -> ObjectReference {
    ObjectReference { api_version: "v1".to_owned(), ..target_ref(pod) }
}

/// The labels that endpoints inherit from their Service.
pub fn service_labels(names: &Names, service: &Service) -> BTreeMap<String, String> {
    let headless = names.sub_label("service", "headless");
    let mut labels = service.metadata.labels.clone();
    labels.remove(&headless);
    if is_headless(service) {
        labels.insert(headless, String::new());
    }
    labels
}

/// The annotation with the time of the change that caused an update, from which programming latency is measured.
pub fn trigger_annotation(names: &Names) -> String {
    names.sub_label("endpoints", "last-change-trigger-time")
}

/// The time of the latest change of a pod's readiness, or the Service's creation if that is later.
pub fn last_trigger(service: &Service, pods: &[&Pod]) -> Option<Time> {
    let ready = pods.iter().flat_map(|pod| &pod.status.conditions);
    let turned = ready.filter(|c| c.type_ == "Ready").filter_map(|c| c.last_transition_time.unix());
    let latest = turned.chain(service.metadata.creation_timestamp.unix()).max();
    latest.map(Time::from_unix)
}

#[cfg(test)]
pub mod examples {
    //! Services and pods for tests.

    use std::sync::Arc;

    use proto_api::IntOrString;
    use proto_api::core::v1::{Container, ContainerPort, PodCondition, PodIP, ServicePort};

    use super::*;

    /// The pods with 1,999 unnamed ports before their own, for a service that gets 2,000 ports with the target of its first one.
    pub fn with_many_ports(
        service: &mut Service,
        pods: impl Iterator<Item = Pod>,
    ) -> Vec<Arc<Pod>> {
        let port = service.spec.ports[0].clone();
        let numbered =
            |nth: i32| ServicePort { name: format!("p{nth}"), port: nth, ..port.clone() };
        service.spec.ports = (1..=2000).map(numbered).collect();
        let widen = |mut pod: Pod| {
            pod.spec.containers[0].ports.splice(0..0, vec![ContainerPort::default(); 1999]);
            Arc::new(pod)
        };
        pods.map(widen).collect()
    }

    /// A service that selects `app=web` and sends port 80 to the port named `http`.
    pub fn service() -> Service {
        let mut service = Service::default();
        service.metadata.name = "web".into();
        service.metadata.namespace = "ns".into();
        service.metadata.uid = "service-uid".into();
        service.spec.cluster_ip = "10.0.0.1".into();
        service.spec.selector = BTreeMap::from([("app".into(), "web".into())]);
        service.spec.ports = vec![ServicePort {
            name: "http".into(),
            protocol: "TCP".into(),
            port: 80,
            target_port: IntOrString::from("http"),
            ..ServicePort::default()
        }];
        service
    }

    /// A ready pod that the service selects, with port 8080 named `http`.
    pub fn pod(nth: u8) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = format!("web-{nth}");
        pod.metadata.namespace = "ns".into();
        pod.metadata.uid = format!("uid-{nth}");
        pod.metadata.labels = BTreeMap::from([("app".into(), "web".into())]);
        pod.spec.node_name = "node".into();
        let port =
            ContainerPort { name: "http".into(), container_port: 8080, ..ContainerPort::default() };
        pod.spec.containers = vec![Container { ports: vec![port], ..Container::default() }];
        pod.status.phase = "Running".into();
        pod.status.pod_ip = format!("10.1.0.{nth}");
        pod.status.pod_ips =
            vec![PodIP { ip: format!("10.1.0.{nth}") }, PodIP { ip: format!("fd00::{nth:x}") }];
        set_ready(&mut pod, "True");
        pod
    }

    /// Sets the condition `Ready`.
    pub fn set_ready(pod: &mut Pod, status: &str) {
        pod.status.conditions = vec![PodCondition {
            type_: "Ready".into(),
            status: status.into(),
            last_transition_time: Time::from_unix(1000),
            ..PodCondition::default()
        }];
    }

    /// Pods `1..=count`.
    pub fn pods(count: u8) -> Vec<Arc<Pod>> {
        (1..=count).map(|nth| Arc::new(pod(nth))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_come_from_the_service() {
        let mut service = examples::service();
        assert_eq!(families(&service), [Family::V4]);
        service.spec.cluster_ip = "fd00::1".into();
        assert_eq!(families(&service), [Family::V6]);
        service.spec.ip_families = vec!["IPv4".into(), "IPv6".into()];
        assert_eq!(families(&service), [Family::V4, Family::V6]);
        assert_eq!(ip(&examples::pod(10), Family::V6), Some("fd00::a"));
    }
}
