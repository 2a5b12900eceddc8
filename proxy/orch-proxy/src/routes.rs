//! Routes to the pods of other nodes: one a pod range, by way of the node's own address, withdrawn when the node leaves.
//!
//! Which routes there should be is decided from Node objects alone; which of them are ours is told by their protocol
//! number, so that nobody else's routes are touched and a crashed predecessor's are found again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use proto_api::core::v1::Node;
use rtnetlink::{Handle, RouteMessageBuilder};

/// Marks our routes: a value that rtnetlink(7) leaves to users and that no routing daemon has registered.
const OURS: RouteProtocol = RouteProtocol::Other(78);

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First address.
    pub address: IpAddr,
    /// Length of the prefix in bits.
    pub length: u8,
}

impl Range {
    /// Reads `address/length`; `None` for what is none.
    pub fn parse(text: &str) -> Option<Range> {
        let (address, length) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let length: u8 = length.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (length <= bits).then_some(Range { address, length })
    }
}

/// The next hop of each pod range in the cluster.
pub type Routes = BTreeMap<Range, IpAddr>;

/// What has to change; removals come first, so that a range that moved is never refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Routes to take away.
    pub withdraw: Vec<(Range, IpAddr)>,
    /// Routes to make.
    pub announce: Vec<(Range, IpAddr)>,
}

/// The routes that the node `own` needs: every other node's ranges by that node's internal address of the family.
pub fn wanted<'a>(nodes: impl IntoIterator<Item = &'a Node>, own: &str) -> Routes {
    let mut routes = Routes::new();
    for node in nodes.into_iter().filter(|node| node.metadata.name != own) {
        let listed = &node.spec.pod_cidrs;
        let ranges =
            if listed.is_empty() { std::slice::from_ref(&node.spec.pod_cidr) } else { listed };
        for range in ranges.iter().filter_map(|range| Range::parse(range)) {
            if let Some(hop) = internal_address(node, range.address.is_ipv4()) {
                routes.insert(range, hop);
            }
        }
    }
    routes
}

fn internal_address(node: &Node, v4: bool) -> Option<IpAddr> {
    let internal = node.status.addresses.iter().filter(|address| address.type_ == "InternalIP");
    internal
        .filter_map(|address| address.address.parse::<IpAddr>().ok())
        .find(|a| a.is_ipv4() == v4)
}

/// What turns `current` into `wanted`.
pub fn plan(current: &Routes, wanted: &Routes) -> Changes {
    let missing_in = |from: &Routes, other: &Routes| {
        let differs = |(range, hop): &(&Range, &IpAddr)| other.get(range) != Some(hop);
        from.iter().filter(differs).map(|(range, hop)| (*range, *hop)).collect()
    };
    Changes { withdraw: missing_in(current, wanted), announce: missing_in(wanted, current) }
}

/// Why the routes are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// No route netlink socket.
    #[error("open route netlink")]
    Open(#[source] std::io::Error),
    /// The kernel does not list its routes.
    #[error("list routes")]
    List(#[source] rtnetlink::Error),
    /// A route cannot be changed; the others were still tried.
    #[error("{what} the route to {address}/{length} by {hop}")]
    Change {
        /// `add` or `remove`.
        what: &'static str,
        /// First address of the range.
        address: IpAddr,
        /// Length of its prefix.
        length: u8,
        /// The next hop.
        hop: IpAddr,
        /// Why.
        #[source]
        source: rtnetlink::Error,
    },
    /// Somebody else has a route to the range. It stays, and pods there are reached as it says.
    #[error("another program's route to {address}/{length} stands in the way of the one by {hop}")]
    Foreign {
        /// First address of the range.
        address: IpAddr,
        /// Length of its prefix.
        length: u8,
        /// The next hop that it should have.
        hop: IpAddr,
    },
}

/// The kernel's routes.
#[derive(Debug)]
pub struct Kernel {
    handle: Handle,
}

impl Kernel {
    /// Opens route netlink; its driver runs as a task until this is dropped.
    pub fn open() -> Result<Kernel, RouteError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(RouteError::Open)?;
        tokio::spawn(connection);
        Ok(Kernel { handle })
    }

    /// Our routes as the kernel has them.
    pub async fn current(&self) -> Result<Routes, RouteError> {
        let mut routes = Routes::new();
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        for any in [v4, v6] {
            let mut found = self.handle.route().get(any).execute();
            while let Some(message) = found.try_next().await.map_err(RouteError::List)? {
                routes.extend(read(&message));
            }
        }
        Ok(routes)
    }

    /// Makes every change that can be made; the first error of those that cannot. A route that somebody else has is
    /// left alone, and is such an error.
    pub async fn apply(&self, changes: &Changes) -> Result<(), RouteError> {
        let mut outcome = Ok(());
        for (range, hop) in &changes.withdraw {
            let Some(message) = message(*range, *hop) else { continue };
            let done = self.handle.route().del(message).execute().await;
            outcome = outcome.and(told("remove", *range, *hop, done, nix::libc::ESRCH));
        }
        let mut taken = Vec::new();
        for (range, hop) in &changes.announce {
            let Some(message) = message(*range, *hop) else { continue };
            match self.handle.route().add(message).execute().await {
                Err(error) if is(&error, nix::libc::EEXIST) => taken.push((*range, *hop)),
                done => outcome = outcome.and(told("add", *range, *hop, done, nix::libc::EEXIST)),
            }
        }
        if taken.is_empty() {
            return outcome;
        }
        let ours = self.current().await?;
        let foreign = taken.into_iter().find(|(range, hop)| ours.get(range) != Some(hop));
        outcome.and(foreign.map_or(Ok(()), |(range, hop)| {
            Err(RouteError::Foreign { address: range.address, length: range.length, hop })
        }))
    }
}

