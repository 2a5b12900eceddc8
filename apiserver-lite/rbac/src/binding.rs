//! Bindings of roles to subjects.

/// A role: `namespace` is empty for a ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleKey {
    /// Namespace of a Role; empty for a ClusterRole.
    pub namespace: String,
    pub name: String,
}

/// Who is bound to a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BindingSubject {
    /// The user of this name.
    User(String),
    /// Every member of this group.
    Group(String),
    /// The service account of this namespace and name.
    ServiceAccount(String, String),
}

/// A RoleBinding, or a ClusterRoleBinding with an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Namespace in which it gives access; empty for the whole cluster.
    pub namespace: String,
    pub name: String,
    /// The role that it gives.
    pub role: RoleKey,
    /// To whom.
    pub subjects: Vec<BindingSubject>,
}
