//! The constant rules, chain by chain, in the order in which a packet meets them.

use proxy_netfilter::nft::numbers::{CmpOp, HookPoint};
use proxy_netfilter::nft::{Chain, Expr, Family, Reg, Verdict};

use super::expr_builders::{
    self, End, address, address_words, by_interface, constant, decide, decide_class, dnat, draw,
    find, forget, hash, in_block, is_dnat, is_in, is_local, is_not_dnat, is_protocol, mask,
    masquerade, original_address, original_port, port, protocol, remember,
};
use super::{EndpointPool, Map, address_value};
use crate::model::{
    Choice, Cidr, Counting, Leaving, LocalTraffic, Masquerade, Protocol, Settings, family_of,
};

/// Chain that answers with an error.
pub const REJECT: &str = "reject";
/// Chain that asks who may; it has a rule for each length of prefix in use.
pub const SOURCE_RANGES: &str = "source-ranges";
/// Chain where new connections start.
const SERVICES: &str = "services";
/// Chain of connections to frontends that not everybody may use.
const GATED: &str = "gated";
/// Chain that finds the service.
const FRONTENDS: &str = "frontends";
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
/// Of the maps of [`Map::SELDOM`] only those are asked that `is_asked` says.
pub fn chains(
    family: Family,
    settings: &Settings,
    is_asked: &dyn Fn(Map) -> bool,
) -> Vec<(Chain, Vec<Commented>)> {
    let base = |name, point, priority| Chain::nat("", name, point, priority);
    let enter = || vec![rule("find the service", [vec![decide(Verdict::Jump(SERVICES.into()))]])];
    vec![
        (base("prerouting", HookPoint::PREROUTING, PRIORITY_DESTINATION), enter()),
        (base("output", HookPoint::OUTPUT, PRIORITY_DESTINATION), enter()),
        (
            base("postrouting", HookPoint::POSTROUTING, PRIORITY_SOURCE),
            sources(family, settings, is_asked),
        ),
        (Chain::regular("", SERVICES), services(family, is_asked)),
        (Chain::regular("", GATED), gated()),
        (Chain::regular("", SOURCE_RANGES), Vec::new()),
        (Chain::regular("", FRONTENDS), frontends(family, settings, is_asked)),
        (Chain::regular("", REJECT), reject(family)),
    ]
}

/// Address, protocol and port of the packet, as a key.
fn service_key(family: Family, at: Reg) -> Vec<Expr> {
    let after = address_words(family);
    vec![address(family, End::Destination, at), protocol(at.plus(after)), port(at.plus(after + 1))]
}

/// Protocol and port of the packet, as a key.
fn node_port_key(at: Reg) -> Vec<Expr> {
    vec![protocol(at), port(at.plus(1))]
}

fn services(family: Family, is_asked: &dyn Fn(Map) -> bool) -> Vec<Commented> {
    let gated = vec![is_in(Map::Gated, KEY), decide(Verdict::Goto(GATED.into()))];
    let asked = is_asked(Map::Gated);
    let gated = asked.then(|| rule("not for everybody", [service_key(family, KEY), gated]));
    let rest = [rule("for everybody", [vec![decide(Verdict::Goto(FRONTENDS.into()))]])];
    gated.into_iter().chain(rest).collect()
}

/// A block of senders that may goes on from the chain of source ranges; what comes back may not.
fn gated() -> Vec<Commented> {
    vec![
        rule("ask who may", [vec![decide(Verdict::Jump(SOURCE_RANGES.into()))]]),
        rule("this sender may not", [vec![decide(Verdict::Drop)]]),
    ]
}

