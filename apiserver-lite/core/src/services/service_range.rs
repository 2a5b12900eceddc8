//! The range of cluster IPs: the n-th address, and which addresses Services may have.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proto_api::Cidr;

/// Host bits of a range that are used at most, so that an allocation scans a bounded number of addresses.
const USED_BITS_MAX: u32 = 20;

/// A block of addresses that Services get their cluster IPs of.
pub trait ServiceRange {
    /// `IPv4` or `IPv6`, as Services write it.
    fn family(&self) -> &'static str;
    /// Whether a Service may request `address`: it lies in the range and is neither the network's nor, for IPv4, the
    /// broadcast address.
    fn is_usable(&self, address: IpAddr) -> bool;
    /// Number of addresses that Services may get, `nth(1)` being the first. The network address and, for IPv4, the
    /// broadcast address are not among them.
    fn usable(&self) -> u32;
    /// The address `offset` behind the network address.
    fn nth(&self, offset: u32) -> IpAddr;
    /// The first usable address; the API server's own Service has it.
    fn first_usable(&self) -> IpAddr;
}

impl ServiceRange for Cidr {
    fn family(&self) -> &'static str {
        if self.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    fn is_usable(&self, address: IpAddr) -> bool {
        let is_broadcast = self.is_ipv4() && address == self.last();
        self.contains(address) && address != self.first() && !is_broadcast
    }

    fn usable(&self) -> u32 {
        let size = 1_u32.wrapping_shl(u32::from(self.host_bits()).min(USED_BITS_MAX));
        size.saturating_sub(if self.is_ipv4() { 2 } else { 1 })
    }

    fn nth(&self, offset: u32) -> IpAddr {
        match self.first() {
            IpAddr::V4(first) => Ipv4Addr::from(u32::from(first).wrapping_add(offset)).into(),
            IpAddr::V6(first) => {
                Ipv6Addr::from(u128::from(first).wrapping_add(u128::from(offset))).into()
            }
        }
    }

    fn first_usable(&self) -> IpAddr {
        self.nth(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_services_may_have() {
        let range = |text: &str| text.parse::<Cidr>().unwrap();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let large = range("10.96.0.7/12");
        assert_eq!(large.first_usable(), at("10.96.0.1"));
        let usable = ["10.96.0.1", "10.111.255.254", "10.96.0.0", "10.111.255.255", "10.112.0.0"];
        assert_eq!(usable.map(|text| large.is_usable(at(text))), [true, true, false, false, false]);
        assert_eq!(range("10.0.0.0/30").usable(), 2);
        let six = range("fd00:1::/108");
        assert_eq!((six.family(), six.usable()), ("IPv6", (1 << 20) - 1));
        assert!(six.is_usable(at("fd00:1::f:ffff")) && !six.is_usable(at("fd00:1::")));
        assert!(!six.is_usable(at("10.96.0.1")));
        assert_eq!(range("::/0").usable(), (1 << 20) - 1);
        assert_eq!(range("10.0.0.1/32").usable(), 0);
    }
}
