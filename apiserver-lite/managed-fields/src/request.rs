//! A write, as kube-apiserver tracks it: what it adds to the rules of structured merge and diff.

use apiserver_schema::{Map, Value};
use proto_api::Time;

use crate::conflict::Conflicts;
use crate::element::FieldPath;
use crate::entries::{EntryError, ManagedFields, ManagedFieldsOperation, Owner};
use crate::last_applied;
use crate::set::{FieldSet, MAX_DEPTH};
use crate::tree::{TreeError, is_too_deep};
use crate::updater::{Merged, UpdateError, Updater};
use crate::versions::{ResetFields, Versions};

#[cfg(test)]
mod tests;
mod update_manager_cap;

/// The manager of what an object had before it was first applied.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager whose applies follow client-side applies.
const KUBECTL: &str = "kubectl";

/// Fields without owners: the server sets them, or they identify the object.
const UNOWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// A write of one object.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The versions of the kind.
    pub versions: &'a dyn Versions,
    /// What the endpoint resets.
    pub reset: &'a ResetFields,
    /// The version of the request, and of all trees.
    pub api_version: &'a str,
    /// The subresource; empty for the object.
    pub subresource: &'a str,
    /// Name of the manager; `unknown` if empty.
    pub manager: &'a str,
    /// The tree of an object of the kind with nothing set.
    pub empty: &'a Value,
    /// The time of the write.
    pub now: Time,
    /// The annotation in which client-side apply keeps what was applied.
    pub last_applied: &'a str,
}

/// An object after an apply, with its managed fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The tree to check, default, validate and store, without `metadata.managedFields`.
    pub tree: Value,
    /// Whether it differs from the live tree; the owners may have changed in any case.
    pub changed: bool,
    /// `metadata.managedFields` of the object to store; `None` for none.
    pub managed_fields: Option<Value>,
}

/// Why an object cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Others own fields with other values: a 409.
    #[error(transparent)]
    Conflicts(Conflicts),
    /// Another version than that of the request: a 400.
    #[error(
        "Incorrect version specified in apply patch. Specified patch version: {patch}, expected: {expected}"
    )]
    Version {
        /// `apiVersion` of what is applied.
        patch: String,
        /// The version of the request.
        expected: String,
    },
    /// What is applied is not an object: a 400.
    #[error("the applied configuration must be an object, not a {0}")]
    NotAnObject(&'static str),
    /// Entries are the server's: a 400.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// What is applied does not fit its kind: a 400, where Kubernetes 1.25 answers 500.
    #[error("failed to create typed patch object ({object}): {error}")]
    Tree {
        /// Namespace, name and kind.
        object: String,
        /// What is wrong.
        error: TreeError,
    },
    /// The live object's entries cannot be read: a 500.
    #[error("failed to decode managed fields: {0}")]
    Entries(EntryError),
    /// The entries would exceed what can be read again: a 413, and the client's to solve.
    #[error(
        "cannot store the managed fields after this apply: {0}; update the object with fewer entries in metadata.managedFields, or with \
         `[{{}}]` to forget them all, and apply again"
    )]
    Bounds(EntryError),
    /// The server's error: a 500.
    #[error(transparent)]
    Internal(UpdateError),
}

impl From<UpdateError> for ApplyError {
    fn from(error: UpdateError) -> Self {
        match error {
            UpdateError::Conflicts(conflicts) => ApplyError::Conflicts(conflicts),
            other => ApplyError::Internal(other),
        }
    }
}

