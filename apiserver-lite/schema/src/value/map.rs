//! The map of a tree: entries in a vector, sorted by key unless their order matters.

use std::borrow::Cow;
use std::collections::HashMap;

use super::Value;

/// A key: borrowed for names of descriptor fields, owned otherwise.
pub type Key = Cow<'static, str>;

/// Entries with unique keys.
///
/// A parsed map keeps the order of its text (embedded raw JSON is returned unchanged); once checked against a descriptor it is
/// sorted. `sorted` records which, so that lookups in large sorted maps use binary search.
#[derive(Clone, Debug)]
pub struct Map {
    entries: Vec<(Key, Value)>,
    sorted: bool,
}

impl Default for Map {
    fn default() -> Self {
        Map { entries: Vec::new(), sorted: true }
    }
}

impl Map {
    /// An empty map.
    pub fn new() -> Self {
        Map::default()
    }

    /// A sorted map of entries in any order; of duplicate keys the last wins.
    pub fn from_entries(mut entries: Vec<(Key, Value)>) -> Self {
        if !entries.is_sorted_by(|a, b| a.0 < b.0) {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            entries.dedup_by(|later, earlier| {
                let same = later.0 == earlier.0;
                if same {
                    std::mem::swap(&mut later.1, &mut earlier.1);
                }
                same
            });
        }
        Map { entries, sorted: true }
    }

    /// A map of entries in this order, whose keys must be unique: embedded raw JSON, written as it stands.
    pub fn from_ordered(entries: Vec<(Key, Value)>) -> Self {
        let sorted = entries.is_sorted_by(|a, b| a.0 < b.0);
        Map { entries, sorted }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self.position(key).ok()?;
        self.entries.get(at).map(|(_, value)| value)
    }

