//! Who owns what after a write: the rules of structured merge and diff, without those that kube-apiserver adds.

use std::borrow::Cow;
use std::collections::BTreeMap;

use apiserver_schema::{Map, Value};
use proto_api::Time;

use crate::conflict::Conflicts;
use crate::entries::{ManagedFields, Owned, Owner};
use crate::set::FieldSet;
use crate::structure::Structure;
use crate::tree::{Comparison, TreeError};
use crate::versions::{ConvertError, ResetFields, Versions};

#[cfg(test)]
mod tests;

/// Why ownership cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// Others own fields that would change.
    #[error(transparent)]
    Conflicts(#[from] Conflicts),
    /// The version of the request has no structure.
    #[error("no structure is known for version {0:?}; the kind is not served in it")]
    NoVersion(String),
    /// What is applied does not fit its kind.
    #[error("{0}")]
    Tree(#[from] TreeError),
    /// A conversion failed.
    #[error("cannot convert the object from {from} to {to}: {why}")]
    Convert {
        /// The version that it has.
        from: String,
        /// The version that it should have.
        to: String,
        /// The error of the conversion.
        why: ConvertError,
    },
}

/// Computes ownership for the objects of one kind, in the version of a request.
pub(crate) struct Updater<'a> {
    pub(crate) versions: &'a dyn Versions,
    pub(crate) reset: &'a ResetFields,
    pub(crate) api_version: &'a str,
}

/// What an apply makes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Merged {
    /// The merged tree; `None` if it is the live one.
    pub(crate) tree: Option<Value>,
    pub(crate) managed: ManagedFields,
}

/// A tree in a version.
#[derive(Clone)]
struct Versioned<'t> {
    tree: Cow<'t, Value>,
    api_version: String,
}

