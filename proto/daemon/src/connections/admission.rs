//! Which connection gets a place. Pure: connections are numbers, time is the order of events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

/// How many connections a server keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at a time.
    pub total: usize,
    /// Those of them on which no request has been authenticated; the rest is kept for authenticated ones.
    pub unauthenticated: usize,
    /// Unauthenticated connections from one IPv4 address or one IPv6 /64.
    pub unauthenticated_per_peer: usize,
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
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is served under this number.
    Admitted(u64),
    /// It is served, in the place of another one, which is to be closed.
    Replacing {
        /// Number of the new one.
        id: u64,
        /// Number of the one to close.
        closed: u64,
    },
    /// There is no place, and none to be made.
    Refused,
}

/// Idle ones first, then the one that has been so for longest.
type Rank = (Activity, u64, u64);

/// Whether a request is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    Idle,
    Busy,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    peer: Peer,
    /// `None` once authenticated.
    rank: Option<Rank>,
}

/// The open connections.
#[derive(Debug)]
pub struct Admission {
    bounds: Bounds,
    /// Counts connections and their changes.
    events: u64,
    open: BTreeMap<u64, Entry>,
    unauthenticated: BTreeSet<Rank>,
    by_peer: HashMap<Peer, BTreeSet<Rank>>,
}

impl Admission {
    /// Without any connection.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            events: 0,
            open: BTreeMap::new(),
            unauthenticated: BTreeSet::new(),
            by_peer: HashMap::new(),
        }
    }

    /// A new connection, unauthenticated and idle. Where its peer or the server has too many of those, it takes the place
    /// of the one that has been idle for longest, or else of the oldest.
    pub fn admit(&mut self, peer: Peer) -> Verdict {
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
        let victim = victim.map(|(_, _, id)| *id);
        if victim.is_none() && (peer_is_full || is_full) {
            return Verdict::Refused;
        }
        victim.iter().for_each(|id| self.remove(*id));
        let id = self.next();
        self.open.insert(id, Entry { peer, rank: None });
        self.rank(id, peer, Activity::Idle);
        match victim {
            Some(closed) => Verdict::Replacing { id, closed },
            None => Verdict::Admitted(id),
        }
    }

    /// The unauthenticated connection to be closed when the system has no room for a further one; it is forgotten.
    pub fn make_room(&mut self) -> Option<u64> {
        let (_, _, id) = *self.unauthenticated.first()?;
        self.remove(id);
        Some(id)
    }

    /// A request has begun on an idle connection.
    pub fn busy(&mut self, id: u64) {
        self.change(id, Activity::Busy);
    }

    /// The last request of a connection has ended.
    pub fn idle(&mut self, id: u64) {
        self.change(id, Activity::Idle);
    }

    /// A request of the connection was authenticated: it no longer counts among the unauthenticated. `false` when so many
    /// are that one in sixteen places would no longer be left for new connections; it then stays where it is.
    pub fn authenticated(&mut self, id: u64) -> bool {
        let authenticated = self.open.len().saturating_sub(self.unauthenticated.len());
        let kept = (self.bounds.total / 16).max(1);
        if authenticated >= self.bounds.total.saturating_sub(kept) {
            return false;
        }
        self.unrank(id);
        true
    }

    /// The connection is closed. Does nothing for one that has been replaced.
    pub fn remove(&mut self, id: u64) {
        self.unrank(id);
        self.open.remove(&id);
    }

    fn next(&mut self) -> u64 {
        self.events = self.events.wrapping_add(1);
        self.events
    }

    fn change(&mut self, id: u64, to: Activity) {
        let Some(Entry { peer, rank: Some(_) }) = self.open.get(&id).copied() else { return };
        self.unrank(id);
        self.rank(id, peer, to);
    }

    fn rank(&mut self, id: u64, peer: Peer, activity: Activity) {
        let rank = (activity, self.next(), id);
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

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { total: 16, unauthenticated: 8, unauthenticated_per_peer: 4 };

    fn peer(last: u8) -> Peer {
        Peer::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn id(verdict: Verdict) -> u64 {
        match verdict {
            Verdict::Admitted(id) | Verdict::Replacing { id, .. } => id,
            Verdict::Refused => 0,
        }
    }

    #[test]
    fn one_peer_replaces_its_own() {
        let mut admission = Admission::new(BOUNDS);
        let other = id(admission.admit(peer(2)));
        let own: Vec<u64> = (0..4).map(|_| id(admission.admit(peer(1)))).collect();
        admission.busy(own[0]);
        let fifth = admission.admit(peer(1));
        assert!(
            matches!(fifth, Verdict::Replacing { closed, .. } if closed == own[1]),
            "{fifth:?}"
        );
        admission.idle(own[0]);
        // Its idle time has begun last.
        let sixth = admission.admit(peer(1));
        assert!(
            matches!(sixth, Verdict::Replacing { closed, .. } if closed == own[2]),
            "{sixth:?}"
        );
        assert!(admission.open.contains_key(&other));
    }

    #[test]
    fn many_peers_leave_half_to_the_authenticated() {
        let mut admission = Admission::new(BOUNDS);
        for number in 0..100 {
            assert_ne!(admission.admit(peer(number)), Verdict::Refused);
        }
        assert_eq!(admission.open.len(), BOUNDS.unauthenticated);
        for number in 0..7 {
            let id = id(admission.admit(peer(number)));
            assert!(admission.authenticated(id));
        }
        let left = |admission: &Admission| (admission.open.len(), admission.unauthenticated.len());
        assert_eq!(left(&admission), (14, 7), "an authenticated one left a free place");
    }

    #[test]
    fn one_peer_may_have_many_authenticated_ones_and_never_all() {
        let mut admission = Admission::new(BOUNDS);
        for number in 0..BOUNDS.total {
            let id = id(admission.admit(peer(1)));
            assert_eq!(admission.authenticated(id), number < BOUNDS.total - 1, "{number}");
        }
        let next = admission.admit(peer(2));
        assert!(matches!(next, Verdict::Replacing { .. }), "{next:?}");
    }

    #[test]
    fn busy_ones_go_when_all_are_busy() {
        let mut admission = Admission::new(BOUNDS);
        let ids: Vec<u64> = (0..8).map(|number| id(admission.admit(peer(number)))).collect();
        ids.iter().for_each(|id| admission.busy(*id));
        assert_eq!(admission.make_room(), Some(ids[0]));
        let next = id(admission.admit(peer(9)));
        assert_eq!(admission.make_room(), Some(next), "the idle one first");
    }

    #[test]
    fn nothing_is_kept_of_closed_ones() {
        let mut admission = Admission::new(BOUNDS);
        let ids: Vec<u64> = (0..40).map(|number| id(admission.admit(peer(number % 7)))).collect();
        admission.authenticated(ids[39]);
        // Some have been replaced before: closing them once more is harmless.
        ids.iter().for_each(|id| admission.remove(*id));
        assert!(admission.open.is_empty() && admission.unauthenticated.is_empty());
        assert!(admission.by_peer.is_empty());
        assert_eq!(admission.make_room(), None);
    }

    #[test]
    fn peers_are_addresses_and_prefixes() {
        let of = |text: &str| Peer::of(text.parse().expect("an address"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    }
}
