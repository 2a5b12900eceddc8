//! Address ranges of services: parsing, the n-th address, which addresses may be handed out.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address range such as `10.96.0.0/12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: IpAddr,
    bits: u8,
}

/// A text that is no range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address range such as 10.96.0.0/12")]
pub struct CidrError(String);

/// Ranges larger than this are used up to it only, so that an allocation never scans more.
const USED_BITS_MAX: u32 = 20;

impl Cidr {
    /// Whether `address` lies in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.offset_of(address).is_some_and(|offset| {
            let host = self.host_bits();
            host >= 128 || offset >> host == 0
        })
    }

    /// Whether a service may ask for `address`: it lies in the range and is neither the network's nor, for IPv4, the
    /// broadcast address.
    #[must_use]
    pub fn is_usable(&self, address: IpAddr) -> bool {
        let host = self.host_bits();
        let last = 1_u128.checked_shl(host).unwrap_or(0).wrapping_sub(1);
        let inner = |offset: u128| offset != 0 && (self.is_ipv6() || offset != last);
        self.contains(address) && self.offset_of(address).is_some_and(inner)
    }

    /// Whether the range is of IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.base.is_ipv6()
    }

    /// `IPv4` or `IPv6`, as services write it.
    #[must_use]
    pub fn family(&self) -> &'static str {
        if self.is_ipv6() { "IPv6" } else { "IPv4" }
    }

    /// Number of addresses that services may get, `first` being number 1. The network address and, for IPv4, the
    /// broadcast address are not among them.
    #[must_use]
    pub fn usable(&self) -> u32 {
        let size = 1u32 << self.host_bits().min(USED_BITS_MAX);
        size.saturating_sub(if self.is_ipv6() { 1 } else { 2 })
    }

    /// The address `offset` behind the base.
    #[must_use]
    pub fn nth(&self, offset: u32) -> IpAddr {
        match self.base {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from(u32::from(base).wrapping_add(offset))),
            IpAddr::V6(base) => {
                IpAddr::V6(Ipv6Addr::from(u128::from(base).wrapping_add(u128::from(offset))))
            }
        }
    }

    /// The first usable address; the API server's own service has it.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.nth(1)
    }

    fn host_bits(&self) -> u32 {
        let width = if self.is_ipv6() { 128 } else { 32 };
        width - u32::from(self.bits)
    }

    fn offset_of(&self, address: IpAddr) -> Option<u128> {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(at)) => {
                u32::from(at).checked_sub(u32::from(base)).map(u128::from)
            }
            (IpAddr::V6(base), IpAddr::V6(at)) => u128::from(at).checked_sub(u128::from(base)),
            _ => None,
        }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let fail = || CidrError(text.to_owned());
        let (address, bits) = text.split_once('/').ok_or_else(fail)?;
        let address: IpAddr = address.parse().map_err(|_| fail())?;
        let bits: u8 = bits.parse().map_err(|_| fail())?;
        let base = match address {
            IpAddr::V4(v4) if bits <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
            }
            IpAddr::V6(v6) if bits <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
            }
            _ => return Err(fail()),
        };
        Ok(Self { base, bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.base, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let range: Cidr = "10.96.0.7/12".parse().unwrap();
        assert_eq!(range.to_string(), "10.96.0.0/12");
        assert_eq!(range.first().to_string(), "10.96.0.1");
        assert!(range.contains("10.111.255.255".parse().unwrap()));
        assert!(!range.contains("10.112.0.0".parse().unwrap()));
        assert!(!range.contains("10.95.255.255".parse().unwrap()));
        let small: Cidr = "10.0.0.0/30".parse().unwrap();
        assert_eq!(small.usable(), 2);
        let six: Cidr = "fd00:1::/108".parse().unwrap();
        assert_eq!((six.family(), six.usable()), ("IPv6", (1 << 20) - 1));
        assert!(!six.contains("10.96.0.1".parse().unwrap()));
    }

    #[test]
    fn garbage_is_refused() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "::/129", "10.0.0.0/-1"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
