//! The cluster's DNS zone, by Kubernetes' DNS specification, version [`SPECIFICATION`]. Below the cluster domain:
//!
//! ```text
//! dns-version                               TXT     the version of the specification
//! <service>.<namespace>.svc                 A AAAA  cluster IPs, or ready endpoints of a headless Service,
//!                                           CNAME   or the external name;  SRV  each port
//! <host>.<service>.<namespace>.svc          A AAAA  an endpoint of a headless Service
//! _<port>._<protocol>.<service>.<ns>.svc    SRV     that port
//! <a-b-c-d>.<namespace>.pod                 A AAAA  the address in the name
//! ```
//!
//! and PTR for addresses of Services and of headless Services' endpoints. Other names are resolved upstream
//! ([`Resolution::Elsewhere`]). The cost of a change follows the change; the cost of a query follows its response.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::address_owners::{AddressOwners, ServiceKey};
use crate::model::{NamedEndpoint, NamedPort, NamedService, NamedSlice, ServiceTarget, undashed};

/// Version of the DNS specification.
pub const SPECIFICATION: &str = "1.1.0";
/// TTL of records, in seconds: a query costs one packet within the node.
const TTL_SECS: u32 = 5;
/// Maximum length of a CNAME chain.
const ALIASES_MAX: usize = 8;
/// Endpoints in one response: what fits a message of 64 KiB, with their names.
const ENDPOINTS_MAX: usize = 1000;
/// Endpoint ports examined for one query: 65,536 endpoints with one port each.
const PORTS_MAX: usize = 1 << 16;

/// The cluster domain is not a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a domain name")]
pub struct ZoneError(String);

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// A response.
    Answered(Reply),
    /// A CNAME to a name outside the zone: the response begins with these records.
    Continues {
        /// The CNAME records.
        records: Vec<Record>,
        /// The name to resolve upstream.
        target: Name,
    },
    /// The name is outside the zone.
    Elsewhere,
}

/// A response from the zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// NOERROR or NXDOMAIN.
    pub code: ResponseCode,
    /// Answer section.
    pub answers: Vec<Record>,
    /// Authority section: the SOA of negative responses, with their TTL.
    pub authorities: Vec<Record>,
    /// Additional section: addresses that the client will need next.
    pub additionals: Vec<Record>,
}

/// The records of the cluster domain, made from Services and EndpointSlices.
#[derive(Clone, Debug)]
pub struct Zone {
    domain: Name,
    /// By namespace and name.
    namespaces: HashMap<Arc<str>, HashMap<Arc<str>, ServiceRecords>>,
    /// Services by address.
    addresses: HashMap<IpAddr, AddressOwners>,
    /// The cluster's DNS Service.
    own: ServiceKey,
    /// Number of changes.
    serial: u32,
}

#[derive(Clone, Debug, Default)]
struct ServiceRecords {
    service: Option<Arc<NamedService>>,
    slices: BTreeMap<Box<str>, Arc<NamedSlice>>,
}

impl ServiceRecords {
    /// Endpoints with their ports, each once.
    fn endpoints(&self) -> impl Iterator<Item = (&NamedEndpoint, &[NamedPort])> {
        let headless = self.is_headless();
        let slices = self.slices.values().filter(move |_| headless);
        let all = slices.flat_map(|slice| slice.endpoints.iter().map(|e| (e, &*slice.ports)));
        all.inspect(|_| proto_api::count_steps!(1))
    }

    fn is_headless(&self) -> bool {
        self.service.as_ref().is_some_and(|service| service.leads == ServiceTarget::ToEndpoints)
    }

    /// Addresses with PTR records.
    fn addresses(&self) -> Vec<IpAddr> {
        match self.service.as_ref().map(|service| &service.leads) {
            Some(ServiceTarget::ToItself(addresses)) => addresses.to_vec(),
            _ => self.endpoints().map(|(endpoint, _)| endpoint.address).collect(),
        }
    }
}

