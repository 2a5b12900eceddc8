//! Which addresses this node announces. Pure: from the desired and the present addresses to changes, and how long the API server may be out of reach.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use proto_api::core::v1::Node;

/// Time without the API server after which this node announces nothing: the default of the controller manager's `--node-monitor-grace-period`, after which
/// it may have given the addresses to another node.
pub const GRACE: Duration = Duration::from_secs(40);

/// Notices to neighbours of each address.
const NOTICES: u8 = 3;

/// Addresses of this node's interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceAddresses {
    /// The announced ones, each with the index of its interface.
    pub announced: BTreeSet<(u32, IpAddr)>,
    /// All others, with the indices of their interfaces.
    pub others: BTreeMap<IpAddr, u32>,
}

/// Changes of the announced addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressChanges {
    /// Addresses to remove, with the indices of their interfaces.
    pub withdraw: Vec<(u32, IpAddr)>,
    /// Addresses to add, with the index of the interface.
    pub announce: Vec<(u32, IpAddr)>,
    /// Addresses that are not announced, because the node has them itself.
    pub conflicts: Vec<IpAddr>,
}

impl InterfaceAddresses {
    /// The interface with the first of the node's addresses that one has.
    pub fn interface_of(&self, node: &[IpAddr]) -> Option<u32> {
        node.iter().find_map(|address| self.others.get(address)).copied()
    }

    /// The changes that make the announced addresses the `wanted` ones, on an interface. Without one nothing is added.
    pub fn plan(&self, wanted: &BTreeSet<IpAddr>, interface: Option<u32>) -> AddressChanges {
        let stays = |(index, address): &&(u32, IpAddr)| {
            wanted.contains(address) && interface.is_none_or(|interface| interface == *index)
        };
        let withdraw = self.announced.iter().filter(|present| !stays(present)).copied().collect();
        let Some(interface) = interface else {
            return AddressChanges { withdraw, ..AddressChanges::default() };
        };
        let (conflicts, free): (Vec<IpAddr>, Vec<IpAddr>) =
            wanted.iter().partition(|address| self.others.contains_key(*address));
        let missing = free.into_iter().map(|address| (interface, address));
        let announce = missing.filter(|new| !self.announced.contains(new)).collect();
        AddressChanges { withdraw, announce, conflicts }
    }
}

/// The addresses of a Node object by which other nodes reach it, in its order.
pub fn internal_addresses(node: &Node) -> Vec<IpAddr> {
    let internal = node.status.addresses.iter().filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok()).collect()
}

/// Whether this node is in contact with the API server, from which it learns that an address is another node's now: an open watch of Services says so, as long
/// as the server answers requests.
#[derive(Clone, Copy, Debug)]
pub struct ServerContact {
    latest: Instant,
    /// Answers since the contact was lost; `None` if it was not.
    since_loss: Option<u32>,
}

impl ServerContact {
    /// In contact.
    pub fn new(now: Instant) -> Self {
        Self { latest: now, since_loss: None }
    }

    /// Records an answer to a request while the Services were followed. After a loss the second one counts: by then the watch has caught up.
    pub fn record_answer(&mut self, now: Instant) {
        if self.is_late(now) {
            self.since_loss = Some(0);
        }
        self.latest = now;
        self.since_loss = match self.since_loss {
            Some(0) => Some(1),
            Some(_) | None => None,
        };
    }

    /// Whether the node may announce addresses.
    pub fn may_announce(&self, now: Instant) -> bool {
        self.since_loss.is_none() && !self.is_late(now)
    }

    /// When it may announce none any more, unless a request is answered before.
    pub fn deadline(&self) -> Instant {
        self.latest.checked_add(GRACE).unwrap_or(self.latest)
    }

    fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.latest) >= GRACE
    }
}

/// The addresses that this node has to announce: none without contact for long. `None` if all stay as they are: an earlier process may have left some, and it
/// is too early to say that they are no longer this node's.
pub fn choose_addresses(
    desired: Option<&BTreeSet<IpAddr>>,
    contact: &ServerContact,
    now: Instant,
) -> Option<BTreeSet<IpAddr>> {
    match desired {
        Some(desired) if contact.may_announce(now) => Some(desired.clone()),
        None if !contact.is_late(now) => None,
        Some(_) | None => Some(BTreeSet::new()),
    }
}

/// The notices to neighbours that are to be sent, by address: frames may be lost, so that each address has several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices(BTreeMap<IpAddr, u8>);

impl Notices {
    /// Adds those of new addresses.
    pub fn add(&mut self, new: impl IntoIterator<Item = IpAddr>) {
        self.0.extend(new.into_iter().map(|address| (address, NOTICES)));
    }

