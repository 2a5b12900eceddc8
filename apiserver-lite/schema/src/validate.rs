//! Validation: every rule that an object breaks, each with the path of the field, in the ecosystem's own words.

use std::fmt;

use proto_api::names::Names;

use crate::object::Object;
use crate::value::{Path, Value};

mod cluster;
mod config;
mod metadata;
pub mod names;
mod persistent;
mod pod;
mod pod_update;
mod service;
#[cfg(test)]
mod tests;
mod volume;
mod volume_source;
mod workload;

/// What kind of rule a field breaks. The names are the ecosystem's (`reason` of a status cause).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It must be set.
    Required,
    /// Its value is not allowed.
    Invalid,
    /// Its value is not one of a few.
    NotSupported,
    /// Its value is there already.
    Duplicate,
    /// It must not be set, or not be changed.
    Forbidden,
    /// It is longer than its limit.
    TooLong,
    /// It names something that does not exist.
    NotFound,
}

impl Cause {
    /// `reason` of the cause in a status.
    pub fn reason(self) -> &'static str {
        match self {
            Cause::Required => "FieldValueRequired",
            Cause::Invalid => "FieldValueInvalid",
            Cause::NotSupported => "FieldValueNotSupported",
            Cause::Duplicate => "FieldValueDuplicate",
            Cause::Forbidden => "FieldValueForbidden",
            Cause::TooLong => "FieldValueTooLong",
            Cause::NotFound => "FieldValueNotFound",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Cause::Required => "Required value",
            Cause::Invalid => "Invalid value",
            Cause::NotSupported => "Unsupported value",
            Cause::Duplicate => "Duplicate value",
            Cause::Forbidden => "Forbidden",
            Cause::TooLong => "Too long",
            Cause::NotFound => "Not found",
        }
    }
}

/// One rule that one field breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// Kind of rule.
    pub cause: Cause,
    /// Everything after the path: kind, value and detail.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Everything that is wrong with an object; empty when nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors(pub Vec<FieldError>);

impl FieldErrors {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `Err` with the errors, if there are any.
    pub(crate) fn into_result(self) -> Result<(), FieldErrors> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The field must be set.
    pub(crate) fn required(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, Cause::Required, None, detail);
    }

    /// The value is not allowed.
    pub(crate) fn invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: &str) {
        self.push(path, Cause::Invalid, Some(value.into()), detail);
    }

    /// The value is not one of `supported`.
    pub(crate) fn not_supported(&mut self, path: &Path<'_>, value: &str, supported: &[&str]) {
        let quoted: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push(path, Cause::NotSupported, Some(value.into()), &detail);
    }

    /// The value is there twice.
    pub(crate) fn duplicate(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.push(path, Cause::Duplicate, Some(value.into()), "");
    }

    /// The field must not be set or changed.
    pub(crate) fn forbidden(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, Cause::Forbidden, None, detail);
    }

    /// The value is longer than `limit` bytes.
    pub(crate) fn too_long(&mut self, path: &Path<'_>, limit: usize) {
        self.push(path, Cause::TooLong, None, &format!("must have at most {limit} bytes"));
    }

    /// The value names nothing that exists.
    pub(crate) fn not_found(&mut self, path: &Path<'_>, value: &str) {
        self.push(path, Cause::NotFound, Some(value.into()), "");
    }

    /// The value must be one of `supported`, and set.
    pub(crate) fn one_of(&mut self, path: &Path<'_>, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else if !supported.contains(&value) {
            self.not_supported(path, value, supported);
        }
    }

    /// Adds each complaint about `value` as an invalid value.
    pub(crate) fn complaints(&mut self, path: &Path<'_>, value: &str, complaints: Vec<String>) {
        complaints.iter().for_each(|detail| self.invalid(path, value, detail));
    }

    fn push(&mut self, path: &Path<'_>, cause: Cause, value: Option<Value>, detail: &str) {
        let mut message = cause.text().to_owned();
        if let Some(value) = value {
            message.push_str(": ");
            match value {
                Value::String(text) => message.push_str(&format!("{text:?}")),
                value => {
                    let mut text = Vec::new();
                    crate::value::write_json(&mut text, &value);
                    message.push_str(&String::from_utf8_lossy(&text));
                }
            }
        }
        if !detail.is_empty() {
            message.push_str(": ");
            message.push_str(detail);
        }
        self.0.push(FieldError { field: path.to_string(), cause, message });
    }
}

