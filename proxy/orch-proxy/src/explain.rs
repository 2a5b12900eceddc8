//! `orch-proxy trace`: what the kernel's tables, as they are now, do to a connection.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;

use proxy_kernel::{OpenError, QueryError, Session, Socket};
use proxy_rules::model::{Protocol, family_of};
use proxy_rules::trace::{self, Fate, Origin, Packet, Sender};

use crate::addresses;
use crate::config::Config;
use crate::flags::Question;

/// Draws that are tried: endpoints beyond so many are not told one by one.
const DRAWS_MAX: u32 = 1024;
/// Where the connection comes from, as far as rules see ports of senders: they do not.
const ANY_PORT: u16 = 40_000;

/// The question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The protocol is none that is forwarded.
    #[error("{0:?} is not tcp, udp or sctp")]
    Protocol(String),
    /// There is no way to the kernel.
    #[error("reach the kernel's netfilter")]
    Kernel(#[from] OpenError),
    /// The tables cannot be read.
    #[error("read table {0}")]
    Read(String, #[source] QueryError),
    /// There are no tables.
    #[error("there is no table {0}: the proxy has not run here")]
    NoTable(String),
    /// This machine's addresses cannot be read.
    #[error("list this machine's addresses")]
    Addresses(#[source] nix::Error),
    /// Nobody reads the answer.
    #[error("print the answer")]
    Print(#[source] std::io::Error),
}

/// Prints the rules that a connection meets and all that may become of it.
pub fn trace(config: &Config, question: &Question) -> Result<(), ExplainError> {
    let protocol = Protocol::from_name(&question.protocol.to_uppercase())
        .ok_or_else(|| ExplainError::Protocol(question.protocol.clone()))?;
    let local = addresses::local().map_err(ExplainError::Addresses)?;
    let origin = match question.from {
        Some(from) if !local.contains(&from) => Origin::Network,
        _ => Origin::Host,
    };
    let packet = Packet {
        src: question.from.unwrap_or_else(|| {
            addresses::source_towards(question.address).unwrap_or(question.address)
        }),
        src_port: ANY_PORT,
        dst: question.address,
        dst_port: question.port,
        protocol,
        origin,
    };
    let mut session = Session::new(Socket::open()?);
    let table = session
        .read_table(family_of(question.address), &config.table)
        .map_err(|error| ExplainError::Read(config.table.clone(), error))?
        .ok_or_else(|| ExplainError::NoTable(config.table.clone()))?;
    let is_local = |address: IpAddr| address.is_loopback() || local.contains(&address);
    let one = trace::trace(&table, &packet, &is_local, &mut |_| 0);
    let fates = trace::fates(&table, &packet, &is_local, DRAWS_MAX);
    print(&mut std::io::stdout().lock(), &packet, &one, &fates).map_err(ExplainError::Print)
}

fn print(
    out: &mut impl Write,
    packet: &Packet,
    one: &trace::Trace,
    fates: &BTreeSet<Fate>,
) -> std::io::Result<()> {
    writeln!(out, "{:?} {} -> {}:{}", packet.protocol, packet.src, packet.dst, packet.dst_port)?;
    for step in &one.steps {
        writeln!(out, "  chain {}: {}", step.chain, step.rule)?;
    }
    for fate in fates {
        let text = match fate {
            Fate::Untouched => "goes on untouched".to_owned(),
            Fate::Sent { to, port, from: Sender::Itself } => format!("to {to} port {port}"),
            Fate::Sent { to, port, from: Sender::Masqueraded } => {
                format!("to {to} port {port}, masqueraded")
            }
            Fate::Reset => "refused with a TCP reset".to_owned(),
            Fate::Unreachable => "refused with an ICMP error".to_owned(),
            Fate::Dropped => "dropped".to_owned(),
            Fate::Unknown(what) => format!("not known: {what}"),
        };
        writeln!(out, "=> {text}")?;
    }
    Ok(())
}
