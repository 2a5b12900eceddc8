//! What single kinds have beyond the generic verbs: how they are prepared, how they are deleted, what they hold.

pub mod binding;
pub mod eviction;
pub mod logs;
mod node_ports;
pub mod pods;
pub mod reviews;
pub mod scale;
mod service_range;
mod services;
pub mod token;
pub mod versions;

use apiserver_schema::update::{Subresource, prepare_for_create};
use apiserver_schema::{Kind, Map, Object, Value};

pub use node_ports::{PortRange, PortRangeError};
pub use service_range::ServiceRange;
pub use services::{Reservation, ServiceAllocations};

use crate::auth::User;
use crate::server::{Server, now, timestamp};
use crate::status::ApiError;
use crate::verbs::{GRACE_SECS_MAX, RequestContext, about_kind};

/// Sets what the server decides about a new object of some kinds; runs after admission, before validation.
pub fn prepare_create(call: &RequestContext<'_>, object: &mut Object) {
    // Nodes register with their status; everybody else reports it later.
    let registered =
        object.kind.is("", "Node").then(|| object.fields.get("status").cloned()).flatten();
    prepare_for_create(object);
    match (object.kind.short_group, object.kind.kind) {
        ("", "Pod") => {
            let class = pods::qos_class(object);
            let status = object.fields.map_or_insert("status");
            status.insert("phase", "Pending");
            status.insert("qosClass", class);
        }
        ("", "Namespace") => {
            set_phase(object, "Active");
            add_namespace_finalizer(object, call.server.names.api_service_name());
        }
        ("", "PersistentVolumeClaim" | "PersistentVolume") => set_phase(object, "Pending"),
        ("", "Node") => {
            registered.into_iter().for_each(|status| drop(object.fields.insert("status", status)))
        }
        ("certificates", "CertificateSigningRequest") => set_requester(call.user, object),
        _ => {}
    }
}

fn set_phase(object: &mut Object, phase: &str) {
    object.fields.map_or_insert("status").insert("phase", phase);
}

/// A namespace stays until its content is gone: the finalizer is taken away through the subresource `finalize`.
fn add_namespace_finalizer(namespace: &mut Object, finalizer: &str) {
    let spec = namespace.fields.map_or_insert("spec");
    let mut finalizers = spec.list("finalizers").to_vec();
    if !finalizers.iter().any(|other| other.as_str() == Some(finalizer)) {
        finalizers.push(finalizer.into());
        spec.insert("finalizers", finalizers);
    }
}

/// A certificate request carries who made it; what the client wrote there does not count.
fn set_requester(user: &User, object: &mut Object) {
    let texts = |values: &[String]| -> Value {
        values.iter().map(|value| value.as_str().into()).collect::<Vec<Value>>().into()
    };
    let extra: Map = user.extra.iter().map(|(key, values)| (key.clone(), texts(values))).collect();
    let spec = object.fields.map_or_insert("spec");
    for (field, value) in [
        ("username", Value::from(user.name.as_str())),
        ("uid", Value::from(user.uid.as_str())),
        ("groups", texts(&user.groups)),
        ("extra", Value::from(extra)),
    ] {
        // A tree holds no empty fields of these types.
        match value.is_empty() {
            true => drop(spec.remove(field)),
            false => drop(spec.insert(field, value)),
        }
    }
}

/// Fills the times of the conditions of a certificate request that its writer left out: those of the same condition before,
/// if its status is the same, else now.
fn date_conditions(object: &mut Object, before: &Object, now: &str) {
    let Some(status) = object.fields.map_mut("status") else { return };
    for condition in status.maps_mut("conditions") {
        let (kind, state) = (condition.str("type"), condition.str("status"));
        let same = before.status().and_then(|status| {
            let mut all = status.maps("conditions");
            all.find(|other| other.str("type") == kind && other.str("status") == state)
        });
        for field in ["lastUpdateTime", "lastTransitionTime"] {
            if condition.str(field).is_empty() {
                let kept = same.map_or("", |same| same.str(field));
                condition.insert(field, if kept.is_empty() { now } else { kept });
            }
        }
    }
}

/// Carries over what the server decided earlier; runs after admission, before validation.
pub fn prepare_update(object: &mut Object, before: &Object, subresource: Subresource) {
    if object.kind.is("", "Service") && subresource == Subresource::Main {
        services::carry_over(object, before);
    }
    let decides = matches!(subresource, Subresource::Approval | Subresource::Status);
    if object.kind.is("certificates", "CertificateSigningRequest") && decides {
        date_conditions(object, before, &timestamp(now()));
    }
}

