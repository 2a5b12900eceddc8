//! Who has which address, kept by changes of Services and nodes: a plan costs what its Service has, however many others there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proto_api::ObjectKey;
use proto_api::core::v1::{Node, Service};
use proto_api::names::Names;

use super::{Role, announcing_node, asked_address, can_announce, family_of, of_status, role};
use crate::addresses::{Family, families};

/// How many addresses of a node count: a node writes them itself, and those that count are given to no Service.
const ADDRESSES_MAX: usize = 8;

fn addresses_of_node(node: &Node) -> impl Iterator<Item = IpAddr> {
    let addresses = node.status.addresses.iter();
    let own = addresses.filter(|entry| matches!(&*entry.type_, "InternalIP" | "ExternalIP"));
    own.filter_map(|entry| entry.address.parse().ok())
}

/// Whether a node lists more addresses than those that count.
pub fn has_surplus_addresses(node: &Node) -> bool {
    addresses_of_node(node).nth(ADDRESSES_MAX).is_some()
}

/// When a Service was created, and its uid: the smaller is the older.
pub(super) type Age = (Option<i64>, String);

pub(super) fn age(service: &Service) -> Age {
    let metadata = &service.metadata;
    (metadata.creation_timestamp.unix(), metadata.uid.clone())
}

/// The addresses of nodes, and those of Services by their statuses and by their last plans: caches may not show these yet.
#[derive(Debug, Default)]
pub struct AddressUsers {
    users: BTreeMap<IpAddr, Users>,
    services: BTreeMap<ObjectKey, ServiceAddresses>,
    nodes: BTreeMap<String, BTreeSet<IpAddr>>,
}

/// The users of one address.
#[derive(Debug, Default)]
struct Users {
    nodes: BTreeSet<String>,
    /// The Services whose statuses have it, the oldest first.
    shown: BTreeSet<(Age, ObjectKey)>,
    planned: BTreeSet<ObjectKey>,
}

/// A Service with addresses, or one that is to have some.
#[derive(Debug, Default)]
struct ServiceAddresses {
    age: Age,
    shown: BTreeSet<IpAddr>,
    planned: BTreeSet<IpAddr>,
    /// What it lacks.
    lack: Lack,
}

#[derive(Debug, Default)]
struct Lack {
    families: Vec<Family>,
    address: Option<IpAddr>,
}

impl ServiceAddresses {
    /// `None` if the Service neither has addresses nor is to have some.
    fn from_service(names: &Names, service: &Service) -> Option<Self> {
        let shown: BTreeSet<IpAddr> = of_status(service).collect();
        let allocates = role(names, service) == Role::Allocate;
        let is_noted = announcing_node(names, service).is_some();
        if shown.is_empty() && !allocates && !is_noted {
            return None;
        }
        let mut lack = Lack::default();
        if allocates {
            lack.families = families(service);
            lack.families.retain(|family| !shown.iter().any(|has| family_of(*has) == *family));
            lack.address = asked_address(service).filter(|asked| !shown.contains(asked));
        }
        Some(Self { age: age(service), shown, planned: BTreeSet::new(), lack })
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.shown.iter().chain(&self.planned).copied()
    }
}

impl AddressUsers {
    /// Records a change of a Service. The Services to plan: itself, those that have one of its new addresses too, and those that lack one that it has released.
    pub fn service_changed(
        &mut self,
        names: &Names,
        key: &ObjectKey,
        new: Option<&Service>,
    ) -> Vec<ObjectKey> {
        let before = self.forget(key);
        let mut now = new.and_then(|service| ServiceAddresses::from_service(names, service));
        let had_some = before.is_some();
        let before = before.unwrap_or_default();
        let mut affected = BTreeSet::new();
        if let Some(now) = &mut now {
            // A Service that was deleted and created again has none planned.
            if now.age == before.age {
                now.planned.clone_from(&before.planned);
            }
            for address in now.shown.difference(&before.shown) {
                let shown = self.users.get(address).map(|users| &users.shown);
                affected.extend(shown.into_iter().flatten().map(|(_, other)| other.clone()));
            }
        }
        let is_concerned = had_some || now.is_some();
        if let Some(now) = now {
            self.record(key, now);
        }
        affected.extend(self.lacking_one_of(before.addresses()));
        affected.remove(key);
        let own = is_concerned.then(|| key.clone());
        own.into_iter().chain(affected).collect()
    }

