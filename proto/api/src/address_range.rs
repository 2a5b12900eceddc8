//! Ranges of addresses for load balancers: those that the controller manager gives out, and those that orch-proxy announces and guards. Pure.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::Cidr;

/// Maximum number of ranges.
const RANGES_MAX: usize = 64;

/// Addresses that hosts use for themselves or that name several: a range with one of them is refused.
const RESERVED: [&str; 9] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/127",
    "::ffff:0:0/96",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// The addresses from a first to a last one, of one IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

/// A text is not a range of addresses for load balancers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressRangeError {
    /// It is neither a CIDR nor two addresses.
    #[error(
        "expected a CIDR such as 192.0.2.0/28 or two addresses such as 192.0.2.10-192.0.2.20, found {0:?}"
    )]
    Syntax(String),
    /// The last address comes before the first, or has another IP family.
    #[error("{first} is not before {last}")]
    Order { first: IpAddr, last: IpAddr },
    /// It overlaps addresses that no load balancer may have.
    #[error("{range} overlaps {reserved}, whose addresses no load balancer may have")]
    Reserved {
        range: AddressRange,
        /// Loopback, link-local, multicast or the like.
        reserved: Cidr,
    },
}

/// There are more ranges than are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} ranges of addresses; at most {RANGES_MAX} are possible")]
pub struct TooManyRanges(usize);

