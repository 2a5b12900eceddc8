//! Two names take turns. Tables are loaded again alongside those that packets pass, and only when the new ones are whole
//! are the old ones taken out of the way:
//!
//! ```text
//!                 old       new
//!   (before)      serves    -
//!   1 load        serves    serves     whichever a packet meets first decides
//!   2 rest        rests     serves     no packet enters; those inside find all that they look for
//!   3 delete      -         serves
//! ```
//!
//! To replace tables within one transaction is not enough: a packet that is in the middle of them at that moment
//! finds the maps of the old ones empty, has not met the new ones, and goes on with its destination as it was, or
//! is refused. Loaded machines see that at one restart in ten to a hundred.

use proxy_netfilter::nft::command::Command;
use proxy_netfilter::nft::{Batch, Family, Rule, TableRules};

/// The two names of the tables called `name`.
pub fn table_names(name: &str) -> [String; 2] {
    [name.to_owned(), format!("{name}-b")]
}

/// What a table does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableState {
    /// It is not there.
    Absent,
    /// No packet enters it.
    Detached,
    /// Packets pass it.
    Serving,
}

impl TableState {
    /// What a table does, read without the elements of its sets.
    pub fn from_rules(rules: Option<&TableRules>) -> Self {
        let Some(rules) = rules else { return Self::Absent };
        let mut chains = rules.chains.values();
        match chains.any(|chain| chain.chain.hook.is_some() && !chain.rules.is_empty()) {
            true => Self::Serving,
            false => Self::Detached,
        }
    }

    /// What tables of one name and several families do: the most that one of them does.
    pub fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::Serving, _) | (_, Self::Serving) => Self::Serving,
            (Self::Detached, _) | (_, Self::Detached) => Self::Detached,
            (Self::Absent, Self::Absent) => Self::Absent,
        }
    }
}

/// Which of the two names is loaded next, as an index of [`table_names`], where they stand like this: never one that
/// packets need.
pub fn next_table(states: [TableState; 2]) -> usize {
    match states {
        [TableState::Absent, _] => 0,
        [_, TableState::Absent] => 1,
        [TableState::Detached, _] => 0,
        // Of two that serve either will do: the other one serves.
        [TableState::Serving, _] => 1,
    }
}

/// Appends the commands after which no packet enters a table of this shape any more.
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

/// A table without the rules by which packets enter, and these rules.
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
    fn families_stand_together() {
        assert_eq!(Absent.max(Detached), Detached);
        assert_eq!(Serving.max(Absent), Serving);
        assert_eq!(Absent.max(Absent), Absent);
    }
}
