//! The node's addresses. Those that its proxy announces for load balancers are not among them: they move to other nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol,
};

/// Documentation addresses, which no host has.
const TARGET_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const TARGET_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// Protocol (`IFA_PROTO`) of the addresses that the proxy announces (`proxy/node-addresses`), since Linux 5.18.
const ANNOUNCED: AddressProtocol = AddressProtocol::Other(78);
/// End of the label of the IPv4 ones, on older kernels.
const ANNOUNCED_LABEL_END: &str = ":lb";

/// Addresses of all interfaces that are reachable from other machines, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InterfaceAddresses {
    own: Vec<IpAddr>,
    /// Announced for load balancers.
    announced: BTreeSet<IpAddr>,
}

/// The node's addresses, primary first, at most one per family: the source addresses of the default routes, otherwise the first
/// address that is reachable from other machines. Needs a tokio runtime.
pub async fn node_addresses() -> Vec<IpAddr> {
    let sources = [source_towards(TARGET_V4), source_towards(TARGET_V6)];
    own_addresses(&interface_addresses().await, sources)
}

fn own_addresses(all: &InterfaceAddresses, [v4, v6]: [Option<IpAddr>; 2]) -> Vec<IpAddr> {
    let is_own = |ip: &IpAddr| !all.announced.contains(ip);
    let first = |v4: bool| all.own.iter().copied().find(|ip| ip.is_ipv4() == v4);
    let found =
        [v4.filter(is_own).or_else(|| first(true)), v6.filter(is_own).or_else(|| first(false))];
    found.into_iter().flatten().collect()
}

/// An address that the machine has instead of the `known` ones, which it had at the start of the process: the first of all, the first of IPv4, which takes
/// precedence, or the successor of one that no interface has any more. Only the source addresses of default routes count: others come and go with bridges of
/// containers. Needs a tokio runtime.
pub async fn changed_address(known: &[IpAddr]) -> Option<IpAddr> {
    let all = interface_addresses().await;
    let sources = [source_towards(TARGET_V4), source_towards(TARGET_V6)];
    let found = sources.map(|source| source.filter(|ip| !all.announced.contains(ip)));
    changed_of(known, &all.own, found)
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

/// None if the kernel does not list them.
async fn interface_addresses() -> InterfaceAddresses {
    let Ok((connection, handle, _)) = rtnetlink::new_connection() else {
        return InterfaceAddresses::default();
    };
    let driver = tokio::spawn(connection);
    let messages: Result<Vec<AddressMessage>, _> =
        handle.address().get().execute().try_collect().await;
    driver.abort();
    sort_addresses(&messages.unwrap_or_default())
}

fn sort_addresses(messages: &[AddressMessage]) -> InterfaceAddresses {
    let mut all = InterfaceAddresses::default();
    for message in messages {
        let Some(address) = address_of(message).filter(is_reachable) else { continue };
        match is_announced(message) {
            true => drop(all.announced.insert(address)),
            false => all.own.push(address),
        }
    }
    all
}

fn is_announced(message: &AddressMessage) -> bool {
    let has = |matches: fn(&AddressAttribute) -> bool| message.attributes.iter().any(matches);
    let is_labelled = has(
        |attribute| matches!(attribute, AddressAttribute::Label(label) if label.ends_with(ANNOUNCED_LABEL_END)),
    );
    let is_deprecated = has(
        |attribute| matches!(attribute, AddressAttribute::Flags(flags) if flags.contains(AddressFlags::Deprecated)),
    );
    has(|attribute| matches!(attribute, AddressAttribute::Protocol(ANNOUNCED)))
        || is_labelled && is_deprecated && message.header.prefix_len == 32
}

/// The local address: on point-to-point links the other attribute is the peer's.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let of = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    of(true).or_else(|| of(false))
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

    #[tokio::test]
    async fn an_address_is_new_if_the_machine_had_none_none_of_ipv4_or_has_lost_its_own() {
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
        let known = node_addresses().await;
        assert_eq!(changed_address(&known).await, None, "found at the start");
    }

    /// As `proxy/node-addresses` marks them.
    #[test]
    fn addresses_of_load_balancers_are_not_the_nodes() {
        let message = |address: &str, prefix_len: u8, marks: &[AddressAttribute]| {
            let mut message = AddressMessage::default();
            message.header.prefix_len = prefix_len;
            message.attributes = vec![AddressAttribute::Address(address.parse().unwrap())];
            message.attributes.extend_from_slice(marks);
            message
        };
        let ours = AddressAttribute::Protocol(AddressProtocol::Other(78));
        let label = |text: &str| AddressAttribute::Label(text.to_owned());
        let deprecated = AddressAttribute::Flags(AddressFlags::Deprecated);
        let all = sort_addresses(&[
            message("127.0.0.1", 8, &[]),
            message("192.0.2.50", 32, std::slice::from_ref(&ours)),
            message("192.0.2.51", 32, &[label("eth0:lb"), deprecated.clone()]),
            message("192.0.2.10", 24, &[label("eth0:lb"), deprecated.clone()]),
            message("192.0.2.11", 32, &[label("eth0:lb")]),
            message("192.0.2.12", 32, &[label("eth0"), deprecated]),
            message("fd00::50", 128, &[ours]),
            message("fd00::10", 64, &[]),
        ]);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = ["192.0.2.10", "192.0.2.11", "192.0.2.12", "fd00::10"].map(ip);
        assert_eq!(all.own, own);
        assert_eq!(all.announced, ["192.0.2.50", "192.0.2.51", "fd00::50"].map(ip).into());
        // Not even where the default route begins at one.
        let [first, last] = [ip("192.0.2.10"), ip("fd00::10")];
        for (sources, expected) in [
            ([Some(ip("192.0.2.50")), Some(ip("fd00::50"))], [first, last]),
            ([Some(ip("192.0.2.12")), None], [ip("192.0.2.12"), last]),
            ([None, None], [first, last]),
        ] {
            assert_eq!(own_addresses(&all, sources), expected, "{sources:?}");
        }
    }

    #[tokio::test]
    async fn addresses_are_for_others_and_one_of_a_family() {
        let found = node_addresses().await;
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
