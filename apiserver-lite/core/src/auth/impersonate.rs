//! Impersonation: a request as another user, if its requester is authorized to impersonate it.

use http::{HeaderMap, HeaderName};

use crate::status::{ApiError, StatusTarget};
use apiserver_auth::{
    AccessTarget, Attributes, Chain, Decision, UNAUTHENTICATED, User, read_extra,
};

/// What the names of these headers begin with.
const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The effective user of a request: the one in the impersonation headers, else `requester`.
///
/// # Errors
/// 403 when the requester may not impersonate the user, a group, uid or extra; 400 when the headers name those without a user, or are not ASCII.
pub async fn effective(
    authorizer: &Chain,
    requester: User,
    headers: &HeaderMap,
    auth_group: &str,
) -> Result<User, ApiError> {
    let named = headers.keys().any(|name| name.as_str().starts_with(PREFIX));
    if !named {
        return Ok(requester);
    }
    let is_text = |name: &HeaderName| headers.get_all(name).iter().all(|one| one.to_str().is_ok());
    let mut impersonating = headers.keys().filter(|name| name.as_str().starts_with(PREFIX));
    if let Some(name) = impersonating.find(|name| !is_text(name)) {
        // Dropped, a group would be missing unnoticed.
        return Err(ApiError::bad_request(format!("{name}: must be printable ASCII")));
    }
    let text =
        |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if text(USER).is_empty() {
        return Err(ApiError::bad_request(
            "requested attributes to impersonate without impersonating a user",
        ));
    }
    let mut wanted =
        User { name: text(USER).to_owned(), uid: text(UID).to_owned(), ..User::default() };
    let groups = headers.get_all(GROUP).iter().filter_map(|value| value.to_str().ok());
    wanted.groups = groups.map(str::to_owned).collect();
    wanted.extra = read_extra(headers, &[EXTRA]);
    for (group, resource, subresource, namespace, name) in required_permissions(&wanted, auth_group)
    {
        let subject = AccessTarget::Resource {
            group: &group,
            version: "v1",
            resource,
            subresource: &subresource,
            namespace: &namespace,
            name: &name,
        };
        let attributes = Attributes { user: &requester, verb: "impersonate", subject };
        let authorization = authorizer.authorize(&attributes).await;
        if authorization.decision != Decision::Allow {
            let about = StatusTarget { group: &group, kind: resource, name: &name };
            return Err(ApiError::forbidden(about, &attributes.denial(&authorization.reason)));
        }
    }
    Ok(with_default_groups(wanted))
}

/// Group, resource, subresource, namespace and name of an impersonation check.
type Permission = (String, &'static str, String, String, String);

/// The checks that the requester must pass to impersonate `wanted`.
fn required_permissions(wanted: &User, auth_group: &str) -> Vec<Permission> {
    let none = String::new;
    let mut all: Vec<Permission> = Vec::new();
    all.push(match service_account(&wanted.name) {
        Some((namespace, name)) => {
            (none(), "serviceaccounts", none(), namespace.to_owned(), name.to_owned())
        }
        None => (none(), "users", none(), none(), wanted.name.clone()),
    });
    all.extend(wanted.groups.iter().map(|group| (none(), "groups", none(), none(), group.clone())));
    if !wanted.uid.is_empty() {
        all.push((auth_group.to_owned(), "uids", none(), none(), wanted.uid.clone()));
    }
    for (key, values) in &wanted.extra {
        all.extend(values.iter().map(|value| {
            (auth_group.to_owned(), "userextras", key.clone(), none(), value.clone())
        }));
    }
    all
}

/// Namespace and name in `system:serviceaccount:<namespace>:<name>`.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_account = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    is_account.then_some((namespace, name))
}

/// Adds the groups that follow from the user's name.
fn with_default_groups(mut user: User) -> User {
    if let (Some((namespace, name)), true) = (service_account(&user.name), user.groups.is_empty()) {
        user.groups = User::service_account(namespace, name).groups;
    }
    if user.name == User::anonymous().name {
        if !user.is_in(UNAUTHENTICATED) {
            user.groups.push(UNAUTHENTICATED.to_owned());
        }
        return user;
    }
    user.authenticated()
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver_auth::{AlwaysDeny, MASTERS, Masters};
    use http::HeaderValue;

    async fn ask(requester: &str, headers: &[(&'static str, &'static str)]) -> Result<User, u16> {
        let groups = if requester == "admin" { vec![MASTERS.to_owned()] } else { Vec::new() };
        let requester = User { name: requester.to_owned(), groups, ..User::default() };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        let chain = Chain(vec![Masters.into(), AlwaysDeny.into()]);
        let user = effective(&chain, requester, &map, "authentication.orch.io").await;
        user.map_err(|error| error.code())
    }

    #[tokio::test]
    async fn impersonation_requires_permission() {
        assert_eq!(ask("bob", &[]).await.unwrap().name, "bob");
        assert_eq!(ask("bob", &[(USER, "alice")]).await, Err(403));
        assert_eq!(ask("bob", &[(GROUP, "dev")]).await, Err(400));
        assert_eq!(ask("admin", &[(GROUP, "system:masters")]).await, Err(400));
        let alice = ask(
            "admin",
            &[(USER, "alice"), (GROUP, "dev"), (GROUP, "ops"), ("impersonate-extra-a%2fb", "c")],
        )
        .await;
        let alice = alice.unwrap();
        assert_eq!((alice.name.as_str(), alice.groups.len()), ("alice", 3));
        assert_eq!(alice.extra["a/b"], ["c"]);
    }

    #[tokio::test]
    async fn impersonated_users_do_not_keep_the_groups_of_the_requester() {
        let robot = ask("admin", &[(USER, "system:serviceaccount:a:b")]).await.unwrap();
        assert!(robot.is_in("system:serviceaccounts:a") && !robot.is_in(MASTERS));
        let anonymous = ask("admin", &[(USER, "system:anonymous")]).await.unwrap();
        assert_eq!(anonymous.groups, [UNAUTHENTICATED]);
        let unauthenticated = ask("admin", &[(USER, "x"), (GROUP, UNAUTHENTICATED)]).await.unwrap();
        assert_eq!(unauthenticated.groups, [UNAUTHENTICATED]);
    }

    #[tokio::test]
    async fn a_group_that_is_not_ascii_is_refused() {
        assert_eq!(ask("admin", &[(USER, "x"), (GROUP, "\u{e9}")]).await, Err(400));
    }
}