impl Updater<'_> {
    /// The owners after `owner` wrote `new` over `live`: it owns what it changed, others lose what changed or is gone.
    pub(crate) fn update(
        &self,
        live: &Value,
        new: &Value,
        managed: ManagedFields,
        owner: &Owner,
    ) -> Result<ManagedFields, UpdateError> {
        let managed = self.reconcile(managed);
        let (mut managed, compare) = self.changes(live, new, managed, owner, true)?;
        let before = managed.owners.remove(owner);
        let (mut fields, time) =
            before.map_or_else(Default::default, |owned| (owned.fields, owned.time));
        fields.extend(compare.modified);
        fields.extend(compare.added);
        fields.subtract(&compare.removed);
        if let Some(reset) = self.reset.get(self.api_version) {
            fields = fields.recursive_difference(reset);
        }
        if !fields.is_empty() {
            managed.owners.insert(owner.clone(), self.owned(fields, time));
        }
        Ok(managed)
    }

    /// Merges `config` into `live` for an applier and removes what it applied before and does not any more, unless others own it.
    pub(crate) fn apply(
        &self,
        live: &Value,
        config: &Value,
        managed: ManagedFields,
        owner: &Owner,
        force: bool,
    ) -> Result<Merged, UpdateError> {
        let structure = self.structure(self.api_version)?;
        let mut managed = self.reconcile(managed);
        let merged = structure.merge(live, config);
        let mut fields = structure.fields_of(config);
        if let Some(reset) = self.reset.get(self.api_version) {
            fields = fields.recursive_difference(reset);
        }
        let last = managed.owners.get(owner).cloned();
        let time = last.as_ref().map(|last| last.time).unwrap_or_default();
        managed.owners.insert(owner.clone(), self.owned(fields, time));
        let merged = match last {
            Some(last) if !last.fields.is_empty() => self.prune(merged, &managed, &last)?,
            _ => merged,
        };
        let (managed, compare) = self.changes(live, &merged, managed, owner, force)?;
        Ok(Merged { tree: (!compare.is_same()).then_some(merged), managed })
    }

    fn owned(&self, fields: FieldSet, time: Time) -> Owned {
        Owned { fields, api_version: self.api_version.to_owned(), time }
    }

    fn structure(&self, api_version: &str) -> Result<&Structure, UpdateError> {
        let found = self.versions.structure(api_version);
        found.ok_or_else(|| UpdateError::NoVersion(api_version.to_owned()))
    }

    /// The entries under the present schema; those of versions that are not served any more are gone.
    fn reconcile(&self, managed: ManagedFields) -> ManagedFields {
        let owners = managed.owners.into_iter().filter_map(|(owner, owned)| {
            let structure = self.versions.structure(&owned.api_version)?;
            let fields = structure.reconcile(owned.fields);
            Some((owner, Owned { fields, ..owned }))
        });
        ManagedFields { owners: owners.collect() }
    }

    fn convert<'t>(
        &self,
        tree: &'t Value,
        from: &str,
        to: &str,
    ) -> Result<Cow<'t, Value>, UpdateError> {
        if from == to {
            return Ok(Cow::Borrowed(tree));
        }
        let converted = match tree {
            // All was removed: what converts gets an object all the same.
            Value::Null => {
                let empty = Value::Map(Map::new());
                self.versions.convert(&empty, from, to).map(|tree| Cow::Owned(tree.into_owned()))
            }
            tree => self.versions.convert(tree, from, to),
        };
        converted.map_err(|why| UpdateError::Convert {
            from: from.to_owned(),
            to: to.to_owned(),
            why,
        })
    }

    /// Takes what changes from the other owners; without `force` it is a conflict if one of them owns any.
    fn changes(
        &self,
        live: &Value,
        new: &Value,
        mut managed: ManagedFields,
        writer: &Owner,
        force: bool,
    ) -> Result<(ManagedFields, Comparison), UpdateError> {
        let mut by_version = BTreeMap::new();
        by_version.insert(self.api_version.to_owned(), self.compare(live, new, self.api_version)?);
        for owned in managed.owners.values() {
            if !by_version.contains_key(&owned.api_version) {
                let compared = self.compare(live, new, &owned.api_version)?;
                by_version.insert(owned.api_version.clone(), compared);
            }
        }
        let mut conflicts = Vec::new();
        for (owner, owned) in managed.owners.iter_mut().filter(|(owner, _)| *owner != writer) {
            let Some(compare) = by_version.get(&owned.api_version) else { continue };
            let taken = compare.written_of(&owned.fields);
            if !taken.is_empty() {
                owned.fields.subtract(&taken);
                conflicts.push((owner.clone(), taken));
            }
            owned.fields.subtract(&compare.removed);
        }
        if !force && !conflicts.is_empty() {
            return Err(Conflicts::new(conflicts).into());
        }
        managed.drop_empty();
        Ok((managed, by_version.remove(self.api_version).unwrap_or_default()))
    }

    /// What the write changes outside of reset fields, as objects of `api_version` show it.
    fn compare(
        &self,
        live: &Value,
        new: &Value,
        api_version: &str,
    ) -> Result<Comparison, UpdateError> {
        let structure = self.structure(api_version)?;
        let live = self.convert(live, self.api_version, api_version)?;
        let new = self.convert(new, self.api_version, api_version)?;
        let compare = structure.compare(&live, &new);
        Ok(match self.reset.get(api_version) {
            Some(reset) => compare.excluding(reset),
            None => compare,
        })
    }

    /// `merged` without the fields and items that the applier owned by `last`, unless a manager owns them now or none did before.
    fn prune(
        &self,
        merged: Value,
        managed: &ManagedFields,
        last: &Owned,
    ) -> Result<Value, UpdateError> {
        let Some(structure) = self.versions.structure(&last.api_version) else {
            return Ok(merged);
        };
        let tree = self.convert(&merged, self.api_version, &last.api_version)?;
        let merged = Versioned { tree, api_version: last.api_version.clone() };
        let removed = structure.without(&merged.tree, &structure.with_declared(&last.fields));
        let pruned = Versioned { tree: Cow::Owned(removed), api_version: last.api_version.clone() };
        let pruned = self.add_back_owned(&merged, pruned, managed)?;
        let pruned = self.add_back_dangling(structure, &merged, &pruned, &last.fields)?;
        Ok(self.convert(&pruned, &last.api_version, self.api_version)?.into_owned())
    }

    /// Adds back what others, or the applier's new configuration, own.
    fn add_back_owned<'t>(
        &self,
        merged: &Versioned<'t>,
        mut pruned: Versioned<'t>,
        managed: &ManagedFields,
    ) -> Result<Versioned<'t>, UpdateError> {
        let mut owned: BTreeMap<&str, FieldSet> = BTreeMap::new();
        for have in managed.owners.values() {
            owned.entry(&have.api_version).or_default().extend(have.fields.clone());
        }
        // Its own version first: conversions may need fields that were pruned.
        let own = pruned.api_version.clone();
        let own = owned.remove_entry(own.as_str());
        for (version, fields) in own.into_iter().chain(owned) {
            let Some(structure) = self.versions.structure(version) else { continue };
            let tree = self.convert(&merged.tree, &merged.api_version, version)?;
            let have = self.convert(&pruned.tree, &pruned.api_version, version)?;
            let kept = structure.with_declared(&structure.fields_of(&have));
            let kept = kept.union(&structure.with_declared(&fields));
            let all = structure.with_declared(&structure.fields_of(&tree));
            let tree = structure.without(&tree, &all.difference(&kept));
            pruned = Versioned { tree: Cow::Owned(tree), api_version: version.to_owned() };
        }
        Ok(pruned)
    }

    /// Adds back what the applier did not own by `last`: items without owners, or that updates created.
    fn add_back_dangling(
        &self,
        structure: &Structure,
        merged: &Versioned<'_>,
        pruned: &Versioned<'_>,
        last: &FieldSet,
    ) -> Result<Value, UpdateError> {
        let pruned = self.convert(&pruned.tree, &pruned.api_version, &merged.api_version)?;
        let kept = structure.with_declared(&structure.fields_of(&pruned));
        let all = structure.with_declared(&structure.fields_of(&merged.tree));
        let gone = all.difference(&kept).intersection(&structure.with_declared(last));
        Ok(structure.without(&merged.tree, &gone))
    }
}
