//! Parameters of requests: selectors and paging of lists, preconditions of deletes, types of patches.

use proto_api::meta::v1::{DeleteOptions, Preconditions};
use serde_json::Value;

/// Parameters of list, watch and deletecollection. The default selects all objects in their most recent state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListParams {
    /// As `app=web,tier!=db`; empty for all.
    pub label_selector: String,
    /// As `spec.nodeName=a`; empty for all.
    pub field_selector: String,
    /// Most objects of a page; all if not set.
    pub limit: Option<u32>,
    /// From the last page's metadata.
    pub continue_: Option<String>,
    /// `0` for any version that the server has cached, a version for that or (by `version_match`) a newer one; the most recent if not set.
    pub resource_version: Option<String>,
    /// How `resource_version` is matched.
    pub version_match: Option<VersionMatch>,
}

/// How a list's resource version is matched (`resourceVersionMatch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// Exactly that version.
    Exact,
    /// That or a later one.
    NotOlderThan,
}

impl VersionMatch {
    /// The value of the query parameter.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "Exact",
            Self::NotOlderThan => "NotOlderThan",
        }
    }
}

impl ListParams {
    /// Objects with these labels.
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { label_selector: selector.into(), ..Self::default() }
    }

    /// Objects with these field values.
    pub fn fields(selector: impl Into<String>) -> Self {
        Self { field_selector: selector.into(), ..Self::default() }
    }

    /// The object of this name.
    pub fn name(name: &str) -> Self {
        Self::fields(format!("metadata.name={name}"))
    }
}

/// Parameters of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteParams {
    /// Whether the write is a dry run.
    pub mode: Mode,
    /// Manager of the written fields; required for apply.
    pub field_manager: Option<String>,
    /// How unknown fields are handled: `Ignore`, `Warn` or `Strict`.
    pub field_validation: Option<&'static str>,
    /// How an apply handles fields of other managers.
    pub conflicts: Conflicts,
}

/// Whether a write is a dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It takes effect.
    #[default]
    Commit,
    /// Everything but the write itself is executed (`dryRun=All`).
    DryRun,
}

/// How an apply handles fields of other managers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflicts {
    #[default]
    Fail,
    /// It takes ownership (`force=true`).
    TakeOver,
}

/// A change of part of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7396.
    Merge(Value),
    /// Strategic merge patch: lists are merged by the rules of the kind.
    Strategic(Value),
    /// Server-side apply.
    Apply(Value),
}

impl Patch {
    /// The media type of the patch.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json-patch+json",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
            Self::Apply(_) => "application/apply-patch+yaml",
        }
    }

    /// The patch itself.
    pub fn body(&self) -> &Value {
        match self {
            Self::Json(body) | Self::Merge(body) | Self::Strategic(body) | Self::Apply(body) => {
                body
            }
        }
    }
}

/// Options of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteParams {
    /// Grace period in seconds; the kind's default if not set.
    pub grace_secs: Option<i64>,
    /// The object must have this UID.
    pub uid: Option<String>,
    /// The object must have this version.
    pub resource_version: Option<String>,
    /// How dependents are handled: `Orphan`, `Background` or `Foreground`.
    pub propagation: Option<&'static str>,
    /// Whether the delete is a dry run.
    pub mode: Mode,
}

impl DeleteParams {
    /// At once, and only the object of this uid: how kubelet removes the object of a terminated pod.
    pub fn now(uid: &str) -> Self {
        Self { grace_secs: Some(0), uid: Some(uid.to_owned()), ..Self::default() }
    }

    /// The body of the request.
    pub(crate) fn options(&self) -> DeleteOptions {
        let Self { grace_secs, uid, resource_version, propagation, mode } = self.clone();
        let preconditions = (uid.is_some() || resource_version.is_some())
            .then_some(Preconditions { uid, resource_version });
        DeleteOptions {
            grace_period_seconds: grace_secs,
            preconditions,
            propagation_policy: propagation.map(str::to_owned),
            dry_run: match mode {
                Mode::Commit => Vec::new(),
                Mode::DryRun => vec!["All".to_owned()],
            },
            ..DeleteOptions::default()
        }
    }
}
