//! The node's addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The node's addresses, primary first, at most one per family: the source addresses of the default routes, otherwise the first
/// address that is reachable from other machines.
#[must_use]
pub fn node_addresses() -> Vec<IpAddr> {
    let v4 = source_towards(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    let v6 = source_towards(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)));
    let all = interface_addresses();
    let first = |v4: bool| all.iter().copied().find(|ip| ip.is_ipv4() == v4);
    let found = [v4.or_else(|| first(true)), v6.or_else(|| first(false))];
    found.into_iter().flatten().collect()
}

/// Addresses of all interfaces that are reachable from other machines.
#[must_use]
pub fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    });
    addresses.filter(is_reachable).collect()
}

/// Source address of packets to `target`. Connecting a datagram socket only queries the routing table and sends nothing; the
/// targets are documentation addresses, which no host has.
fn source_towards(target: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match target {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((target, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(is_reachable)
}

fn is_reachable(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_for_others_and_one_of_a_family() {
        let found = node_addresses();
        assert!(found.iter().all(is_reachable), "{found:?}");
        assert!(found.iter().filter(|ip| ip.is_ipv4()).count() <= 1, "{found:?}");
        assert!(found.iter().filter(|ip| ip.is_ipv6()).count() <= 1, "{found:?}");
        for (ip, ok) in [
            ("10.0.0.1", true),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("::1", false),
            ("fd00::1", true),
        ] {
            assert_eq!(is_reachable(&ip.parse().unwrap()), ok, "{ip}");
        }
    }
}
