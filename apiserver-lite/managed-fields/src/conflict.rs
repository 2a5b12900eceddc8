//! Conflicts of an apply with other owners, and their texts.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::ops::ControlFlow;

use crate::entries::{ManagedFieldsOperation, Owner};
use crate::set::FieldSet;

#[cfg(test)]
mod tests;

/// The cause of each conflict in the `Status` of the 409.
pub const CAUSE: &str = "FieldManagerConflict";

/// Paths that a message or the causes list.
const MAX_LISTED: usize = 100;

/// Bytes of a path in a message or a cause; what is longer is cut.
const MAX_PATH_TEXT: usize = 1024;

/// Fields with other values that others own: a 409 with reason `Conflict`, whose message is the text of this error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Conflicts {
    /// By owner; no set is empty.
    pub(crate) by_owner: BTreeMap<Owner, FieldSet>,
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
        Conflicts { by_owner: sets.into_iter().filter(|(_, fields)| !fields.is_empty()).collect() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// All fields in conflict.
    pub fn fields(&self) -> FieldSet {
        let mut all = FieldSet::new();
        self.by_owner.values().for_each(|fields| all.extend(fields.clone()));
        all
    }

    /// The conflicts on other fields than `allowed`.
    pub(crate) fn without(mut self, allowed: &FieldSet) -> Self {
        self.by_owner.values_mut().for_each(|fields| fields.subtract(allowed));
        self.by_owner.retain(|_, fields| !fields.is_empty());
        self
    }

    /// Causes for the details of the `Status`, each of type [`CAUSE`]: one for each path that the message lists.
    pub fn causes(&self) -> Vec<ConflictCause> {
        let all = self.listed().into_iter().flat_map(|(owner, paths)| {
            paths.into_iter().map(move |field| ConflictCause {
                message: format!("conflict with {}", Named(owner)),
                field,
            })
        });
        all.collect()
    }

    /// Number of fields in conflict; one that several own counts for each.
    fn count(&self) -> usize {
        self.by_owner.values().map(FieldSet::len).sum()
    }

    /// The owners of the first [`MAX_LISTED`] paths, with these paths.
    fn listed(&self) -> Vec<(&Owner, Vec<String>)> {
        let mut sorted: Vec<_> = self.by_owner.iter().collect();
        sorted.sort_by_cached_key(|(owner, _)| owner.identifier());
        let mut left = MAX_LISTED;
        let listed = sorted.into_iter().map_while(|(owner, fields)| {
            let paths = texts(fields, left);
            left = left.saturating_sub(paths.len());
            (!paths.is_empty()).then_some((owner, paths))
        });
        listed.collect()
    }
}

/// The texts of the first paths of a set, at most `most`.
fn texts(fields: &FieldSet, most: usize) -> Vec<String> {
    let mut found = Vec::new();
    let _ = fields.each_path(&mut Vec::new(), &mut |path| {
        if found.len() == most {
            return ControlFlow::Break(());
        }
        let mut text = Shortened(String::new());
        if path.iter().try_for_each(|element| write!(text, "{element}")).is_err() {
            text.0.push_str("...");
        }
        found.push(text.0);
        ControlFlow::Continue(())
    });
    found
}

/// A text that takes [`MAX_PATH_TEXT`] bytes and then fails.
struct Shortened(String);

impl fmt::Write for Shortened {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let left = MAX_PATH_TEXT.saturating_sub(self.0.len());
        let (taken, rest) = more.split_at(more.floor_char_boundary(left));
        self.0.push_str(taken);
        if rest.is_empty() { Ok(()) } else { Err(fmt::Error) }
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, listed) = (self.count(), self.listed());
        if let [(owner, paths)] = &listed[..]
            && let [path] = &paths[..]
        {
            return write!(
                f,
                "Apply failed with 1 conflict: conflict with {}: {path}",
                Named(owner)
            );
        }
        write!(f, "Apply failed with {count} conflicts: ")?;
        let mut left = count;
        for (at, (owner, paths)) in listed.into_iter().enumerate() {
            let line = if at > 0 { "\n" } else { "" };
            write!(f, "{line}conflicts with {}:", Named(owner))?;
            paths.iter().try_for_each(|path| write!(f, "\n- {path}"))?;
            left = left.saturating_sub(paths.len());
        }
        if left > 0 {
            write!(f, "\n... and {left} more")?;
        }
        Ok(())
    }
}

/// An owner in a message: only updates are shown with their version.
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
            ManagedFieldsOperation::Apply => Ok(()),
            ManagedFieldsOperation::Update => write!(f, " using {}", owner.api_version),
        }
    }
}
