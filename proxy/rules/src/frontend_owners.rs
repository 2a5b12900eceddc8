//! Decides which Service owns a frontend that several claim.
//!
//! Cluster IPs are unique, but external addresses are chosen by users and may be those of another Service. The cluster
//! IP wins; among equals the Service that is first by name, independent of time, so that all nodes decide alike.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proxy_netfilter::nft::Family;

use crate::hash::FastMap;
use crate::model::{Protocol, ServiceId};

/// Something that only one Service can own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    /// Connections to an address and port.
    Address { address: IpAddr, protocol: Protocol, port: u16 },
    /// Connections to a node port.
    NodePort {
        /// Family of the node's address.
        family: Family,
        protocol: Protocol,
        port: u16,
    },
    /// An address as a cluster IP.
    ClusterIp(IpAddr),
    /// Masquerading of an endpoint's connections to itself; the element is the same for every owner.
    Hairpin(IpAddr),
    /// An address as an announced one of a load balancer; the element is the same for every owner.
    LoadBalancerIp(IpAddr),
}

/// Priority of a claim; the smaller wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The cluster allocated the address.
    Cluster,
    /// A user or a load balancer chose the address.
    External,
}

/// The claims of all Services.
#[derive(Clone, Debug, Default)]
pub struct FrontendOwners {
    /// Claims that fit a word: there are hundreds of thousands, and hash maps have spare capacity.
    small: FastMap<u64, Claimants>,
    others: FastMap<Claim, Claimants>,
    /// Number of claims by several Services.
    contested: usize,
}

impl Claim {
    /// The claim as a word; `None` for IPv6 addresses.
    fn word(&self) -> Option<u64> {
        let word = |address: u32, port: u16, protocol: u8, kind: u8| {
            u64::from(address) << 32
                | u64::from(port) << 16
                | u64::from(protocol) << 8
                | u64::from(kind)
        };
        match *self {
            Self::Address { address: IpAddr::V4(address), protocol, port } => {
                Some(word(address.into(), port, protocol.number(), 0))
            }
            Self::NodePort { family, protocol, port } => {
                Some(word(u32::from(family.number()), port, protocol.number(), 1))
            }
            Self::ClusterIp(IpAddr::V4(address)) => Some(word(address.into(), 0, 0, 2)),
            Self::Hairpin(IpAddr::V4(address)) => Some(word(address.into(), 0, 0, 3)),
            Self::LoadBalancerIp(IpAddr::V4(address)) => Some(word(address.into(), 0, 0, 4)),
            Self::Address { .. }
            | Self::ClusterIp(_)
            | Self::Hairpin(_)
            | Self::LoadBalancerIp(_) => None,
        }
    }
}

/// Nearly every claim has one claimant.
#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "the rare case must not make the usual one larger")]
enum Claimants {
    One(Rank, ServiceId),
    Several(Box<BTreeSet<(Rank, ServiceId)>>),
}

impl FrontendOwners {
    /// Reserves capacity for IPv4 claims.
    pub fn reserve(&mut self, additional: usize) {
        self.small.reserve(additional);
    }

    fn claimants(&self, claim: &Claim) -> Option<&Claimants> {
        match claim.word() {
            Some(word) => self.small.get(&word),
            None => self.others.get(claim),
        }
    }

    fn claimants_mut(&mut self, claim: &Claim) -> Option<&mut Claimants> {
        match claim.word() {
            Some(word) => self.small.get_mut(&word),
            None => self.others.get_mut(claim),
        }
    }

    /// Sets the claimants of a claim.
    fn set(&mut self, claim: &Claim, claimants: Option<Claimants>) {
        match (claim.word(), claimants) {
            (Some(word), Some(claimants)) => drop(self.small.insert(word, claimants)),
            (Some(word), None) => drop(self.small.remove(&word)),
            (None, Some(claimants)) => drop(self.others.insert(*claim, claimants)),
            (None, None) => drop(self.others.remove(claim)),
        }
    }

    /// Number of claims by several Services. While it is 0 every Service owns all its claims.
    pub fn contested(&self) -> usize {
        self.contested
    }

