//! `orch-proxy trace` and `orch-proxy diff`: what should happen to a connection, what the kernel's current tables do
//! to it, and which conntrack entries it has; and how the tables differ from the desired ones. Settings come from the
//! running proxy, or from the same flags or file.

mod model;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use proto_daemon::exit::chain;
use proxy_kernel::{OpenError, QueryError, Session, Socket};
use proxy_netfilter::ct::{
    AddressFamily, Flow, FlowFilter, FlowState, STATUS_DNAT, STATUS_SEEN_REPLY, TupleFilter,
};
use proxy_netfilter::nft::{Family, TableRules};
use proxy_node_addresses::address_table::AddressTableError;
use proxy_node_addresses::local_addresses as addresses;
use proxy_rules::compare::{Comparison, compare};
use proxy_rules::counters::Counted;
use proxy_rules::layout::Map;
use proxy_rules::model::{Protocol, family_of};
use proxy_rules::trace::{self, Origin, Packet, PacketOutcome, Sender, Trace, text};
use proxy_sync::table_swap;

use crate::build_error::BuildError;
use crate::config::{Config, LoopbackNodePorts};
use crate::flags::Question;
use crate::forwarding_path::NetfilterHandle;
use crate::tables;
use model::{Model, ModelError};

/// Random draws that are traced; further endpoints are not listed.
const DRAWS_MAX: u32 = 1024;
/// Source port of the traced packet; no rule matches on it.
const ANY_PORT: u16 = 40_000;
/// Conntrack entries that are listed.
const FLOWS_MAX: usize = 20;

