//! The node's addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Documentation addresses, which no host has.
const TARGET_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const TARGET_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// The node's addresses, primary first, at most one per family: the source addresses of the default routes, otherwise the first
/// address that is reachable from other machines.
#[must_use]
pub fn node_addresses() -> Vec<IpAddr> {
    let (v4, v6) = (source_towards(TARGET_V4), source_towards(TARGET_V6));
    let all = interface_addresses();
    let first = |v4: bool| all.iter().copied().find(|ip| ip.is_ipv4() == v4);
    let found = [v4.or_else(|| first(true)), v6.or_else(|| first(false))];
    found.into_iter().flatten().collect()
}

/// An address that the machine has instead of the `known` ones, which it had at the start of the process: the first of all, the first of IPv4, which takes
/// precedence, or the successor of one that no interface has any more. Only the source addresses of default routes count: others come and go with bridges of
/// containers.
#[must_use]
pub fn changed_address(known: &[IpAddr]) -> Option<IpAddr> {
    let found = [source_towards(TARGET_V4), source_towards(TARGET_V6)];
    changed_of(known, &interface_addresses(), found)
}

fn changed_of(
    known: &[IpAddr],
    assigned: &[IpAddr],
    [v4, v6]: [Option<IpAddr>; 2],
) -> Option<IpAddr> {
    let replaces = |found: &IpAddr| {
        let before = known.iter().find(|ip| ip.is_ipv4() == found.is_ipv4());
        // Both by the same look, or a failure to list the interfaces would be a loss.
        before.is_some_and(|before| {
            before != found && assigned.contains(found) && !assigned.contains(before)
        })
    };
    let late_v4 = |found: &IpAddr| replaces(found) || !known.iter().any(IpAddr::is_ipv4);
    v4.filter(late_v4).or(v6.filter(|found| replaces(found) || known.is_empty()))
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

/// Source address of packets to `target`. Connecting a datagram socket only queries the routing table and sends nothing.
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
    fn an_address_is_new_if_the_machine_had_none_none_of_ipv4_or_has_lost_its_own() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (v4, v6, next4, next6) = (ip("10.0.0.1"), ip("fd00::1"), ip("10.0.0.2"), ip("fd00::2"));
        let table = [
            (vec![], vec![], [None, None], None),
            (vec![], vec![v4], [Some(v4), Some(v6)], Some(v4)),
            (vec![], vec![v6], [None, Some(v6)], Some(v6)),
            (vec![v6], vec![v4, v6], [Some(v4), Some(v6)], Some(v4)),
            (vec![v6], vec![v6, next6], [None, Some(next6)], None),
            (vec![v4], vec![v4, next4], [Some(next4), Some(v6)], None),
            (vec![v4, v6], vec![], [None, None], None),
            // Replaced, as by another lease.
            (vec![v4, v6], vec![next4, v6], [Some(next4), Some(v6)], Some(next4)),
            (vec![v4, v6], vec![v4, next6], [Some(v4), Some(next6)], Some(next6)),
            (vec![v4], vec![v6], [None, Some(v6)], None),
            // The interfaces could not be listed.
            (vec![v4], vec![], [Some(next4), None], None),
        ];
        for (known, assigned, found, expect) in table {
            assert_eq!(changed_of(&known, &assigned, found), expect, "{known:?} {found:?}");
        }
        assert_eq!(changed_address(&node_addresses()), None, "found at the start");
    }

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
