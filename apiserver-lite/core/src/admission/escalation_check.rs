//! What a user may grant: roles with no more than its own rules, bindings to such roles. As Kubernetes' RBAC storage refuses it.

use apiserver_rbac::{
    ComparisonsExceeded, RoleKey, Rule, missing_rules, read_binding, read_rules, rules_text,
};
use apiserver_schema::Object;

use crate::context::RequestContext;
use crate::status::{ApiError, StatusTarget};
use apiserver_auth::{AccessTarget, Attributes, Decision, MASTERS, User};

/// Refuses a role or binding that grants more than the user has, unless the user may `escalate` or `bind`. `old` is the stored
/// version of an update.
pub async fn admit(
    call: &RequestContext<'_>,
    object: &Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    if object.kind.short_group != "rbac.authorization" || call.user.is_in(MASTERS) {
        return Ok(());
    }
    if old.is_some_and(|old| is_only_of_garbage_collection(old, object)) {
        return Ok(());
    }
    match object.kind.kind() {
        "Role" | "ClusterRole" => admit_role(call, object, old).await,
        "RoleBinding" | "ClusterRoleBinding" => admit_binding(call, object).await,
        _ => Ok(()),
    }
}

async fn admit_role(
    call: &RequestContext<'_>,
    role: &Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    if is_authorized(call, "escalate", role.kind.plural(), role.namespace(), role.name()).await {
        return Ok(());
    }
    check_rules(call, role, &read_rules(role))?;
    // An aggregated role may come to hold anything; without its aggregation rule it would not follow when others are tightened.
    let aggregates = |role: &Object| role.fields.contains("aggregationRule");
    if aggregates(role) || old.is_some_and(aggregates) {
        let owned = call.server.policy.rules_of(call.user, "").0;
        let missing = missing_rules(&owned, &[Rule::every_resource(), Rule::every_path()]);
        if !missing.map_err(|why| too_many(call, role, why))?.is_empty() {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(ApiError::forbidden(about(call, role), why));
        }
    }
    Ok(())
}

async fn admit_binding(call: &RequestContext<'_>, binding: &Object) -> Result<(), ApiError> {
    let role = read_binding(binding).role;
    let resource = if role.namespace.is_empty() { "clusterroles" } else { "roles" };
    if is_authorized(call, "bind", resource, binding.namespace(), &role.name).await {
        return Ok(());
    }
    let rules = call.server.policy.rules(&role).ok_or_else(|| missing_role(call, &role))?;
    check_rules(call, binding, &rules)
}

/// Whether an update changes nothing but what the garbage collector writes. A label can make a role part of another one.
fn is_only_of_garbage_collection(old: &Object, new: &Object) -> bool {
    let without = |object: &Object| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            object.metadata_mut().remove(field);
        }
        object
    };
    without(old) == without(new)
}

fn missing_role(call: &RequestContext<'_>, role: &RoleKey) -> ApiError {
    let resource = if role.namespace.is_empty() { "clusterroles" } else { "roles" };
    let group = call.server.names.group("rbac.authorization");
    ApiError::not_found(StatusTarget { group: &group, kind: resource, name: &role.name })
}

async fn is_authorized(
    call: &RequestContext<'_>,
    verb: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> bool {
    let group = call.server.names.group("rbac.authorization");
    let subject = AccessTarget::Resource {
        group: &group,
        version: "v1",
        resource,
        subresource: "",
        namespace,
        name,
    };
    let attributes = Attributes { user: call.user, verb, subject };
    call.server.authorizer.authorize(&attributes).await.decision == Decision::Allow
}

fn check_rules(
    call: &RequestContext<'_>,
    object: &Object,
    wanted: &[Rule],
) -> Result<(), ApiError> {
    let (owned, unresolved) = call.server.policy.rules_of(call.user, object.namespace());
    let missing = missing_rules(&owned, wanted).map_err(|why| too_many(call, object, why))?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut why = format!(
        "{} is attempting to grant RBAC permissions not currently held:\n{}",
        user_text(call.user),
        rules_text(&missing)
    );
    if !unresolved.is_empty() {
        why.push_str("; resolution errors: [");
        why.push_str(&unresolved.join(" "));
        why.push(']');
    }
    Err(ApiError::forbidden(about(call, object), &why))
}

fn too_many(call: &RequestContext<'_>, object: &Object, why: ComparisonsExceeded) -> ApiError {
    ApiError::forbidden(about(call, object), &why.to_string())
}

/// The user as in Kubernetes' message: `user "jane" (groups=["devs"])`.
fn user_text(user: &User) -> String {
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    format!("user {:?} (groups=[{}])", user.name, groups.join(" "))
}

fn about<'a>(call: &'a RequestContext<'_>, object: &'a Object) -> StatusTarget<'a> {
    StatusTarget { name: object.name(), ..call.about() }
}