impl AddressRange {
    fn new(first: IpAddr, last: IpAddr) -> Result<Self, AddressRangeError> {
        if first.is_ipv4() != last.is_ipv4() || first > last {
            return Err(AddressRangeError::Order { first, last });
        }
        let range = Self { first, last };
        let reserved = RESERVED.iter().filter_map(|block| block.parse::<Cidr>().ok());
        let overlaps = |block: &Cidr| {
            let same_family = block.is_ipv4() == first.is_ipv4();
            same_family && block.first() <= last && first <= block.last()
        };
        match reserved.into_iter().find(overlaps) {
            Some(reserved) => Err(AddressRangeError::Reserved { range, reserved }),
            None => Ok(range),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        // IPv4 addresses come before all IPv6 addresses.
        (self.first..=self.last).contains(&address)
    }

    /// Whether its addresses are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// The first address that is not taken. Looks at no more addresses than are taken, and one.
    fn free(&self, is_taken: &impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let mut candidate = self.first;
        while is_taken(candidate) {
            candidate = next(candidate).filter(|next| self.contains(*next))?;
        }
        Some(candidate)
    }
}

fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => u32::from(v4).checked_add(1).map(|n| Ipv4Addr::from(n).into()),
        IpAddr::V6(v6) => u128::from(v6).checked_add(1).map(|n| Ipv6Addr::from(n).into()),
    }
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;

    fn from_str(text: &str) -> Result<Self, AddressRangeError> {
        let address = |text: &str| text.trim().parse::<IpAddr>().ok();
        let ends = match text.split_once('-') {
            Some((first, last)) => address(first).zip(address(last)),
            None => text.trim().parse::<Cidr>().ok().map(|block| (block.first(), block.last())),
        };
        let (first, last) = ends.ok_or_else(|| AddressRangeError::Syntax(text.to_owned()))?;
        Self::new(first, last)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The ranges of a flag, in the order in which they are used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRanges(Vec<AddressRange>);

impl AddressRanges {
    /// The ranges of the flag; `None` if it has none.
    ///
    /// # Errors
    /// There are too many.
    pub fn new(ranges: &[AddressRange]) -> Result<Option<Self>, TooManyRanges> {
        match ranges.len() {
            0 => Ok(None),
            1..=RANGES_MAX => Ok(Some(Self(ranges.to_vec()))),
            many => Err(TooManyRanges(many)),
        }
    }

    /// Whether a range has addresses of IPv4, or of IPv6.
    pub fn has_family(&self, is_ipv4: bool) -> bool {
        self.0.iter().any(|range| range.is_ipv4() == is_ipv4)
    }

    /// Whether the address is in a range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }

    /// The first address of IPv4, or of IPv6, that is not taken.
    pub fn free(&self, is_ipv4: bool, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let mut ranges = self.0.iter().filter(|range| range.is_ipv4() == is_ipv4);
        ranges.find_map(|range| range.free(&is_taken))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parse(text: &str) -> Result<AddressRange, String> {
        text.parse().map_err(|error: AddressRangeError| error.to_string())
    }

    #[test]
    fn a_range_is_a_cidr_or_two_addresses() {
        let shown = |text: &str| parse(text).map(|range| range.to_string());
        for (text, range) in [
            ("192.0.2.0/30", "192.0.2.0-192.0.2.3"),
            ("192.0.2.7/32", "192.0.2.7-192.0.2.7"),
            ("192.0.2.10-192.0.2.20", "192.0.2.10-192.0.2.20"),
            (" 192.0.2.10 - 192.0.2.10 ", "192.0.2.10-192.0.2.10"),
            ("fd00:1::/126", "fd00:1::-fd00:1::3"),
            ("fd00::1-fd00::ffff", "fd00::1-fd00::ffff"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(range), "{text}");
        }
        for (text, why) in [
            ("", "expected a CIDR"),
            ("192.0.2.1", "expected a CIDR"),
            ("192.0.2.1-", "expected a CIDR"),
            ("192.0.2.0/33", "expected a CIDR"),
            ("192.0.2.9-192.0.2.1", "is not before"),
            ("192.0.2.9-fd00::1", "is not before"),
            ("fd00::1-192.0.2.9", "is not before"),
            ("127.0.0.1-127.0.0.2", "overlaps 127.0.0.0/8"),
            ("126.0.0.0-128.0.0.0", "overlaps 127.0.0.0/8"),
            ("0.0.0.0/0", "overlaps 0.0.0.0/8"),
            ("239.1.1.0/24", "overlaps 224.0.0.0/3"),
            ("::/0", "overlaps ::/127"),
            ("fe80::1-fe80::2", "overlaps fe80::/10"),
            ("::ffff:192.0.2.1-::ffff:192.0.2.2", "overlaps ::ffff:"),
        ] {
            let error = shown(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_free_address_is_found() {
        let ranges =
            ["192.0.2.9-192.0.2.10", "192.0.2.0/31", "fd00::f-fd00::10", "255.0.0.0-255.0.0.1"];
        let parsed: Vec<_> = ranges.iter().filter_map(|text| parse(text).ok()).collect();
        assert_eq!(parsed.len(), 3, "the last one is reserved");
        let ranges = AddressRanges::new(&parsed).unwrap().unwrap();
        let mut taken = BTreeSet::from(["192.0.2.8".parse().unwrap()]);
        let mut given = Vec::new();
        while let Some(free) = ranges.free(true, |address| taken.contains(&address)) {
            assert!(ranges.contains(free) && taken.insert(free));
            given.push(free.to_string());
        }
        assert_eq!(given, ["192.0.2.9", "192.0.2.10", "192.0.2.0", "192.0.2.1"]);
        taken.remove(&"192.0.2.10".parse().unwrap());
        let free = |is_ipv4| ranges.free(is_ipv4, |address| taken.contains(&address));
        let [four, six] = [true, false].map(|family| free(family).map(|free| free.to_string()));
        assert_eq!((four.as_deref(), six.as_deref()), (Some("192.0.2.10"), Some("fd00::f")));
        assert!(ranges.has_family(false) && !ranges.contains("192.0.2.11".parse().unwrap()));
        // The end of all addresses is no overflow.
        let last = IpAddr::from([255; 4]);
        assert_eq!((next(last), next(IpAddr::from([255; 16]))), (None, None));
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let range = parse("192.0.2.0/24").unwrap();
        assert_eq!(AddressRanges::new(&[]), Ok(None));
        assert!(AddressRanges::new(&[range; RANGES_MAX]).is_ok());
        assert_eq!(AddressRanges::new(&[range; RANGES_MAX + 1]), Err(TooManyRanges(65)));
    }
}