/// One error alone, several in brackets.
impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("[")?;
        for (at, error) in self.0.iter().enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            write!(f, "{separator}{error}")?;
        }
        f.write_str("]")
    }
}

impl std::error::Error for FieldErrors {}

/// Checks an object that is about to be created, defaults applied and name generated.
pub(crate) fn create(names: &'static Names, object: &Object) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    metadata::check(object, &mut errors);
    check_kind(names, object, &mut errors);
    errors.into_result()
}

/// Checks the metadata of an object alone.
pub(crate) fn metadata_of(object: &Object) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    metadata::check(object, &mut errors);
    errors.into_result()
}

/// Checks `new` as the successor of `old`. Status updates check the status rules only.
pub(crate) fn update(
    names: &'static Names,
    old: &Object,
    new: &Object,
    subresource: crate::update::Subresource,
) -> Result<(), FieldErrors> {
    use crate::update::Subresource;
    let mut errors = FieldErrors::default();
    metadata::check(new, &mut errors);
    metadata::check_update(old, new, &mut errors);
    match subresource {
        Subresource::Main => {
            check_kind(names, new, &mut errors);
            check_kind_update(old, new, &mut errors);
        }
        Subresource::EphemeralContainers => {
            check_kind(names, new, &mut errors);
            pod_update::check_ephemeral(old, new, &mut errors);
        }
        Subresource::Status => pod_update::check_status(old, new, &mut errors),
        _ => {}
    }
    errors.into_result()
}

fn check_kind(names: &'static Names, object: &Object, errors: &mut FieldErrors) {
    match (object.kind.short_group, object.kind.kind) {
        ("", "Pod") => pod::check_pod(object, errors),
        ("", "PodTemplate") => workload::check_pod_template(object, errors),
        ("", "ReplicationController") => workload::check_replication_controller(object, errors),
        ("", "Service") => service::check(object, errors),
        ("", "Endpoints") => service::check_endpoints(object, errors),
        ("", "ConfigMap") => config::check_config_map(object, errors),
        ("", "Secret") => config::check_secret(names, object, errors),
        ("", "Node") => cluster::check_node(object, errors),
        ("", "PersistentVolume") => persistent::check_volume(object, errors),
        ("", "PersistentVolumeClaim") => persistent::check_claim(object, errors),
        ("discovery", "EndpointSlice") => service::check_slice(object, errors),
        ("coordination", "Lease") => cluster::check_lease(object, errors),
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet") => {
            workload::check_apps(object, errors);
        }
        ("batch", "Job") => workload::check_job(object, errors),
        ("batch", "CronJob") => workload::check_cron_job(object, errors),
        _ => {}
    }
}

fn check_kind_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    match (new.kind.short_group, new.kind.kind) {
        ("", "Pod") => pod_update::check(old, new, errors),
        ("", "Service") => service::check_update(old, new, errors),
        ("", "ConfigMap") => config::check_immutable(old, new, &["data", "binaryData"], errors),
        ("", "Secret") => {
            config::check_immutable(old, new, &["data"], errors);
            config::check_type(old, new, errors);
        }
        ("", "Node") => cluster::check_node_update(old, new, errors),
        ("", "PersistentVolume") => persistent::check_volume_update(old, new, errors),
        ("", "PersistentVolumeClaim") => persistent::check_claim_update(old, new, errors),
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet") => {
            workload::check_selector_unchanged(old, new, errors);
        }
        ("batch", "Job") => workload::check_job_update(old, new, errors),
        _ => {}
    }
}
