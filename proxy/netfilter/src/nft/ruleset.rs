//! A ruleset as one value: the result of a dump, the fake kernel's state, the tracer's input.

use std::collections::BTreeMap;

use super::Family;
use super::batch::Answer;
use super::command::{Command, IfExists};
use super::numbers::TableFlags;
use super::object::{Chain, Element, Elements, Rule, Set, Table};
use super::value::Value;

/// Family and name of a table.
pub type TableId = (Family, String);

/// Tables by family and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    pub tables: BTreeMap<TableId, TableRules>,
}

/// The contents of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRules {
    pub flags: TableFlags,
    /// Its chains with their rules in order; rules carry no handle.
    pub chains: BTreeMap<String, ChainRules>,
    /// Its sets and maps with their elements by key.
    pub sets: BTreeMap<String, SetElements>,
}

/// A chain with its rules in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRules {
    pub chain: Chain,
    /// Its rules in order.
    pub rules: Vec<Rule>,
}

/// A set or map with its elements by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetElements {
    /// The set, without its id in the batch.
    pub set: Set,
    /// Its elements by key.
    pub elements: BTreeMap<Value, Element>,
}

impl TableRules {
    /// An empty table.
    pub fn empty(flags: TableFlags) -> Self {
        Self { flags, chains: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// The commands that create this table, in an order that the kernel accepts: sets before the rules that use them,
    /// chains before the rules and verdict elements that jump to them. `first_set_id` numbers the sets within the
    /// batch.
    pub fn commands(&self, name: &str, first_set_id: u32) -> Vec<Command> {
        let table = Table { flags: Some(self.flags), ..Table::named(name) };
        let mut commands = vec![Command::NewTable(table, IfExists::Keep)];
        for (id, set) in (first_set_id..).zip(self.sets.values()) {
            let set = Set { id: Some(id), ..set.set.clone() };
            commands.push(Command::NewSet(set, IfExists::Fail));
        }
        commands.extend(
            self.chains.values().map(|c| Command::NewChain(c.chain.clone(), IfExists::Fail)),
        );
        let rules = self.chains.values().flat_map(|chain| &chain.rules);
        commands.extend(rules.cloned().map(Command::NewRule));
        commands
    }

    /// Number of elements of all sets.
    pub fn elements_len(&self) -> usize {
        self.sets.values().map(|set| set.elements.len()).sum()
    }
}

impl Ruleset {
    /// Adds one object of a dump. Objects of unknown tables and sets are skipped: they were created after the dump of
    /// their parent.
    pub fn absorb(&mut self, answer: Answer) {
        match answer {
            Answer::Generation(_) => {}
            Answer::Table(family, table) => {
                let flags = table.flags.unwrap_or(TableFlags::NONE);
                self.tables.insert((family, table.name), TableRules::empty(flags));
            }
            Answer::Chain(family, chain) => {
                if let Some(table) = self.tables.get_mut(&(family, chain.table.clone())) {
                    let rules = ChainRules { chain: chain.clone(), rules: Vec::new() };
                    table.chains.insert(chain.name, rules);
                }
            }
            Answer::Rule(family, rule) => {
                let table = self.tables.get_mut(&(family, rule.table.clone()));
                if let Some(chain) = table.and_then(|t| t.chains.get_mut(&rule.chain)) {
                    chain.rules.push(Rule { handle: None, ..rule });
                }
            }
            Answer::Set(family, set) => {
                if let Some(table) = self.tables.get_mut(&(family, set.table.clone())) {
                    let name = set.name.clone();
                    let elements = BTreeMap::new();
                    table.sets.insert(name, SetElements { set: Set { id: None, ..set }, elements });
                }
            }
            Answer::Elements(family, Elements { table, set, elements }) => {
                let table = self.tables.get_mut(&(family, table));
                if let Some(set) = table.and_then(|t| t.sets.get_mut(&set)) {
                    set.elements.extend(elements.into_iter().map(|e| (e.key.clone(), e)));
                }
            }
        }
    }
}
