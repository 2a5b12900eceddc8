//! The fixed rules, chain by chain, in the order of a packet's traversal.

use proxy_netfilter::nft::numbers::{CmpOp, HookPoint};
use proxy_netfilter::nft::{Chain, Expr, Family, Reg, Verdict};

use super::expr_builders::{
    self, End, address, address_words, by_interface, constant, decide, decide_class, dnat, draw,
    find, forget, hash, in_block, is_dnat, is_in, is_local, is_not_dnat, is_protocol, mask,
    masquerade, original_address, original_port, port, protocol, remember,
};
use super::{EndpointPool, Map, address_value};
use crate::model::{
    Choice, Cidr, ConnectionCounting, EgressMasquerade, LocalTraffic, Masquerade, Protocol,
    Settings, family_of,
};

/// Chain that rejects.
pub const REJECT: &str = "reject";
/// Chain of source ranges; it has one rule per prefix length in use.
pub const SOURCE_RANGES: &str = "source-ranges";
/// First chain of new connections.
const SERVICES: &str = "services";
/// Chain of connections to frontends with source ranges.
const GATED: &str = "gated";
/// Chain that finds the frontend.
const FRONTENDS: &str = "frontends";
/// `NF_IP_PRI_NAT_DST`.
const PRIORITY_DESTINATION: i32 = -100;
/// `NF_IP_PRI_NAT_SRC`.
const PRIORITY_SOURCE: i32 = 100;

/// First register of every key.
const KEY: Reg = Reg::word(0);
/// Register of a frontend's data: after the longest key.
const DATA: Reg = Reg::word(8);
/// Register of the class in the data.
const CLASS: Reg = Reg::word(9);
/// Register for comparisons; four words, for an IPv6 address.
const SCRATCH: Reg = Reg::word(12);

/// Loopback networks: their addresses are local, but packets from there must not leave the node.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// A rule with the comment that `nft list ruleset` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommentedRule {
    /// Shown by `nft list` and by `trace`.
    pub comment: &'static str,
    /// Its expressions.
    pub exprs: Vec<Expr>,
}

fn rule(comment: &'static str, parts: impl IntoIterator<Item = Vec<Expr>>) -> CommentedRule {
    CommentedRule { comment, exprs: parts.into_iter().flatten().collect() }
}

/// The chains that do not depend on Services, without table names. Of the maps in [`Map::SELDOM`] only those with
/// `is_looked_up` are looked up.
pub fn chains(
    family: Family,
    settings: &Settings,
    is_looked_up: &dyn Fn(Map) -> bool,
) -> Vec<(Chain, Vec<CommentedRule>)> {
    let base = |name, point, priority| Chain::nat("", name, point, priority);
    let enter = || vec![rule("find the service", [vec![decide(Verdict::Jump(SERVICES.into()))]])];
    vec![
        (base("prerouting", HookPoint::PREROUTING, PRIORITY_DESTINATION), enter()),
        (base("output", HookPoint::OUTPUT, PRIORITY_DESTINATION), enter()),
        (
            base("postrouting", HookPoint::POSTROUTING, PRIORITY_SOURCE),
            sources(family, settings, is_looked_up),
        ),
        (Chain::regular("", SERVICES), services(family, is_looked_up)),
        (Chain::regular("", GATED), gated()),
        (Chain::regular("", SOURCE_RANGES), Vec::new()),
        (Chain::regular("", FRONTENDS), frontends(family, settings, is_looked_up)),
        (Chain::regular("", REJECT), reject(family)),
    ]
}

/// Loads address, protocol and port of the packet.
fn service_key(family: Family, at: Reg) -> Vec<Expr> {
    let after = address_words(family);
    vec![
        address(family, End::Destination, at),
        protocol(at.plus(after)),
        port(at.plus(after).plus(1)),
    ]
}

/// Loads protocol and port of the packet.
fn node_port_key(at: Reg) -> Vec<Expr> {
    vec![protocol(at), port(at.plus(1))]
}

