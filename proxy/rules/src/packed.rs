//! Lists of items with an address, without padding: an IPv4 address takes a quarter of an [`IpAddr`], and nearly every
//! list has one family. A node keeps every endpoint of the cluster several times.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// An item with an address.
pub trait HasAddress: Copy + PartialEq {
    /// The other fields.
    type Rest: Copy;

    /// Splits the item.
    fn split(self) -> (IpAddr, Self::Rest);

    /// Joins its parts.
    fn join(address: IpAddr, rest: Self::Rest) -> Self;
}

/// An immutable list, which takes less memory if all addresses are IPv4.
#[derive(Clone)]
pub struct PackedList<T: HasAddress>(Repr<T>);

#[derive(Clone)]
enum Repr<T: HasAddress> {
    /// All addresses are IPv4.
    V4(Box<[(Ipv4Addr, T::Rest)]>),
    /// Other lists.
    Any(Box<[T]>),
}

impl<T: HasAddress> PackedList<T> {
    /// Number of items.
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::V4(all) => all.len(),
            Repr::Any(all) => all.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All items, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> + Clone {
        let (v4, any) = match &self.0 {
            Repr::V4(all) => (&**all, &[][..]),
            Repr::Any(all) => (&[][..], &**all),
        };
        let v4 = v4.iter().map(|(address, rest)| T::join(IpAddr::V4(*address), *rest));
        v4.chain(any.iter().copied())
    }
}

impl<T: HasAddress> Default for PackedList<T> {
    fn default() -> Self {
        Self(Repr::Any(Box::default()))
    }
}

impl<T: HasAddress> From<&[T]> for PackedList<T> {
    fn from(all: &[T]) -> Self {
        let v4 = all.iter().map(|one| match one.split() {
            (IpAddr::V4(address), rest) => Some((address, rest)),
            (IpAddr::V6(_), _) => None,
        });
        Self(v4.collect::<Option<_>>().map_or_else(|| Repr::Any(all.into()), Repr::V4))
    }
}

impl<T: HasAddress> From<Vec<T>> for PackedList<T> {
    fn from(all: Vec<T>) -> Self {
        all.as_slice().into()
    }
}

impl<T: HasAddress, const N: usize> From<[T; N]> for PackedList<T> {
    fn from(all: [T; N]) -> Self {
        all.as_slice().into()
    }
}

impl<T: HasAddress> FromIterator<T> for PackedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        all.into_iter().collect::<Vec<T>>().into()
    }
}

impl<T: HasAddress> PartialEq for PackedList<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: HasAddress + Eq> Eq for PackedList<T> {}

impl<T: HasAddress + fmt::Debug> fmt::Debug for PackedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EndpointState, LocalEndpoint, Locality};
    use proptest::prelude::*;

    proptest! {
        /// Packing and unpacking returns the same items for any mix of families.
        #[test]
        fn packing_loses_nothing(addresses in prop::collection::vec((any::<bool>(), any::<u128>(), any::<bool>()), 0..6)) {
            let endpoint = |&(v4, bits, ready): &(bool, u128, bool)| LocalEndpoint {
                address: if v4 { IpAddr::V4((bits as u32).into()) } else { IpAddr::V6(bits.into()) },
                state: if ready { EndpointState::Ready } else { EndpointState::Draining },
                place: if ready { Locality::Elsewhere } else { Locality::Here },
            };
            let all: Vec<LocalEndpoint> = addresses.iter().map(endpoint).collect();
            let packed: PackedList<LocalEndpoint> = all.clone().into();
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), all.clone());
            prop_assert_eq!(packed.iter().rev().collect::<Vec<_>>(), all.iter().rev().copied().collect::<Vec<_>>());
            prop_assert_eq!((packed.len(), packed.is_empty()), (all.len(), all.is_empty()));
            prop_assert_eq!(&packed, &all.into_iter().collect());
        }
    }

    #[test]
    fn an_ipv4_endpoint_takes_six_bytes() {
        assert_eq!(size_of::<(Ipv4Addr, <LocalEndpoint as HasAddress>::Rest)>(), 6);
        assert_eq!(
            size_of::<(Ipv4Addr, <crate::endpoint_selection::Backend as HasAddress>::Rest)>(),
            8
        );
    }
}
