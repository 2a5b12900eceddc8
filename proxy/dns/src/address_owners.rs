//! The Services that an address belongs to.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

/// Namespace and name, each kept once.
pub(crate) type ServiceKey = (Arc<str>, Arc<str>);

/// Usually one Service, and as many values as Services. Each with a count: several EndpointSlices may have the same
/// endpoint.
#[derive(Clone, Debug)]
pub(crate) enum AddressOwners {
    One(ServiceKey, usize),
    Several(BTreeMap<ServiceKey, usize>),
}

impl AddressOwners {
    /// All of them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        let (one, several) = match self {
            Self::One(key, _) => (Some(key), None),
            Self::Several(keys) => (None, Some(keys.keys())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Adds a Service, or increments its count.
    pub(crate) fn with_key(self, key: ServiceKey) -> Self {
        match self {
            Self::One(one, count) if one == key => Self::One(one, count.saturating_add(1)),
            Self::One(one, count) => Self::Several([(one, count), (key, 1)].into()),
            Self::Several(mut keys) => {
                let count = keys.entry(key).or_default();
                *count = count.saturating_add(1);
                Self::Several(keys)
            }
        }
    }

    /// Decrements the count of a Service; `None` when none is left.
    pub(crate) fn without_key(self, key: &ServiceKey) -> Option<Self> {
        match self {
            Self::One(one, count) if one == *key => {
                (count > 1).then(|| Self::One(one, count.saturating_sub(1)))
            }
            Self::One(one, count) => Some(Self::One(one, count)),
            Self::Several(mut keys) => {
                if let Some(count) = keys.get_mut(key) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        keys.remove(key);
                    }
                }
                match keys.len() {
                    0 | 1 => keys.pop_first().map(|(key, count)| Self::One(key, count)),
                    _ => Some(Self::Several(keys)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_come_and_go_as_often_as_they_have_it() {
        let [a, b, c] = ["a", "b", "c"].map(|name| -> ServiceKey { ("ns".into(), name.into()) });
        let all =
            |address_owners: &AddressOwners| address_owners.keys().cloned().collect::<Vec<_>>();
        let one = AddressOwners::One(a.clone(), 1).with_key(a.clone());
        assert_eq!(all(&one), std::slice::from_ref(&a));
        let three = one.with_key(b.clone()).with_key(c.clone()).with_key(b.clone());
        assert_eq!(all(&three), [a.clone(), b.clone(), c.clone()]);
        let three = three.without_key(&b).unwrap();
        assert_eq!(all(&three).len(), 3);
        let two = three.without_key(&b).unwrap();
        assert_eq!(all(&two), [a.clone(), c.clone()]);
        let two = two.without_key(&a).unwrap();
        let one = two.without_key(&a).unwrap().without_key(&b).unwrap();
        assert_eq!(all(&one), std::slice::from_ref(&c));
        assert!(one.without_key(&c).is_none());
    }
}