fn is(error: &rtnetlink::Error, errno: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(e) if e.raw_code() == -errno)
}

/// `harmless` is the answer that means that it was so already.
fn told(
    what: &'static str,
    range: Range,
    hop: IpAddr,
    done: Result<(), rtnetlink::Error>,
    harmless: i32,
) -> Result<(), RouteError> {
    match done {
        Err(error) if is(&error, harmless) => Ok(()),
        Err(source) => Err(RouteError::Change {
            what,
            address: range.address,
            length: range.length,
            hop,
            source,
        }),
        Ok(()) => Ok(()),
    }
}

fn message(range: Range, hop: IpAddr) -> Option<RouteMessage> {
    let route = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(range.address, range.length)
        .ok()?
        .gateway(hop)
        .ok()?;
    Some(route.protocol(OURS).scope(RouteScope::Universe).kind(RouteType::Unicast).build())
}

fn read(message: &RouteMessage) -> Option<(Range, IpAddr)> {
    if message.header.protocol != OURS {
        return None;
    }
    let mut range = None;
    let mut hop = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(to) => range = address(to),
            RouteAttribute::Gateway(by) => hop = address(by),
            _ => {}
        }
    }
    Some((Range { address: range?, length: message.header.destination_prefix_length }, hop?))
}

fn address(route: &RouteAddress) -> Option<IpAddr> {
    match route {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::core::v1::NodeAddress;

    fn node(name: &str, cidrs: &[&str], addresses: &[&str]) -> Node {
        let mut node = Node::default();
        node.metadata.name = name.into();
        node.spec.pod_cidrs = cidrs.iter().map(|cidr| (*cidr).into()).collect();
        node.status.addresses = addresses
            .iter()
            .map(|address| NodeAddress { type_: "InternalIP".into(), address: (*address).into() })
            .collect();
        node
    }

    fn route(range: &str, hop: &str) -> (Range, IpAddr) {
        (Range::parse(range).unwrap(), hop.parse().unwrap())
    }

    #[test]
    fn every_other_node_in_its_family() {
        let nodes = [
            node("a", &["10.244.0.0/24"], &["172.30.0.10"]),
            node("b", &["10.244.1.0/24", "fd00:1::/64"], &["172.30.0.11", "fd01::b"]),
            node("c", &["10.244.2.0/24", "fd00:2::/64"], &["172.30.0.12"]),
            node("d", &[], &["172.30.0.13"]),
        ];
        let expected = Routes::from([
            route("10.244.1.0/24", "172.30.0.11"),
            route("fd00:1::/64", "fd01::b"),
            route("10.244.2.0/24", "172.30.0.12"),
        ]);
        assert_eq!(wanted(&nodes, "a"), expected);
    }

    #[test]
    fn plans_turn_one_into_the_other() {
        let old = Routes::from([route("10.1.0.0/24", "1.1.1.1"), route("10.2.0.0/24", "2.2.2.2")]);
        let new = Routes::from([route("10.1.0.0/24", "3.3.3.3"), route("10.3.0.0/24", "2.2.2.2")]);
        let changes = plan(&old, &new);
        assert_eq!(
            changes.withdraw,
            [route("10.1.0.0/24", "1.1.1.1"), route("10.2.0.0/24", "2.2.2.2")]
        );
        assert_eq!(
            changes.announce,
            [route("10.1.0.0/24", "3.3.3.3"), route("10.3.0.0/24", "2.2.2.2")]
        );
        assert_eq!(plan(&new, &new), Changes::default());
    }

    #[test]
    fn what_is_no_range_is_left_out() {
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129"] {
            assert_eq!(Range::parse(wrong), None, "{wrong}");
        }
    }
}