/// The command failed.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The protocol is not tcp, udp or sctp.
    #[error("expected tcp, udp or sctp, found {0:?}")]
    Protocol(String),
    /// The netlink socket cannot be opened.
    #[error("cannot open a netlink socket to netfilter")]
    Kernel(#[from] OpenError),
    /// The tables cannot be read.
    #[error("cannot read table {0}")]
    Read(String, #[source] QueryError),
    /// The tables do not exist.
    #[error(
        "there is no table {0} in this network namespace: the proxy has not run here; run this on a node"
    )]
    NoTable(String),
    /// The kernel's features cannot be probed.
    #[error("cannot probe the kernel's nf_tables features")]
    KernelFeatures(#[source] Box<BuildError>),
    /// Services and EndpointSlices cannot be listed.
    #[error("cannot list the objects to forward")]
    Model(#[from] ModelError),
    /// The node's addresses cannot be listed.
    #[error("cannot list the addresses of this node")]
    Addresses(#[source] AddressTableError),
    /// The tables differ; `diff` exits with 1.
    #[error("the kernel's tables differ from the desired ones")]
    Differs,
    /// Standard output is closed.
    #[error("cannot print the result")]
    Print(#[source] std::io::Error),
}

/// Prints what should happen to a connection, the rules and elements that its first packet matches, all possible
/// results, and its conntrack entries.
pub async fn trace(config: &Config, question: &Question) -> Result<(), ExplainError> {
    let protocol = Protocol::from_name(&question.protocol.to_uppercase())
        .ok_or_else(|| ExplainError::Protocol(question.protocol.clone()))?;
    let local = addresses::local().await.map_err(ExplainError::Addresses)?;
    let is_local = |address: IpAddr| address.is_loopback() || local.contains(&address);
    let packet = packet(question, protocol, &local).await;
    let mut session = Session::new(Socket::open()?);
    let family = family_of(question.address);
    let unread = |error| ExplainError::Read(config.table.clone(), error);
    let serving =
        table_swap::serving_table(&mut session, &config.table, &[family]).map_err(unread)?;
    let table = session
        .read_table(family, &serving)
        .map_err(unread)?
        .ok_or_else(|| ExplainError::NoTable(config.table.clone()))?;
    let mut out = Vec::new();
    let from = match packet.origin {
        Origin::Host => "this node".to_owned(),
        Origin::Interface(name) => format!("interface {name}"),
        Origin::Network => "a pod or from outside".to_owned(),
    };
    let (to, name) = (SocketAddr::new(packet.dst, packet.dst_port), name_of(protocol));
    out.push(format!("{name} {} -> {to}, from {from}", packet.src));
    out.push("API server:".to_owned());
    // Without the API server the kernel's part is still printed.
    match Model::fetch(config).await {
        Ok(model) => {
            out.extend(indented(model.explain(protocol, to, &is_local)));
            let by_socket = model.config.loopback_node_ports == LoopbackNodePorts::Serve;
            if to.ip().is_loopback() && by_socket && model.has_node_port(protocol, to.port()) {
                out.push("  served by a socket of the proxy, not by the tables".to_owned());
            }
        }
        Err(error) => out.push(format!("  unavailable: {}", chain(&error))),
    }
    out.push(format!("table {serving}:"));
    let one = trace::trace(&table, &packet, &is_local, &mut |_| 0);
    for step in &one.steps {
        out.push(format!("  chain {}: {}", step.chain, step.rule));
        let found = step.found.iter();
        out.extend(found.map(|looked| {
            format!("    {}", text::element(family, &looked.set, &looked.key, looked.data.as_ref()))
        }));
    }
    out.extend(counted(family, &table, &one).into_iter().map(|line| format!("  {line}")));
    let possible_outcomes = trace::possible_outcomes(&table, &packet, &is_local, DRAWS_MAX);
    out.extend(possible_outcomes.iter().map(|outcome| format!("=> {}", outcome_text(outcome))));
    out.push("conntrack entries:".to_owned());
    match flows(&mut session, protocol, to) {
        Ok(flows) => out.extend(indented(flows_text(&flows, name))),
        Err(error) => out.push(format!("  unavailable: {}", chain(&error))),
    }
    print(&out)
}

/// Prints the differences between the kernel's tables and the desired ones.
pub async fn diff(config: &Config) -> Result<(), ExplainError> {
    let model = Model::fetch(config).await?;
    let kernel = NetfilterHandle::open(&model.config);
    let NetfilterHandle { mut session, features } =
        kernel.map_err(|error| ExplainError::KernelFeatures(Box::new(error)))?;
    let mut layout = tables::layout(&features, &model.config);
    let unread = |error| ExplainError::Read(config.table.clone(), error);
    let families = layout.families.clone();
    layout.table =
        table_swap::serving_table(&mut session, &config.table, &families).map_err(unread)?;
    let serving = layout.table.clone();
    let plane = model.plane(layout);
    let mut out = Vec::new();
    for (family, should) in plane.tables() {
        let is = session.read_table(family, &serving).map_err(unread)?;
        let found = compare(family, is.as_ref(), &should);
        out.extend(comparison_text(family.name(), &found));
    }
    if out.is_empty() {
        return print(&["no differences".to_owned()]);
    }
    print(&out)?;
    Err(ExplainError::Differs)
}

fn comparison_text(family: &str, found: &Comparison) -> Vec<String> {
    let line = |sign: &'static str| move |text: &String| format!("{sign} {family} {text}");
    let shape = found.shape.iter().map(line("!"));
    let surplus = found.surplus.iter().map(line("-"));
    shape.chain(surplus).chain(found.missing.iter().map(line("+"))).collect()
}

async fn packet(question: &Question, protocol: Protocol, local: &BTreeSet<IpAddr>) -> Packet {
    let origin = match question.from {
        Some(from) if !local.contains(&from) => {
            addresses::interface_towards(from).await.map_or(Origin::Network, Origin::Interface)
        }
        _ => Origin::Host,
    };
    let source = || addresses::source_towards(question.address).unwrap_or(question.address);
    Packet {
        src: question.from.unwrap_or_else(source),
        src_port: ANY_PORT,
        dst: question.address,
        dst_port: question.port,
        protocol,
        origin,
    }
}

fn outcome_text(outcome: &PacketOutcome) -> String {
    match outcome {
        PacketOutcome::Untouched => "not translated".to_owned(),
        PacketOutcome::Sent { to, port, from: Sender::Itself } => format!("to {to} port {port}"),
        PacketOutcome::Sent { to, port, from: Sender::Masqueraded } => {
            format!("to {to} port {port}, masqueraded")
        }
        PacketOutcome::Reset => "rejected with a TCP reset".to_owned(),
        PacketOutcome::Unreachable => "rejected with an ICMP error".to_owned(),
        PacketOutcome::Dropped => "dropped".to_owned(),
        PacketOutcome::Unknown(what) => format!("unknown: {what}"),
    }
}

/// Counters of the elements that a packet matches.
fn counted(family: Family, table: &TableRules, trace: &Trace) -> Vec<String> {
    let looked = trace.steps.iter().flat_map(|step| &step.found);
    let counted = looked.filter_map(|looked| {
        let element = table.sets.get(&looked.set)?.elements.get(&looked.key)?;
        let map = Map::from_name(&looked.set).filter(|map| map.counts())?;
        let (_, connections) = Counted::read(family, map, element)?;
        Some(format!("connections counted by {}: {connections}", looked.set))
    });
    counted.collect()
}

/// Conntrack entries with this original destination.
fn flows(
    session: &mut Session<Socket>,
    protocol: Protocol,
    to: SocketAddr,
) -> Result<Vec<(Flow, FlowState)>, QueryError> {
    let orig = TupleFilter {
        dst: Some(to.ip()),
        proto: Some(protocol.number()),
        dst_port: Some(to.port()),
        ..TupleFilter::default()
    };
    let filter = FlowFilter { orig, ..FlowFilter::default() };
    let mut found = Vec::new();
    let family = AddressFamily::from_address(to.ip());
    session.flow_states(family, &filter, |flow, state| found.push((flow, state)))?;
    Ok(found)
}

fn flows_text(flows: &[(Flow, FlowState)], name: &str) -> Vec<String> {
    let text = |(flow, state): &(Flow, FlowState)| {
        let (orig, reply) = (&flow.orig, &flow.reply);
        let mut line = format!("{name} {} port {}", orig.src, orig.src_port);
        if flow.status & STATUS_DNAT != 0 {
            line += &format!(" -> {} port {}", reply.src, reply.src_port);
        } else {
            line += " without NAT";
        }
        if reply.dst != orig.src {
            line += &format!(", as {} port {}", reply.dst, reply.dst_port);
        }
        line += if flow.status & STATUS_SEEN_REPLY != 0 { ", replied" } else { ", unreplied" };
        if let Some(state) = state.name(orig.proto) {
            line += &format!(", {state}");
        }
        if let Some([there, back]) = state.counters {
            line += &format!(
                ", original {} packets of {} bytes, reply {} of {}",
                there.packets, there.bytes, back.packets, back.bytes
            );
        }
        match flow.timeout_secs {
            Some(secs) => line + &format!(", expires in {secs} s"),
            None => line,
        }
    };
    let mut lines: Vec<String> = flows.iter().take(FLOWS_MAX).map(text).collect();
    match flows.len() {
        0 => lines.push("none".to_owned()),
        len if len > FLOWS_MAX => lines.push(format!("and {} more", len - FLOWS_MAX)),
        _ => {}
    }
    lines
}

fn name_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

fn indented(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|line| format!("  {line}"))
}

fn print(lines: &[String]) -> Result<(), ExplainError> {
    let mut out = std::io::stdout().lock();
    lines.iter().try_for_each(|line| writeln!(out, "{line}")).map_err(ExplainError::Print)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_netfilter::ct::{Traffic, Tuple};

    #[test]
    fn connections_are_printed_with_their_endpoint() {
        let tuple = |src: [u8; 4], dst: [u8; 4], src_port, dst_port| Tuple {
            src: src.into(),
            dst: dst.into(),
            proto: 6,
            src_port,
            dst_port,
        };
        let flow = Flow {
            orig: tuple([10, 244, 0, 9], [10, 96, 0, 1], 4000, 80),
            reply: tuple([10, 244, 0, 5], [192, 0, 2, 1], 8080, 5000),
            status: STATUS_DNAT | STATUS_SEEN_REPLY,
            mark: 0,
            timeout_secs: Some(100),
            id: None,
        };
        let expected = "tcp 10.244.0.9 port 4000 -> 10.244.0.5 port 8080, as 192.0.2.1 port 5000, replied, \
                        expires in 100 s";
        let silent = FlowState::default();
        assert_eq!(flows_text(&[(flow, silent)], "tcp"), [expected]);
        let traffic = |packets| Traffic { packets, bytes: packets * 100 };
        let counters = Some([traffic(2), traffic(1)]);
        let lines = flows_text(&[(flow, FlowState { state: Some(3), counters })], "tcp");
        let expected =
            "replied, ESTABLISHED, original 2 packets of 200 bytes, reply 1 of 100, expires";
        assert!(lines[0].contains(expected), "{lines:?}");
        assert_eq!(flows_text(&[], "tcp"), ["none"]);
        let many = vec![(flow, silent); FLOWS_MAX + 3];
        assert_eq!(flows_text(&many, "tcp").last().unwrap(), "and 3 more");
    }

    #[test]
    fn each_side_of_a_difference_has_its_sign() {
        let found = Comparison {
            shape: vec!["chain x differs".into()],
            surplus: vec!["a".into()],
            missing: vec!["b".into()],
        };
        assert_eq!(comparison_text("ip", &found), ["! ip chain x differs", "- ip a", "+ ip b"]);
    }
}
