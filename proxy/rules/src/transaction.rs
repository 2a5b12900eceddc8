//! What one pass changes: elements that go, elements that come, classes that are used for the first time.

use proxy_netfilter::nft::command::{Command, Existing};
use proxy_netfilter::nft::object::Elements;
use proxy_netfilter::nft::{Batch, Family, TableRules};

use crate::compile::Entry;
use crate::layout::{Class, Layout, Map};

/// A change of the tables' elements. All of it happens at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Classes that have no chain yet.
    pub classes: Vec<(Family, Class)>,
    /// Elements that go, with the data that they have; sorted.
    pub removed: Vec<Entry>,
    /// Elements that come; sorted. A key whose data change is removed and added.
    pub added: Vec<Entry>,
}

impl Transaction {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty() && self.removed.is_empty() && self.added.is_empty()
    }

    /// Appends its commands. What goes is removed first, because what comes may have the same keys.
    pub fn encode(&self, layout: &Layout, batch: &mut Batch) {
        for (family, class) in &self.classes {
            encode_class(layout, *family, *class, batch);
        }
        for run in runs(&self.removed) {
            let keys =
                run.entries.iter().map(|entry| Entry { data: None, ..entry.clone() }.element());
            batch.del_elements(run.family, &layout.table, run.map.name(), keys);
        }
        for run in runs(&self.added) {
            let elements = run.entries.iter().map(Entry::element);
            batch.add_elements(run.family, &layout.table, run.map.name(), elements);
        }
    }

    /// What becomes of a table by it; what it removes must be there.
    pub fn apply(&self, layout: &Layout, family: Family, table: &mut TableRules) {
        for (_, class) in self.classes.iter().filter(|(f, _)| *f == family) {
            layout.add_class(family, table, *class);
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

/// Commands that give a class its chain and its element.
fn encode_class(layout: &Layout, family: Family, class: Class, batch: &mut Batch) {
    if let Some(chain) = layout.class_chain(family, class) {
        batch.push(family, &Command::NewChain(chain.chain, Existing::Keep));
        for rule in chain.rules {
            batch.push(family, &Command::NewRule(rule));
        }
    }
    let elements = Elements {
        table: layout.table.clone(),
        set: Map::Classes.name().to_owned(),
        elements: vec![class.element()],
    };
    batch.push(family, &Command::NewElements(elements, Existing::Keep));
}

/// Neighbouring entries of the same map.
struct Run<'a> {
    family: Family,
    map: Map,
    entries: &'a [Entry],
}

fn runs(entries: &[Entry]) -> impl Iterator<Item = Run<'_>> {
    let same = |a: &Entry, b: &Entry| (a.family, a.map) == (b.family, b.map);
    entries.chunk_by(same).filter_map(|entries| {
        let first = entries.first()?;
        Some(Run { family: first.family, map: first.map, entries })
    })
}

/// All tables, made anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The tables without the services' elements.
    pub tables: Vec<(Family, TableRules)>,
    /// The services' elements, sorted by family and map.
    pub entries: Vec<Entry>,
}

impl Load {
    /// Appends the commands that replace whatever tables there are by these, in one go: packets see the old
    /// ones until they see the new ones.
    pub fn encode(&self, layout: &Layout, batch: &mut Batch) {
        for ((family, table), first_set_id) in self.tables.iter().zip((1..).step_by(100)) {
            clear(layout, *family, batch);
            batch.extend(*family, &table.commands(&layout.table, first_set_id));
            for (name, set) in &table.sets {
                batch.add_elements(*family, &layout.table, name, set.elements.values().cloned());
            }
        }
        for run in runs(&self.entries) {
            let elements = run.entries.iter().map(Entry::element);
            batch.add_elements(run.family, &layout.table, run.map.name(), elements);
        }
    }

    /// The tables with all elements.
    pub fn into_tables(mut self, layout: &Layout) -> Vec<(Family, TableRules)> {
        let all = Transaction { added: self.entries, ..Transaction::default() };
        for (family, table) in &mut self.tables {
            all.apply(layout, *family, table);
        }
        self.tables
    }
}

/// Appends the commands that delete our table of a family, whether it is there or not; works on kernels
/// before 6.3, which know no command for that.
pub fn clear(layout: &Layout, family: Family, batch: &mut Batch) {
    let table = || proxy_netfilter::nft::Table::named(&layout.table);
    batch.push(family, &Command::NewTable(table(), Existing::Keep));
    batch.push(family, &Command::DelTable(table()));
}
