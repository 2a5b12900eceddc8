//! The load balancers' addresses that this node announces on its network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::ServiceId;

/// The addresses by Service, as of the last pass.
#[derive(Clone, Debug)]
pub struct AnnouncedAddresses {
    by_service: BTreeMap<ServiceId, Box<[IpAddr]>>,
    changed: bool,
}

impl Default for AnnouncedAddresses {
    /// None, which is news: an earlier process may have announced some.
    fn default() -> Self {
        Self { by_service: BTreeMap::new(), changed: true }
    }
}

impl AnnouncedAddresses {
    /// Sets the addresses of a Service.
    pub fn set(&mut self, id: &ServiceId, addresses: &[IpAddr]) {
        let before = match addresses {
            [] => self.by_service.remove(id),
            some => self.by_service.insert(id.clone(), some.into()),
        };
        self.changed |= before.as_deref().unwrap_or_default() != addresses;
    }

    /// All addresses, if they may have changed since the last call.
    pub fn take_changed(&mut self) -> Option<BTreeSet<IpAddr>> {
        let all = || self.by_service.values().flatten().copied().collect();
        std::mem::take(&mut self.changed).then(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_news() {
        let (a, b) = (ServiceId::new("ns", "a"), ServiceId::new("ns", "b"));
        let ip = |n: u8| IpAddr::from([192, 0, 2, n]);
        let mut announced = AnnouncedAddresses::default();
        assert_eq!(announced.take_changed(), Some(BTreeSet::new()));
        announced.set(&a, &[]);
        assert_eq!(announced.take_changed(), None);
        announced.set(&a, &[ip(1), ip(2)]);
        announced.set(&b, &[ip(2)]);
        assert_eq!(announced.take_changed(), Some([ip(1), ip(2)].into()));
        announced.set(&a, &[ip(1), ip(2)]);
        assert_eq!(announced.take_changed(), None);
        announced.set(&a, &[]);
        assert_eq!(announced.take_changed(), Some([ip(2)].into()));
    }
}