fn services(family: Family, is_looked_up: &dyn Fn(Map) -> bool) -> Vec<CommentedRule> {
    let gated = vec![is_in(Map::Gated, KEY), decide(Verdict::Goto(GATED.into()))];
    let looked_up = is_looked_up(Map::Gated);
    let gated =
        looked_up.then(|| rule("restricted by source ranges", [service_key(family, KEY), gated]));
    let rest = [rule("find the frontend", [vec![decide(Verdict::Goto(FRONTENDS.into()))]])];
    gated.into_iter().chain(rest).collect()
}

/// `source-ranges` continues with frontends if the source is in a range; otherwise it returns.
fn gated() -> Vec<CommentedRule> {
    vec![
        rule("check source ranges", [vec![decide(Verdict::Jump(SOURCE_RANGES.into()))]]),
        rule("source not in ranges", [vec![decide(Verdict::Drop)]]),
    ]
}

/// Continues with frontends if the source, masked to `bits`, is a source range of the frontend.
pub fn source_range(family: Family, bits: u8) -> CommentedRule {
    let block = address_words(family).saturating_add(2);
    let any = if family == Family::Ip6 { [0; 16].into() } else { [0; 4].into() };
    let mut sender = vec![address(family, End::Source, KEY.plus(block))];
    sender.extend(Cidr::new(any, bits).map(|c| mask(KEY.plus(block), address_value(&c.mask()))));
    let bits =
        constant(KEY.plus(block).plus(address_words(family)), &u32::from(bits).to_ne_bytes());
    let allowed =
        vec![bits, is_in(Map::SourceRanges, KEY), decide(Verdict::Goto(FRONTENDS.into()))];
    rule("source in range", [service_key(family, KEY), sender, allowed])
}

