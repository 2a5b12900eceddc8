//! Addresses that this node has for itself.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use futures_util::TryStreamExt;
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use nix::net::if_::if_indextoname;
use proxy_rules::model::InterfaceName;
use rtnetlink::RouteMessageBuilder;

use crate::address_table::{AddressTable, AddressTableError};

/// Destinations of route lookups for the default route: reserved for documentation, and no packet is sent.
const WORLD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// All addresses of this node's interfaces without those that it announces for load balancers.
///
/// # Errors
/// The kernel does not list them.
pub async fn local() -> Result<BTreeSet<IpAddr>, AddressTableError> {
    let table = AddressTable::open()?;
    Ok(table.addresses().await?.others.into_keys().collect())
}

/// The source address that the kernel would select for `to`.
pub fn source_towards(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((to, 9)).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

/// The outgoing interface for `to`, on which replies are expected too.
pub async fn interface_towards(to: IpAddr) -> Option<InterfaceName> {
    let (connection, handle, _) = rtnetlink::new_connection().ok()?;
    let driver = tokio::spawn(connection);
    let question: RouteMessage = match to {
        IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(v4, 32).build(),
        IpAddr::V6(v6) => {
            RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(v6, 128).build()
        }
    };
    let answer = handle.route().get(question).execute().try_next().await;
    driver.abort();
    let index = answer.ok()??.attributes.into_iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(index),
        _ => None,
    });
    let name = if_indextoname(index?).ok()?;
    InterfaceName::new(name.to_str().ok()?)
}

/// One address of this node for each family: the source address of the default route, else any that other hosts can
/// reach.
pub fn own(local: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let reachable = |address: &&IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let of_family = |world: IpAddr| {
        let any = local.iter().filter(reachable).find(|a| a.is_ipv4() == world.is_ipv4());
        source_towards(world).filter(|a| reachable(&a)).or_else(|| any.copied())
    };
    WORLD.into_iter().filter_map(of_family).collect()
}
