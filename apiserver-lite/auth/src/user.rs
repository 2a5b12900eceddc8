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

/// Name of the anonymous user.
const ANONYMOUS: &str = "system:anonymous";
/// What the names of service accounts begin with.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

impl User {
    /// The anonymous user.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
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

    /// The user with the group of authenticated users. A proxy that has let an anonymous client through names it: it stays what it was.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        let is_anonymous = self.name == ANONYMOUS || self.is_in(UNAUTHENTICATED);
        if !is_anonymous && !self.is_in(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// User and group names of a service account.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self {
            name: format!("{SERVICE_ACCOUNT}{namespace}:{name}"),
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

/// The name under which a server counts what it gives to a user. Who may write in a namespace makes any number of accounts in it and acts as each of them:
/// they are counted together, other than those of the system's namespace.
#[must_use]
pub fn share_name<'a>(user: &'a str, system_namespace: &str) -> &'a str {
    let Some(account) = user.strip_prefix(SERVICE_ACCOUNT) else { return user };
    match account.split_once(':') {
        Some((namespace, _)) if namespace != system_namespace => {
            user.get(..SERVICE_ACCOUNT.len().saturating_add(namespace.len())).unwrap_or(user)
        }
        _ => user,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_users_are_not_authenticated_by_who_names_them() {
        for (name, groups, expected) in [
            ("jane", &["dev"][..], &["dev", AUTHENTICATED][..]),
            ("jane", &[AUTHENTICATED], &[AUTHENTICATED]),
            ("jane", &[UNAUTHENTICATED], &[UNAUTHENTICATED]),
            (ANONYMOUS, &[UNAUTHENTICATED], &[UNAUTHENTICATED]),
            (ANONYMOUS, &[], &[]),
        ] {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let user = User { name: name.to_owned(), groups, ..User::default() };
            assert_eq!(user.authenticated().groups, expected, "{name}");
        }
    }

    #[test]
    fn accounts_of_a_namespace_share_what_a_server_gives() {
        for (user, expected) in [
            ("alice", "alice"),
            ("system:node:a", "system:node:a"),
            ("system:serviceaccount:team:x1", "system:serviceaccount:team"),
            ("system:serviceaccount:team:x2", "system:serviceaccount:team"),
            ("system:serviceaccount:team:x:y", "system:serviceaccount:team"),
            ("system:serviceaccount:kube-system:a", "system:serviceaccount:kube-system:a"),
            ("system:serviceaccount:", "system:serviceaccount:"),
            ("system:serviceaccount:\u{e9}:a", "system:serviceaccount:\u{e9}"),
        ] {
            assert_eq!(share_name(user, "kube-system"), expected, "{user}");
        }
        let account = User::service_account("team", "x").name;
        assert_eq!(share_name(&account, "kube-system"), "system:serviceaccount:team");
    }
}
