//! The user of a request.

use std::collections::BTreeMap;

/// An authenticated (or anonymous) caller, as authorizers and admission see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User name; unique in the cluster.
    pub name: String,
    /// Stable identifier, may be empty.
    pub uid: String,
    /// Groups, `system:authenticated` or `system:unauthenticated` included.
    pub groups: Vec<String>,
    /// Further attributes, opaque to authentication.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of the anonymous user.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of administrators, which bypasses authorization.
pub const MASTERS: &str = "system:masters";

impl User {
    /// The anonymous user.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// The user of the API server's own writes.
    #[must_use]
    pub fn server() -> Self {
        Self {
            name: "system:apiserver".to_owned(),
            groups: vec![MASTERS.to_owned(), AUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// The user with the group of authenticated users.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// User and group names of a service account.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
            ..Self::default()
        }
    }

    /// Whether the user is in `group`.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|member| member == group)
    }
}
