//! The ports of pods that the ports of a Service target. Either may be tens of thousands: what is asked of a pod is one walk over its ports, and pods with
//! the same answers have the same ports.

use std::collections::BTreeMap;

use proto_api::IntOrString;
use proto_api::core::v1::{Pod, Service, ServicePort};

use crate::addresses::protocol;

/// Maximum number of ports of all groups of pods together. An Endpoints object of so many could not be written.
const PORTS_MAX: usize = 200_000;

/// The numbers that a pod has for targeted names, by the place of the name.
pub(crate) type NamedPorts = BTreeMap<usize, i32>;

/// The ports of a Service with what they target.
pub(crate) struct TargetPorts<'a> {
    ports: Vec<(&'a ServicePort, Target)>,
    /// The targeted names with their protocols, and their places.
    names: BTreeMap<(&'a str, &'a str), usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Number(i32),
    /// The place of a name.
    Named(usize),
}

impl<'a> TargetPorts<'a> {
    pub(crate) fn from_service(service: &'a Service) -> Self {
        let mut names = BTreeMap::new();
        let mut target = |port: &'a ServicePort| match &port.target_port {
            IntOrString::Int(0) => Target::Number(port.port),
            IntOrString::Int(number) => Target::Number(*number),
            IntOrString::String(name) if name.is_empty() => Target::Number(port.port),
            IntOrString::String(name) => {
                let next = names.len();
                let place = names.entry((name.as_str(), protocol(&port.protocol))).or_insert(next);
                Target::Named(*place)
            }
        };
        let ports = service.spec.ports.iter().map(|port| (port, target(port))).collect();
        Self { ports, names }
    }

    /// The numbers of the pod's ports with targeted names. Of equal names the first counts.
    pub(crate) fn named_ports(&self, pod: &Pod) -> NamedPorts {
        let mut found = NamedPorts::new();
        if self.names.is_empty() {
            return found;
        }
        for port in pod.spec.containers.iter().flat_map(|container| &container.ports) {
            proto_api::count_steps!(1);
            let name = (port.name.as_str(), protocol(&port.protocol));
            if let Some(place) = self.names.get(&name) {
                found.entry(*place).or_insert(port.container_port);
            }
        }
        found
    }

    /// The ports of the Service that pods with these ports have, and the numbers.
    pub(crate) fn numbers(&self, named: &NamedPorts) -> Vec<(&'a ServicePort, i32)> {
        proto_api::count_steps!(self.ports.len());
        let number = |target: &Target| match target {
            Target::Number(number) => Some(*number),
            Target::Named(place) => named.get(place).copied(),
        };
        let ports = self.ports.iter();
        ports.filter_map(|(port, target)| Some((*port, number(target)?))).collect()
    }

    /// `of_group` of the ports of each group, as long as they are not too many.
    pub(crate) fn groups<T>(
        &self,
        groups: BTreeMap<NamedPorts, T>,
        mut of_group: impl FnMut(Vec<(&'a ServicePort, i32)>, T),
    ) -> Cut {
        let mut room = PORTS_MAX;
        for (nth, (named, group)) in groups.into_iter().enumerate() {
            let ports = self.numbers(&named);
            match room.checked_sub(ports.len()) {
                Some(left) => room = left,
                None if nth == 0 => room = 0,
                None => return Cut::Yes,
            }
            of_group(ports, group);
        }
        Cut::No
    }
}

/// Whether endpoints were left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::examples;

    #[test]
    fn numbers_and_names_are_targets() {
        let mut pod = examples::pod(1);
        let mut second = pod.spec.containers[0].ports[0].clone();
        second.container_port = 8081;
        pod.spec.containers[0].ports.push(second);
        let check = |target: IntOrString, protocol: &str, expect: Option<i32>| {
            let port = ServicePort {
                port: 80,
                target_port: target,
                protocol: protocol.into(),
                ..ServicePort::default()
            };
            let mut service = Service::default();
            service.spec.ports = vec![port];
            let targets = TargetPorts::from_service(&service);
            let found = targets.numbers(&targets.named_ports(&pod));
            assert_eq!(found.first().map(|(_, number)| *number), expect);
        };
        check(IntOrString::from(0), "TCP", Some(80));
        check(IntOrString::from(9), "TCP", Some(9));
        check(IntOrString::from(""), "TCP", Some(80));
        check(IntOrString::from("http"), "TCP", Some(8080));
        check(IntOrString::from("http"), "", Some(8080));
        check(IntOrString::from("http"), "UDP", None);
        check(IntOrString::from("other"), "TCP", None);
    }

    #[test]
    fn groups_are_cut_when_their_ports_are_too_many() {
        let mut service = examples::service();
        service.spec.ports = vec![ServicePort::default(); PORTS_MAX / 2];
        let targets = TargetPorts::from_service(&service);
        let groups: BTreeMap<NamedPorts, usize> =
            (0..3_usize).map(|nth| (NamedPorts::from([(nth, 1)]), nth)).collect();
        let mut seen = Vec::new();
        assert_eq!(targets.groups(groups, |_, nth| seen.push(nth)), Cut::Yes);
        assert_eq!(seen, [0, 1]);
    }
}