fn frontends(
    family: Family,
    settings: &Settings,
    is_looked_up: &dyn Fn(Map) -> bool,
) -> Vec<CommentedRule> {
    let class = |map| vec![find(map, KEY, DATA)];
    let act = || vec![decide_class(CLASS)];
    let external = || from_outside(family, settings);
    let mut rules = Vec::new();
    if is_looked_up(Map::ServicesExternal) {
        let parts = [service_key(family, KEY), class(Map::ServicesExternal), external(), act()];
        rules.push(rule("external traffic, policy Local", parts));
    }
    let parts = [service_key(family, KEY), class(Map::Services), act()];
    rules.push(rule("cluster IPs and external addresses", parts));
    let counting = settings.counting == ConnectionCounting::On;
    if counting {
        let counted = vec![is_in(Map::Counted, KEY)];
        rules.insert(0, rule("count the connection", [service_key(family, KEY), counted]));
    }
    if is_looked_up(Map::LoadBalancerIps) {
        // To the node that announces it the address is one of its own.
        let unused = vec![
            address(family, End::Destination, KEY),
            is_in(Map::LoadBalancerIps, KEY),
            decide(Verdict::Drop),
        ];
        rules.push(rule("unused port of a load balancer's address", [unused]));
    }
    for to_node in node_addresses(family, settings) {
        if counting {
            let counted = vec![is_in(Map::NodePortCounted, KEY)];
            let parts = [node_port_key(KEY), to_node.clone(), counted];
            rules.push(rule("count the connection to a node port", parts));
        }
        let map = |map, source: Vec<Expr>| {
            [node_port_key(KEY), class(map), to_node.clone(), source, act()]
        };
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
    rules.push(rule("unused port of a cluster IP", unused));
    rules
}

/// Continues for packets that neither this node nor a pod sent.
fn from_outside(family: Family, settings: &Settings) -> Vec<Expr> {
    let not_host = is_local(End::Source, CmpOp::NEQ, SCRATCH);
    [not_host, not_from_pods(family, settings).unwrap_or_default()].concat()
}

/// Continues for packets that no pod sent; `None` if traffic of pods cannot be detected.
fn not_from_pods(family: Family, settings: &Settings) -> Option<Vec<Expr>> {
    match &settings.local_traffic {
        LocalTraffic::Interface(name) => Some(by_interface(CmpOp::NEQ, name.padded(), SCRATCH)),
        LocalTraffic::InterfacePrefix(prefix) => {
            Some(by_interface(CmpOp::NEQ, prefix.as_bytes(), SCRATCH))
        }
        LocalTraffic::Cluster | LocalTraffic::Blocks(_) => {
            let block =
                settings.local_blocks().iter().find(|block| family_of(block.first()) == family)?;
            Some(in_block(family, End::Source, CmpOp::NEQ, block, SCRATCH))
        }
    }
}

/// Conditions for a destination that is a node address with node ports; each gets its own rules.
fn node_addresses(family: Family, settings: &Settings) -> Vec<Vec<Expr>> {
    let local = || {
        let loopback = LOOPBACK.iter().filter_map(|block| block.parse::<Cidr>().ok());
        let other = loopback
            .filter(|block| family_of(block.first()) == family)
            .flat_map(|block| in_block(family, End::Destination, CmpOp::NEQ, &block, SCRATCH));
        is_local(End::Destination, CmpOp::EQ, SCRATCH).into_iter().chain(other).collect::<Vec<_>>()
    };
    if settings.node_port_cidrs.is_empty() {
        return vec![local()];
    }
    let blocks = settings.node_port_cidrs.iter().filter(|block| family_of(block.first()) == family);
    let within = |block| in_block(family, End::Destination, CmpOp::EQ, block, SCRATCH);
    blocks.map(|block| [local(), within(block)].concat()).collect()
}

fn reject(family: Family) -> Vec<CommentedRule> {
    let tcp = vec![protocol(KEY), is_protocol(KEY, Protocol::Tcp.number()), expr_builders::reset()];
    vec![
        rule("TCP reset", [tcp]),
        rule("ICMP port unreachable", [vec![expr_builders::port_unreachable(family)]]),
    ]
}

/// Rules of postrouting.
fn sources(
    family: Family,
    settings: &Settings,
    is_looked_up: &dyn Fn(Map) -> bool,
) -> Vec<CommentedRule> {
    let after = address_words(family);
    let original = || {
        let parts = [original_address(family, KEY), protocol(KEY.plus(after))];
        [parts.to_vec(), vec![original_port(KEY.plus(after).plus(1))]].concat()
    };
    let to_itself =
        vec![address(family, End::Source, KEY), address(family, End::Destination, KEY.plus(after))];
    let to_cluster_ip = vec![original_address(family, KEY), is_in(Map::ClusterIps, KEY)];
    let act = || vec![masquerade()];
    let mut rules = leaving(family, settings);
    rules.extend([
        rule("no DNAT", [is_not_dnat(SCRATCH), vec![decide(Verdict::Return)]]),
        rule("hairpin", [to_itself, vec![is_in(Map::Hairpin, KEY)], act()]),
    ]);
    if is_looked_up(Map::Masquerade) {
        let parts = [original(), vec![is_in(Map::Masquerade, KEY)], act()];
        rules.push(rule("external addresses", parts));
    }
    // This node reaches all endpoints of a frontend with the policy Local; its source address may be one to which
    // other hosts have no route, such as the load balancer's.
    let from_host = || is_local(End::Source, CmpOp::EQ, SCRATCH);
    let found = |map| vec![find(map, KEY, DATA)];
    let local = [original(), found(Map::ServicesExternal), from_host(), act()];
    if is_looked_up(Map::ServicesExternal) {
        rules.push(rule("this node to external addresses, policy Local", local));
    }
    match (settings.masquerade, not_from_pods(family, settings)) {
        (Masquerade::All, _) => rules.push(rule("cluster IPs", [to_cluster_ip, act()])),
        (Masquerade::FromOutside, Some(outside)) => {
            rules.push(rule("cluster IPs from outside", [to_cluster_ip, outside, act()]));
        }
        (Masquerade::FromOutside, None) => {}
    }
    // A frontend with an address may have the same port number as a node port.
    let end = vec![decide(Verdict::Return)];
    rules.push(rule("not a node port", [original(), found(Map::Services), end]));
    let original_node_port = || vec![protocol(KEY), original_port(KEY.plus(1))];
    let masqueraded = vec![is_in(Map::NodePortMasquerade, KEY), masquerade()];
    rules.push(rule("node ports", [is_dnat(SCRATCH), original_node_port(), masqueraded]));
    let local = [original_node_port(), found(Map::NodePortsExternal), from_host(), act()];
    rules.push(rule("this node to node ports, policy Local", local));
    rules
}

/// Masquerades pods' traffic to outside the cluster. The translated destination counts, so that Services with
/// endpoints outside the cluster are included.
fn leaving(family: Family, settings: &Settings) -> Vec<CommentedRule> {
    match (settings.leaving, settings.cluster_cidr(family)) {
        (EgressMasquerade::Masqueraded, Some(pods)) => {
            let from_pod = in_block(family, End::Source, CmpOp::EQ, &pods, SCRATCH);
            let beyond = in_block(family, End::Destination, CmpOp::NEQ, &pods, SCRATCH);
            vec![rule("pods to outside the cluster", [from_pod, beyond, vec![masquerade()]])]
        }
        _ => Vec::new(),
    }
}

/// Rules of a chain that chooses one of `count` slots.
pub fn balance(
    family: Family,
    from: EndpointPool,
    choice: Choice,
    count: u32,
) -> Vec<CommentedRule> {
    let (key, map, words) = match from.has_address() {
        true => (service_key(family, KEY), Map::Endpoints, address_words(family).saturating_add(2)),
        false => (node_port_key(KEY), Map::NodePortEndpoints, 2),
    };
    let (first, slot) = (from.first_slot(), KEY.plus(words));
    let send =
        |chosen: Vec<Expr>| [key.clone(), chosen, vec![find(map, KEY, KEY), dnat(family, KEY)]];
    let random = |count| send(vec![draw(count, first, slot)]);
    let mut rules = match choice {
        Choice::Random => Vec::new(),
        Choice::Consistent => {
            let hashed = send(hash(family, count, first, DATA, slot));
            vec![rule("consistent hash of the client", hashed)]
        }
        Choice::Sticky(seconds) => sticky(family, from, seconds, count),
    };
    if choice != Choice::Consistent {
        rules.push(rule("random endpoint", random(count)));
    }
    rules.push(rule("slot was removed: first endpoint", random(1)));
    let refuse = vec![decide(Verdict::Goto(REJECT.into()))];
    rules.push(rule("all endpoints were removed", [refuse]));
    rules
}

/// Session affinity: the client's last endpoint if it still serves, else a new one, which is stored. If the map is
/// full, the rules after these choose at random.
///
/// The registers hold padding, endpoint, frontend and client, in this order: endpoint and frontend together are a key,
/// and so are frontend and client. The slot uses the client's register for a while.
fn sticky(family: Family, from: EndpointPool, seconds: u32, count: u32) -> Vec<CommentedRule> {
    let words = address_words(family);
    let padding = KEY;
    let endpoint = padding.plus(1);
    let frontend = endpoint.plus(words).plus(1);
    let ports = frontend.plus(words);
    let client = ports.plus(2);
    let (key, map, first) = match from.has_address() {
        true => (service_key(family, frontend), Map::Endpoints, frontend),
        false => {
            let zero = constant(frontend, &vec![0; usize::from(words).saturating_mul(4)]);
            ([vec![zero], node_port_key(ports)].concat(), Map::NodePortEndpoints, ports)
        }
    };
    let load_client = || address(family, End::Source, client);
    let act = || vec![remember(Map::Affinity, frontend, padding, seconds), dnat(family, endpoint)];
    // `nft` up to 1.0.6 fails an assertion when it lists a `dynset` whose data come from a lookup. A constant in the
    // first register avoids that.
    let same = vec![
        load_client(),
        find(Map::Affinity, frontend, padding),
        is_in(from.live(), endpoint),
        constant(padding, &[0; 4]),
    ];
    // Together they cover padding and endpoint: the kernel rejects rules that read registers which were never written.
    let mut zero = vec![constant(endpoint, &vec![0; usize::from(words.max(2)).saturating_mul(4)])];
    if family == Family::Ip6 {
        zero.push(constant(endpoint.plus(2), &[0; 12]));
    }
    zero.push(constant(padding, &[0; 8]));
    // The entry of a removed endpoint must be deleted first: an update of an existing element changes only its
    // timeout.
    let other = vec![
        load_client(),
        forget(Map::Affinity, frontend, padding),
        draw(count, from.first_slot(), client),
        find(map, first, endpoint),
        load_client(),
    ];
    vec![
        rule("session affinity: last endpoint", [key.clone(), same, act()]),
        rule("session affinity: new endpoint", [zero, key, other, act()]),
    ]
}
