//! The services that an address belongs to.

use std::sync::Arc;

/// A service by namespace and name, each kept once.
pub(crate) type Key = (Arc<str>, Arc<str>);

/// Nearly always one, and there are as many as services.
#[derive(Clone, Debug)]
pub(crate) enum Holders {
    One(Key),
    Several(Vec<Key>),
}

impl Holders {
    /// All of them.
    pub(crate) fn all(&self) -> &[Key] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(keys) => keys,
        }
    }

    /// With one more, once.
    pub(crate) fn with(self, key: Key) -> Self {
        match self {
            Self::One(one) if one == key => Self::One(one),
            Self::One(one) => Self::Several(vec![one, key]),
            Self::Several(mut keys) => {
                if !keys.contains(&key) {
                    keys.push(key);
                }
                Self::Several(keys)
            }
        }
    }

    /// Without one; none when nobody is left.
    pub(crate) fn without(self, key: &Key) -> Option<Self> {
        match self {
            Self::One(one) => (one != *key).then_some(Self::One(one)),
            Self::Several(mut keys) => {
                keys.retain(|holder| holder != key);
                match keys.len() {
                    0 | 1 => keys.pop().map(Self::One),
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
    fn services_come_and_go_each_once() {
        let [a, b, c] = ["a", "b", "c"].map(|name| -> Key { ("ns".into(), name.into()) });
        let one = Holders::One(a.clone()).with(a.clone());
        assert_eq!(one.all(), std::slice::from_ref(&a));
        let all = one.with(b.clone()).with(c.clone()).with(b.clone());
        assert_eq!(all.all(), [a.clone(), b.clone(), c.clone()]);
        let two = all.without(&b).unwrap();
        assert_eq!(two.all(), [a.clone(), c.clone()]);
        let one = two.without(&a).unwrap().without(&b).unwrap();
        assert_eq!(one.all(), std::slice::from_ref(&c));
        assert!(one.without(&c).is_none());
    }
}
