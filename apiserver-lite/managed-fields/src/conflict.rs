//! Conflicts of an apply with other owners, and their texts.

use std::collections::BTreeMap;
use std::fmt;

use crate::element::FieldPath;
use crate::entries::{Operation, Owner};
use crate::set::FieldSet;

/// The cause of each conflict in the `Status` of the 409.
pub const CAUSE: &str = "FieldManagerConflict";

/// Fields with other values that others own: a 409 with reason `Conflict`, whose message is the text of this error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Conflicts {
    /// By owner; no set is empty.
    pub(crate) by_owner: BTreeMap<Owner, Vec<FieldPath>>,
}

/// A cause of the `Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictCause {
    /// `conflict with "name" using v1`.
    pub message: String,
    /// The path of the field.
    pub field: String,
}

impl Conflicts {
    pub(crate) fn new(sets: impl IntoIterator<Item = (Owner, FieldSet)>) -> Self {
        let sets = sets.into_iter().map(|(owner, set)| (owner, set.paths()));
        Conflicts { by_owner: sets.filter(|(_, paths)| !paths.is_empty()).collect() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// All fields in conflict.
    pub fn fields(&self) -> FieldSet {
        self.by_owner.values().flatten().cloned().collect()
    }

    /// The conflicts on other fields than `allowed`.
    pub(crate) fn without(mut self, allowed: &FieldSet) -> Self {
        for paths in self.by_owner.values_mut() {
            paths.retain(|path| !allowed.contains(path));
        }
        self.by_owner.retain(|_, paths| !paths.is_empty());
        self
    }

    /// Causes for the details of the `Status`, each of type [`CAUSE`].
    pub fn causes(&self) -> Vec<ConflictCause> {
        let all = self.sorted().into_iter().flat_map(|(owner, paths)| {
            paths.iter().map(move |path| ConflictCause {
                message: format!("conflict with {}", Named(owner)),
                field: path.to_string(),
            })
        });
        all.collect()
    }

    fn sorted(&self) -> Vec<(&Owner, &Vec<FieldPath>)> {
        let mut all: Vec<_> = self.by_owner.iter().collect();
        all.sort_by_cached_key(|(owner, _)| owner.identifier());
        all
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.sorted();
        if let [(owner, paths)] = &all[..]
            && let [path] = &paths[..]
        {
            return write!(
                f,
                "Apply failed with 1 conflict: conflict with {}: {path}",
                Named(owner)
            );
        }
        let count: usize = all.iter().map(|(_, paths)| paths.len()).sum();
        write!(f, "Apply failed with {count} conflicts: ")?;
        for (at, (owner, paths)) in all.into_iter().enumerate() {
            let line = if at > 0 { "\n" } else { "" };
            write!(f, "{line}conflicts with {}:", Named(owner))?;
            paths.iter().try_for_each(|path| write!(f, "\n- {path}"))?;
        }
        Ok(())
    }
}

/// An owner in a message: the version is told only of those that update.
struct Named<'a>(&'a Owner);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.0;
        crate::element::quote(f, &owner.manager)?;
        if !owner.subresource.is_empty() {
            f.write_str(" with subresource ")?;
            crate::element::quote(f, &owner.subresource)?;
        }
        match owner.operation {
            Operation::Apply => Ok(()),
            Operation::Update => write!(f, " using {}", owner.api_version),
        }
    }
}