    /// Whether all are sent.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one notice of each address; those of addresses that are not present any more are dropped.
    pub fn take(&mut self, present: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        self.0.retain(|address, _| present.contains(address));
        let due = self.0.keys().copied().collect();
        self.0.values_mut().for_each(|left| *left = left.saturating_sub(1));
        self.0.retain(|_, left| *left > 0);
        due
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::NodeAddress;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn present(announced: &[(u32, &str)]) -> InterfaceAddresses {
        InterfaceAddresses {
            announced: announced.iter().map(|(index, address)| (*index, ip(address))).collect(),
            others: BTreeMap::from([
                (ip("127.0.0.1"), 1),
                (ip("192.0.2.10"), 2),
                (ip("10.0.0.1"), 3),
            ]),
        }
    }

    #[test]
    fn announced_addresses_become_the_wanted_ones() {
        let shown = |list: &[(u32, IpAddr)]| -> Vec<String> {
            list.iter().map(|(index, address)| format!("{address}%{index}")).collect()
        };
        let check = |found: &[(u32, &str)], wanted: &[&str], interface, expected: [&[&str]; 3]| {
            let wanted = wanted.iter().map(|text| ip(text)).collect();
            let changes = present(found).plan(&wanted, interface);
            let conflicts: Vec<String> = changes.conflicts.iter().map(IpAddr::to_string).collect();
            assert_eq!(shown(&changes.withdraw), expected[0], "{found:?} {wanted:?}");
            assert_eq!(shown(&changes.announce), expected[1], "{found:?} {wanted:?}");
            assert_eq!(conflicts, expected[2], "{found:?} {wanted:?}");
        };
        let on = Some(2);
        check(&[], &[], on, [&[], &[], &[]]);
        check(&[], &["192.0.2.50", "fd00::5"], on, [&[], &["192.0.2.50%2", "fd00::5%2"], &[]]);
        check(&[(2, "192.0.2.50")], &["192.0.2.50"], on, [&[], &[], &[]]);
        check(&[(2, "192.0.2.50")], &[], on, [&["192.0.2.50%2"], &[], &[]]);
        check(
            &[(2, "192.0.2.50")],
            &["192.0.2.51"],
            on,
            [&["192.0.2.50%2"], &["192.0.2.51%2"], &[]],
        );
        // The node's address moved to another interface.
        check(
            &[(4, "192.0.2.50")],
            &["192.0.2.50"],
            on,
            [&["192.0.2.50%4"], &["192.0.2.50%2"], &[]],
        );
        // Addresses of the node's own stay as they are.
        let expected: [&[&str]; 3] = [&[], &["192.0.2.50%2"], &["10.0.0.1", "192.0.2.10"]];
        check(&[], &["192.0.2.10", "10.0.0.1", "192.0.2.50"], on, expected);
        // The node's address is not known, or no interface has it.
        check(&[(2, "192.0.2.50")], &["192.0.2.50", "fd00::5"], None, [&[], &[], &[]]);
        check(&[(2, "192.0.2.50")], &["fd00::5"], None, [&["192.0.2.50%2"], &[], &[]]);
    }

    #[test]
    fn the_interface_is_that_of_the_nodes_address() {
        let mut node = Node::default();
        for (type_, address) in
            [("Hostname", "a"), ("ExternalIP", "10.0.0.1"), ("InternalIP", "192.0.2.10")]
        {
            let address = NodeAddress { type_: type_.into(), address: address.into() };
            node.status.addresses.push(address);
        }
        let addresses = internal_addresses(&node);
        assert_eq!(addresses, [ip("192.0.2.10")]);
        assert_eq!(present(&[]).interface_of(&addresses), Some(2));
        assert_eq!(present(&[]).interface_of(&[ip("fd00::1"), ip("10.0.0.1")]), Some(3));
        assert_eq!(present(&[(2, "192.0.2.50")]).interface_of(&[ip("192.0.2.50")]), None);
    }

    #[test]
    fn without_the_server_a_node_announces_for_a_limited_time() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut contact = ServerContact::new(start);
        assert!(contact.may_announce(at(39)) && !contact.may_announce(at(40)));
        assert_eq!(contact.deadline(), at(40));
        contact.record_answer(at(30));
        assert!(contact.may_announce(at(69)) && !contact.may_announce(at(70)));
        // The first answer after a loss may be older than what the watch brings.
        contact.record_answer(at(100));
        assert!(!contact.may_announce(at(101)));
        contact.record_answer(at(110));
        assert!(contact.may_announce(at(111)));
        contact.record_answer(at(150));
        assert!(!contact.may_announce(at(150)), "lost again");
        contact.record_answer(at(195));
        assert!(!contact.may_announce(at(195)), "and again");
        contact.record_answer(at(200));
        assert!(contact.may_announce(at(200)));
    }

    #[test]
    fn what_an_earlier_process_left_is_withdrawn_when_nothing_is_known_for_long() {
        let start = Instant::now();
        let contact = ServerContact::new(start);
        let (none, some) = (BTreeSet::new(), BTreeSet::from([ip("192.0.2.50")]));
        let at = |secs| start + Duration::from_secs(secs);
        for (desired, secs, expected) in [
            (None, 0, None),
            (None, 39, None),
            (None, 40, Some(&none)),
            (Some(&some), 39, Some(&some)),
            (Some(&some), 40, Some(&none)),
            (Some(&none), 0, Some(&none)),
        ] {
            let found = choose_addresses(desired, &contact, at(secs));
            assert_eq!(found.as_ref(), expected, "{desired:?} {secs}");
        }
    }

    #[test]
    fn neighbours_receive_notices_of_addresses_that_are_new_and_present() {
        let all = |texts: &[&str]| -> BTreeSet<IpAddr> { texts.iter().map(|t| ip(t)).collect() };
        let mut notices = Notices::default();
        assert!(notices.is_empty() && notices.take(&all(&["192.0.2.1"])).is_empty());
        notices.add(all(&["192.0.2.1", "192.0.2.2"]));
        let present = all(&["192.0.2.1", "192.0.2.9"]);
        assert_eq!(notices.take(&present), [ip("192.0.2.1")], "the other one is not present");
        notices.add([ip("192.0.2.9")]);
        assert_eq!(notices.take(&present), [ip("192.0.2.1"), ip("192.0.2.9")]);
        assert_eq!(notices.take(&present), [ip("192.0.2.1"), ip("192.0.2.9")]);
        assert_eq!(notices.take(&present), [ip("192.0.2.9")], "three for each");
        assert!(notices.is_empty());
    }
}
