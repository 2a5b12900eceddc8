//! Which connections are admitted. Pure: connections are numbers, time is the order of events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// How many connections a server keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at a time.
    pub total: usize,
    /// Those of them on which no request has been authenticated; the rest is reserved for authenticated ones.
    pub unauthenticated: usize,
    /// Unauthenticated connections from one IPv4 address or one IPv6 /64.
    pub unauthenticated_per_peer: usize,
    /// Authenticated connections from there.
    pub authenticated_per_peer: usize,
    /// Authenticated connections of one user.
    pub authenticated_per_user: usize,
}

/// Where a connection comes from. One host has a whole IPv6 /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address.
    V6([u16; 4]),
}

impl Peer {
    /// The peer with that address.
    #[must_use]
    pub fn from_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// The decision about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionDecision {
    /// It is served under this number.
    Admitted(u64),
    /// It is served instead of another one, which is to be closed.
    Replacing {
        /// Number of the new one.
        id: u64,
        /// Number of the one to close.
        closed: u64,
    },
    /// The limit is reached and no connection can be replaced.
    Refused,
}

/// The order in which connections are replaced: sessions last, otherwise the oldest first. Activity does not count, since a client decides how busy its
/// connection looks.
type Rank = (Class, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Ordinary,
    /// An authorized request is in flight, which may be a watch or a followed log.
    Session,
}

#[derive(Clone, Debug)]
struct Entry {
    peer: Peer,
    /// `None` once authenticated.
    rank: Option<Rank>,
    /// Who it is, once authenticated.
    user: Option<Arc<str>>,
}

/// Decides which connection is accepted, and which is closed for it.
#[derive(Debug)]
pub struct ConnectionAdmission {
    bounds: Bounds,
    /// Number of the connection that was admitted last.
    last: u64,
    open: BTreeMap<u64, Entry>,
    unauthenticated: BTreeSet<Rank>,
    by_peer: HashMap<Peer, BTreeSet<Rank>>,
    /// Authenticated connections of each peer and of each user.
    known_by_peer: HashMap<Peer, usize>,
    known_by_user: HashMap<Arc<str>, usize>,
}

