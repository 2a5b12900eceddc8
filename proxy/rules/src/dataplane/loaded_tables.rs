//! What was loaded into the kernel's tables besides the elements, and what later changes must fit: room of the maps, chains of the classes, rules of
//! the prefix lengths, and the maps that rules look up.

use std::collections::{BTreeMap, BTreeSet};

use proxy_netfilter::nft::{Family, TableRules};

use crate::compile::SetElement;
use crate::layout::{Class, Layout, Map};
use crate::model::Choice;
use crate::transaction::{ElementsByMap, Transaction};

/// Minimum size of a map.
const ROOM_MIN: usize = 256;
/// Maps with at least this many elements get less room to grow: the kernel's memory for empty buckets matters there.
const LARGE: usize = 1 << 15;
/// Maximum of clients with session affinity, per family. Further clients get a random endpoint.
const CLIENTS_MAX: usize = 1 << 16;
/// New classes since a load that cause the next load. Chains of unused classes stay until then, and the kernel
/// validates all of them for every new class.
pub(super) const CLASSES_SPARE: usize = 1024;

/// The tables as they were loaded, and changed since.
#[derive(Clone, Debug)]
pub(super) struct LoadedTables {
    classes: BTreeSet<(Family, Class)>,
    /// Number of classes at which the tables are loaded again.
    classes_max: usize,
    /// Maps of [`Map::SELDOM`] that rules look up.
    looked_up: BTreeSet<(Family, Map)>,
    /// Prefix lengths with a rule, in the order of the rules.
    prefixes: Vec<(Family, u8)>,
    fill: BTreeMap<(Family, Map), Fill>,
    /// Whether the kernel has these tables.
    pub(super) is_loaded: bool,
}

/// Elements and size of a map.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    elements: usize,
    room: usize,
}

impl LoadedTables {
    /// Tables without elements, which the kernel does not have.
    pub(super) fn empty() -> Self {
        Self {
            classes: BTreeSet::new(),
            classes_max: CLASSES_SPARE,
            looked_up: BTreeSet::new(),
            prefixes: Vec::new(),
            fill: BTreeMap::new(),
            is_loaded: false,
        }
    }

    /// Tables for these elements, to be loaded. Maps get room to grow.
    pub(super) fn with(entries: &ElementsByMap, layout: &Layout) -> Self {
        let classes: BTreeSet<_> =
            entries.iter().filter_map(|e| e.class().map(|class| (e.family, class))).collect();
        let ranges = entries.runs().filter(|run| run.map == Map::SourceRanges);
        let prefixes =
            ranges.flat_map(|run| run.entries).filter_map(|e| Some((e.family, e.prefix()?)));
        let places = entries.runs().map(|run| (run.family, run.map));
        let mut fill: BTreeMap<(Family, Map), Fill> = BTreeMap::new();
        for run in entries.runs() {
            fill.entry((run.family, run.map)).or_default().elements = run.entries.len();
        }
        let families = layout.families.iter();
        for place in families.flat_map(|family| Map::ALL.map(|map| (*family, map))) {
            let fill = fill.entry(place).or_default();
            fill.room = room(fill.elements);
        }
        for (family, _) in classes.iter().filter(|(_, class)| is_sticky(class)) {
            fill.entry((*family, Map::Affinity)).or_default().room = CLIENTS_MAX;
        }
        Self {
            classes_max: classes.len().saturating_mul(2).saturating_add(CLASSES_SPARE),
            classes,
            looked_up: places.filter(|(_, map)| Map::SELDOM.contains(map)).collect(),
            prefixes: prefixes.collect::<BTreeSet<_>>().into_iter().collect(),
            fill,
            is_loaded: true,
        }
    }

    /// Takes in what a transaction changes. False if the tables cannot take it: a map is full, rules do not look up a map that gets its first
    /// element, or there would be too many classes. Then nothing but a load helps.
    pub(super) fn apply(&mut self, transaction: &Transaction) -> bool {
        for (entries, grows) in [(&transaction.removed, false), (&transaction.added, true)] {
            for entry in entries {
                let fill = self.fill.entry((entry.family, entry.map)).or_default();
                fill.elements = match grows {
                    true => fill.elements.saturating_add(1),
                    false => fill.elements.saturating_sub(1),
                };
            }
        }
        let no_room = self.fill.values().any(|fill| fill.elements > fill.room);
        let is_new = |e: &SetElement| {
            Map::SELDOM.contains(&e.map) && !self.looked_up.contains(&(e.family, e.map))
        };
        let needs_lookup = transaction.added.iter().any(is_new);
        let classes = self.classes.len().saturating_add(transaction.classes.len());
        let too_many = classes > self.classes_max;
        if no_room
            || needs_lookup
            || too_many
            || transaction.classes.iter().any(|class| self.cannot_remember(class))
        {
            return false;
        }
        self.classes.extend(transaction.classes.iter().copied());
        self.prefixes.extend(&transaction.prefixes);
        true
    }

    #[cfg(test)]
    pub(super) fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Whether a class has session affinity and the map of clients has no room for it.
    fn cannot_remember(&self, (family, class): &(Family, Class)) -> bool {
        let room = self.fill.get(&(*family, Map::Affinity)).map_or(0, |fill| fill.room);
        is_sticky(class) && room < CLIENTS_MAX
    }

    /// The tables of a family without the elements of Services.
    pub(super) fn skeleton(&self, layout: &Layout, family: Family) -> TableRules {
        let room = |map| self.fill.get(&(family, map)).map_or(ROOM_MIN, |fill| fill.room);
        let size = |map| u32::try_from(room(map)).unwrap_or(u32::MAX);
        let is_looked_up = |map| self.looked_up.contains(&(family, map));
        let mut table = layout.skeleton(family, size, is_looked_up);
        for (_, class) in self.classes.iter().filter(|(f, _)| *f == family) {
            layout.add_class(family, &mut table, *class);
        }
        for (_, bits) in self.prefixes.iter().filter(|(f, _)| *f == family) {
            layout.add_prefix(family, &mut table, *bits);
        }
        table
    }

    /// Classes of these elements that have no chain yet.
    pub(super) fn new_classes(&self, added: &[SetElement]) -> Vec<(Family, Class)> {
        let classes = added.iter().filter_map(|e| Some((e.family, e.class()?)));
        let balances = classes.filter(|(_, class)| matches!(class, Class::Balance(..)));
        let new: BTreeSet<_> = balances.filter(|class| !self.classes.contains(class)).collect();
        new.into_iter().collect()
    }

    /// Prefix lengths of these elements that have no rule yet.
    pub(super) fn new_prefixes(&self, added: &[SetElement]) -> Vec<(Family, u8)> {
        let prefixes = added.iter().filter_map(|e| Some((e.family, e.prefix()?)));
        let new: BTreeSet<_> = prefixes.filter(|prefix| !self.prefixes.contains(prefix)).collect();
        new.into_iter().collect()
    }
}

/// Size of a map with this many elements: twice as many, or a quarter more if it is large. The kernel allocates a
/// power of two of buckets, at least four thirds of the size; the size is rounded up to what those hold.
pub(super) fn room(elements: usize) -> usize {
    let more = if elements < LARGE { elements } else { elements / 4 };
    let wanted = elements.saturating_add(more);
    let buckets = wanted.max(ROOM_MIN).saturating_mul(4).div_ceil(3).next_power_of_two();
    (buckets / 4).saturating_mul(3)
}

fn is_sticky(class: &Class) -> bool {
    matches!(class, Class::Balance(_, Choice::Sticky(_), _))
}
