//! The constant rules, chain by chain, in the order in which a packet meets them.

use proxy_netfilter::nft::numbers::{CmpOp, HookPoint};
use proxy_netfilter::nft::{Chain, Expr, Family, Reg, Verdict};

use super::words::{
    self, End, address, address_words, decide, decide_class, dnat, draw, find, in_block, is_dnat,
    is_in, is_local, is_not_dnat, is_protocol, masquerade, original_address, original_port, port,
    protocol,
};
use super::{Draw, Map};
use crate::model::{Cidr, Leaving, Masquerade, Protocol, Settings};

/// Chain that answers with an error.
pub const REJECT: &str = "reject";
/// Chain that finds the service.
const SERVICES: &str = "services";
/// Where destinations are rewritten (`NF_IP_PRI_NAT_DST`).
const PRIORITY_DESTINATION: i32 = -100;
/// Where sources are rewritten (`NF_IP_PRI_NAT_SRC`).
const PRIORITY_SOURCE: i32 = 100;

/// First register of every key.
const KEY: Reg = Reg::word(0);
/// Where the data of a frontend are loaded: behind the longest key.
const DATA: Reg = Reg::word(8);
/// Where its class is in them.
const CLASS: Reg = Reg::word(9);
/// For comparisons; four words, so that an IPv6 address fits.
const SCRATCH: Reg = Reg::word(12);

/// Loopback blocks: their addresses are local, but what comes from there must not be sent elsewhere.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// A rule and why it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commented {
    /// What the rule is for.
    pub comment: &'static str,
    /// What it does.
    pub exprs: Vec<Expr>,
}

fn rule(comment: &'static str, parts: impl IntoIterator<Item = Vec<Expr>>) -> Commented {
    Commented { comment, exprs: parts.into_iter().flatten().collect() }
}

/// The chains that are there whatever services there are. Table names are left to the caller.
pub fn chains(family: Family, settings: &Settings) -> Vec<(Chain, Vec<Commented>)> {
    let base = |name, point, priority| Chain::nat("", name, point, priority);
    let enter = || vec![rule("find the service", [vec![decide(Verdict::Jump(SERVICES.into()))]])];
    vec![
        (base("prerouting", HookPoint::PREROUTING, PRIORITY_DESTINATION), enter()),
        (base("output", HookPoint::OUTPUT, PRIORITY_DESTINATION), enter()),
        (base("postrouting", HookPoint::POSTROUTING, PRIORITY_SOURCE), sources(family, settings)),
        (Chain::regular("", SERVICES), services(family, settings)),
        (Chain::regular("", REJECT), reject(family)),
    ]
}

/// Address, protocol and port of the packet, as a key.
fn service_key(family: Family) -> Vec<Expr> {
    let after = address_words(family);
    vec![
        address(family, End::Destination, KEY),
        protocol(KEY.plus(after)),
        port(KEY.plus(after + 1)),
    ]
}

/// Protocol and port of the packet, as a key.
fn node_port_key() -> Vec<Expr> {
    vec![protocol(KEY), port(KEY.plus(1))]
}

fn services(family: Family, settings: &Settings) -> Vec<Commented> {
    let class = |map| vec![find(map, KEY, DATA)];
    let act = || vec![decide_class(CLASS)];
    let external = || from_outside(family, settings);
    let mut rules = vec![
        rule(
            "external traffic, policy Local",
            [service_key(family), class(Map::ServicesExternal), external(), act()],
        ),
        rule("cluster and external addresses", [service_key(family), class(Map::Services), act()]),
    ];
    for to_node in node_addresses(family, settings) {
        let map =
            |map, source: Vec<Expr>| [node_port_key(), class(map), to_node.clone(), source, act()];
        rules.push(rule(
            "external node port, policy Local",
            map(Map::NodePortsExternal, external()),
        ));
        rules.push(rule("node port", map(Map::NodePorts, Vec::new())));
    }
    let unused = [
        vec![address(family, End::Destination, KEY), is_in(Map::ClusterIps, KEY)],
        vec![decide(Verdict::Goto(REJECT.into()))],
    ];
    rules.push(rule("unused port of a cluster address", unused));
    rules
}

/// Goes on for packets that neither this machine nor a pod sent.
fn from_outside(family: Family, settings: &Settings) -> Vec<Expr> {
    let pods = settings.cluster_cidr(family);
    let not_pods = pods.map(|block| in_block(family, End::Source, CmpOp::NEQ, &block, SCRATCH));
    let not_host = is_local(End::Source, CmpOp::NEQ, SCRATCH);
    [not_host, not_pods.unwrap_or_default()].concat()
}

