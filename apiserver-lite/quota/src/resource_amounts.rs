//! Amounts by resource name.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::Quantity;

/// Amounts by resource name, as in `spec.hard`.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Adds `more` to `sum`.
pub fn add(sum: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        add_one(sum, name, *amount);
    }
}

/// Adds an amount of one resource.
pub fn add_one(sum: &mut ResourceList, name: &str, amount: Quantity) {
    match sum.get_mut(name) {
        Some(present) => *present = *present + amount,
        None => drop(sum.insert(name.to_owned(), amount)),
    }
}

/// Raises each amount to that of `other`.
pub fn raise(most: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        match most.get_mut(name) {
            Some(present) => *present = (*present).max(*amount),
            None => drop(most.insert(name.clone(), *amount)),
        }
    }
}

/// What `after` has more than `before`; resources that do not grow are left out.
pub fn growth(after: ResourceList, before: &ResourceList) -> ResourceList {
    let zero = Quantity::ZERO;
    after
        .into_iter()
        .map(|(name, amount)| {
            let less = before.get(&name).copied().unwrap_or(zero);
            (name, amount - less)
        })
        .filter(|(_, amount)| *amount > zero)
        .collect()
}

/// The amounts of `names`.
pub fn keep(amounts: &ResourceList, names: &BTreeSet<&str>) -> ResourceList {
    let kept = amounts.iter().filter(|(name, _)| names.contains(name.as_str()));
    kept.map(|(name, amount)| (name.clone(), *amount)).collect()
}

/// `cpu=1,pods=2`, sorted.
pub fn list(amounts: &ResourceList) -> String {
    let texts: Vec<String> =
        amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    texts.join(",")
}
