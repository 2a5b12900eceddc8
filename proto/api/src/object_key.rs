//! Namespace and name, by which caches and work queues find an object.

use crate::meta::v1::ObjectMeta;

/// Namespace and name of an object.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Empty for kinds without namespaces.
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    /// From its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Of an object.
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        Self::new(&metadata.namespace, &metadata.name)
    }
}

/// As in logs: `namespace/name`.
impl std::fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}