    /// Adds a claim.
    pub fn add(&mut self, claim: Claim, rank: Rank, id: &ServiceId) {
        match self.claimants_mut(&claim) {
            None => self.set(&claim, Some(Claimants::One(rank, id.clone()))),
            Some(Claimants::One(r, claimant)) if *r == rank && claimant == id => {}
            Some(Claimants::Several(all)) => drop(all.insert((rank, id.clone()))),
            Some(single @ Claimants::One(..)) => {
                let mut all = BTreeSet::from([(rank, id.clone())]);
                if let Claimants::One(rank, claimant) = single {
                    all.insert((*rank, claimant.clone()));
                }
                *single = Claimants::Several(Box::new(all));
                self.contested = self.contested.saturating_add(1);
            }
        }
    }

    /// Removes a claim.
    pub fn remove(&mut self, claim: &Claim, rank: Rank, id: &ServiceId) {
        let left = match self.claimants_mut(claim) {
            Some(Claimants::One(r, claimant)) if *r == rank && claimant == id => None,
            Some(Claimants::Several(all)) => {
                all.remove(&(rank, id.clone()));
                let left = match (all.len(), all.first()) {
                    (1, Some((rank, claimant))) => Some(Claimants::One(*rank, claimant.clone())),
                    (0, _) | (_, None) => None,
                    _ => return,
                };
                self.contested = self.contested.saturating_sub(1);
                left
            }
            _ => return,
        };
        self.set(claim, left);
    }

    /// The Service that owns it.
    pub fn owner(&self, claim: &Claim) -> Option<&ServiceId> {
        match self.claimants(claim)? {
            Claimants::One(_, id) => Some(id),
            Claimants::Several(all) => all.first().map(|(_, id)| id),
        }
    }

    /// Whether a Service that has the claim owns it.
    pub fn owns(&self, claim: &Claim, id: &ServiceId) -> bool {
        self.contested == 0 || self.owner(claim) == Some(id)
    }

    /// Every Service with the claim: the owner first, then in the order of succession.
    pub fn contenders(&self, claim: &Claim) -> impl Iterator<Item = &ServiceId> {
        let (one, several) = match self.claimants(claim) {
            Some(Claimants::One(_, id)) => (Some(id), None),
            Some(Claimants::Several(all)) => (None, Some(all.iter())),
            None => (None, None),
        };
        one.into_iter().chain(several.into_iter().flatten().map(|(_, id)| id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_claims_have_different_words() {
        use Protocol::{Tcp, Udp};
        let ip = IpAddr::from([0, 0, 0, 2]);
        let at = |address, protocol, port| Claim::Address { address, protocol, port };
        let node = |family, protocol, port| Claim::NodePort { family, protocol, port };
        let claims = [
            at(ip, Tcp, 80),
            at(ip, Udp, 80),
            at(ip, Tcp, 81),
            at([0, 0, 0, 3].into(), Tcp, 80),
            node(Family::Ip, Tcp, 80),
            node(Family::Ip6, Tcp, 80),
            node(Family::Ip, Udp, 80),
            Claim::ClusterIp(ip),
            Claim::Hairpin(ip),
            Claim::LoadBalancerIp(ip),
        ];
        let words: BTreeSet<_> = claims.iter().map(|claim| claim.word().unwrap()).collect();
        assert_eq!(words.len(), claims.len());
        assert_eq!(Claim::Hairpin("::2".parse().unwrap()).word(), None);
    }

    #[test]
    fn the_better_claim_wins_whenever_it_comes() {
        for claim in [IpAddr::from([10, 0, 0, 1]), "fd00::1".parse().unwrap()] {
            better_claim_wins(Claim::ClusterIp(claim));
        }
    }

    fn better_claim_wins(claim: Claim) {
        let [a, b, c] = ["a", "b", "c"].map(|name| ServiceId::new("ns", name));
        let mut claims = FrontendOwners::default();
        claims.add(claim, Rank::External, &b);
        claims.add(claim, Rank::External, &b);
        assert_eq!((claims.owner(&claim), claims.contenders(&claim).count()), (Some(&b), 1));
        claims.add(claim, Rank::External, &a);
        assert!(claims.owns(&claim, &a));
        claims.add(claim, Rank::Cluster, &c);
        assert!(claims.owns(&claim, &c) && !claims.owns(&claim, &a));
        assert!(claims.contenders(&claim).eq([&c, &a, &b]));
        claims.remove(&claim, Rank::Cluster, &c);
        claims.remove(&claim, Rank::Cluster, &c);
        claims.remove(&claim, Rank::External, &a);
        assert!(claims.owns(&claim, &b));
        claims.remove(&claim, Rank::External, &b);
        assert!(claims.small.is_empty() && claims.others.is_empty() && claims.contested() == 0);
    }
}