    /// Records a change of a node. The Services to plan: those that lack an address that it has released, and all with addresses if it can announce them no
    /// more, or can again.
    pub fn node_changed(
        &mut self,
        names: &Names,
        name: &str,
        new: Option<&Node>,
        old: Option<&Node>,
    ) -> Vec<ObjectKey> {
        let now: BTreeSet<IpAddr> =
            new.into_iter().flat_map(|node| addresses_of_node(node).take(ADDRESSES_MAX)).collect();
        let before = self.nodes.remove(name).unwrap_or_default();
        if now != before {
            for address in &before {
                self.release(*address, |users| {
                    users.nodes.remove(name);
                });
            }
            for address in &now {
                self.users.entry(*address).or_default().nodes.insert(name.to_owned());
            }
        }
        let mut affected: BTreeSet<ObjectKey> =
            self.lacking_one_of(before.difference(&now).copied()).into_iter().collect();
        if !now.is_empty() {
            self.nodes.insert(name.to_owned(), now);
        }
        let able = |node: Option<&Node>| node.is_some_and(|node| can_announce(names, node));
        if able(new) != able(old) || new.is_none() {
            let all = self.services.iter();
            let having = all.filter(|(_, service)| service.addresses().next().is_some());
            affected.extend(having.map(|(key, _)| key.clone()));
        }
        affected.into_iter().collect()
    }

    /// Whether this state of a Service, or another one, was recorded. Another Service of its name was not.
    pub(super) fn has(&self, key: &ObjectKey, service: &Service) -> bool {
        self.services.get(key).is_some_and(|recorded| recorded.age == age(service))
    }

    /// Sets the addresses of the last plan of a Service.
    pub(super) fn set_planned(&mut self, key: &ObjectKey, planned: BTreeSet<IpAddr>) {
        let Some(mut service) = self.forget(key) else { return };
        service.planned = planned;
        self.record(key, service);
    }

    /// Who has an address besides a Service.
    pub(super) fn other_user(&self, address: IpAddr, key: &ObjectKey) -> Option<ObjectKey> {
        let users = self.users.get(&address)?;
        let node = users.nodes.first().map(|node| ObjectKey::new("", node));
        node.or_else(|| users.services_without(key).next().cloned())
    }

    /// Whether a node or another Service has an address.
    pub(super) fn is_taken(&self, address: IpAddr, key: &ObjectKey) -> bool {
        let is_taken =
            |users: &Users| !users.nodes.is_empty() || users.services_without(key).next().is_some();
        self.users.get(&address).is_some_and(is_taken)
    }

    /// Whether an older Service has the address of a Service too.
    pub(super) fn is_lost(&self, address: IpAddr, service: &Service) -> bool {
        let oldest = self.users.get(&address).and_then(|users| users.shown.first());
        oldest.is_some_and(|(oldest, _)| *oldest < age(service))
    }

    fn record(&mut self, key: &ObjectKey, service: ServiceAddresses) {
        for address in &service.shown {
            let entry = (service.age.clone(), key.clone());
            self.users.entry(*address).or_default().shown.insert(entry);
        }
        for address in &service.planned {
            self.users.entry(*address).or_default().planned.insert(key.clone());
        }
        self.services.insert(key.clone(), service);
    }

    fn forget(&mut self, key: &ObjectKey) -> Option<ServiceAddresses> {
        let service = self.services.remove(key)?;
        let entry = (service.age.clone(), key.clone());
        for address in service.addresses() {
            self.release(address, |users| {
                users.shown.remove(&entry);
                users.planned.remove(key);
            });
        }
        Some(service)
    }

    fn release(&mut self, address: IpAddr, remove: impl FnOnce(&mut Users)) {
        let Some(users) = self.users.get_mut(&address) else { return };
        remove(users);
        if users.is_empty() {
            self.users.remove(&address);
        }
    }

    /// The Services that lack one of these addresses, as far as they have no user any more.
    fn lacking_one_of(&self, released: impl IntoIterator<Item = IpAddr>) -> Vec<ObjectKey> {
        let released = released.into_iter().filter(|address| !self.users.contains_key(address));
        let free: BTreeSet<IpAddr> = released.collect();
        if free.is_empty() {
            return Vec::new();
        }
        let lacks = |lack: &Lack| {
            lack.address.is_some_and(|asked| free.contains(&asked))
                || free.iter().any(|address| lack.families.contains(&family_of(*address)))
        };
        let lacking = self.services.iter().filter(|(_, service)| lacks(&service.lack));
        lacking.map(|(key, _)| key.clone()).collect()
    }
}

impl Users {
    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.shown.is_empty() && self.planned.is_empty()
    }

    fn services_without<'a>(&'a self, key: &'a ObjectKey) -> impl Iterator<Item = &'a ObjectKey> {
        let shown = self.shown.iter().map(|(_, service)| service);
        shown.chain(&self.planned).filter(move |service| *service != key)
    }
}