/// Takes the addresses and ports that a service needs. For every other kind there is nothing to take.
///
/// # Errors
/// 422 naming the field that asks for what cannot be given.
pub fn reserve(
    server: &Server,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<Reservation, ApiError> {
    if !object.kind.is("", "Service") {
        return Ok(Reservation::default());
    }
    services::reserve(&server.allocations, object, old)
        .map_err(|problems| ApiError::invalid(about_kind(object), &problems))
}

/// Gives back what a removed object held.
pub fn release(server: &Server, object: &Object) {
    if object.kind.is("", "Service") {
        services::release(&server.allocations, object);
    }
}

/// Whether objects of the kind end in an orderly way before they go.
#[must_use]
pub fn has_grace(object: &Object) -> bool {
    object.kind.is("", "Pod")
}

/// Seconds that the object's owner has for an orderly end, at most [`GRACE_SECS_MAX`], whatever is stored. Only pods
/// that run on a node have an owner to wait for.
#[must_use]
pub fn grace_secs(object: &Object, requested: Option<i64>) -> i64 {
    let seconds = if has_grace(object) { pods::grace_secs(object, requested) } else { 0 };
    seconds.clamp(0, GRACE_SECS_MAX)
}

/// Whether finalizers keep the object.
#[must_use]
pub fn has_finalizers(object: &Object) -> bool {
    let own = object.finalizers().next().is_some();
    let content = object.kind.is("", "Namespace")
        && object.spec().is_some_and(|spec| !spec.list("finalizers").is_empty());
    own || content
}

/// Whether a deleted object has nothing left to wait for.
#[must_use]
pub fn is_finished(object: &Object) -> bool {
    let grace = object.metadata().and_then(|metadata| metadata.int("deletionGracePeriodSeconds"));
    object.deletion_timestamp().is_some() && grace.unwrap_or(0) == 0 && !has_finalizers(object)
}

/// What a kind shows of being deleted, besides the timestamp.
pub fn mark_deleted(object: &mut Object) {
    if object.kind.is("", "Namespace") {
        set_phase(object, "Terminating");
    }
}

/// Whether a deletion answers with the object instead of a status.
#[must_use]
pub fn returns_object_on_delete(kind: &Kind) -> bool {
    match (kind.short_group, kind.kind) {
        ("", name) => matches!(
            name,
            "Pod"
                | "PodTemplate"
                | "PersistentVolume"
                | "PersistentVolumeClaim"
                | "ResourceQuota"
                | "Service"
                | "ServiceAccount"
        ),
        ("storage", name) => name != "CSIStorageCapacity",
        _ => false,
    }
}

/// Whether a PUT to a name that is free creates the object.
#[must_use]
pub fn creates_on_update(kind: &Kind) -> bool {
    match kind.short_group {
        "" => matches!(kind.kind, "Endpoints" | "Event" | "LimitRange" | "Service"),
        "rbac.authorization" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver_schema::Engine;
    use proto_api::names::{Names, Profile};

    use super::*;

    fn request() -> Object {
        let engine = Engine::new(Names::new(Profile::default()));
        let kinds = engine.resource(
            &Names::new(Profile::default()).group("certificates"),
            "v1",
            "certificatesigningrequests",
        );
        Object::new(Arc::clone(kinds.unwrap()))
    }

    #[test]
    fn a_certificate_request_says_who_asks_and_nothing_else() {
        let mut object = request();
        let spec = object.fields.map_or_insert("spec");
        for field in ["username", "uid"] {
            spec.insert(field, "another");
        }
        spec.insert("groups", vec![Value::from("system:masters")]);
        spec.map_or_insert("extra").insert("k", vec![Value::from("v")]);
        let user = User { name: "jane".into(), ..User::default() };
        set_requester(&user, &mut object);
        let spec = object.spec().unwrap();
        assert_eq!(spec.iter().collect::<Vec<_>>(), [("username", &Value::from("jane"))]);
    }

    #[test]
    fn conditions_keep_their_times_and_new_ones_get_theirs() {
        let with = |times: &[(&str, &str)]| {
            let mut object = request();
            let mut condition: Map =
                [("type", "Approved"), ("status", "True")].into_iter().collect();
            times
                .iter()
                .for_each(|(field, time)| drop(condition.insert((*field).to_owned(), *time)));
            let status = object.fields.map_or_insert("status");
            status.insert("conditions", vec![Value::Map(condition)]);
            object
        };
        let times = |object: &Object| {
            let condition = object.status().unwrap().maps("conditions").next().unwrap().clone();
            ["lastUpdateTime", "lastTransitionTime"].map(|field| condition.str(field).to_owned())
        };
        let mut new = with(&[]);
        date_conditions(&mut new, &request(), "now");
        assert_eq!(times(&new), ["now", "now"]);
        let before = with(&[("lastUpdateTime", "a"), ("lastTransitionTime", "b")]);
        let mut new = with(&[("lastUpdateTime", "c")]);
        date_conditions(&mut new, &before, "now");
        assert_eq!(times(&new), ["c", "b"]);
    }
}
