//! Maps the kernel's counters to Services.

use std::net::IpAddr;

use proxy_netfilter::nft::{Element, Expr, Family};

use crate::Dataplane;
use crate::frontend_owners::Claim;
use crate::layout::Map;
use crate::model::{Protocol, ServiceId};

/// A frontend that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Counted {
    /// The family of the table.
    pub family: Family,
    /// The address; `None` for a node port.
    pub address: Option<IpAddr>,
    pub protocol: Protocol,
    pub port: u16,
}

impl Counted {
    /// Decodes an element of a counting set, with its number of connections.
    pub fn read(family: Family, map: Map, element: &Element) -> Option<(Self, u64)> {
        let Expr::Counter(counter) = element.expr.as_deref()? else { return None };
        let key = element.key.bytes();
        let len = if family == Family::Ip6 { 16 } else { 4 };
        let (address, rest) = match map {
            Map::NodePortCounted => (None, key),
            _ => {
                let (address, rest) = key.split_at_checked(len)?;
                let v4 = <[u8; 4]>::try_from(address).map(IpAddr::from);
                let v6 = || <[u8; 16]>::try_from(address).map(IpAddr::from);
                (Some(v4.or_else(|_| v6()).ok()?), rest)
            }
        };
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let number = *rest.first()?;
        let protocol = protocols.into_iter().find(|protocol| protocol.number() == number)?;
        let port = u16::from_be_bytes(*rest.get(4..)?.first_chunk()?);
        Some((Self { family, address, protocol, port }, counter.packets))
    }

    /// The Service that owns the frontend now.
    pub fn service<'a>(&self, plane: &'a Dataplane) -> Option<&'a ServiceId> {
        let Self { family, address, protocol, port } = *self;
        plane.owner(&match address {
            Some(address) => Claim::Address { address, protocol, port },
            None => Claim::NodePort { family, protocol, port },
        })
    }
}
