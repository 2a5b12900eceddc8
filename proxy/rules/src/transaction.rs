//! The result of a pass: elements to remove and to add, and new classes.

use std::collections::BTreeSet;

use proxy_netfilter::nft::command::{Command, IfExists};
use proxy_netfilter::nft::object::Elements;
use proxy_netfilter::nft::ruleset::SetElements;
use proxy_netfilter::nft::{Batch, Data, Element, Family, TableRules, Value};

use crate::compile::{SetElement, Sink};
use crate::layout::{Class, Layout, Map};
use crate::stale_flows::StaleFlows;

/// Maximum length of an encoded IPv4 element.
const ENTRY_LEN: usize = 56;

/// A change of the tables' elements, committed as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Classes without a chain.
    pub classes: Vec<(Family, Class)>,
    /// Prefix lengths without a rule.
    pub prefixes: Vec<(Family, u8)>,
    /// Elements to delete, with their data; sorted.
    pub removed: Vec<SetElement>,
    /// Elements to add; sorted. An element with new data is deleted and added.
    pub added: Vec<SetElement>,
    /// Elements that are there after the change and lead to endpoints: at least those that led, with the same frontend, to
    /// an endpoint to which a removed one led.
    pub kept: Vec<SetElement>,
    /// TCP connections to reset.
    pub resets: Vec<StaleFlows>,
}

impl Transaction {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
            && self.prefixes.is_empty()
            && self.removed.is_empty()
            && self.added.is_empty()
            && self.resets.is_empty()
    }

    /// Adds what changes `before`, the elements of a Service, into `after`. Empties both.
    pub fn add_difference(&mut self, before: &mut Vec<SetElement>, after: &mut Vec<SetElement>) {
        // Both are in the same order, and mostly equal.
        let same = |(a, b): &(&SetElement, &SetElement)| a == b;
        let head = before.iter().zip(&*after).take_while(same).count();
        let tails = before.iter().skip(head).rev().zip(after.iter().skip(head).rev());
        let tail = tails.take_while(same).count();
        let changed = before.len().saturating_sub(head).saturating_sub(tail);
        let endpoints: BTreeSet<&[u8]> =
            before.iter().skip(head).take(changed).filter_map(SetElement::endpoint).collect();
        if !endpoints.is_empty() {
            let is_one = |e: &&SetElement| e.endpoint().is_some_and(|at| endpoints.contains(at));
            self.kept.extend(after.iter().filter(is_one).cloned());
        }
        let strip = |entries: &mut Vec<SetElement>| {
            entries.truncate(entries.len().saturating_sub(tail));
            let mut middle: Vec<SetElement> = entries.drain(head..).collect();
            entries.clear();
            middle.sort_unstable();
            middle
        };
        let (gone, come) = (strip(before), strip(after));
        let in_gone: Vec<bool> = come.iter().map(|e| gone.binary_search(e).is_ok()).collect();
        self.removed.extend(gone.into_iter().filter(|e| come.binary_search(e).is_err()));
        let new = come.into_iter().zip(in_gone).filter(|(_, there)| !there);
        self.added.extend(new.map(|(entry, _)| entry));
    }

    /// Appends the commands. Deletions come first, because added elements may have the same keys.
    pub fn encode(&self, layout: &Layout, batch: &mut Batch) {
        for (family, class) in &self.classes {
            encode_class(layout, *family, *class, batch);
        }
        for (family, bits) in &self.prefixes {
            batch.push(*family, &Command::NewRule(layout.prefix_rule(*family, *bits)));
        }
        for run in runs(&self.removed) {
            let keys = run.entries.iter().map(|entry| &entry.key);
            batch.del_keys(run.family, &layout.table, run.map.name(), keys);
        }
        runs(&self.added).for_each(|run| run.encode(layout, batch));
    }

    /// Applies the change to a table; deleted elements must exist.
    pub fn apply(&self, layout: &Layout, family: Family, table: &mut TableRules) {
        for (_, class) in self.classes.iter().filter(|(f, _)| *f == family) {
            layout.add_class(family, table, *class);
        }
        for (_, bits) in self.prefixes.iter().filter(|(f, _)| *f == family) {
            layout.add_prefix(family, table, *bits);
        }
        for entry in self.removed.iter().filter(|entry| entry.family == family) {
            if let Some(set) = table.sets.get_mut(entry.map.name()) {
                set.elements.remove(&entry.key);
            }
        }
        for entry in self.added.iter().filter(|entry| entry.family == family) {
            if let Some(set) = table.sets.get_mut(entry.map.name()) {
                set.elements.insert(entry.key.clone(), entry.element());
            }
        }
    }
}

/// Appends the commands for the chain and the element of a class.
fn encode_class(layout: &Layout, family: Family, class: Class, batch: &mut Batch) {
    if let Some(chain) = layout.class_chain(family, class) {
        batch.push(family, &Command::NewChain(chain.chain, IfExists::Keep));
        for rule in chain.rules {
            batch.push(family, &Command::NewRule(rule));
        }
    }
    let elements = Elements {
        table: layout.table.clone(),
        set: Map::Classes.name().to_owned(),
        elements: vec![class.element()],
    };
    batch.push(family, &Command::NewElements(elements, IfExists::Keep));
}

