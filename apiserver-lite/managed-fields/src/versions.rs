//! The versions of a kind: entries of managed fields have paths in the version in which they were written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use apiserver_schema::Value;

use crate::set::FieldSet;
use crate::structure::Structure;

/// Fields that an endpoint resets to their stored values, by `apiVersion`: writes through it do not own them.
pub type ResetFields = BTreeMap<String, FieldSet>;

/// An object does not convert; the text says why. The write of fields that need the conversion fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(String);

impl ConvertError {
    /// With the text of the error that the conversion ended with.
    pub fn new(why: impl ToString) -> Self {
        Self(why.to_string())
    }
}

/// The versions that a kind is served in.
pub trait Versions {
    /// The structure of objects in `api_version`; `None` for a version that is not served any more, whose entries are dropped.
    fn structure(&self, api_version: &str) -> Option<&Structure>;

    /// The tree of an object in another version, both served.
    fn convert<'t>(
        &self,
        tree: &'t Value,
        from: &str,
        to: &str,
    ) -> Result<Cow<'t, Value>, ConvertError>;
}

/// A kind with one version.
#[derive(Clone, Debug)]
pub struct SingleVersion {
    pub api_version: String,
    pub structure: Structure,
}

impl Versions for SingleVersion {
    fn structure(&self, api_version: &str) -> Option<&Structure> {
        (api_version == self.api_version).then_some(&self.structure)
    }

    fn convert<'t>(
        &self,
        tree: &'t Value,
        _: &str,
        _: &str,
    ) -> Result<Cow<'t, Value>, ConvertError> {
        Ok(Cow::Borrowed(tree))
    }
}

/// Converts a tree from one version to another.
pub type Convert<'a> = &'a dyn Fn(&Value, &str, &str) -> Result<Value, ConvertError>;

/// A kind with several versions.
pub struct SeveralVersions<'a> {
    /// The structures by `apiVersion`.
    pub structures: BTreeMap<String, Structure>,
    /// How trees are converted; `None` if the versions differ in their name only.
    pub convert: Option<Convert<'a>>,
}

impl Versions for SeveralVersions<'_> {
    fn structure(&self, api_version: &str) -> Option<&Structure> {
        self.structures.get(api_version)
    }

    fn convert<'t>(
        &self,
        tree: &'t Value,
        from: &str,
        to: &str,
    ) -> Result<Cow<'t, Value>, ConvertError> {
        match self.convert {
            Some(convert) if from != to => convert(tree, from, to).map(Cow::Owned),
            _ => Ok(Cow::Borrowed(tree)),
        }
    }
}