impl Zone {
    /// A zone without Services. `own` is namespace and name of the cluster's DNS Service.
    pub fn new(domain: &str, own: (&str, &str)) -> Result<Self, ZoneError> {
        let wrong = || ZoneError(domain.to_owned());
        let mut name = Name::from_ascii(domain.trim_end_matches('.')).map_err(|_| wrong())?;
        name.set_fqdn(true);
        if name.num_labels() == 0 {
            return Err(wrong());
        }
        Ok(Self {
            domain: name.to_lowercase(),
            namespaces: HashMap::new(),
            addresses: HashMap::new(),
            own: (own.0.into(), own.1.into()),
            serial: 1,
        })
    }

    /// The cluster domain.
    pub fn domain(&self) -> &Name {
        &self.domain
    }

    /// Addresses of the cluster's DNS Service.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        self.entry(&self.own.0, &self.own.1).map(ServiceRecords::addresses).unwrap_or_default()
    }

    /// Number of Services with records.
    pub fn services_len(&self) -> usize {
        let named = |entries: &HashMap<_, ServiceRecords>| {
            entries.values().filter(|entry| entry.service.is_some()).count()
        };
        self.namespaces.values().map(named).sum()
    }

    /// Sets a Service, or removes it.
    pub fn service_changed(
        &mut self,
        namespace: &str,
        name: &str,
        service: Option<Arc<NamedService>>,
    ) {
        let (key, entry) = self.touch(namespace, name);
        let leads = |service: &Option<Arc<NamedService>>| service.as_ref().map(|s| s.leads.clone());
        let stays = leads(&entry.service) == leads(&service);
        let before = if stays { Vec::new() } else { entry.addresses() };
        entry.service = service;
        let after = if stays { Vec::new() } else { entry.addresses() };
        self.update_addresses(key, before, after);
    }

    /// Sets an EndpointSlice, or removes it; `old` is its previous state, `name` identifies it within its Service.
    pub fn slice_changed(
        &mut self,
        name: &str,
        old: Option<&NamedSlice>,
        new: Option<Arc<NamedSlice>>,
    ) {
        if let Some(old) = old {
            self.set(&old.namespace, &old.service, name, None);
        }
        if let Some(new) = new {
            let (namespace, service) = (new.namespace.clone(), new.service.clone());
            self.set(&namespace, &service, name, Some(new));
        }
    }

    /// Sets or removes an EndpointSlice of a Service, without looking at its others.
    fn set(&mut self, namespace: &str, service: &str, name: &str, slice: Option<Arc<NamedSlice>>) {
        let (key, entry) = self.touch(namespace, service);
        let headless = entry.is_headless();
        let addresses = |slice: &Option<Arc<NamedSlice>>| -> Vec<IpAddr> {
            let endpoints = slice.iter().filter(|_| headless).flat_map(|s| s.endpoints.iter());
            endpoints
                .inspect(|_| proto_api::count_steps!(1))
                .map(|endpoint| endpoint.address)
                .collect()
        };
        let after = addresses(&slice);
        let was = match slice {
            Some(slice) => entry.slices.insert(name.into(), slice),
            None => entry.slices.remove(name),
        };
        let before = addresses(&was);
        self.update_addresses(key, before, after);
    }

    /// A Service that is about to change, existing or not.
    fn touch(&mut self, namespace: &str, name: &str) -> (ServiceKey, &mut ServiceRecords) {
        self.serial = self.serial.wrapping_add(1).max(1);
        let namespace = existing_key(&self.namespaces, namespace);
        let entries = self.namespaces.entry(namespace.clone()).or_default();
        let name = existing_key(entries, name);
        ((namespace, name.clone()), entries.entry(name).or_default())
    }

    /// Updates the addresses of a Service, and removes a Service without records.
    fn update_addresses(&mut self, key: ServiceKey, before: Vec<IpAddr>, after: Vec<IpAddr>) {
        for address in before {
            let address_owners = self.addresses.remove(&address);
            if let Some(left) =
                address_owners.and_then(|address_owners| address_owners.without_key(&key))
            {
                self.addresses.insert(address, left);
            }
        }
        for address in after {
            let address_owners = match self.addresses.remove(&address) {
                Some(address_owners) => address_owners.with_key(key.clone()),
                None => AddressOwners::One(key.clone(), 1),
            };
            self.addresses.insert(address, address_owners);
        }
        let (namespace, name) = key;
        let Some(entries) = self.namespaces.get_mut(&namespace) else { return };
        let is_gone = |entry: &ServiceRecords| entry.service.is_none() && entry.slices.is_empty();
        if entries.get(&name).is_some_and(is_gone) {
            entries.remove(&name);
        }
        if entries.is_empty() {
            self.namespaces.remove(&namespace);
        }
    }

    /// Resolves a query. `turn` rotates the addresses, so that clients do not all use the first one.
    pub fn resolve_query(&self, query: &Query, turn: usize) -> Resolution {
        if query.query_class != DNSClass::IN
            || matches!(query.query_type, RecordType::AXFR | RecordType::IXFR)
        {
            return Resolution::Answered(Reply::refused());
        }
        let mut records = Vec::new();
        let mut name = query.name.clone();
        for _ in 0..ALIASES_MAX {
            match self.look_up(&name, query.query_type, turn) {
                NameLookup::Alias(target) => {
                    let data = RData::CNAME(CNAME(target.clone()));
                    records.push(Record::from_rdata(name, TTL_SECS, data));
                    // A query for CNAME itself does not follow it.
                    if matches!(query.query_type, RecordType::CNAME | RecordType::ANY) {
                        let reply = Reply { answers: records, ..self.existing(Vec::new()) };
                        return Resolution::Answered(Reply { authorities: Vec::new(), ..reply });
                    }
                    name = target;
                }
                NameLookup::Elsewhere if records.is_empty() => return Resolution::Elsewhere,
                NameLookup::Elsewhere => return Resolution::Continues { records, target: name },
                NameLookup::Reply(mut reply) => {
                    records.append(&mut reply.answers);
                    return Resolution::Answered(Reply { answers: records, ..reply });
                }
            }
        }
        let code = ResponseCode::ServFail;
        Resolution::Answered(Reply { code, answers: records, ..Reply::refused() })
    }

    fn look_up(&self, name: &Name, kind: RecordType, turn: usize) -> NameLookup {
        if self.domain.zone_of(name) {
            return self.look_up_inside(name, kind, turn);
        }
        if let Some(address) = reversed(name) {
            return self.look_up_address(name, kind, address);
        }
        let labels = labels(name);
        match labels.first().map(String::as_str) {
            // RFC 6761, sections 6.3 and 6.4: these two names are never resolved upstream.
            Some("localhost") => {
                let addresses =
                    [IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap_or([0; 16].into())];
                NameLookup::Reply(self.existing(addressed(name, &addresses, kind, turn)))
            }
            Some("invalid") => NameLookup::Reply(self.missing()),
            _ => NameLookup::Elsewhere,
        }
    }

    /// Resolves a name below the cluster domain, label by label from the right.
    fn look_up_inside(&self, name: &Name, kind: RecordType, turn: usize) -> NameLookup {
        let all = labels(name);
        let inside: Vec<&str> =
            all.iter().skip(usize::from(self.domain.num_labels())).map(String::as_str).collect();
        let nothing = || NameLookup::Reply(self.existing(Vec::new()));
        match inside.as_slice() {
            [] => self.apex(name, kind),
            ["dns-version"] => self.version(name, kind),
            ["dns", "ns"] => {
                let addresses = self.own_addresses();
                NameLookup::Reply(self.existing(addressed(name, &addresses, kind, turn)))
            }
            ["dns"] | ["svc"] | ["pod"] | ["pod", _] => nothing(),
            ["svc", namespace] if self.namespaces.contains_key(*namespace) => nothing(),
            ["svc", namespace, service, rest @ ..] => {
                let entry = self.entry(namespace, service).filter(|e| e.service.is_some());
                match entry {
                    Some(entry) => self.below_service(name, entry, rest, kind, turn),
                    None => NameLookup::Reply(self.missing()),
                }
            }
            ["pod", _, address] => match undashed(address) {
                Some(address) => {
                    NameLookup::Reply(self.existing(addressed(name, &[address], kind, turn)))
                }
                None => NameLookup::Reply(self.missing()),
            },
            _ => NameLookup::Reply(self.missing()),
        }
    }

    fn entry(&self, namespace: &str, name: &str) -> Option<&ServiceRecords> {
        self.namespaces.get(namespace)?.get(name)
    }

    /// Resolves the name of a Service or below it: `rest` are the further labels from the right.
    fn below_service(
        &self,
        name: &Name,
        entry: &ServiceRecords,
        rest: &[&str],
        kind: RecordType,
        turn: usize,
    ) -> NameLookup {
        let Some(service) = &entry.service else { return NameLookup::Reply(self.missing()) };
        if let ServiceTarget::ToName(target) = &service.leads {
            return match Name::from_ascii(format!("{target}.")) {
                Ok(target) if rest.is_empty() => NameLookup::Alias(target),
                _ => NameLookup::Reply(self.missing()),
            };
        }
        match rest {
            [] if kind == RecordType::SRV => self.ports(name, name, entry, None, turn),
            [] => self.service_addresses(name, entry, kind, turn),
            [host] if host.starts_with('_') => {
                let protocol = host.trim_start_matches('_');
                match ports_of(entry).any(|(_, port)| port.protocol == protocol) {
                    true => NameLookup::Reply(self.existing(Vec::new())),
                    false => NameLookup::Reply(self.missing()),
                }
            }
            [host] => {
                let mine = entry.endpoints().filter(|(e, _)| *e.hostname == **host);
                let addresses: Vec<IpAddr> = mine.map(|(e, _)| e.address).collect();
                match addresses.is_empty() {
                    true => NameLookup::Reply(self.missing()),
                    false => {
                        NameLookup::Reply(self.existing(addressed(name, &addresses, kind, turn)))
                    }
                }
            }
            [protocol, port] => {
                let (Some(protocol), Some(port)) =
                    (protocol.strip_prefix('_'), port.strip_prefix('_'))
                else {
                    return NameLookup::Reply(self.missing());
                };
                let service = name.base_name().base_name();
                if kind == RecordType::SRV {
                    return self.ports(name, &service, entry, Some((protocol, port)), turn);
                }
                match ports_of(entry).any(|(_, p)| p.protocol == protocol && *p.name == *port) {
                    true => NameLookup::Reply(self.existing(Vec::new())),
                    false => NameLookup::Reply(self.missing()),
                }
            }
            _ => NameLookup::Reply(self.missing()),
        }
    }

    fn service_addresses(
        &self,
        name: &Name,
        entry: &ServiceRecords,
        kind: RecordType,
        turn: usize,
    ) -> NameLookup {
        let addresses = entry.addresses();
        // By the specification a headless Service without endpoints has no name.
        if addresses.is_empty() {
            return NameLookup::Reply(self.missing());
        }
        NameLookup::Reply(self.existing(addressed(name, &addresses, kind, turn)))
    }

    /// SRV records of the matching ports, with the addresses of their targets.
    fn ports(
        &self,
        name: &Name,
        service: &Name,
        entry: &ServiceRecords,
        only: Option<(&str, &str)>,
        turn: usize,
    ) -> NameLookup {
        let is_asked = |port: &NamedPort| {
            only.is_none_or(|(protocol, name)| port.protocol == protocol && *port.name == *name)
        };
        let mut targets: Vec<(u16, Name, Vec<IpAddr>)> = Vec::new();
        let mut known: HashMap<(u16, Name), usize> = HashMap::new();
        for (endpoint, port) in ports_of(entry).filter(|(_, port)| is_asked(port)) {
            let (target, addresses) = match endpoint {
                None => (Some(service.clone()), entry.addresses()),
                Some(e) => (service.prepend_label(e.hostname.as_bytes()).ok(), vec![e.address]),
            };
            let Some(target) = target else { continue };
            // An endpoint with an address of each family has one name.
            let same = (port.port, target.clone());
            if let Some((_, _, all)) = known.get(&same).and_then(|at| targets.get_mut(*at)) {
                all.extend(addresses);
            } else if targets.len() < ENDPOINTS_MAX {
                known.insert(same, targets.len());
                targets.push((port.port, target, addresses));
            }
        }
        if targets.is_empty() {
            return NameLookup::Reply(self.missing());
        }
        rotate(&mut targets, turn);
        let weight = u16::try_from(100 / targets.len().clamp(1, 100)).unwrap_or(1);
        let mut reply = self.existing(Vec::new());
        reply.authorities.clear();
        let mut seen = HashSet::new();
        for (port, target, addresses) in targets {
            let data = RData::SRV(SRV::new(0, weight, port, target.clone()));
            reply.answers.push(Record::from_rdata(name.clone(), TTL_SECS, data));
            for address in addresses {
                proto_api::count_steps!(1);
                if seen.insert((target.clone(), address)) {
                    let record = Record::from_rdata(target.clone(), TTL_SECS, address.into());
                    reply.additionals.push(record);
                }
            }
        }
        NameLookup::Reply(reply)
    }

    fn look_up_address(&self, name: &Name, kind: RecordType, address: IpAddr) -> NameLookup {
        let Some(keys) = self.addresses.get(&address) else { return NameLookup::Elsewhere };
        let mut targets: BTreeSet<Name> = BTreeSet::new();
        let asked = matches!(kind, RecordType::PTR | RecordType::ANY);
        for (namespace, service) in keys.keys().filter(|_| asked) {
            let Some(entry) = self.entry(namespace, service) else { continue };
            let itself = || Name::from_ascii(format!("{service}.{namespace}.svc.{}", self.domain));
            let Ok(itself) = itself() else { continue };
            let mine = entry.endpoints().filter(|(e, _)| e.address == address);
            let hosts = mine.filter_map(|(e, _)| itself.prepend_label(e.hostname.as_bytes()).ok());
            let room = ENDPOINTS_MAX.saturating_sub(targets.len());
            let mut hosts = hosts.take(room).peekable();
            match hosts.peek() {
                Some(_) => targets.extend(hosts),
                None => drop(targets.insert(itself)),
            }
            if targets.len() >= ENDPOINTS_MAX {
                break;
            }
        }
        let record = |target| Record::from_rdata(name.clone(), TTL_SECS, RData::PTR(PTR(target)));
        NameLookup::Reply(self.existing(targets.into_iter().map(record).collect()))
    }

    fn apex(&self, name: &Name, kind: RecordType) -> NameLookup {
        let data = match kind {
            RecordType::SOA => Some(self.authority().data),
            RecordType::NS => Some(RData::NS(NS(self.server()))),
            _ => None,
        };
        let records = data.map(|data| Record::from_rdata(name.clone(), TTL_SECS, data));
        NameLookup::Reply(self.existing(records.into_iter().collect()))
    }

    fn version(&self, name: &Name, kind: RecordType) -> NameLookup {
        let text = RData::TXT(TXT::new(vec![SPECIFICATION.to_owned()]));
        let asked = matches!(kind, RecordType::TXT | RecordType::ANY);
        let record = asked.then(|| Record::from_rdata(name.clone(), TTL_SECS, text));
        NameLookup::Reply(self.existing(record.into_iter().collect()))
    }

    /// A response for a name that exists, with these records of the queried type.
    fn existing(&self, answers: Vec<Record>) -> Reply {
        let authorities = if answers.is_empty() { vec![self.authority()] } else { Vec::new() };
        Reply { code: ResponseCode::NoError, answers, authorities, additionals: Vec::new() }
    }

    /// A response for a name that does not exist.
    fn missing(&self) -> Reply {
        Reply { code: ResponseCode::NXDomain, ..self.existing(Vec::new()) }
    }

    fn server(&self) -> Name {
        let below = self.domain.prepend_label("dns").and_then(|dns| dns.prepend_label("ns"));
        below.unwrap_or_else(|_| self.domain.clone())
    }

    /// SOA; its last field is the TTL of negative responses.
    fn authority(&self) -> Record {
        let contact =
            self.domain.prepend_label("hostmaster").unwrap_or_else(|_| self.domain.clone());
        let soa = SOA::new(self.server(), contact, self.serial, 7200, 1800, 86_400, TTL_SECS);
        Record::from_rdata(self.domain.clone(), TTL_SECS, RData::SOA(soa))
    }
}