/// Consecutive elements of one map.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Family of the table.
    pub family: Family,
    pub map: Map,
    /// At least one.
    pub entries: &'a [SetElement],
}

impl Run<'_> {
    /// Appends the commands that add the elements.
    pub fn encode(&self, layout: &Layout, batch: &mut Batch) {
        let pairs = self.entries.iter().map(|entry| (&entry.key, entry.data.as_ref()));
        batch.add_pairs(self.family, &layout.table, self.map.name(), pairs);
    }
}

/// Elements grouped by map, as a transaction needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElementsByMap {
    groups: Vec<((Family, Map), Vec<SetElement>)>,
}

impl Sink for ElementsByMap {
    fn push(&mut self, entry: SetElement) {
        let place = (entry.family, entry.map);
        match self.groups.iter_mut().find(|(other, _)| *other == place) {
            Some((_, group)) => group.push(entry),
            None => self.groups.push((place, vec![entry])),
        }
    }
}

impl ElementsByMap {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|(_, group)| group.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// All elements.
    pub fn iter(&self) -> impl Iterator<Item = &SetElement> {
        self.groups.iter().flat_map(|(_, group)| group)
    }

    /// The elements of each map; empty maps are left out.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = Run<'_>> {
        self.groups.iter().map(|((family, map), entries)| Run {
            family: *family,
            map: *map,
            entries,
        })
    }

    /// Sorts the maps in the order of their declaration.
    pub fn sort(&mut self) {
        self.groups.sort_unstable_by_key(|(place, _)| *place);
    }
}

fn runs(entries: &[SetElement]) -> impl Iterator<Item = Run<'_>> {
    let same = |a: &SetElement, b: &SetElement| (a.family, a.map) == (b.family, b.map);
    entries.chunk_by(same).filter_map(|entries| {
        let first = entries.first()?;
        Some(Run { family: first.family, map: first.map, entries })
    })
}

/// All tables, for a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The tables without the Services' elements.
    pub tables: Vec<(Family, TableRules)>,
    /// The Services' elements.
    pub entries: ElementsByMap,
}

impl Load {
    /// Appends the commands that replace the tables of this name, if they exist.
    pub fn encode(&self, layout: &Layout, batch: &mut Batch) {
        self.encode_tables(layout, batch);
        batch.reserve(self.entries.len().saturating_mul(ENTRY_LEN));
        self.entries.runs().for_each(|run| run.encode(layout, batch));
    }

    /// The same without the Services' elements.
    pub fn encode_tables(&self, layout: &Layout, batch: &mut Batch) {
        for ((family, table), first_set_id) in self.tables.iter().zip((1..).step_by(100)) {
            clear(layout, *family, batch);
            batch.extend(*family, &table.commands(&layout.table, first_set_id));
            for (name, set) in &table.sets {
                batch.add_elements(*family, &layout.table, name, set.elements.values().cloned());
            }
        }
    }

    /// Families with Services that have session affinity.
    pub fn remembering(&self) -> Vec<Family> {
        let live = self.entries.runs().filter(|run| matches!(run.map, Map::Live | Map::LiveHere));
        let mut families: Vec<Family> = live.map(|run| run.family).collect();
        families.dedup();
        families
    }

    /// Adds clients of the previous tables' affinity map. Elements of another format, of another version of this
    /// program, are dropped.
    pub fn remember(&mut self, family: Family, clients: Vec<Element>) {
        let table = self.tables.iter_mut().find(|(f, _)| *f == family);
        let set = table.and_then(|(_, table)| table.sets.get_mut(Map::Affinity.name()));
        let Some(SetElements { set, elements }) = set else { return };
        let len = |value: &Value| u32::try_from(value.bytes().len()).ok();
        let fits = |element: &Element| {
            let Some(Data::Value(data)) = &element.data else { return false };
            len(&element.key) == Some(set.key_len) && len(data) == set.data_len
        };
        let room = set.size.0.map_or(usize::MAX, |size| size as usize);
        let kept = clients.into_iter().filter(fits).take(room);
        elements.extend(kept.map(|element| (element.key.clone(), element)));
    }

    /// The tables with all elements.
    pub fn into_tables(mut self, layout: &Layout) -> Vec<(Family, TableRules)> {
        let added = self.entries.groups.drain(..).flat_map(|(_, group)| group).collect();
        let all = Transaction { added, ..Transaction::default() };
        for (family, table) in &mut self.tables {
            all.apply(layout, *family, table);
        }
        self.tables
    }
}

/// Appends the commands that delete the table of a family, if it exists; works on kernels before 6.3, which have no
/// `destroy` command.
pub fn clear(layout: &Layout, family: Family, batch: &mut Batch) {
    clear_table(&layout.table, family, batch);
}

/// The same for a table of any name.
pub fn clear_table(table: &str, family: Family, batch: &mut Batch) {
    let table = || proxy_netfilter::nft::Table::named(table);
    batch.push(family, &Command::NewTable(table(), IfExists::Keep));
    batch.push(family, &Command::DelTable(table()));
}
