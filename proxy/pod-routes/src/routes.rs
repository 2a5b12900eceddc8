//! Routes to other nodes' pods: one per pod CIDR, through the node's address.
//!
//! The desired routes are computed from Node objects alone. The proxy's routes are recognised by their protocol
//! number, so that routes of other programs are not changed and those of an earlier process are found.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use proto_api::core::v1::Node;
use proxy_rules::localise::is_forwardable;
use proxy_rules::model::Cidr;
use rtnetlink::{Handle, RouteMessageBuilder};

use crate::pod_cidrs::pod_blocks;

/// Protocol of the proxy's routes: rtnetlink(7) leaves this range to users, and no routing daemon has registered it.
const OURS: RouteProtocol = RouteProtocol::Other(78);

/// Next hop by pod CIDR.
pub type Routes = BTreeMap<Cidr, IpAddr>;

/// Routes computed from Node objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredRoutes {
    /// Routes to have.
    pub routes: Routes,
    /// Nodes and pod CIDRs that get no route, because the CIDR is outside the cluster's or overlaps this node's own.
    pub refused: BTreeSet<(String, Cidr)>,
}

/// Changes of routes; removals come first, so that a CIDR that moved is not refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteChanges {
    /// Routes to remove.
    pub withdraw: Vec<(Cidr, IpAddr)>,
    /// Routes to add.
    pub announce: Vec<(Cidr, IpAddr)>,
}

/// The routes that the node `own` needs: every other node's pod CIDRs through that node's internal address of the
/// family.
///
/// Only CIDRs within `cluster` get a route, none that overlaps a CIDR of `own`, and of two nodes with the same CIDR
/// the first by name: a compromised node may write any CIDR into its object and must not attract other traffic.
pub fn plan_routes<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    own: &str,
    cluster: &[Cidr],
) -> DesiredRoutes {
    let (own, mut others): (Vec<_>, Vec<_>) =
        nodes.into_iter().partition(|node| node.metadata.name == own);
    others.sort_unstable_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let own: Vec<Cidr> = own.into_iter().flat_map(ranges).collect();
    let mut wanted = DesiredRoutes::default();
    for node in others {
        for range in ranges(node) {
            let is_pods = cluster.iter().any(|block| block.covers(&range));
            if !is_pods || own.iter().any(|own| own.covers(&range) || range.covers(own)) {
                wanted.refused.insert((node.metadata.name.clone(), range));
                continue;
            }
            if let Some(hop) = internal_address(node, range.is_ipv4())
                && !range.contains(hop)
            {
                wanted.routes.entry(range).or_insert(hop);
            }
        }
    }
    wanted
}

/// The pod CIDRs of a Node object, at most one per family as in Kubernetes.
fn ranges(node: &Node) -> impl Iterator<Item = Cidr> {
    let listed = pod_blocks(node).into_iter().take(2);
    listed.filter_map(|range| range.parse().ok())
}

fn internal_address(node: &Node, v4: bool) -> Option<IpAddr> {
    let internal = node.status.addresses.iter().filter(|address| address.type_ == "InternalIP");
    internal
        .filter_map(|address| address.address.parse::<IpAddr>().ok())
        .find(|address| address.is_ipv4() == v4 && is_forwardable(*address))
}

/// The changes from `current` to `wanted`.
pub fn plan(current: &Routes, wanted: &Routes) -> RouteChanges {
    let missing_in = |from: &Routes, other: &Routes| {
        let differs = |(range, hop): &(&Cidr, &IpAddr)| other.get(range) != Some(hop);
        from.iter().filter(differs).map(|(range, hop)| (*range, *hop)).collect()
    };
    RouteChanges { withdraw: missing_in(current, wanted), announce: missing_in(wanted, current) }
}