impl Reply {
    /// A response with code REFUSED.
    pub fn refused() -> Self {
        let code = ResponseCode::Refused;
        Self { code, answers: Vec::new(), authorities: Vec::new(), additionals: Vec::new() }
    }
}

/// Result of looking up a name.
enum NameLookup {
    Reply(Reply),
    Alias(Name),
    Elsewhere,
}

/// Ports of the Service itself, or of each of its endpoints.
fn ports_of(entry: &ServiceRecords) -> impl Iterator<Item = (Option<&NamedEndpoint>, &NamedPort)> {
    let service = entry.service.as_ref().filter(|s| matches!(s.leads, ServiceTarget::ToItself(_)));
    let own = service.into_iter().flat_map(|s| s.ports.iter().map(|port| (None, port)));
    let theirs = entry.endpoints().flat_map(|(e, ports)| ports.iter().map(move |p| (Some(e), p)));
    own.chain(theirs).take(PORTS_MAX)
}

/// The text as a key that exists already, to keep it once.
fn existing_key<T>(map: &HashMap<Arc<str>, T>, text: &str) -> Arc<str> {
    map.get_key_value(text).map_or_else(|| text.into(), |(kept, _)| kept.clone())
}

/// Records of the addresses of the queried type, each once.
fn addressed(name: &Name, addresses: &[IpAddr], kind: RecordType, turn: usize) -> Vec<Record> {
    let asked = |address: &&IpAddr| match kind {
        RecordType::A => address.is_ipv4(),
        RecordType::AAAA => address.is_ipv6(),
        RecordType::ANY => true,
        _ => false,
    };
    let mut chosen: Vec<IpAddr> = addresses.iter().filter(asked).copied().collect();
    chosen.sort_unstable();
    chosen.dedup();
    rotate(&mut chosen, turn);
    chosen.truncate(ENDPOINTS_MAX);
    let record = |address: IpAddr| Record::from_rdata(name.clone(), TTL_SECS, address.into());
    chosen.into_iter().map(record).collect()
}

fn rotate<T>(list: &mut [T], turn: usize) {
    if let Some(by) = turn.checked_rem(list.len()) {
        list.rotate_left(by);
    }
}

/// Labels from the right, in lower case. Labels that are not UTF-8 match nothing.
fn labels(name: &Name) -> Vec<String> {
    let text = |label: &[u8]| String::from_utf8_lossy(label).to_ascii_lowercase();
    name.iter().rev().map(text).collect()
}

/// The address of a PTR query: `7.0.244.10.in-addr.arpa`, or 32 digits below `ip6.arpa`.
fn reversed(name: &Name) -> Option<IpAddr> {
    let labels = labels(name);
    let words: Vec<&str> = labels.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["arpa", "in-addr", parts @ ..] if parts.len() == 4 => {
            let v4: std::net::Ipv4Addr = parts.join(".").parse().ok()?;
            Some(v4.into())
        }
        ["arpa", "ip6", digits @ ..] if digits.len() == 32 => {
            let fits = digits.iter().all(|digit| digit.len() == 1);
            let bits = u128::from_str_radix(&digits.concat(), 16).ok().filter(|_| fits)?;
            Some(std::net::Ipv6Addr::from(bits).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