impl ConnectionAdmission {
    /// No connections.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            last: 0,
            open: BTreeMap::new(),
            unauthenticated: BTreeSet::new(),
            by_peer: HashMap::new(),
            known_by_peer: HashMap::new(),
            known_by_user: HashMap::new(),
        }
    }

    /// Decides about a new, unauthenticated connection. If its peer or the server has too many of those, it replaces the oldest without a session, or
    /// else the oldest.
    pub fn admit(&mut self, peer: Peer) -> AdmissionDecision {
        let of_peer = self.by_peer.get(&peer);
        let peer_is_full =
            of_peer.is_some_and(|ranks| ranks.len() >= self.bounds.unauthenticated_per_peer);
        let is_full = self.open.len() >= self.bounds.total
            || self.unauthenticated.len() >= self.bounds.unauthenticated;
        let victim = match (peer_is_full, is_full) {
            (true, _) => of_peer.and_then(BTreeSet::first),
            (false, true) => self.unauthenticated.first(),
            (false, false) => None,
        };
        let victim = victim.map(|(_, id)| *id);
        if victim.is_none() && (peer_is_full || is_full) {
            return AdmissionDecision::Refused;
        }
        victim.iter().for_each(|id| self.remove(*id));
        self.last = self.last.wrapping_add(1);
        let id = self.last;
        self.open.insert(id, Entry { peer, rank: None, user: None });
        self.rank(id, peer, Class::Ordinary);
        match victim {
            Some(closed) => AdmissionDecision::Replacing { id, closed },
            None => AdmissionDecision::Admitted(id),
        }
    }

    /// Removes and returns the unauthenticated connection to close when the system cannot accept a further one.
    pub fn make_room(&mut self) -> Option<u64> {
        let (_, id) = *self.unauthenticated.first()?;
        self.remove(id);
        Some(id)
    }

    /// A request of the connection was authorized and is in flight.
    pub fn begin_session(&mut self, id: u64) {
        self.change(id, Class::Session);
    }

    /// The last request of the connection has ended.
    pub fn end_session(&mut self, id: u64) {
        self.change(id, Class::Ordinary);
    }

    /// A request of the connection was authenticated as `user`: it no longer counts among the unauthenticated. `false` if the user or the peer has its
    /// part, or if that would leave less than a sixteenth of the connections for new ones; it then still counts as unauthenticated.
    pub fn authenticated(&mut self, id: u64, user: &str) -> bool {
        let authenticated = self.open.len().saturating_sub(self.unauthenticated.len());
        let kept = (self.bounds.total / 16).max(1);
        let Some(entry) = self.open.get(&id) else { return false };
        let peer = entry.peer;
        if entry.user.is_some() {
            return true;
        }
        let of_user = self.known_by_user.get(user).copied().unwrap_or(0);
        let of_peer = self.known_by_peer.get(&peer).copied().unwrap_or(0);
        if authenticated >= self.bounds.total.saturating_sub(kept)
            || of_user >= self.bounds.authenticated_per_user
            || of_peer >= self.bounds.authenticated_per_peer
        {
            return false;
        }
        self.unrank(id);
        let user: Arc<str> = user.into();
        if let Some(entry) = self.open.get_mut(&id) {
            entry.user = Some(user.clone());
        }
        self.known_by_user.insert(user, of_user.saturating_add(1));
        self.known_by_peer.insert(peer, of_peer.saturating_add(1));
        true
    }

    /// The connection is closed. Does nothing for one that has been replaced.
    pub fn remove(&mut self, id: u64) {
        self.unrank(id);
        let Some(Entry { peer, user: Some(user), .. }) = self.open.remove(&id) else { return };
        forget_one(&mut self.known_by_user, &user);
        forget_one(&mut self.known_by_peer, &peer);
    }

    fn change(&mut self, id: u64, to: Class) {
        let Some(&Entry { peer, rank: Some(_), .. }) = self.open.get(&id) else { return };
        self.unrank(id);
        self.rank(id, peer, to);
    }

    fn rank(&mut self, id: u64, peer: Peer, class: Class) {
        let rank = (class, id);
        let Some(entry) = self.open.get_mut(&id) else { return };
        entry.rank = Some(rank);
        self.unauthenticated.insert(rank);
        self.by_peer.entry(peer).or_default().insert(rank);
    }

    fn unrank(&mut self, id: u64) {
        let Some(entry) = self.open.get_mut(&id) else { return };
        let Some(rank) = entry.rank.take() else { return };
        let peer = entry.peer;
        self.unauthenticated.remove(&rank);
        if let Some(ranks) = self.by_peer.get_mut(&peer) {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.by_peer.remove(&peer);
            }
        }
    }
}

