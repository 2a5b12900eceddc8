//! Denials before the authorization module that allows everything: the anonymous user gets public paths only, and kubelets get about what
//! Kubernetes' Node authorizer allows them. Without it the modules decide.

use crate::authorization::{
    AccessTarget, Attributes, Authorization, Authorizer, Decision, UserRules,
};
use crate::user::{MASTERS, UNAUTHENTICATED, User};

/// Denies the anonymous user everything but [`is_public`] paths, as the role `system:public-info-viewer` in Kubernetes. A user
/// without name and groups is anonymous.
pub struct AnonymousLimit;

/// Denies kubelets what Kubernetes' Node authorizer and role `system:node` do not allow: streams and proxies into pods,
/// Services and nodes, impersonation, and writes other than a kubelet's. `admission/nodes.rs` checks which objects they write.
pub struct NodeLimit;

/// Whether `path` is a health check, which needs no credentials.
#[must_use]
pub fn is_health(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "healthz" | "livez" | "readyz")
}

/// Paths that the anonymous user may read.
fn is_public(path: &str) -> bool {
    is_health(path) || path.trim_matches('/') == "version"
}

fn is_anonymous(user: &User) -> bool {
    user.name == User::anonymous().name
        || user.is_in(UNAUTHENTICATED)
        || (user.name.is_empty() && user.groups.is_empty())
}

/// Prefix of kubelets' user names; the node's name follows.
pub const NODE_USER_PREFIX: &str = "system:node:";

/// Group of kubelets.
const NODES: &str = "system:nodes";

/// Whether the user is held to what a kubelet may do. A kubelet's name or its group alone is enough, but for administrators: they are kubelets with both
/// only, as all users are in Kubernetes.
pub fn is_node(user: &User) -> bool {
    let (is_named, is_grouped) = (user.name.starts_with(NODE_USER_PREFIX), user.is_in(NODES));
    match user.is_in(MASTERS) {
        true => is_named && is_grouped,
        false => is_named || is_grouped,
    }
}

impl Authorizer for AnonymousLimit {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let decision = match attributes.subject {
            _ if !is_anonymous(attributes.user) => Decision::NoOpinion,
            AccessTarget::Path(path) if is_public(path) => match attributes.verb {
                "get" | "head" => Decision::Allow,
                _ => Decision::Deny,
            },
            _ => Decision::Deny,
        };
        Authorization::new(decision, "")
    }

    fn rules(&self, _: &User, _: &str) -> UserRules {
        UserRules::default()
    }
}

impl Authorizer for NodeLimit {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let denied = is_node(attributes.user)
            && match attributes.subject {
                AccessTarget::Resource { group, resource, subresource, name, .. } => {
                    let reads = matches!(attributes.verb, "get" | "list" | "watch");
                    (group.is_empty() && leads_into_nodes(resource, subresource))
                        || !(reads
                            || is_kubelet_write(attributes, group, resource, subresource, name))
                }
                AccessTarget::Path(_) => !matches!(attributes.verb, "get" | "head"),
            };
        if denied {
            return Authorization::new(Decision::Deny, "kubelets may not use this resource");
        }
        Authorization::new(Decision::NoOpinion, "")
    }

    fn rules(&self, _: &User, _: &str) -> UserRules {
        UserRules::default()
    }
}

/// Whether a kubelet may make this write. An object named in the path has to be the node's own.
fn is_kubelet_write(
    attributes: &Attributes<'_>,
    group: &str,
    resource: &str,
    subresource: &str,
    name: &str,
) -> bool {
    let node = attributes.user.name.strip_prefix(NODE_USER_PREFIX);
    let verb = attributes.verb;
    // The domain differs by naming profile.
    let group = group.split('.').next().unwrap_or_default();
    match (group, resource, subresource) {
        // A Node that is deleted and registered again loses what administrators have set.
        ("", "nodes", "" | "status") => {
            matches!(verb, "create" | "update" | "patch") && (name.is_empty() || node == Some(name))
        }
        ("coordination", "leases", "") | ("storage", "csinodes", "") => {
            verb != "deletecollection" && (name.is_empty() || node == Some(name))
        }
        ("" | "events", "events", "") => matches!(verb, "create" | "update" | "patch"),
        ("", "pods", "") => matches!(verb, "create" | "delete"),
        ("", "pods" | "persistentvolumeclaims", "status") => true,
        ("", "pods", "eviction") => verb == "create",
        ("certificates", "certificatesigningrequests", "") => matches!(verb, "create" | "delete"),
        // The approver's check for a kubelet that renews its certificate.
        ("certificates", "certificatesigningrequests", "selfnodeclient") => verb == "create",
        ("", "serviceaccounts", "token") | ("authentication" | "authorization", _, "") => {
            verb == "create"
        }
        _ => false,
    }
}