impl Request<'_> {
    /// `metadata.managedFields` of a new object; `None` for none.
    pub fn create(&self, new: Value) -> Result<Option<Value>, UpdateError> {
        self.update(self.empty.clone(), new)
    }

    /// `metadata.managedFields` of an object to store over `live`, by any write but an apply; `None` for none.
    ///
    /// Entries of `new` replace those of `live`, unless there are none, they cannot be read, they exceed what a client may send
    /// ([`MAX_SENT_ENTRIES`], [`MAX_SENT_PATHS`]) or the request is for a subresource. Where the result would exceed what can be read again,
    /// the object has no entries. After an error it is stored without entries, too, as by kube-apiserver.
    ///
    /// [`MAX_SENT_ENTRIES`]: crate::MAX_SENT_ENTRIES
    /// [`MAX_SENT_PATHS`]: crate::MAX_SENT_PATHS
    pub fn update(&self, mut live: Value, mut new: Value) -> Result<Option<Value>, UpdateError> {
        let asked = take_managed_fields(&mut new);
        let stored = take_managed_fields(&mut live);
        let is_reset = self.subresource.is_empty() && is_reset(asked.as_ref());
        let managed = if is_reset {
            ManagedFields::default()
        } else {
            self.entries(asked.as_ref(), stored.as_ref())
        };
        let is_create = meta(&live, "uid").is_empty();
        if managed.is_empty() && !is_create && !is_reset {
            return Ok(None); // ownership is not tracked until the object is applied
        }
        Ok(self.track(&live, &new, managed, self.manager)?.encode().unwrap_or_default())
    }

    fn entries(&self, asked: Option<&Value>, stored: Option<&Value>) -> ManagedFields {
        if self.subresource.is_empty()
            && let Some(Ok(managed)) = asked.map(ManagedFields::decode_sent)
            && !managed.is_empty()
        {
            return managed;
        }
        ManagedFields::decode(stored).unwrap_or_default()
    }

    /// Applies `config`, as the client sent it, to `live`; [`Request::empty`] is the live tree of an object to create. What an object had before
    /// its first apply has no owner if the object is nested deeper than sets describe.
    pub fn apply(
        &self,
        mut live: Value,
        config: Value,
        force: bool,
    ) -> Result<Applied, ApplyError> {
        let Value::Map(map) = &config else { return Err(ApplyError::NotAnObject(config.shape())) };
        if map.str("apiVersion") != self.api_version {
            let patch = map.str("apiVersion").to_owned();
            return Err(ApplyError::Version { patch, expected: self.api_version.to_owned() });
        }
        if map
            .map("metadata")
            .is_some_and(|m| matches!(m.get("managedFields"), Some(Value::List(_))))
        {
            return Err(ApplyError::ManagedFields);
        }
        self.validate(&config, map)?;
        let stored = take_managed_fields(&mut live);
        let mut managed = ManagedFields::decode(stored.as_ref()).map_err(ApplyError::Entries)?;
        if managed.is_empty() && !is_too_deep(&live) {
            managed = self.track(self.empty, &live, managed, BEFORE_FIRST_APPLY)?;
        }
        let merged = self.merge(&live, &config, managed, force)?;
        merged.managed.check_appliers().map_err(ApplyError::Bounds)?;
        let mut applied = Applied {
            changed: merged.tree.is_some(),
            tree: merged.tree.unwrap_or(live),
            managed_fields: merged.managed.encode().map_err(ApplyError::Bounds)?,
        };
        if self.manager == KUBECTL {
            applied.changed |= last_applied::renew(&mut applied.tree, &config, self.last_applied);
        }
        Ok(applied)
    }

    fn validate(&self, config: &Value, map: &Map) -> Result<(), ApplyError> {
        let structure = self.versions.structure(self.api_version);
        let structure =
            structure.ok_or_else(|| UpdateError::NoVersion(self.api_version.to_owned()))?;
        structure.validate(config).map_err(|error| {
            let (group, version) =
                self.api_version.split_once('/').unwrap_or(("", self.api_version));
            let (name, namespace) = (meta(config, "name"), meta(config, "namespace"));
            let kind = map.str("kind");
            let object = format!("{namespace}/{name}; {group}/{version}, Kind={kind}");
            ApplyError::Tree { object, error }
        })
    }

    fn merge(
        &self,
        live: &Value,
        config: &Value,
        managed: ManagedFields,
        force: bool,
    ) -> Result<Merged, UpdateError> {
        let before = (self.manager == KUBECTL).then(|| managed.clone());
        let (conflicts, before) = match (self.merge_once(live, config, managed, force), before) {
            (Err(UpdateError::Conflicts(conflicts)), Some(before)) => (conflicts, before),
            (result, _) => return result,
        };
        // Values that kubectl itself applied by the client are no conflict.
        let structure = self.versions.structure(self.api_version);
        let allowed = structure.and_then(|structure| {
            last_applied::unchanged_fields(structure, live, self.api_version, self.last_applied)
        });
        let left = conflicts.without(&allowed.unwrap_or_default());
        if left.is_empty() {
            return self.merge_once(live, config, before, true);
        }
        Err(left.into())
    }

    fn merge_once(
        &self,
        live: &Value,
        config: &Value,
        managed: ManagedFields,
        force: bool,
    ) -> Result<Merged, UpdateError> {
        let owner = self.owner(self.manager, ManagedFieldsOperation::Apply);
        let mut merged = self.updater().apply(live, config, managed, &owner, force)?;
        strip(&mut merged.managed, &owner);
        if let Some(owned) = merged.managed.owners.get_mut(&owner)
            && merged.tree.is_some()
        {
            owned.time = self.now;
        }
        Ok(merged)
    }

    /// The owners after `manager` wrote `new` over `live`. Its time is renewed only if it changed something.
    fn track(
        &self,
        live: &Value,
        new: &Value,
        managed: ManagedFields,
        manager: &str,
    ) -> Result<ManagedFields, UpdateError> {
        if is_too_deep(new) || is_too_deep(live) {
            let message = format!("the object is nested more than {MAX_DEPTH} levels deep");
            let problem = crate::tree::Problem { path: String::new(), message };
            return Err(TreeError { problems: vec![problem] }.into());
        }
        // The write is an owner of its own first: what it changes it takes from `manager`, too.
        let write =
            Owner::new("current-operation", ManagedFieldsOperation::Update, "", self.subresource);
        let mut managed = self.updater().update(live, new, managed, &write)?;
        strip(&mut managed, &write);
        if let Some(mut owned) = managed.owners.remove(&write) {
            let owner = self.owner(manager, ManagedFieldsOperation::Update);
            if let Some(before) = managed.owners.remove(&owner) {
                owned.fields.extend(before.fields);
            }
            owned.time = self.now;
            managed.owners.insert(owner, owned);
        }
        update_manager_cap::merge_oldest(&mut managed);
        Ok(managed)
    }

    fn updater(&self) -> Updater<'_> {
        Updater { versions: self.versions, reset: self.reset, api_version: self.api_version }
    }

    fn owner(&self, manager: &str, operation: ManagedFieldsOperation) -> Owner {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        Owner::new(manager, operation, self.api_version, self.subresource)
    }
}

/// Removes the fields without owners from those of `owner`.
fn strip(managed: &mut ManagedFields, owner: &Owner) {
    let unowned: FieldSet = UNOWNED.iter().map(|names| FieldPath::fields(names)).collect();
    if let Some(owned) = managed.owners.get_mut(owner) {
        owned.fields.subtract(&unowned);
    }
    managed.drop_empty();
}

/// Removes and returns `metadata.managedFields` of a tree.
fn take_managed_fields(tree: &mut Value) -> Option<Value> {
    tree.as_map_mut()?.map_mut("metadata")?.remove("managedFields")
}

/// Whether a client asks to forget all owners: a list of one empty entry. An empty list does not.
fn is_reset(managed_fields: Option<&Value>) -> bool {
    match managed_fields.and_then(Value::as_list) {
        Some([Value::Map(entry)]) => entry.is_empty(),
        _ => false,
    }
}

/// A string of the metadata; empty if unset.
fn meta<'a>(tree: &'a Value, field: &str) -> &'a str {
    tree.as_map().map_or("", |map| map.str_at(&["metadata", field]))
}
