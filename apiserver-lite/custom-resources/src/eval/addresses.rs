//! IP addresses and blocks of them in rules. As in Kubernetes, those with a zone (`fe80::1%eth0`) and IPv4 addresses in IPv6 (`::ffff:1.2.3.4`) are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use apiserver_schema::value::cut;
use ipnet::IpNet;

use super::value::{Fail, Val};
use crate::errors::quote;

/// Calls a function of a text.
pub(crate) fn read<'a>(name: &str, text: &str) -> Result<Val<'a>, Fail> {
    match name {
        "isIP" => Ok(Val::Bool(parse_ip(text).is_ok())),
        "ip" => parse_ip(text).map(Val::Ip),
        "ip.isCanonical" => parse_ip(text).map(|ip| Val::Bool(ip.to_string() == text)),
        "isCIDR" => Ok(Val::Bool(parse_block(text).is_ok())),
        "cidr" => parse_block(text).map(Val::Cidr),
        _ => Err(Fail::no_overload()),
    }
}

/// Calls a method of an address.
pub(crate) fn call_on_ip<'a>(name: &str, ip: IpAddr) -> Result<Val<'a>, Fail> {
    Ok(Val::Bool(match name {
        "family" => return Ok(Val::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => ip.is_unspecified(),
        "isLoopback" => ip.is_loopback(),
        "isLinkLocalMulticast" => is_link_local_multicast(ip),
        "isLinkLocalUnicast" => is_link_local_unicast(ip),
        "isGlobalUnicast" => {
            !(ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_multicast()
                || is_link_local_unicast(ip)
                || ip == IpAddr::V4(Ipv4Addr::BROADCAST))
        }
        _ => return Err(Fail::no_overload()),
    }))
}

/// Calls a method of a block.
pub(crate) fn call_on_block<'a>(
    name: &str,
    block: &IpNet,
    args: &[Val<'a>],
) -> Result<Val<'a>, Fail> {
    Ok(match (name, args) {
        ("ip", []) => Val::Ip(block.addr()),
        ("masked", []) => Val::Cidr(block.trunc()),
        ("prefixLength", []) => Val::Int(i64::from(block.prefix_len())),
        ("containsIP", [Val::Ip(ip)]) => Val::Bool(block.contains(ip)),
        ("containsIP", [Val::Text(text)]) => Val::Bool(block.contains(&parse_ip(text)?)),
        ("containsCIDR", [Val::Cidr(other)]) => Val::Bool(block.contains(other)),
        ("containsCIDR", [Val::Text(text)]) => Val::Bool(block.contains(&parse_block(text)?)),
        _ => return Err(Fail::no_overload()),
    })
}

/// Reads an address.
fn parse_ip(text: &str) -> Result<IpAddr, Fail> {
    let shown = quote(cut(text));
    let zone = text.split_once('%').filter(|(_, zone)| !zone.is_empty());
    let has_zone = zone.is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    match text.parse::<IpAddr>() {
        Ok(ip) if is_ipv4_in_ipv6(ip) => Err(Fail::error(ipv4_in_ipv6(&shown))),
        Ok(ip) => Ok(ip),
        Err(_) if has_zone => {
            Err(Fail::error(format!("IP address {shown} with zone value is not allowed")))
        }
        Err(_) => Err(Fail::error(format!(
            "IP Address {shown} parse error during conversion from string: ParseAddr({shown}): unable to parse IP"
        ))),
    }
}

/// Reads a block. Addresses in it may have bits beyond its prefix.
fn parse_block(text: &str) -> Result<IpNet, Fail> {
    // Kubernetes says it twice.
    const FAULT: &str = "network address parse error during conversion from string: ";
    let shown = quote(cut(text));
    let fault = |why: &str| Fail::error(format!("{FAULT}{FAULT}netip.ParsePrefix({shown}): {why}"));
    let (address, length) = text.rsplit_once('/').ok_or_else(|| fault("no '/'"))?;
    let ip: IpAddr = address.parse().map_err(|_| fault("unable to parse IP"))?;
    let has_zero = length.len() > 1 && length.starts_with('0');
    if length.is_empty() || has_zero || !length.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fault(&format!("bad bits after slash: {}", quote(cut(length)))));
    }
    let block = length.parse::<u8>().ok().and_then(|length| IpNet::new(ip, length).ok());
    let block = block.ok_or_else(|| fault("prefix length out of range"))?;
    if is_ipv4_in_ipv6(ip) {
        return Err(Fail::error(format!("{FAULT}{}", ipv4_in_ipv6(&shown))));
    }
    Ok(block)
}

fn is_ipv4_in_ipv6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

fn ipv4_in_ipv6(shown: &str) -> String {
    format!("IPv4-mapped IPv6 address {shown} is not allowed")
}

fn is_link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