/// Ways for a destination to be a node address that serves node ports; each gets its own rules.
fn node_addresses(family: Family, settings: &Settings) -> Vec<Vec<Expr>> {
    let local = || is_local(End::Destination, CmpOp::EQ, SCRATCH);
    if settings.node_port_cidrs.is_empty() {
        let loopback = LOOPBACK.iter().filter_map(|block| block.parse::<Cidr>().ok());
        let other = loopback
            .filter(|block| block.family() == family)
            .flat_map(|block| in_block(family, End::Destination, CmpOp::NEQ, &block, SCRATCH));
        return vec![local().into_iter().chain(other).collect()];
    }
    let blocks = settings.node_port_cidrs.iter().filter(|block| block.family() == family);
    let within = |block| in_block(family, End::Destination, CmpOp::EQ, block, SCRATCH);
    blocks.map(|block| [local(), within(block)].concat()).collect()
}

fn reject(family: Family) -> Vec<Commented> {
    let tcp = vec![protocol(KEY), is_protocol(KEY, Protocol::Tcp.number()), words::reset()];
    vec![
        rule("reset the connection", [tcp]),
        rule("the port is closed", [vec![words::port_unreachable(family)]]),
    ]
}

/// What the source becomes after routing.
fn sources(family: Family, settings: &Settings) -> Vec<Commented> {
    let after = address_words(family);
    let original = || {
        let parts = [original_address(family, KEY), protocol(KEY.plus(after))];
        [parts.to_vec(), vec![original_port(KEY.plus(after + 1))]].concat()
    };
    let to_itself =
        vec![address(family, End::Source, KEY), address(family, End::Destination, KEY.plus(after))];
    let to_cluster_ip = vec![original_address(family, KEY), is_in(Map::ClusterIps, KEY)];
    let original_node_port = vec![protocol(KEY), original_port(KEY.plus(1))];
    let act = || vec![masquerade()];
    let mut rules = leaving(family, settings);
    rules.extend([
        rule("not ours", [is_not_dnat(SCRATCH), vec![decide(Verdict::Return)]]),
        rule("an endpoint reaches itself", [to_itself, vec![is_in(Map::Hairpin, KEY)], act()]),
        rule("external addresses", [original(), vec![is_in(Map::Masquerade, KEY)], act()]),
    ]);
    let block = settings.cluster_cidr(family);
    match (settings.masquerade, block) {
        (Masquerade::All, _) => rules.push(rule("cluster addresses", [to_cluster_ip, act()])),
        (Masquerade::FromOutside, Some(block)) => {
            let outside = in_block(family, End::Source, CmpOp::NEQ, &block, SCRATCH);
            rules.push(rule("cluster addresses from outside", [to_cluster_ip, outside, act()]));
        }
        (Masquerade::FromOutside, None) => {}
    }
    // A frontend with an address may have the number of someone's node port.
    let found = vec![find(Map::Services, KEY, DATA), decide(Verdict::Return)];
    rules.push(rule("no node port", [original(), found]));
    let masqueraded = vec![is_in(Map::NodePortMasquerade, KEY), masquerade()];
    rules.push(rule("node ports", [is_dnat(SCRATCH), original_node_port, masqueraded]));
    rules
}

/// Pods are not known beyond the cluster: what they send there carries the node's address. Asked of the translated
/// destination, so that a service whose endpoints are no pods is included.
fn leaving(family: Family, settings: &Settings) -> Vec<Commented> {
    match (settings.leaving, settings.cluster_cidr(family)) {
        (Leaving::Masqueraded, Some(pods)) => {
            let from_pod = in_block(family, End::Source, CmpOp::EQ, &pods, SCRATCH);
            let beyond = in_block(family, End::Destination, CmpOp::NEQ, &pods, SCRATCH);
            vec![rule("pods to beyond the cluster", [from_pod, beyond, vec![masquerade()]])]
        }
        _ => Vec::new(),
    }
}

/// Rules of the chain that draws one of `count` endpoints.
pub fn balance(family: Family, from: Draw, count: u32) -> Vec<Commented> {
    let (key, map, words) = match from {
        Draw::Service | Draw::ServiceHere => {
            (service_key(family), Map::Endpoints, address_words(family) + 2)
        }
        Draw::NodePort | Draw::NodePortHere => (node_port_key(), Map::NodePortEndpoints, 2),
    };
    let first = from.first_slot();
    let send = |count| {
        let slot = vec![draw(count, first, KEY.plus(words)), find(map, KEY, KEY)];
        [key.clone(), slot, vec![dnat(family, KEY)]]
    };
    vec![
        rule("one of the endpoints", send(count)),
        rule("its slot went away meanwhile: the first", send(1)),
        rule("all went away meanwhile", [vec![decide(Verdict::Goto(REJECT.into()))]]),
    ]
}