/// Goes on when the sender's block of `bits` may use the frontend.
pub fn source_range(family: Family, bits: u8) -> Commented {
    let block = address_words(family) + 2;
    let any = if family == Family::Ip6 { [0; 16].into() } else { [0; 4].into() };
    let mut sender = vec![address(family, End::Source, KEY.plus(block))];
    sender.extend(Cidr::new(any, bits).map(|c| mask(KEY.plus(block), address_value(&c.mask()))));
    let bits = constant(KEY.plus(block + address_words(family)), &u32::from(bits).to_ne_bytes());
    let allowed =
        vec![bits, is_in(Map::SourceRanges, KEY), decide(Verdict::Goto(FRONTENDS.into()))];
    rule("a block that may", [service_key(family, KEY), sender, allowed])
}

fn frontends(
    family: Family,
    settings: &Settings,
    is_asked: &dyn Fn(Map) -> bool,
) -> Vec<Commented> {
    let class = |map| vec![find(map, KEY, DATA)];
    let act = || vec![decide_class(CLASS)];
    let external = || from_outside(family, settings);
    let mut rules = Vec::new();
    if is_asked(Map::ServicesExternal) {
        let parts = [service_key(family, KEY), class(Map::ServicesExternal), external(), act()];
        rules.push(rule("external traffic, policy Local", parts));
    }
    let parts = [service_key(family, KEY), class(Map::Services), act()];
    rules.push(rule("cluster and external addresses", parts));
    let counting = settings.counting == Counting::On;
    if counting {
        let counted = vec![is_in(Map::Counted, KEY)];
        rules.insert(0, rule("count the connection", [service_key(family, KEY), counted]));
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
    rules.push(rule("unused port of a cluster address", unused));
    rules
}

/// Goes on for packets that neither this machine nor a pod sent.
fn from_outside(family: Family, settings: &Settings) -> Vec<Expr> {
    let not_host = is_local(End::Source, CmpOp::NEQ, SCRATCH);
    [not_host, not_from_pods(family, settings).unwrap_or_default()].concat()
}

/// Goes on for packets that no pod sent; none where nothing tells them.
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

/// Ways for a destination to be a node address that serves node ports; each gets its own rules.
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

fn reject(family: Family) -> Vec<Commented> {
    let tcp = vec![protocol(KEY), is_protocol(KEY, Protocol::Tcp.number()), expr_builders::reset()];
    vec![
        rule("reset the connection", [tcp]),
        rule("the port is closed", [vec![expr_builders::port_unreachable(family)]]),
    ]
}

/// What the source becomes after routing.
fn sources(family: Family, settings: &Settings, is_asked: &dyn Fn(Map) -> bool) -> Vec<Commented> {
    let after = address_words(family);
    let original = || {
        let parts = [original_address(family, KEY), protocol(KEY.plus(after))];
        [parts.to_vec(), vec![original_port(KEY.plus(after + 1))]].concat()
    };
    let to_itself =
        vec![address(family, End::Source, KEY), address(family, End::Destination, KEY.plus(after))];
    let to_cluster_ip = vec![original_address(family, KEY), is_in(Map::ClusterIps, KEY)];
    let act = || vec![masquerade()];
    let mut rules = leaving(family, settings);
    rules.extend([
        rule("not ours", [is_not_dnat(SCRATCH), vec![decide(Verdict::Return)]]),
        rule("an endpoint reaches itself", [to_itself, vec![is_in(Map::Hairpin, KEY)], act()]),
    ]);
    if is_asked(Map::Masquerade) {
        let parts = [original(), vec![is_in(Map::Masquerade, KEY)], act()];
        rules.push(rule("external addresses", parts));
    }
    // The short way around the policy Local: this machine's own address may be one that nobody else knows the
    // way to, such as the balancer's.
    let from_host = || is_local(End::Source, CmpOp::EQ, SCRATCH);
    let found = |map| vec![find(map, KEY, DATA)];
    let local = [original(), found(Map::ServicesExternal), from_host(), act()];
    if is_asked(Map::ServicesExternal) {
        rules.push(rule("this machine to external addresses, policy Local", local));
    }
    match (settings.masquerade, not_from_pods(family, settings)) {
        (Masquerade::All, _) => rules.push(rule("cluster addresses", [to_cluster_ip, act()])),
        (Masquerade::FromOutside, Some(outside)) => {
            rules.push(rule("cluster addresses from outside", [to_cluster_ip, outside, act()]));
        }
        (Masquerade::FromOutside, None) => {}
    }
    // A frontend with an address may have the number of someone's node port.
    let end = vec![decide(Verdict::Return)];
    rules.push(rule("no node port", [original(), found(Map::Services), end]));
    let original_node_port = || vec![protocol(KEY), original_port(KEY.plus(1))];
    let masqueraded = vec![is_in(Map::NodePortMasquerade, KEY), masquerade()];
    rules.push(rule("node ports", [is_dnat(SCRATCH), original_node_port(), masqueraded]));
    let local = [original_node_port(), found(Map::NodePortsExternal), from_host(), act()];
    rules.push(rule("this machine to node ports, policy Local", local));
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

/// Rules of the chain that chooses one of `count` slots.
pub fn balance(family: Family, from: EndpointPool, choice: Choice, count: u32) -> Vec<Commented> {
    let (key, map, words) = match from.has_address() {
        true => (service_key(family, KEY), Map::Endpoints, address_words(family) + 2),
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
            vec![rule("the endpoint of this client", hashed)]
        }
        Choice::Sticky(seconds) => sticky(family, from, seconds, count),
    };
    if choice != Choice::Consistent {
        rules.push(rule("one of the endpoints", random(count)));
    }
    rules.push(rule("its slot went away meanwhile: the first", random(1)));
    let refuse = vec![decide(Verdict::Goto(REJECT.into()))];
    rules.push(rule("all went away meanwhile", [refuse]));
    rules
}

/// The client's last endpoint if it still serves, else another one that is remembered. What comes after these
/// serves when no more clients can be remembered.
///
/// The registers hold padding, endpoint, frontend and client, in this order: endpoint and frontend together are
/// a key, and so are frontend and client. A slot takes the place of the client for a while.
fn sticky(family: Family, from: EndpointPool, seconds: u32, count: u32) -> Vec<Commented> {
    let words = address_words(family);
    let padding = KEY;
    let endpoint = padding.plus(1);
    let frontend = endpoint.plus(words + 1);
    let ports = frontend.plus(words);
    let client = ports.plus(2);
    let (key, map, first) = match from.has_address() {
        true => (service_key(family, frontend), Map::Endpoints, frontend),
        false => {
            let zero = constant(frontend, &vec![0; usize::from(words) * 4]);
            ([vec![zero], node_port_key(ports)].concat(), Map::NodePortEndpoints, ports)
        }
    };
    let load_client = || address(family, End::Source, client);
    let act = || vec![remember(Map::Affinity, frontend, padding, seconds), dnat(family, endpoint)];
    // Listing tools up to nft 1.0.6 end with a failed assertion where they meet the data of another map while they
    // gather what is remembered. A constant at the start leads them to a word of which they know nothing.
    let same = vec![
        load_client(),
        find(Map::Affinity, frontend, padding),
        is_in(from.live(), endpoint),
        constant(padding, &[0; 4]),
    ];
    // Together they cover padding and endpoint: the kernel reads no word that no rule has written.
    let mut zero = vec![constant(endpoint, &vec![0; usize::from(words.max(2)) * 4])];
    if family == Family::Ip6 {
        zero.push(constant(endpoint.plus(2), &[0; 12]));
    }
    zero.push(constant(padding, &[0; 8]));
    // What is remembered of an endpoint that went has to go first: an update only makes it live longer.
    let other = vec![
        load_client(),
        forget(Map::Affinity, frontend, padding),
        draw(count, from.first_slot(), client),
        find(map, first, endpoint),
        load_client(),
    ];
    vec![
        rule("the endpoint that the client had", [key.clone(), same, act()]),
        rule("one of the endpoints, to be kept", [zero, key, other, act()]),
    ]
}
