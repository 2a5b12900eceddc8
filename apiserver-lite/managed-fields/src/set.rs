//! Sets of field paths, as tries, with the algebra of structured merge and diff.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;

use crate::element::{FieldPath, PathElement};

mod codec;
#[cfg(test)]
mod tests;

pub use codec::{FieldsError, MAX_DEPTH, MAX_PATHS, PathBudget};

/// A set of paths. A path may be a member without those that lead to it, and with or without those below it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    nodes: BTreeMap<PathElement, Node>,
}

impl Clone for FieldSet {
    fn clone(&self) -> Self {
        proto_api::count_steps!(self.nodes.len());
        FieldSet { nodes: self.nodes.clone() }
    }
}

/// What a set has at and below one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// Whether the path is a member.
    pub(crate) member: bool,
    /// The members below it, relative to it.
    pub(crate) below: FieldSet,
}

impl Node {
    /// A member with nothing below it.
    pub(crate) fn leaf() -> Self {
        Node { member: true, below: FieldSet::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    fn subtract(&mut self, other: &Node) {
        self.member &= !other.member;
        self.below.subtract(&other.below);
    }
}

impl FieldSet {
    /// The empty set.
    pub fn new() -> Self {
        FieldSet::default()
    }

    /// Whether no path is a member.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() // nodes without members are never stored
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        let lens = self.nodes.values();
        lens.map(|node| usize::from(node.member).saturating_add(node.below.len())).sum()
    }

    /// Adds a path; those that lead to it are not added. The empty path is ignored.
    pub fn insert(&mut self, path: FieldPath) {
        let mut elements = path.0.into_iter();
        let Some(first) = elements.next() else { return };
        let mut node = self.nodes.entry(first).or_default();
        for element in elements {
            node = node.below.nodes.entry(element).or_default();
        }
        node.member = true;
    }

    /// Whether the path is a member.
    pub fn contains(&self, path: &FieldPath) -> bool {
        let Some((last, lead)) = path.0.split_last() else { return false };
        let below = lead.iter().try_fold(self, |set, element| set.below(element));
        below.is_some_and(|set| set.has(last))
    }

    /// Whether the path of one element is a member.
    pub(crate) fn has(&self, element: &PathElement) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    /// The members below the path of one element, if there are any.
    pub(crate) fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.nodes.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    /// Adds what `node` has at and below the path of one element.
    pub(crate) fn add(&mut self, element: PathElement, node: Node) {
        if node.is_empty() {
            return;
        }
        match self.nodes.entry(element) {
            Entry::Vacant(place) => {
                place.insert(node);
            }
            Entry::Occupied(mut have) => {
                let have = have.get_mut();
                have.member |= node.member;
                have.below.extend(node.below);
            }
        }
    }

    /// Adds the members of `other`, with work in proportion to the smaller set.
    pub fn extend(&mut self, mut other: FieldSet) {
        if self.nodes.len() < other.nodes.len() {
            std::mem::swap(self, &mut other);
        }
        proto_api::count_steps!(other.nodes.len());
        for (element, node) in other.nodes {
            self.add(element, node);
        }
    }

    /// Removes the members of `other`, with work in proportion to the smaller set: what lies below a member of `other` stays.
    pub fn subtract(&mut self, other: &FieldSet) {
        proto_api::count_steps!(self.nodes.len().min(other.nodes.len()));
        if self.nodes.len() <= other.nodes.len() {
            self.nodes.retain(|element, node| {
                if let Some(without) = other.nodes.get(element) {
                    node.subtract(without);
                }
                !node.is_empty()
            });
            return;
        }
        for (element, without) in &other.nodes {
            let Some(node) = self.nodes.get_mut(element) else { continue };
            node.subtract(without);
            if node.is_empty() {
                self.nodes.remove(element);
            }
        }
    }

    /// Members of either set.
    #[must_use]
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut all = self.clone();
        all.extend(other.clone());
        all
    }

    /// Members of both sets, with work in proportion to the smaller one.
    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let (small, large) =
            if self.nodes.len() <= other.nodes.len() { (self, other) } else { (other, self) };
        small.combine(|element, node| {
            let also = large.nodes.get(element)?;
            let member = node.member && also.member;
            Some(Node { member, below: node.below.intersection(&also.below) })
        })
    }

    /// Members of this set that are not members of `other`: what lies below a member of `other` stays. It copies this set; to change it in
    /// place is [`FieldSet::subtract`].
    #[must_use]
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        self.combine(|element, node| {
            let Some(without) = other.nodes.get(element) else { return Some(node.clone()) };
            let member = node.member && !without.member;
            Some(Node { member, below: node.below.difference(&without.below) })
        })
    }

    /// Members of this set that are neither members of `other` nor lie below one.
    #[must_use]
    pub fn recursive_difference(&self, other: &FieldSet) -> FieldSet {
        self.combine(|element, node| {
            let Some(without) = other.nodes.get(element) else { return Some(node.clone()) };
            if without.member {
                return None;
            }
            let below = node.below.recursive_difference(&without.below);
            Some(Node { member: node.member, below })
        })
    }

    /// Members with no members below them.
    #[must_use]
    pub fn leaves(&self) -> FieldSet {
        self.combine(|_, node| {
            let member = node.member && node.below.is_empty();
            Some(Node { member, below: node.below.leaves() })
        })
    }

    /// Calls `change` with each node, which must not become empty.
    pub(crate) fn each_node_mut(&mut self, mut change: impl FnMut(&PathElement, &mut Node)) {
        proto_api::count_steps!(self.nodes.len());
        self.nodes.iter_mut().for_each(|(element, node)| change(element, node));
    }

    /// The set of what `keep` makes of each node.
    pub(crate) fn combine(&self, keep: impl Fn(&PathElement, &Node) -> Option<Node>) -> FieldSet {
        proto_api::count_steps!(self.nodes.len());
        let kept = self.nodes.iter().filter_map(|(element, node)| {
            let node = keep(element, node).filter(|node| !node.is_empty())?;
            Some((element.clone(), node))
        });
        FieldSet { nodes: kept.collect() }
    }

    /// The members, at each depth before those below them, as conflicts list them.
    pub fn paths(&self) -> Vec<FieldPath> {
        let mut found = Vec::new();
        let _ = self.each_path(&mut Vec::new(), &mut |path| {
            found.push(FieldPath(path.iter().map(|element| (*element).clone()).collect()));
            ControlFlow::Continue(())
        });
        found
    }

    /// Calls `visit` with `lead` and each of [`FieldSet::paths`], until it breaks.
    pub(crate) fn each_path<'a>(
        &'a self,
        lead: &mut Vec<&'a PathElement>,
        visit: &mut dyn FnMut(&[&'a PathElement]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for (element, _) in self.nodes.iter().filter(|(_, node)| node.member) {
            lead.push(element);
            visit(lead)?;
            lead.pop();
        }
        for (element, node) in &self.nodes {
            lead.push(element);
            node.below.each_path(lead, visit)?;
            lead.pop();
        }
        ControlFlow::Continue(())
    }
}

impl FromIterator<FieldPath> for FieldSet {
    fn from_iter<I: IntoIterator<Item = FieldPath>>(paths: I) -> Self {
        let mut set = FieldSet::new();
        paths.into_iter().for_each(|path| set.insert(path));
        set
    }
}
