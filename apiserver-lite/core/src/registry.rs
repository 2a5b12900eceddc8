//! Behaviour of single kinds beyond the generic verbs, as the strategies of kube-apiserver's registry: preparation before
//! create and update, graceful deletion, allocation.

pub mod pods;

use apiserver_admission_webhooks::check_conditions;
use apiserver_schema::update::{Subresource, prepare_for_create};
use apiserver_schema::{FieldErrors, Kind, Map, Object, Value};

use crate::aggregation::{self, availability};
use crate::context::{RequestContext, about_kind};
use crate::definitions::{self, strategy};
use crate::options::GRACE_SECS_MAX;
use crate::saved_states::HeldState;
use crate::server::Server;
use crate::services::{self, Reservation};
use crate::status::ApiError;
use crate::times::{now, timestamp};
use apiserver_auth::User;
use proto_api::names::Names;

/// Sets the fields of a new object that the server decides. Runs after admission and before validation.
pub(crate) fn prepare_create(call: &RequestContext<'_>, object: &mut Object) {
    // A kubelet registers its Node together with the status; other kinds start without one.
    let registered =
        object.kind.is("", "Node").then(|| object.fields.get("status").cloned()).flatten();
    prepare_for_create(object);
    match (object.kind.short_group, object.kind.kind()) {
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
        ("batch", "Job") => {
            // Its pods are counted by their finalizers.
            let tracking = call.server.names.sub_label("batch", "job-tracking");
            object.metadata_mut().map_or_insert("annotations").insert(tracking, "");
        }
        (definitions::GROUP, "CustomResourceDefinition") => strategy::note_stored_version(object),
        (aggregation::GROUP, "APIService") => availability::note_local(object, &timestamp(now())),
        _ => {}
    }
}

fn set_phase(object: &mut Object, phase: &str) {
    object.fields.map_or_insert("status").insert("phase", phase);
}

/// Adds the namespace's content finalizer to `spec.finalizers`; the namespace controller removes it through `finalize`.
fn add_namespace_finalizer(namespace: &mut Object, finalizer: &str) {
    let spec = namespace.fields.map_or_insert("spec");
    let mut finalizers = spec.list("finalizers").to_vec();
    if !finalizers.iter().any(|other| other.as_str() == Some(finalizer)) {
        finalizers.push(finalizer.into());
        spec.insert("finalizers", finalizers);
    }
}

/// Sets `username`, `uid`, `groups` and `extra` of a certificate signing request to those of `user`, overwriting the client's.
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
        // Trees do not store empty values in these fields.
        match value.is_empty() {
            true => drop(spec.remove(field)),
            false => drop(spec.insert(field, value)),
        }
    }
}

/// Sets the times that a writer left out of a certificate signing request's conditions: those of the same condition in
/// `before` if its status is unchanged, else `now`.
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

/// Carries server-decided fields over from `before`. Runs after admission and before validation.
pub(crate) fn prepare_update(object: &mut Object, before: &Object, subresource: Subresource) {
    if object.kind.is("", "Service") && subresource == Subresource::Main {
        services::carry_over(object, before);
    }
    let decides = matches!(subresource, Subresource::Approval | Subresource::Status);
    if object.kind.is("certificates", "CertificateSigningRequest") && decides {
        date_conditions(object, before, &timestamp(now()));
    }
    if strategy::is_definition(object) && subresource == Subresource::Main {
        strategy::note_stored_version(object);
    }
}

/// Sets the defaults that are decided outside of the engine: those of definitions. After the engine's.
pub(crate) fn default(object: &mut Object) {
    if strategy::is_definition(object) {
        strategy::default(object);
    }
}

/// Checks what is decided outside of the engine: definitions by their own rules, match conditions of webhooks.
///
/// # Errors
/// What is wrong.
pub(crate) fn validate(
    new: &Object,
    old: Option<&Object>,
    names: &Names,
) -> Result<(), FieldErrors> {
    match new.kind.short_group {
        _ if strategy::is_definition(new) => strategy::validate(new, old, names),
        "admissionregistration" => check_conditions(new),
        _ => Ok(()),
    }
}

