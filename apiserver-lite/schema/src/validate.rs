//! Validation: collects every violated rule with the path of its field, in Kubernetes' words.

use std::collections::HashSet;

use proto_api::names::Names;

use crate::field_gates::FieldGates;
use crate::object::Object;
use crate::value::{Map, Path};

mod addresses;
mod affinity;
mod api_services;
mod autoscaling;
pub mod certificates;
mod classes;
mod cluster;
mod config;
mod csi;
mod failure_policy;
mod flow_control;
mod metadata;
pub mod names;
mod network;
mod numbers;
mod persistent;
mod pod;
mod pod_annotations;
mod pod_update;
mod policy;
mod probes;
mod quotas;
mod rbac;
mod references;
mod resources;
mod security;
mod selector;
mod service;
#[cfg(test)]
mod tests;
mod volume;
mod volume_source;
mod webhooks;
mod workload;

pub use crate::field_errors::{Cause, FieldError, FieldErrors};

/// What is valid besides what the rules of a kind say.
#[derive(Clone, Copy)]
pub(crate) struct ValidationOptions {
    pub names: &'static Names,
    /// Values that need another gate are refused.
    pub gates: FieldGates,
}

/// Validates an object to be created, with defaults and a name.
pub(crate) fn create(options: ValidationOptions, object: &Object) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    metadata::check(object, &mut errors);
    metadata::check_new_finalizers(None, object, &mut errors);
    match object.kind.custom_version() {
        Some(version) => errors.0.append(&mut version.rules.validate(object, None).0),
        None => check_built_in(options, object, &mut errors),
    }
    if object.kind.is("", "Pod") {
        pod::check_new_pod(object, &mut errors);
    }
    if object.kind.is("networking", "Ingress") {
        network::check_new_ingress(options.names, object, &mut errors);
    }
    errors.into_result()
}

/// Validates only the metadata of an object.
pub(crate) fn metadata_of(object: &Object) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    metadata::check(object, &mut errors);
    errors.into_result()
}

/// Validates `new` as an update of `old`. For status updates only the status is checked.
///
/// Errors that the stored object has already are ignored, so that objects stored before a rule existed can be updated and
/// deleted.
pub(crate) fn update(
    options: ValidationOptions,
    old: &Object,
    new: &Object,
    subresource: crate::update::Subresource,
) -> Result<(), FieldErrors> {
    use crate::update::Subresource;
    let names = options.names;
    let mut errors = FieldErrors::default();
    metadata::check(new, &mut errors);
    metadata::check_update(old, new, &mut errors);
    if let Some(version) = new.kind.custom_version() {
        errors.0.append(&mut version.rules.validate(new, Some(old)).0);
        return errors.into_result();
    }
    match subresource {
        Subresource::Main => {
            metadata::check_new_finalizers(Some(old), new, &mut errors);
            forgive_old(options, old, new, check_built_in, &mut errors);
            check_kind_update(old, new, &mut errors);
            pod_update::check_mirror_annotation(names, old, new, &mut errors);
            pod_annotations::check_update(names, old, new, &mut errors);
        }
        Subresource::EphemeralContainers => {
            forgive_old(options, old, new, check_kind, &mut errors);
            pod_update::check_ephemeral(old, new, &mut errors);
        }
        Subresource::Status => {
            forgive_old(
                options,
                old,
                new,
                |_, object, errors| check_status(object, errors),
                &mut errors,
            );
            check_status_update(old, new, &mut errors);
            pod_update::check_mirror_annotation(names, old, new, &mut errors);
            pod_annotations::check_update(names, old, new, &mut errors);
        }
        Subresource::Approval => {
            forgive_old(options, old, new, check_kind, &mut errors);
            certificates::check_update(old, new, subresource, &mut errors);
        }
        Subresource::Finalize => {}
    }
    errors.into_result()
}

