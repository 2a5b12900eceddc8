//! Portals of iSCSI targets: an address or host name, and a port. Each has one text, because sessions are compared by it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Default iSCSI port.
const PORT: u16 = 3260;

/// Where a target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Portal {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    /// In lower case.
    Name(String),
}

impl Portal {
    /// Parses `HOST`, `HOST:PORT`, `[IPv6]:PORT` or a plain IPv6 address; no other form of a number or address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Some(Self { host: address_host(address.into())?, port: PORT });
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (address, rest) = rest.split_once(']')?;
            let port = if rest.is_empty() { PORT } else { parse_port(rest.strip_prefix(':')?)? };
            return Some(Self {
                host: address_host(address.parse::<Ipv6Addr>().ok()?.into())?,
                port,
            });
        }
        let (host, port) = match text.split_once(':') {
            None => (text, PORT),
            Some((host, port)) => (host, parse_port(port)?),
        };
        let host = match host.parse::<Ipv4Addr>() {
            Ok(address) => address_host(address.into())?,
            Err(_) => name_host(host)?,
        };
        Some(Self { host, port })
    }

    /// Whether both may lead to one portal: a host name may be any address.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        let is_name = |host: &Host| matches!(host, Host::Name(_));
        let may_match = self.host == other.host || is_name(&self.host) || is_name(&other.host);
        self.port == other.port && may_match
    }

    /// How the kernel's names of disks show it: IPv6 addresses with brackets and without. Empty if only the resolver knows the address.
    pub(super) fn disk_name_forms(&self) -> Vec<String> {
        match self.host {
            Host::Address(IpAddr::V6(address)) => {
                vec![self.to_string(), format!("{address}:{}", self.port)]
            }
            Host::Address(IpAddr::V4(_)) => vec![self.to_string()],
            Host::Name(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(out, "[{address}]:{}", self.port),
            Host::Address(IpAddr::V4(address)) => write!(out, "{address}:{}", self.port),
            Host::Name(name) => write!(out, "{name}:{}", self.port),
        }
    }
}

/// An unspecified address stands for others.
fn address_host(address: IpAddr) -> Option<Host> {
    let address = address.to_canonical();
    (!address.is_unspecified()).then_some(Host::Address(address))
}

/// Resolvers take a name whose last part begins with a digit for another text of an address.
fn name_host(name: &str) -> Option<Host> {
    let is_label = |label: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_part)
    };
    let last = name.rsplit('.').next()?;
    let is_name = name.split('.').all(is_label) && !last.starts_with(|c: char| c.is_ascii_digit());
    is_name.then(|| Host::Name(name.to_ascii_lowercase()))
}

fn parse_port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_portals_that_differ_for_certain_are_two() {
        let portal = |text: &str| Portal::parse(text).unwrap();
        let cases = [
            ("10.0.0.1", "10.0.0.1:3260", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "10.0.0.1:99", false),
            ("10.0.0.1", "san", true),
            ("san", "nas", true),
            ("san", "10.0.0.1:99", false),
            ("[fd00::1]", "fd00::1", true),
            ("[fd00::1]", "[fd00::2]", false),
        ];
        for (one, other, expect) in cases {
            assert_eq!(portal(one).may_be(&portal(other)), expect, "{one} {other}");
            assert_eq!(portal(other).may_be(&portal(one)), expect, "{other} {one}");
        }
        assert_eq!(portal("fd00::1").disk_name_forms(), ["[fd00::1]:3260", "fd00::1:3260"]);
        assert_eq!(portal("san").disk_name_forms(), [""; 0]);
    }
}