/// Allocates the addresses and node ports of a Service and writes them into `object`. Empty for every other kind. `old` is the
/// stored version of an update. No state is put back until the reservation has ended.
///
/// # Errors
/// 422 for the field whose value cannot be allocated.
pub(crate) async fn reserve(
    server: &Server,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<Reservation, ApiError> {
    if !object.kind.is("", "Service") {
        return Ok(Reservation::default());
    }
    let held = server.hold_state().await;
    services::reserve(&server.allocations, object, old)
        .map(|reserved| reserved.holding(held))
        .map_err(|problems| ApiError::invalid(about_kind(object), &problems))
}

/// What a deletion holds until [`release`], so that it releases nothing of a state that is put back in between.
pub(crate) async fn hold_allocations(server: &Server, object: &Object) -> HeldState {
    match object.kind.is("", "Service") {
        true => server.hold_state().await,
        false => HeldState::default(),
    }
}

/// Releases the addresses and ports of a deleted Service.
pub fn release(server: &Server, object: &Object) {
    if object.kind.is("", "Service") {
        services::release(&server.allocations, object);
    }
}

/// Whether the kind has graceful deletion.
#[must_use]
pub(crate) fn has_grace(object: &Object) -> bool {
    object.kind.is("", "Pod")
}

/// The grace period of a deletion in seconds, at most [`GRACE_SECS_MAX`]. `requested` is the request's; it is 0 for kinds
/// without graceful deletion and for pods that no kubelet runs.
#[must_use]
pub(crate) fn grace_secs(object: &Object, requested: Option<i64>) -> i64 {
    let seconds = if has_grace(object) { pods::grace_secs(object, requested) } else { 0 };
    seconds.clamp(0, GRACE_SECS_MAX)
}

/// Whether the object has finalizers, including `spec.finalizers` of a namespace.
#[must_use]
pub(crate) fn has_finalizers(object: &Object) -> bool {
    let own = object.finalizers().next().is_some();
    let content = object.kind.is("", "Namespace")
        && object.spec().is_some_and(|spec| !spec.list("finalizers").is_empty());
    own || content
}

/// Whether a deleted object can be removed: no finalizers and no grace period left.
#[must_use]
pub(crate) fn is_finished(object: &Object) -> bool {
    let grace = object.metadata().and_then(|metadata| metadata.int("deletionGracePeriodSeconds"));
    object.deletion_timestamp().is_some() && grace.unwrap_or(0) == 0 && !has_finalizers(object)
}

/// Whether a deleted object has `deletionGracePeriodSeconds`. Kubernetes' registries of namespaces and of definitions set the time of a deletion only.
#[must_use]
pub(crate) fn shows_grace(object: &Object) -> bool {
    !object.kind.is("", "Namespace") && !strategy::is_definition(object)
}

/// Sets the fields besides `deletionTimestamp` that show a deletion: the phase of a namespace.
pub(crate) fn mark_deleted(object: &mut Object) {
    if object.kind.is("", "Namespace") {
        set_phase(object, "Terminating");
    }
    if strategy::is_definition(object) {
        strategy::mark_deleted(object);
    }
}

/// Adds the finalizers that a deletion itself brings: a definition stays until its objects are deleted.
pub(crate) fn add_deletion_finalizers(object: &mut Object) {
    if strategy::is_definition(object) {
        strategy::keep_until_empty(object);
    }
}

/// Whether an update of a missing object creates it (`AllowCreateOnUpdate` of the strategy).
#[must_use]
pub(crate) fn creates_on_update(kind: &Kind) -> bool {
    match kind.short_group {
        "" => matches!(kind.kind(), "Endpoints" | "Event" | "LimitRange" | "Service"),
        "coordination" | "node" | "rbac.authorization" => true,
        _ => false,
    }
}

/// Whether an object is replaced without the version that the client has read (`AllowUnconditionalUpdate` of the strategy).
#[must_use]
pub(crate) fn updates_unconditionally(kind: &Kind) -> bool {
    kind.custom().is_none()
        && match (kind.short_group, kind.kind()) {
            ("admissionregistration" | "apiextensions" | "apiregistration" | "coordination", _) => {
                false
            }
            ("node", "RuntimeClass") | ("policy", "PodDisruptionBudget") => false,
            ("storage", name) => name == "StorageClass",
            _ => true,
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
