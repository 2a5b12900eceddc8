//! The ranges of `--service-load-balancer-addresses`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use proto_api::Cidr;

use crate::addresses::Family;

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

/// There are more ranges than [`RANGES_MAX`].
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

    fn family(&self) -> Family {
        if self.first.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The first address that is not taken. The cost depends on the taken addresses only.
    fn free(&self, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let mut candidate = self.first;
        for used in taken.range(self.first..=self.last) {
            if *used != candidate {
                break;
            }
            candidate = next(candidate)?;
        }
        self.contains(candidate).then_some(candidate)
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

/// All ranges, in the order in which they are used up.
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

    /// Whether a range has addresses of the family.
    pub(super) fn has(&self, family: Family) -> bool {
        self.0.iter().any(|range| range.family() == family)
    }

    /// Whether the address is in a range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }

    /// The first address of a family that is not taken.
    pub(super) fn free(&self, family: Family, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let mut ranges = self.0.iter().filter(|range| range.family() == family);
        ranges.find_map(|range| range.free(taken))
    }
}

#[cfg(test)]
mod tests {
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
        while let Some(free) = ranges.free(Family::V4, &taken) {
            assert!(ranges.contains(free) && taken.insert(free));
            given.push(free.to_string());
        }
        assert_eq!(given, ["192.0.2.9", "192.0.2.10", "192.0.2.0", "192.0.2.1"]);
        taken.remove(&"192.0.2.10".parse().unwrap());
        let free = ranges.free(Family::V4, &taken).map(|free| free.to_string());
        assert_eq!(free.as_deref(), Some("192.0.2.10"));
        let six = ranges.free(Family::V6, &taken).map(|free| free.to_string());
        assert_eq!(six.as_deref(), Some("fd00::f"));
        assert!(ranges.has(Family::V6) && !ranges.contains("192.0.2.11".parse().unwrap()));
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