/// Whether the subresource leads into a node or its workloads; also for the wildcards of access reviews.
fn leads_into_nodes(resource: &str, subresource: &str) -> bool {
    match (resource, subresource) {
        ("nodes", "" | "status") => false,
        ("nodes", _) => true,
        ("pods", "exec" | "attach" | "portforward" | "proxy" | "log" | "*") => true,
        ("services", "proxy" | "*") => true,
        ("*", subresource) => !subresource.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::{AlwaysAllow, Masters};

    fn modules() -> [&'static dyn Authorizer; 4] {
        [&Masters, &AnonymousLimit, &NodeLimit, &AlwaysAllow]
    }

    fn resource<'a>(resource: &'a str, subresource: &'a str) -> AccessTarget<'a> {
        AccessTarget::Resource {
            group: "",
            version: "v1",
            resource,
            subresource,
            namespace: "",
            name: "n1",
        }
    }

    fn allowed(user: &User, verb: &str, subject: AccessTarget<'_>) -> bool {
        let attributes = Attributes { user, verb, subject };
        let mut decisions =
            modules().map(|module| module.authorize(&attributes).decision).into_iter();
        decisions.find(|decision| *decision != Decision::NoOpinion) == Some(Decision::Allow)
    }

    fn user(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }
    }

    #[test]
    fn nodes_approve_no_certificates() {
        let node = user("system:node:n1", &["system:nodes"]);
        let request = |subresource: &'static str| AccessTarget::Resource {
            group: "certificates.k8s.io",
            version: "v1",
            resource: "certificatesigningrequests",
            subresource,
            namespace: "",
            name: "a",
        };
        assert!(allowed(&node, "create", request("")));
        assert!(allowed(&node, "create", request("selfnodeclient")));
        assert!(!allowed(&node, "create", request("nodeclient")));
        for subresource in ["approval", "status", "*"] {
            assert!(!allowed(&node, "update", request(subresource)), "{subresource}");
            assert!(allowed(&user("someone", &["other"]), "update", request(subresource)));
        }
    }

    #[test]
    fn anonymous_requests_get_public_paths_only() {
        for user in [
            User::anonymous(),
            user("", &[]),
            user("x", &[UNAUTHENTICATED]),
            user("system:anonymous", &[]),
        ] {
            for path in ["/healthz", "/livez", "/livez/store", "/readyz", "/version", "/version/"] {
                assert!(allowed(&user, "get", AccessTarget::Path(path)), "{path}");
                assert!(!allowed(&user, "post", AccessTarget::Path(path)), "{path}");
            }
            for path in ["/", "/api", "/apis", "/metrics", "/openapi/v2", "/version/x", "/livezz"] {
                assert!(!allowed(&user, "get", AccessTarget::Path(path)), "{path}");
            }
            assert!(!allowed(&user, "get", resource("pods", "")));
            assert!(!allowed(&user, "create", resource("nodes", "proxy")));
        }
        assert!(allowed(&user("alice", &[]), "get", resource("pods", "")));
        assert!(allowed(&user("", &["dev"]), "get", AccessTarget::Path("/api")));
    }

    #[test]
    fn an_administrator_is_a_kubelet_by_name_and_group_only() {
        for (name, groups, expected) in [
            ("system:node:n1", &["system:nodes"][..], true),
            ("system:node:n1", &[], true),
            ("crowd", &["system:nodes"], true),
            ("jane", &["devs"], false),
            ("system:node:n1", &["system:nodes", MASTERS], true),
            ("system:node:", &["system:nodes", MASTERS], true),
            ("system:node:n1", &[MASTERS], false),
            ("crowd", &[MASTERS, "system:nodes"], false),
            ("jane", &[MASTERS], false),
        ] {
            assert_eq!(is_node(&user(name, groups)), expected, "{name} {groups:?}");
        }
    }

    #[test]
    fn nodes_do_not_reach_into_nodes() {
        let node = user("system:node:n2", &["system:nodes"]);
        for subresource in ["proxy", "exec", "log", "metrics", "stats", "spec", "*"] {
            assert!(!allowed(&node, "create", resource("nodes", subresource)), "{subresource}");
            let server = user("orch-apiserver", &["system:authenticated"]);
            assert!(allowed(&server, "create", resource("nodes", subresource)), "{subresource}");
        }
        for subresource in ["exec", "attach", "portforward", "proxy", "log"] {
            assert!(!allowed(&node, "create", resource("pods", subresource)), "{subresource}");
        }
        assert!(!allowed(&node, "get", resource("services", "proxy")));
        assert!(!allowed(&node, "impersonate", resource("users", "")));
        assert!(!allowed(&user("system:node:n2", &[]), "get", resource("nodes", "proxy")));
        assert!(!allowed(&user("x", &["system:nodes"]), "get", resource("nodes", "proxy")));
        for (resource_name, subresource) in
            [("nodes", ""), ("nodes", "status"), ("pods", "status"), ("events", "")]
        {
            let subject = resource(resource_name, subresource);
            assert!(allowed(&user("system:node:n1", &["system:nodes"]), "update", subject));
            // Another node's object.
            assert_eq!(allowed(&node, "update", subject), resource_name != "nodes");
            let own = user("system:node:n1", &["system:nodes"]);
            assert!(resource_name != "nodes" || !allowed(&own, "delete", subject));
        }
        for (resource_name, subresource) in [
            ("secrets", ""),
            ("serviceaccounts", ""),
            ("pods", "ephemeralcontainers"),
            ("pods", "binding"),
            ("configmaps", ""),
            ("*", ""),
        ] {
            assert!(!allowed(&node, "create", resource(resource_name, subresource)));
        }
        assert!(allowed(&node, "get", resource("secrets", "")));
        assert!(allowed(&node, "create", resource("pods", "")));
        assert!(!allowed(&node, "update", resource("pods", "")));
        let admin = user("system:node:n2", &["system:nodes", MASTERS]);
        assert!(allowed(&admin, "create", resource("nodes", "proxy")));
    }
}
