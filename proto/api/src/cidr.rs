//! Blocks of IP addresses, such as `10.244.0.0/16`. Pure.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// Addresses that share their leading bits. Bits beyond these are zero in its first address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNet);

/// A text that is not a block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address with a prefix length such as 10.0.0.0/8, found {0:?}")]
pub struct CidrError(String);

impl Cidr {
    /// The block of `address` that shares `bits` bits; `None` if the address has fewer.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        IpNet::new(address, bits).ok().map(|block| Self(block.trunc()))
    }

    /// Whether its addresses are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.0.addr().is_ipv4()
    }

    /// Length of the prefix.
    pub fn bits(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Bits of an address that are not in the prefix.
    pub fn host_bits(&self) -> u8 {
        self.0.max_prefix_len().saturating_sub(self.0.prefix_len())
    }

    /// Its first address, the network address.
    pub fn first(&self) -> IpAddr {
        self.0.network()
    }

    /// Its last address; of an IPv4 block the broadcast address.
    pub fn last(&self) -> IpAddr {
        self.0.broadcast()
    }

    /// An address with all bits of the prefix set.
    pub fn mask(&self) -> IpAddr {
        self.0.netmask()
    }

    /// Whether `address` is in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Whether all addresses of `other` are in the block.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parsed = text
            .split_once('/')
            .and_then(|(address, bits)| Self::new(address.parse().ok()?, bits.parse().ok()?));
        parsed.ok_or_else(|| CidrError(text.to_owned()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap_or_else(|error| unreachable!("{error}"))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|error| unreachable!("{text}: {error}"))
    }

    #[test]
    fn texts_are_read_and_host_bits_dropped() {
        let check = |text: &str, expect: Option<&str>| {
            let read = text.parse::<Cidr>().ok().map(|block| block.to_string());
            assert_eq!(read.as_deref(), expect, "{text}");
        };
        check("10.244.0.0/16", Some("10.244.0.0/16"));
        check("10.244.7.9/16", Some("10.244.0.0/16"));
        check("fd00:1::5/56", Some("fd00:1::/56"));
        check("0.0.0.0/0", Some("0.0.0.0/0"));
        check("::/0", Some("::/0"));
        check("10.0.0.1/32", Some("10.0.0.1/32"));
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "x/8", "10.0.0.0/-1", "10.0.0/8"] {
            check(bad, None);
        }
    }

    #[test]
    fn addresses_in_a_block() {
        let block = cidr("10.96.0.7/12");
        assert_eq!((block.bits(), block.host_bits(), block.is_ipv4()), (12, 20, true));
        assert_eq!((block.first(), block.last()), (ip("10.96.0.0"), ip("10.111.255.255")));
        assert_eq!(block.mask(), ip("255.240.0.0"));
        let within = ["10.96.0.0", "10.111.255.255", "10.95.255.255", "10.112.0.0", "fd00::1"];
        assert_eq!(within.map(|at| block.contains(ip(at))), [true, true, false, false, false]);
        let whole = cidr("::/0");
        assert_eq!(whole.host_bits(), 128);
        assert!(whole.contains(ip("::")) && !whole.contains(ip("1.2.3.4")));
        assert_eq!(cidr("::/0").mask(), ip("::"));
    }

    #[test]
    fn a_block_covers_smaller_ones() {
        let block = cidr("10.0.0.0/8");
        let covers = |other: &str| block.covers(&cidr(other));
        assert!(covers("10.0.0.0/8") && covers("10.1.2.3/32"));
        assert!(!covers("0.0.0.0/0") && !covers("11.0.0.0/8") && !covers("::/0"));
    }
}
