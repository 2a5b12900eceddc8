//! The authorization module `RBAC`, and the policy of the cluster's roles and bindings that it decides by.

use std::sync::Arc;

use apiserver_rbac::{Access, RbacDecision, RbacPolicy, Requester, RoleKey, Rule};
use apiserver_schema::Object;
use apiserver_store::Store;
use proto_api::names::Names;

use super::store_index::{IndexError, ObjectIndex, StoreIndex};
use crate::record::StoredObject;
use apiserver_auth::User;
use apiserver_auth::{AccessTarget, Attributes, Authorization, Authorizer, Decision, UserRules};

/// The roles and bindings in the store.
pub struct ClusterPolicy(StoreIndex<RbacPolicy>);

/// Allows what roles and bindings allow; has no opinion on the rest.
pub struct Rbac(pub Arc<ClusterPolicy>);

impl ClusterPolicy {
    /// Reads the policy and follows its changes.
    ///
    /// # Errors
    /// The store cannot be watched.
    pub fn follow(store: &Store<StoredObject>, names: &Names) -> Result<Self, IndexError> {
        let empty = RbacPolicy::new(&names.group("rbac.authorization"));
        StoreIndex::follow(store, empty).map(Self)
    }

    /// All rules that a user has in a namespace, or in the whole cluster if it is empty, and an error text for each of its roles that
    /// does not exist.
    #[must_use]
    pub fn rules_of(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        self.0.read(|policy| policy.rules_of(requester(user), namespace))
    }

    /// The rules of a role, if it exists.
    #[must_use]
    pub fn rules(&self, role: &RoleKey) -> Option<Arc<[Rule]>> {
        self.0.read(|policy| policy.rules(role).cloned())
    }
}

/// The group is the first part of the key of all four kinds.
impl ObjectIndex for RbacPolicy {
    const PREFIX: &'static str = "/rbac.authorization/";

    fn emptied(&self) -> Self {
        Self::new(self.group())
    }

    fn set(&mut self, object: &Object) {
        match object.kind.kind() {
            "Role" | "ClusterRole" => {
                self.set_role(role_key(object), apiserver_rbac::read_rules(object));
            }
            _ => self.set_binding(apiserver_rbac::read_binding(object)),
        }
    }

    fn remove(&mut self, object: &Object) {
        match object.kind.kind() {
            "Role" | "ClusterRole" => self.remove_role(&role_key(object)),
            _ => self.remove_binding(object.namespace(), object.name()),
        }
    }
}

fn role_key(role: &Object) -> RoleKey {
    RoleKey { namespace: role.namespace().to_owned(), name: role.name().to_owned() }
}

fn requester(user: &User) -> Requester<'_> {
    Requester { name: &user.name, groups: &user.groups }
}

pub(super) fn access<'a>(attributes: &Attributes<'a>) -> Access<'a> {
    let verb = attributes.verb;
    match attributes.subject {
        AccessTarget::Path(path) => Access::Path { verb, path },
        AccessTarget::Resource { group, resource, subresource, namespace, name, .. } => {
            Access::Resource { verb, group, resource, subresource, namespace, name }
        }
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let decide =
            |policy: &RbacPolicy| policy.decide(requester(attributes.user), &access(attributes));
        match self.0.0.read(decide) {
            RbacDecision::Allowed(reason) => Authorization::new(Decision::Allow, reason),
            RbacDecision::NoOpinion(reason) => Authorization::new(Decision::NoOpinion, reason),
        }
    }

    fn rules(&self, user: &User, namespace: &str) -> UserRules {
        let (rules, missing) = self.0.rules_of(user, namespace);
        let error = match missing.as_slice() {
            [one] => one.clone(),
            [] => String::new(),
            several => format!("[{}]", several.join(", ")),
        };
        UserRules { rules, incomplete: false, error }
    }
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Format, Strictness};
    use apiserver_store::{Write, WriteCondition};
    use proto_api::names::Profile;
    use serde_json::{Value, json};

    use super::*;
    use crate::key;
    use crate::record::Draft;
    use crate::server::Server;

    async fn put(server: &Server, resource: &str, object: &Value) {
        let kind = server.kind("rbac.authorization", resource).expect("a kind");
        let text = object.to_string();
        let decoded = server.engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
        let object = decoded.expect("valid").object;
        let key = key::object(kind, object.namespace(), object.name());
        let draft = Draft::new(&server.engine, object);
        let write = Write::Put { key, expect: WriteCondition::Anything, draft };
        server.store.write(write).await.expect("written");
    }

    fn may(rbac: &Rbac, verb: &str, namespace: &str) -> bool {
        let user = User { name: "jane".into(), ..User::default() };
        let subject = AccessTarget::Resource {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespace,
            name: "",
        };
        rbac.authorize(&Attributes { user: &user, verb, subject }).decision == Decision::Allow
    }

    #[tokio::test]
    async fn a_decision_sees_every_earlier_write() {
        let names = Names::new(Profile::Kubernetes);
        let server = Server::for_tests(names);
        let group = "rbac.authorization.k8s.io";
        let role = |verb: &str| {
            let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
            json!({"metadata": {"name": "reader", "namespace": "a"}, "rules": [rule]})
        };
        put(&server, "roles", &role("list")).await;
        let rbac = Rbac(Arc::new(ClusterPolicy::follow(&server.store, names).expect("a store")));
        assert!(!may(&rbac, "list", "a"));
        let binding = json!({
            "metadata": {"name": "jane", "namespace": "a"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}],
        });
        put(&server, "rolebindings", &binding).await;
        assert!(may(&rbac, "list", "a") && !may(&rbac, "watch", "a") && !may(&rbac, "list", "b"));
        put(&server, "roles", &role("watch")).await;
        assert!(may(&rbac, "watch", "a") && !may(&rbac, "list", "a"));
        // More changes than one batch has, and then compaction past what was seen.
        for _ in 0..600 {
            put(&server, "roles", &role("get")).await;
        }
        assert!(may(&rbac, "get", "a") && !may(&rbac, "watch", "a"));
        put(&server, "roles", &role("list")).await;
        put(&server, "roles", &role("watch")).await;
        server.store.compact(server.store.revision());
        assert!(may(&rbac, "watch", "a") && !may(&rbac, "list", "a"));
        let kind = server.kind("rbac.authorization", "rolebindings").expect("a kind");
        let key = key::object(kind, "a", "jane");
        server
            .store
            .write(Write::Delete { key, expect: WriteCondition::Present })
            .await
            .expect("deleted");
        assert!(!may(&rbac, "watch", "a"));
    }
}