/// Counts one less of `key`.
fn forget_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    let Some(count) = counts.get_mut(key) else { return };
    *count = count.saturating_sub(1);
    if *count == 0 {
        counts.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        total: 16,
        unauthenticated: 8,
        unauthenticated_per_peer: 4,
        authenticated_per_peer: 16,
        authenticated_per_user: 16,
    };

    fn peer(last: u8) -> Peer {
        Peer::from_address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn id(verdict: AdmissionDecision) -> u64 {
        match verdict {
            AdmissionDecision::Admitted(id) | AdmissionDecision::Replacing { id, .. } => id,
            AdmissionDecision::Refused => 0,
        }
    }

    fn closed(verdict: AdmissionDecision) -> Option<u64> {
        match verdict {
            AdmissionDecision::Replacing { closed, .. } => Some(closed),
            AdmissionDecision::Admitted(_) | AdmissionDecision::Refused => None,
        }
    }

    #[test]
    fn a_peer_at_its_bound_replaces_its_own_connections() {
        let mut admission = ConnectionAdmission::new(BOUNDS);
        let other = id(admission.admit(peer(2)));
        let own: Vec<u64> = (0..4).map(|_| id(admission.admit(peer(1)))).collect();
        admission.begin_session(own[0]);
        assert_eq!(closed(admission.admit(peer(1))), Some(own[1]));
        admission.end_session(own[0]);
        assert_eq!(closed(admission.admit(peer(1))), Some(own[0]), "the oldest without a session");
        assert!(admission.open.contains_key(&other));
    }

    #[test]
    fn a_new_connection_outlives_a_limit_of_further_ones() {
        let mut admission = ConnectionAdmission::new(BOUNDS);
        // One client has filled the limit from several addresses.
        for number in 0..8 {
            admission.admit(peer(number));
        }
        let honest = id(admission.admit(peer(8)));
        for number in 9..16 {
            assert_ne!(closed(admission.admit(peer(number))), Some(honest), "{number}");
        }
        assert_eq!(closed(admission.admit(peer(16))), Some(honest));
        // The same within one address.
        let honest = id(admission.admit(peer(17)));
        for _ in 0..3 {
            assert_ne!(closed(admission.admit(peer(17))), Some(honest));
        }
        assert_eq!(closed(admission.admit(peer(17))), Some(honest));
    }

    #[test]
    fn many_peers_leave_half_to_the_authenticated() {
        let mut admission = ConnectionAdmission::new(BOUNDS);
        for number in 0..100 {
            assert_ne!(admission.admit(peer(number)), AdmissionDecision::Refused);
        }
        assert_eq!(admission.open.len(), BOUNDS.unauthenticated);
        for number in 0..7 {
            let id = id(admission.admit(peer(number)));
            assert!(admission.authenticated(id, "a"));
        }
        let left = |admission: &ConnectionAdmission| {
            (admission.open.len(), admission.unauthenticated.len())
        };
        assert_eq!(left(&admission), (14, 7), "an authenticated one left a free place");
    }

    #[test]
    fn a_peer_has_many_authenticated_connections_but_never_all() {
        let mut admission = ConnectionAdmission::new(BOUNDS);
        for number in 0..BOUNDS.total {
            let id = id(admission.admit(peer(1)));
            assert_eq!(admission.authenticated(id, "a"), number < BOUNDS.total - 1, "{number}");
        }
        let next = admission.admit(peer(2));
        assert!(matches!(next, AdmissionDecision::Replacing { .. }), "{next:?}");
    }

    #[test]
    fn a_user_and_a_peer_have_their_part_of_the_authenticated_connections() {
        let bounds = Bounds { authenticated_per_peer: 5, authenticated_per_user: 3, ..BOUNDS };
        let mut admission = ConnectionAdmission::new(bounds);
        let mut known = Vec::new();
        for (from, user, expected) in [
            (1, "a", true),
            (2, "a", true),
            (3, "a", true),
            (4, "a", false),
            (1, "b", true),
            (1, "c", true),
            (1, "d", true),
            (1, "e", true),
            (1, "f", false),
            (5, "f", true),
        ] {
            let id = id(admission.admit(peer(from)));
            assert_eq!(admission.authenticated(id, user), expected, "{user} from {from}");
            known.push(id);
        }
        assert!(admission.authenticated(known[0], "a"), "it is known");
        // A place that is left can be taken.
        admission.remove(known[0]);
        assert!(admission.authenticated(known[3], "a"));
        assert!(admission.authenticated(known[8], "f"));
    }

    #[test]
    fn sessions_go_when_there_is_nothing_else() {
        let mut admission = ConnectionAdmission::new(BOUNDS);
        let ids: Vec<u64> = (0..8).map(|number| id(admission.admit(peer(number)))).collect();
        ids.iter().for_each(|id| admission.begin_session(*id));
        assert_eq!(admission.make_room(), Some(ids[0]));
        let next = id(admission.admit(peer(9)));
        assert_eq!(admission.make_room(), Some(next), "one without a session first");
    }

    #[test]
    fn closed_connections_leave_nothing_behind() {
        let mut admission = ConnectionAdmission::new(BOUNDS);
        let ids: Vec<u64> = (0..40).map(|number| id(admission.admit(peer(number % 7)))).collect();
        admission.authenticated(ids[39], "a");
        // Some have been replaced before: closing them once more is harmless.
        ids.iter().for_each(|id| admission.remove(*id));
        assert!(admission.open.is_empty() && admission.unauthenticated.is_empty());
        assert!(admission.by_peer.is_empty());
        assert!(admission.known_by_peer.is_empty() && admission.known_by_user.is_empty());
        assert_eq!(admission.make_room(), None);
    }

    #[test]
    fn peers_are_addresses_and_prefixes() {
        let of = |text: &str| Peer::from_address(text.parse().expect("an address"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    }
}
