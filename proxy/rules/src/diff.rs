//! Compares the kernel's table with the desired one, for repair.

use std::collections::BTreeMap;

use proxy_netfilter::nft::numbers::TableFlags;
use proxy_netfilter::nft::{Data, Element, Family, TableRules, Value};

use crate::compile::SetElement;
use crate::layout::Map;
use crate::transaction::Transaction;

/// How a table differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// By elements; the transaction repairs them.
    Elements(Transaction),
    /// By rules, chains or sets: another program or version changed them. The tables must be loaded.
    Shape(&'static str),
}

/// The first difference except in elements. The cost does not depend on the number of Services.
pub fn differs_in_shape(is: Option<&TableRules>, should: &TableRules) -> Option<&'static str> {
    let Some(is) = is else { return Some("the table is missing") };
    if is.flags.0 & !TableFlags::OWNER.0 != should.flags.0 & !TableFlags::OWNER.0 {
        return Some("the table has other flags");
    }
    if is.chains != should.chains {
        return Some("chains or rules differ");
    }
    let shapes =
        |table: &TableRules| table.sets.values().map(|s| s.set.clone()).collect::<Vec<_>>();
    (shapes(is) != shapes(should)).then_some("sets differ")
}

/// Compares a table, if it exists, with the desired one.
pub fn diff(family: Family, is: Option<&TableRules>, should: &TableRules) -> Difference {
    if let Some(why) = differs_in_shape(is, should) {
        return Difference::Shape(why);
    }
    let Some(is) = is else { return Difference::Shape("the table is missing") };
    let mut transaction = Transaction::default();
    for (name, set) in &should.sets {
        let Some(map) = Map::from_name(name).filter(|map| !map.is_learned()) else { continue };
        let there = is.sets.get(name).map(|set| &set.elements);
        let none = BTreeMap::new();
        let there = there.unwrap_or(&none);
        if map == Map::Classes {
            if !same(there, &set.elements) {
                return Difference::Shape("classes differ");
            }
            continue;
        }
        let differs = |other: &BTreeMap<Value, Element>, e: &Element| {
            other.get(&e.key).is_none_or(|o| o.data != e.data)
        };
        let gone = there.values().filter(|e| differs(&set.elements, e));
        transaction.removed.extend(gone.map(|e| entry(family, map, e)));
        let come = set.elements.values().filter(|e| differs(there, e));
        transaction.added.extend(come.map(|e| entry(family, map, e)));
    }
    transaction.removed.sort_unstable();
    transaction.added.sort_unstable();
    Difference::Elements(transaction)
}

fn same(a: &BTreeMap<Value, Element>, b: &BTreeMap<Value, Element>) -> bool {
    a.len() == b.len() && a.iter().all(|(key, e)| b.get(key).is_some_and(|o| o.data == e.data))
}

fn entry(family: Family, map: Map, element: &Element) -> SetElement {
    let data = match &element.data {
        Some(Data::Value(value)) => Some(value.clone()),
        Some(Data::Verdict(_)) | None => None,
    };
    SetElement { family, map, key: element.key.clone(), data }
}