/// Adds the errors of `check` for `new` that it does not report for `old`.
fn forgive_old(
    options: ValidationOptions,
    old: &Object,
    new: &Object,
    check: fn(ValidationOptions, &Object, &mut FieldErrors),
    errors: &mut FieldErrors,
) {
    let mut found = FieldErrors::default();
    check(options, new, &mut found);
    if found.is_empty() {
        return;
    }
    let mut before = FieldErrors::default();
    check(options, old, &mut before);
    let before: HashSet<(&str, &str)> =
        before.0.iter().map(|error| (error.field.as_str(), error.message.as_str())).collect();
    // `TooLong` messages do not contain the length, so these errors always count as new.
    let is_new = |error: &FieldError| {
        error.cause == Cause::TooLong
            || !before.contains(&(error.field.as_str(), error.message.as_str()))
    };
    errors.0.extend(found.0.into_iter().filter(is_new));
}

fn check_built_in(options: ValidationOptions, object: &Object, errors: &mut FieldErrors) {
    check_kind(options, object, errors);
    pod_annotations::check(options.names, object, errors);
}

fn check_kind(options: ValidationOptions, object: &Object, errors: &mut FieldErrors) {
    let ValidationOptions { names, gates } = options;
    match (object.kind.short_group, object.kind.kind()) {
        ("", "Pod") => pod::check_pod(object, gates, errors),
        ("", "PodTemplate") => workload::check_pod_template(object, gates, errors),
        ("", "ReplicationController") => {
            workload::check_replication_controller(object, gates, errors)
        }
        ("", "Service") => service::check(object, errors),
        ("", "Endpoints") => service::check_endpoints(object, errors),
        ("", "Namespace") => metadata::check_namespace(object, errors),
        ("", "Event") => cluster::check_event(object, errors),
        ("", "ConfigMap") => config::check_config_map(object, errors),
        ("", "Secret") => config::check_secret(names, object, errors),
        ("", "Node") => {
            cluster::check_node(object, errors);
            addresses::check_node_status(object, errors);
        }
        ("", "PersistentVolume") => persistent::check_volume(object, gates, errors),
        ("", "PersistentVolumeClaim") => persistent::check_claim(object, gates, errors),
        ("", "ResourceQuota") => quotas::check(object, errors),
        ("", "LimitRange") => policy::check_limit_range(object, errors),
        ("discovery", "EndpointSlice") => service::check_slice(object, errors),
        ("coordination", "Lease") => cluster::check_lease(object, errors),
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet") => {
            workload::check_apps(object, gates, errors);
        }
        ("apps", "ControllerRevision") => workload::check_revision(object, errors),
        ("batch", "Job") => workload::check_job(object, gates, errors),
        ("batch", "CronJob") => workload::check_cron_job(object, gates, errors),
        ("certificates", "CertificateSigningRequest") => certificates::check(object, errors),
        ("flowcontrol.apiserver", "FlowSchema") => flow_control::check_schema(object, errors),
        ("flowcontrol.apiserver", "PriorityLevelConfiguration") => {
            flow_control::check_level(object, errors);
        }
        ("policy", "PodDisruptionBudget") => policy::check_budget(object, errors),
        ("scheduling", "PriorityClass") => policy::check_priority_class(object, errors),
        ("networking", "NetworkPolicy") => network::check_policy(object, errors),
        ("networking", "Ingress") => network::check_ingress(object, errors),
        ("networking", "IngressClass") => network::check_ingress_class(object, errors),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::check(object, gates, errors),
        ("rbac.authorization", "Role" | "ClusterRole") => rbac::check_role(object, errors),
        ("rbac.authorization", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::check_binding(names, object, errors);
        }
        ("storage", "StorageClass") => classes::check_storage(object, errors),
        ("storage", "CSIDriver") => classes::check_driver(object, errors),
        ("storage", "CSINode") => classes::check_driver_node(object, errors),
        ("storage", "CSIStorageCapacity") => csi::check_capacity(object, errors),
        ("storage", "VolumeAttachment") => csi::check_attachment(object, errors),
        ("node", "RuntimeClass") => classes::check_runtime(object, errors),
        ("apiregistration", "APIService") => api_services::check(names, object, errors),
        (
            "admissionregistration",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => webhooks::check(object, errors),
        _ => {}
    }
}

