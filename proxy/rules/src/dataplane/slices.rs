//! The EndpointSlices of one Service by name: usually one, so without spare room, and seldom thousands.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::LocalSlice;

/// Up to this many are kept in an array, which each change scans.
const FEW_MAX: usize = 16;

#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "the rare case must not make the usual one larger")]
pub(super) enum Slices {
    Few(Box<[(Box<str>, Arc<LocalSlice>)]>),
    Many(Box<BTreeMap<Box<str>, Arc<LocalSlice>>>),
}

impl Default for Slices {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl Slices {
    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &LocalSlice> + Clone {
        self.named().map(|(_, slice)| &**slice)
    }

    /// All of them with their names.
    pub(super) fn named(&self) -> impl Iterator<Item = (&str, &Arc<LocalSlice>)> + Clone {
        let (few, many) = match self {
            Self::Few(few) => (&**few, None),
            Self::Many(many) => (&[][..], Some(&**many)),
        };
        let few = few.iter().map(|(name, slice)| (&**name, slice));
        few.chain(many.into_iter().flatten().map(|(name, slice)| (&**name, slice)))
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }

    /// Sets or removes one by name.
    pub(super) fn set(&mut self, name: &str, new: Option<Arc<LocalSlice>>) {
        match self {
            Self::Few(few) => {
                proto_api::count_steps!(few.len());
                if let Some((_, slice)) = few.iter_mut().find(|(slice, _)| **slice == *name)
                    && let Some(new) = new
                {
                    *slice = new;
                    return;
                }
                let mut all = std::mem::take(few).into_vec();
                all.retain(|(slice, _)| **slice != *name);
                all.extend(new.map(|new| (name.into(), new)));
                *self = match all.len() > FEW_MAX {
                    true => Self::Many(Box::new(all.into_iter().collect())),
                    false => Self::Few(all.into()),
                };
            }
            Self::Many(many) => {
                proto_api::count_steps!(1);
                match new {
                    Some(new) => drop(many.insert(name.into(), new)),
                    None => drop(many.remove(name)),
                }
                // At half the limit, so that a slice that is added and removed repeatedly does not convert each time.
                if many.len() <= FEW_MAX / 2 {
                    *self = Self::Few(std::mem::take(&mut **many).into_iter().collect());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_come_and_go_by_name() {
        let mut slices = Slices::default();
        for n in 0..100 {
            slices.set(&n.to_string(), Some(Arc::default()));
            slices.set(&n.to_string(), Some(Arc::default()));
            assert_eq!(slices.iter().count(), n + 1);
        }
        for n in 0..100 {
            assert!(!slices.is_empty());
            slices.set(&n.to_string(), None);
            slices.set("none", None);
            assert_eq!(slices.named().count(), 99 - n);
        }
        assert!(slices.is_empty());
    }
}
