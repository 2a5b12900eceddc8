//! Sets of CPU or node numbers in the kernel's list format: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Largest number in a set; the kernel supports fewer CPUs and nodes.
const NUMBER_MAX: u32 = 65_535;

/// A set of CPUs or NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct IdSet(BTreeSet<u32>);

/// A text that is not in the list format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of numbers and ranges")]
pub struct InvalidIdSet(String);

impl IdSet {
    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `id` is a member.
    pub fn contains(&self, id: u32) -> bool {
        self.0.contains(&id)
    }

    /// Members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Adds a member.
    pub fn insert(&mut self, id: u32) {
        self.0.insert(id);
    }

    /// Intersection.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Union.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// Difference.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Whether it is a subset of `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// All non-empty subsets, smaller ones first. There are 2^n - 1; for NUMA nodes n is at most [`super::topology::NODES_MAX`].
    pub fn subsets(&self) -> Vec<Self> {
        let mut all = vec![Self::default()];
        for id in self.iter() {
            let with = |set: &Self| {
                let mut set = set.clone();
                set.insert(id);
                set
            };
            let more: Vec<Self> = all.iter().map(with).collect();
            all.extend(more);
        }
        all.retain(|set| !set.is_empty());
        all.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        all
    }
}

impl FromIterator<u32> for IdSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        Self(ids.into_iter().collect())
    }
}

impl fmt::Display for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut first = true;
        while let Some(from) = ids.next() {
            let mut to = from;
            while let Some(next) = ids.next_if(|next| *next == to.saturating_add(1)) {
                to = next;
            }
            let comma = if first { "" } else { "," };
            first = false;
            if from == to {
                write!(f, "{comma}{from}")?;
            } else {
                write!(f, "{comma}{from}-{to}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for IdSet {
    type Err = InvalidIdSet;

    fn from_str(text: &str) -> Result<Self, InvalidIdSet> {
        let wrong = || InvalidIdSet(text.to_owned());
        let number = |text: &str| {
            text.trim().parse::<u32>().ok().filter(|n| *n <= NUMBER_MAX).ok_or_else(wrong)
        };
        let mut set = Self::default();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                return Err(wrong());
            }
            set.0.extend(from..=to);
        }
        Ok(set)
    }
}

impl From<IdSet> for String {
    fn from(set: IdSet) -> Self {
        set.to_string()
    }
}

impl TryFrom<String> for IdSet {
    type Error = InvalidIdSet;

    fn try_from(text: String) -> Result<Self, InvalidIdSet> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, back) in [("", ""), ("0", "0"), ("3,1,2,7", "1-3,7"), ("0-2,4-5\n", "0-2,4-5")] {
            let set: IdSet = text.parse().expect("set");
            assert_eq!(set.to_string(), back, "{text:?}");
        }
        for text in ["a", "1-", "3-1", "-1", "1,,x", "99999999"] {
            assert!(text.parse::<IdSet>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn subsets_grow() {
        let set: IdSet = "0-2".parse().expect("set");
        let all: Vec<String> = set.subsets().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["0", "1", "2", "0-1", "0,2", "1-2", "0-2"]);
    }
}