    /// The value under `key`, mutable.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        let at = self.position(key).ok()?;
        self.entries.get_mut(at).map(|(_, value)| value)
    }

    /// Whether the map contains `key`.
    pub fn contains(&self, key: &str) -> bool {
        self.position(key).is_ok()
    }

    /// Sets `key` and returns its previous value.
    pub fn insert(&mut self, key: impl Into<Key>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        match self.position(&key) {
            Ok(at) => self.entries.get_mut(at).map(|entry| std::mem::replace(&mut entry.1, value)),
            Err(at) => {
                proto_api::count_steps!(self.entries.len().saturating_sub(at));
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// Applies `changes` in one pass: `change` gets a key, its current and its new value, and returns the value to store or `None` to
    /// remove the key. After an error the map is partly changed.
    pub(crate) fn change_all<E>(
        &mut self,
        changes: impl IntoIterator<Item = (Key, Value)>,
        mut change: impl FnMut(&str, Option<Value>, Value) -> Result<Option<Value>, E>,
    ) -> Result<(), E> {
        let places: Option<HashMap<Key, usize>> = (!self.sorted).then(|| {
            proto_api::count_steps!(self.entries.len());
            self.entries.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect()
        });
        let (mut added, mut gone) = (Vec::new(), Vec::new());
        for (key, value) in changes {
            proto_api::count_steps!(1);
            let at = match &places {
                Some(places) => places.get(&key).copied(),
                None => self.position(&key).ok(),
            };
            let slot = at.and_then(|at| self.entries.get_mut(at));
            match slot {
                Some((_, have)) => match change(&key, Some(std::mem::take(have)), value)? {
                    Some(next) => *have = next,
                    None => gone.extend(at),
                },
                None => added.extend(change(&key, None, value)?.map(|next| (key, next))),
            }
        }
        if !gone.is_empty() {
            gone.sort_unstable();
            proto_api::count_steps!(self.entries.len());
            let mut gone = gone.into_iter().peekable();
            let mut places = 0..;
            self.entries.retain(|_| {
                let at = places.next();
                gone.next_if(|next| Some(*next) == at).is_none()
            });
        }
        if !added.is_empty() {
            proto_api::count_steps!(self.entries.len().saturating_add(added.len()));
            self.entries.append(&mut added);
            if self.sorted {
                self.entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
        }
        Ok(())
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.position(key).ok()?;
        proto_api::count_steps!(self.entries.len().saturating_sub(at));
        Some(self.entries.remove(at).1)
    }

    /// Entries read by a lookup: one, or all in an unsorted map.
    pub(crate) fn lookup_cost(&self) -> usize {
        if self.sorted { 1 } else { self.entries.len() }
    }

    /// Entries after the position of `key`, or read to find it: the cost of an insertion or removal.
    pub(crate) fn entries_after(&self, key: &str) -> usize {
        let at = match self.position(key) {
            Ok(at) | Err(at) => at,
        };
        self.entries.len().saturating_sub(at).max(self.lookup_cost())
    }

    /// Entries in the map's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        let entries = self.entries.iter().inspect(|_| proto_api::count_steps!(1));
        entries.map(|(key, value)| (key.as_ref(), value))
    }

    /// Entries in the map's order, values mutable.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&str, &mut Value)> {
        self.entries.iter_mut().map(|entry| (entry.0.as_ref(), &mut entry.1))
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Value) -> bool) {
        self.entries.retain(|(key, value)| keep(key, value));
    }

    /// Entries in key order.
    pub fn iter_sorted(&self) -> impl Iterator<Item = (&str, &Value)> {
        let mut order: Vec<&(Key, Value)> = self.entries.iter().collect();
        if !self.sorted {
            order.sort_by(|a, b| a.0.cmp(&b.0));
        }
        order.into_iter().map(|(key, value)| (key.as_ref(), value))
    }

    /// The string under `key`; empty if unset.
    pub fn str(&self, key: &str) -> &str {
        self.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The integer under `key`.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.get(key).and_then(Value::as_int)
    }

    /// Whether `key` holds true.
    pub fn is_true(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The map under `key`.
    pub fn map(&self, key: &str) -> Option<&Map> {
        self.get(key).and_then(Value::as_map)
    }

    /// The map under `key`, mutable.
    pub fn map_mut(&mut self, key: &str) -> Option<&mut Map> {
        self.get_mut(key).and_then(Value::as_map_mut)
    }

    /// The map under `key`; a missing or other value is replaced with an empty map.
    pub fn map_or_insert(&mut self, key: impl Into<Key>) -> &mut Map {
        let key = key.into();
        let at = match self.position(&key) {
            Ok(at) => at,
            Err(at) => {
                self.entries.insert(at, (key, Value::Null));
                at
            }
        };
        let slot = &mut self.entries[at].1; // found or inserted just above
        if !matches!(slot, Value::Map(_)) {
            *slot = Value::Map(Map::new());
        }
        let Value::Map(map) = slot else { unreachable!("invariant: made a map just above") };
        map
    }

    /// The list under `key`; empty if unset.
    pub fn list(&self, key: &str) -> &[Value] {
        self.get(key).and_then(Value::as_list).unwrap_or_default()
    }

    /// The list under `key`, mutable.
    pub fn list_mut(&mut self, key: &str) -> Option<&mut Vec<Value>> {
        match self.get_mut(key) {
            Some(Value::List(items)) => Some(items),
            _ => None,
        }
    }

    /// The maps in the list under `key`.
    pub fn maps(&self, key: &str) -> impl Iterator<Item = &Map> {
        let items = self.list(key).iter().inspect(|_| proto_api::count_steps!(1));
        items.filter_map(Value::as_map)
    }

    /// The maps in the list under `key`, mutable.
    pub fn maps_mut(&mut self, key: &str) -> impl Iterator<Item = &mut Map> {
        self.list_mut(key).into_iter().flatten().filter_map(Value::as_map_mut)
    }

    /// The value at a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.get(first)?, |value, key| value.as_map()?.get(key))
    }

    /// The string at a path of keys; empty if unset.
    pub fn str_at(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// Index of `key`, or the index at which to insert it.
    fn position(&self, key: &str) -> Result<usize, usize> {
        if self.sorted {
            proto_api::count_steps!(1);
            return self.entries.binary_search_by(|(have, _)| have.as_ref().cmp(key));
        }
        let found = self.entries.iter().position(|(have, _)| have == key);
        proto_api::count_steps!(found.unwrap_or(self.entries.len()));
        found.ok_or(self.entries.len())
    }
}

/// Equality ignores the order of entries. Values are compared once: twice at each level would be 2^127 times at the last one.
impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        proto_api::count_steps!(1);
        if self.len() != other.len() {
            return false;
        }
        let mut pairs = self.entries.iter().zip(&other.entries);
        if pairs.clone().all(|((a, _), (b, _))| a == b) {
            return pairs.all(|((_, a), (_, b))| a == b);
        }
        !(self.sorted && other.sorted) && self.iter_sorted().eq(other.iter_sorted())
    }
}

impl<K: Into<Key>, V: Into<Value>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Map::from_entries(entries.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

/// Adds entries in one pass, because each insertion moves those after it; of several under one key the last stays. The map is sorted then.
impl<K: Into<Key>, V: Into<Value>> Extend<(K, V)> for Map {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        let own = std::mem::take(self).into_iter().inspect(|_| proto_api::count_steps!(1));
        *self =
            own.chain(entries.into_iter().map(|(key, value)| (key.into(), value.into()))).collect();
    }
}

impl IntoIterator for Map {
    type Item = (Key, Value);
    type IntoIter = std::vec::IntoIter<(Key, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}
