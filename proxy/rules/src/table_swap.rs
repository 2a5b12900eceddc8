//! Replaces tables without a gap: the new tables are loaded with the other of two names, and only when they are
//! complete are the old ones deleted.
//!
//! ```text
//!                 old       new
//!   (before)      serves    -
//!   1 load        serves    serves     the first that a packet traverses decides
//!   2 detach      detached  serves     no packet enters; those inside find all elements
//!   3 delete      -         serves
//! ```
//!
//! Replacing the tables within one transaction is not enough: a packet inside them at that moment finds the old maps
//! empty and has passed the new tables' hook already, so it continues without DNAT or is rejected. On loaded machines
//! that happens at one restart in ten to a hundred.

use proxy_netfilter::nft::command::Command;
use proxy_netfilter::nft::{Batch, Family, Rule, TableRules};

/// The two names of the tables called `name`.
pub fn table_names(name: &str) -> [String; 2] {
    [name.to_owned(), format!("{name}-b")]
}

/// Whether a table exists and receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableState {
    /// It does not exist.
    Absent,
    /// No packet enters it.
    Detached,
    /// Packets traverse it.
    Serving,
}

impl TableState {
    /// The state of a table, which may be read without elements.
    pub fn from_rules(rules: Option<&TableRules>) -> Self {
        let Some(rules) = rules else { return Self::Absent };
        let mut chains = rules.chains.values();
        match chains.any(|chain| chain.chain.hook.is_some() && !chain.rules.is_empty()) {
            true => Self::Serving,
            false => Self::Detached,
        }
    }

    /// The state of tables of several families together.
    pub fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::Serving, _) | (_, Self::Serving) => Self::Serving,
            (Self::Detached, _) | (_, Self::Detached) => Self::Detached,
            (Self::Absent, Self::Absent) => Self::Absent,
        }
    }
}

/// Which of the two names is loaded next, as an index of [`table_names`]: never one that serves alone.
pub fn next_table(states: [TableState; 2]) -> usize {
    match states {
        [TableState::Absent, _] => 0,
        [_, TableState::Absent] => 1,
        [TableState::Detached, _] => 0,
        // If both serve, either can be replaced.
        [TableState::Serving, _] => 1,
    }
}

/// Appends the commands that delete the base chains' rules.
pub fn delete_entry_rules(family: Family, table: &str, shape: &TableRules, batch: &mut Batch) {
    let entrances = shape.chains.values().filter(|chain| chain.chain.hook.is_some());
    for chain in entrances.filter(|chain| !chain.rules.is_empty()) {
        let rules = Rule {
            table: table.to_owned(),
            chain: chain.chain.name.clone(),
            handle: None,
            exprs: Vec::new(),
            userdata: Vec::new(),
        };
        batch.push(family, &Command::DelRule(rules));
    }
}

/// Splits a table into one without its base chains' rules, and these rules.
pub fn split_entry_rules(table: &TableRules) -> (TableRules, Vec<Rule>) {
    let mut closed = table.clone();
    let entrances = closed.chains.values_mut().filter(|chain| chain.chain.hook.is_some());
    let rules = entrances.flat_map(|chain| std::mem::take(&mut chain.rules)).collect();
    (closed, rules)
}

#[cfg(test)]
mod tests {
    use super::TableState::{Absent, Detached, Serving};
    use super::*;

    #[test]
    fn the_next_table_is_never_one_that_packets_need() {
        let all = [Absent, Detached, Serving];
        for a in all {
            for b in all {
                let chosen = next_table([a, b]);
                let (it, other) = if chosen == 0 { (a, b) } else { (b, a) };
                assert!(it != Serving || other == Serving, "{a:?} {b:?}");
                assert!(it == Absent || other != Absent, "{a:?} {b:?}");
            }
        }
        assert_eq!(next_table([Absent, Absent]), 0);
        assert_eq!((next_table([Serving, Absent]), next_table([Absent, Serving])), (1, 0));
    }

    #[test]
    fn the_state_of_both_families_is_the_further_one() {
        assert_eq!(Absent.max(Detached), Detached);
        assert_eq!(Serving.max(Absent), Serving);
        assert_eq!(Absent.max(Absent), Absent);
    }
}
