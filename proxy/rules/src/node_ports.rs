//! Services with node ports and their changes, for the loopback forwarder.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::model::{LocalService, LocalSlice, ServiceId};

/// A Service with node ports, and its endpoints.
#[derive(Clone, Debug)]
pub struct NodePortService {
    pub service: Arc<LocalService>,
    /// Its EndpointSlices by name.
    pub slices: Vec<(Box<str>, Arc<LocalSlice>)>,
}

impl NodePortService {
    /// `None` if the Service has no node ports.
    pub fn from_service<'a>(
        service: &Arc<LocalService>,
        slices: impl Iterator<Item = (&'a str, &'a Arc<LocalSlice>)>,
    ) -> Option<Self> {
        let slices = slices.map(|(name, slice)| (name.into(), slice.clone()));
        has_some(service).then(|| Self { service: service.clone(), slices: slices.collect() })
    }
}

fn has_some(service: &LocalService) -> bool {
    service.ports.iter().any(|port| port.node_port.is_some())
}

/// Services with node ports. Empty unless tracking is enabled; other Services cost one look at their ports.
#[derive(Clone, Debug, Default)]
pub struct NodePorts {
    tracking: bool,
    known: HashSet<ServiceId>,
    changed: BTreeSet<ServiceId>,
}

impl NodePorts {
    /// Records changes of node ports from now on, for [`Self::take_changed`].
    pub fn enable_tracking(&mut self) {
        self.tracking = true;
    }

    /// Records a compiled Service.
    pub fn record_compiled(&mut self, id: &ServiceId, service: Option<&LocalService>) {
        if !self.tracking {
            return;
        }
        let changed = match service.is_some_and(has_some) {
            true => {
                self.known.insert(id.clone());
                true
            }
            false => self.known.remove(id),
        };
        if changed {
            self.changed.insert(id.clone());
        }
    }

    /// Services that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<ServiceId> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LocalPort, Protocol};

    #[test]
    fn changed_services_are_reported_while_they_have_node_ports_and_once_after() {
        let port =
            |node_port| LocalPort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port };
        let with =
            |node_port| LocalService { ports: [port(node_port)].into(), ..LocalService::default() };
        let id = ServiceId::new("ns", "web");
        let mut ports = NodePorts::default();
        let mut count_changed = |service: Option<LocalService>| {
            ports.record_compiled(&id, service.as_ref());
            ports.take_changed().len()
        };
        assert_eq!(count_changed(Some(with(Some(30_000)))), 0, "nobody asks");
        ports.enable_tracking();
        let mut count_changed = |service: Option<LocalService>| {
            ports.record_compiled(&id, service.as_ref());
            ports.take_changed().len()
        };
        assert_eq!(count_changed(Some(with(None))), 0);
        assert_eq!(count_changed(Some(with(Some(30_000)))), 1);
        assert_eq!(count_changed(Some(with(Some(30_000)))), 1, "its endpoints may be others");
        assert_eq!(count_changed(Some(with(None))), 1);
        assert_eq!(count_changed(None), 0);
    }
}
