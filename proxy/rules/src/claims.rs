//! Who has what when two services want the same: a frontend belongs to one service at a time.
//!
//! Cluster addresses are given out once, but external addresses are whatever their authors write, also an
//! address and port of somebody else's service. The cluster address wins; among equals the service that
//! comes first by name, whatever came first in time, so that every node decides alike.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proxy_netfilter::nft::Family;

use crate::hash::FastMap;
use crate::model::{Protocol, ServiceId};

/// Something that only one service can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    /// Connections to an address and port.
    Address {
        /// The address.
        address: IpAddr,
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
    },
    /// Connections to a port of the node.
    NodePort {
        /// Of addresses of this family.
        family: Family,
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
    },
    /// That an address is a cluster address.
    ClusterIp(IpAddr),
    /// That an endpoint may reach itself; the same element whoever owns it.
    Hairpin(IpAddr),
}

/// How good a claim is; the smaller wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The address was given to the service by the cluster.
    Cluster,
    /// The address was chosen by the service's author or a load balancer.
    External,
}

/// The claims of all services.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    holders: FastMap<Claim, Holders>,
    /// Number of claims with several holders.
    contested: usize,
}

/// Nearly every claim has one holder, and there are hundreds of thousands.
#[derive(Clone, Debug)]
enum Holders {
    One(Rank, ServiceId),
    Several(BTreeSet<(Rank, ServiceId)>),
}

impl Claims {
    /// Makes room for so many more at once.
    pub fn reserve(&mut self, additional: usize) {
        self.holders.reserve(additional);
    }

    /// Number of claims that several services hold. While it is 0 everybody has what they claim.
    pub fn contested(&self) -> usize {
        self.contested
    }

    /// Notes that a service claims something.
    pub fn add(&mut self, claim: Claim, rank: Rank, id: &ServiceId) {
        let one = || Holders::One(rank, id.clone());
        match self.holders.entry(claim).or_insert_with(one) {
            Holders::One(r, holder) if *r == rank && holder == id => {}
            Holders::Several(all) => {
                all.insert((rank, id.clone()));
            }
            single @ Holders::One(..) => {
                let mut all = BTreeSet::from([(rank, id.clone())]);
                if let Holders::One(rank, holder) = single {
                    all.insert((*rank, holder.clone()));
                }
                *single = Holders::Several(all);
                self.contested += 1;
            }
        }
    }

    /// Takes a claim back.
    pub fn remove(&mut self, claim: &Claim, rank: Rank, id: &ServiceId) {
        let left = match self.holders.get_mut(claim) {
            Some(Holders::One(r, holder)) if *r == rank && holder == id => None,
            Some(Holders::Several(all)) => {
                all.remove(&(rank, id.clone()));
                let left = match (all.len(), all.first()) {
                    (1, Some((rank, holder))) => Some(Holders::One(*rank, holder.clone())),
                    (0, _) | (_, None) => None,
                    _ => return,
                };
                self.contested = self.contested.saturating_sub(1);
                left
            }
            _ => return,
        };
        match left {
            Some(one) => drop(self.holders.insert(*claim, one)),
            None => drop(self.holders.remove(claim)),
        }
    }

    /// The service that has it.
    pub fn owner(&self, claim: &Claim) -> Option<&ServiceId> {
        match self.holders.get(claim)? {
            Holders::One(_, id) => Some(id),
            Holders::Several(all) => all.first().map(|(_, id)| id),
        }
    }

    /// Whether a service, which claims it, has it.
    pub fn owns(&self, claim: &Claim, id: &ServiceId) -> bool {
        self.contested == 0 || self.owner(claim) == Some(id)
    }

    /// Every service that claims it, if there are several.
    pub fn rivals(&self, claim: &Claim) -> impl Iterator<Item = &ServiceId> {
        let several = match self.holders.get(claim) {
            Some(Holders::Several(all)) => Some(all.iter()),
            _ => None,
        };
        several.into_iter().flatten().map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_claim_wins_whenever_it_comes() {
        let claim = Claim::ClusterIp(IpAddr::from([10, 0, 0, 1]));
        let [a, b, c] = ["a", "b", "c"].map(|name| ServiceId::new("ns", name));
        let mut claims = Claims::default();
        claims.add(claim, Rank::External, &b);
        claims.add(claim, Rank::External, &b);
        assert_eq!((claims.owner(&claim), claims.rivals(&claim).count()), (Some(&b), 0));
        claims.add(claim, Rank::External, &a);
        assert!(claims.owns(&claim, &a));
        claims.add(claim, Rank::Cluster, &c);
        assert!(claims.owns(&claim, &c) && !claims.owns(&claim, &a));
        assert_eq!(claims.rivals(&claim).count(), 3);
        claims.remove(&claim, Rank::Cluster, &c);
        claims.remove(&claim, Rank::Cluster, &c);
        claims.remove(&claim, Rank::External, &a);
        assert!(claims.owns(&claim, &b));
        claims.remove(&claim, Rank::External, &b);
        assert!(claims.holders.is_empty() && claims.contested() == 0);
    }
}