fn check_kind_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    match (new.kind.short_group, new.kind.kind()) {
        ("", "Pod") => pod_update::check(old, new, errors),
        ("", "Service") => service::check_update(old, new, errors),
        ("", "ConfigMap") => config::check_immutable(old, new, &["data", "binaryData"], errors),
        ("", "Secret") => {
            config::check_immutable(old, new, &["data"], errors);
            config::check_type(old, new, errors);
        }
        ("", "Node") => cluster::check_node_update(old, new, errors),
        ("", "ResourceQuota") => quotas::check_update(old, new, errors),
        ("", "PersistentVolume") => persistent::check_volume_update(old, new, errors),
        ("", "PersistentVolumeClaim") => persistent::check_claim_update(old, new, errors),
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => {
            workload::check_selector_unchanged(old, new, errors);
        }
        ("apps", "StatefulSet") => workload::check_stateful_set_update(old, new, errors),
        ("apps", "ControllerRevision") => check_fixed(&old.fields, &new.fields, "data", errors),
        ("discovery", "EndpointSlice") => {
            check_fixed(&old.fields, &new.fields, "addressType", errors);
        }
        ("networking", "IngressClass") => network::check_ingress_class_update(old, new, errors),
        ("batch", "Job") => workload::check_job_update(old, new, errors),
        ("certificates", "CertificateSigningRequest") => {
            certificates::check_update(old, new, crate::update::Subresource::Main, errors);
        }
        ("scheduling", "PriorityClass") => policy::check_priority_class_update(old, new, errors),
        ("rbac.authorization", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::check_binding_update(old, new, errors);
        }
        ("storage", "StorageClass") => classes::check_storage_update(old, new, errors),
        ("storage", "CSIDriver") => csi::check_driver_update(old, new, errors),
        ("storage", "CSINode") => classes::check_driver_node_update(old, new, errors),
        ("storage", "CSIStorageCapacity") => csi::check_capacity_update(old, new, errors),
        ("storage", "VolumeAttachment") => csi::check_attachment_update(old, new, errors),
        ("node", "RuntimeClass") => classes::check_runtime_update(old, new, errors),
        _ => {}
    }
}

/// Checks that a field at the root of an object is unchanged.
fn check_fixed(old: &Map, new: &Map, field: &str, errors: &mut FieldErrors) {
    csi::check_unchanged(old, new, &[field], &Path::ROOT, errors);
}

/// Validates a status.
fn check_status(object: &Object, errors: &mut FieldErrors) {
    match (object.kind.short_group, object.kind.kind()) {
        ("", "Pod") => addresses::check_pod_status(object, errors),
        ("", "Node") => addresses::check_node_status(object, errors),
        ("", "Service") => service::check_status(object, errors),
        ("apiregistration", "APIService") => api_services::check_status(object, errors),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::check_status(object, errors),
        ("flowcontrol.apiserver", _) => flow_control::check_status(object, errors),
        ("networking", "Ingress") => service::check_status(object, errors),
        ("", "ResourceQuota") => quotas::check_status(object, errors),
        ("policy", "PodDisruptionBudget") => policy::check_budget_status(object, errors),
        ("certificates", "CertificateSigningRequest") => certificates::check(object, errors),
        ("apps" | "batch", _) | ("", "ReplicationController") => {
            workload::check_status(object, errors);
        }
        _ => {}
    }
}

/// Checks that a status update keeps the required parts of the old status.
fn check_status_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    match (new.kind.short_group, new.kind.kind()) {
        ("", "Namespace") => metadata::check_namespace_phase(new, errors),
        ("", "Pod") => pod_update::check_status(old, new, errors),
        ("certificates", "CertificateSigningRequest") => {
            certificates::check_update(old, new, crate::update::Subresource::Status, errors);
        }
        _ => {}
    }
}