/// The routes are not as desired.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The route netlink socket cannot be opened.
    #[error("cannot open route netlink")]
    Open(#[source] std::io::Error),
    /// The kernel's routes cannot be listed.
    #[error("cannot list routes")]
    List(#[source] rtnetlink::Error),
    /// A route cannot be changed; the others were tried.
    #[error("{what} the route to {range} by {hop}")]
    Change {
        /// `add` or `remove`.
        what: &'static str,
        /// The pod CIDR.
        range: Cidr,
        /// The next hop.
        hop: IpAddr,
        /// The kernel's error.
        #[source]
        source: rtnetlink::Error,
    },
    /// Another program has a route to the pod CIDR; it stays.
    #[error("a route of another program to {range} conflicts with the one by {hop}")]
    Foreign {
        /// The pod CIDR.
        range: Cidr,
        /// The next hop that is desired.
        hop: IpAddr,
    },
}

/// Removes every route that a proxy has made.
pub async fn withdraw_all() -> Result<(), RouteError> {
    let table = RouteTable::open()?;
    let changes = plan(&table.current().await?, &Routes::new());
    table.apply(&changes).await
}

/// The kernel's routes.
#[derive(Debug)]
pub struct RouteTable {
    handle: Handle,
}

impl RouteTable {
    /// Opens route netlink; its task ends when the value is dropped.
    pub fn open() -> Result<RouteTable, RouteError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(RouteError::Open)?;
        tokio::spawn(connection);
        Ok(RouteTable { handle })
    }

    /// The proxy's routes in the kernel.
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

    /// Makes all changes that the kernel accepts; returns the first error. A route of another program is not replaced,
    /// and is such an error.
    pub async fn apply(&self, changes: &RouteChanges) -> Result<(), RouteError> {
        let mut outcome = Ok(());
        for (range, hop) in &changes.withdraw {
            let Some(message) = message(*range, *hop) else { continue };
            let done = self.handle.route().del(message).execute().await;
            outcome = outcome.and(describe_failure("remove", *range, *hop, done, nix::libc::ESRCH));
        }
        let mut taken = Vec::new();
        for (range, hop) in &changes.announce {
            let Some(message) = message(*range, *hop) else { continue };
            match self.handle.route().add(message).execute().await {
                Err(error) if is(&error, nix::libc::EEXIST) => taken.push((*range, *hop)),
                done => {
                    outcome =
                        outcome.and(describe_failure("add", *range, *hop, done, nix::libc::EEXIST))
                }
            }
        }
        if taken.is_empty() {
            return outcome;
        }
        let ours = self.current().await?;
        let foreign = taken.into_iter().find(|(range, hop)| ours.get(range) != Some(hop));
        outcome.and(foreign.map_or(Ok(()), |(range, hop)| Err(RouteError::Foreign { range, hop })))
    }
}

fn is(error: &rtnetlink::Error, errno: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(e) if e.raw_code() == errno.saturating_neg())
}

/// `harmless` is the error that means that the change had been made before.
fn describe_failure(
    what: &'static str,
    range: Cidr,
    hop: IpAddr,
    done: Result<(), rtnetlink::Error>,
    harmless: i32,
) -> Result<(), RouteError> {
    match done {
        Err(error) if is(&error, harmless) => Ok(()),
        Err(source) => Err(RouteError::Change { what, range, hop, source }),
        Ok(()) => Ok(()),
    }
}

fn message(range: Cidr, hop: IpAddr) -> Option<RouteMessage> {
    let route = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(range.first(), range.bits())
        .ok()?
        .gateway(hop)
        .ok()?;
    Some(route.protocol(OURS).scope(RouteScope::Universe).kind(RouteType::Unicast).build())
}

fn read(message: &RouteMessage) -> Option<(Cidr, IpAddr)> {
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
    Some((Cidr::new(range?, message.header.destination_prefix_length)?, hop?))
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

    fn cluster() -> [Cidr; 2] {
        ["10.244.0.0/16", "fd00::/16"].map(|block| block.parse().unwrap())
    }

    fn route(range: &str, hop: &str) -> (Cidr, IpAddr) {
        (range.parse().unwrap(), hop.parse().unwrap())
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
        assert_eq!(plan_routes(&nodes, "a", &cluster()).routes, expected);
    }

    #[test]
    fn a_plan_turns_old_routes_into_new_ones() {
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
        assert_eq!(plan(&new, &new), RouteChanges::default());
    }

    #[test]
    fn a_node_gets_routes_only_for_pod_addresses_of_its_own() {
        let nodes = [
            node("a", &["10.244.0.0/24"], &["172.30.0.10"]),
            // Outside the cluster, the default route, an address on the internet, the node's own network.
            node("b", &["255.255.255.255/32"], &["172.30.0.11"]),
            node("c", &["0.0.0.0/0"], &["172.30.0.12"]),
            node("d", &["172.30.0.0/24"], &["172.30.0.13"]),
            // This node's own CIDR, or one that contains it.
            node("e", &["10.244.0.128/25"], &["172.30.0.14"]),
            node("f", &["10.244.0.0/16"], &["172.30.0.15"]),
            // Invalid CIDRs, next hops that are no addresses of nodes, more CIDRs than a node has.
            node("g", &["10.244.5.0", "10.244.5.0/33"], &["172.30.0.16"]),
            node("h", &["10.244.6.0/24"], &["127.0.0.1"]),
            node("i", &["10.244.7.0/24"], &["10.244.7.1"]),
            node("j", &["10.244.8.0/24", "10.244.9.0/24", "10.244.10.0/24"], &["172.30.0.17"]),
            // A CIDR of another node.
            node("k", &["10.244.8.0/24"], &["172.30.0.18"]),
        ];
        let expected = Routes::from([
            route("10.244.8.0/24", "172.30.0.17"),
            route("10.244.9.0/24", "172.30.0.17"),
        ]);
        let wanted_here = plan_routes(&nodes, "a", &cluster());
        assert_eq!(wanted_here.routes, expected);
        let refused: Vec<&str> = wanted_here.refused.iter().map(|(node, _)| &**node).collect();
        assert_eq!(refused, ["b", "c", "d", "e", "f"]);
        assert_eq!(plan_routes(&nodes, "a", &[]).routes, Routes::new());
    }
}
