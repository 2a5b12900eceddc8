//! What a request may ask for besides its object: selectors and paging for lists, conditions for
//! deletes, the form of a patch.

use proto_api::meta::v1::{DeleteOptions, Preconditions};
use serde_json::Value;

/// Parameters of list, watch and deletecollection. The default asks for everything, most recent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListParams {
    /// As `app=web,tier!=db`; empty for all.
    pub label_selector: String,
    /// As `spec.nodeName=a`; empty for all.
    pub field_selector: String,
    /// Objects a page, at most; all when not set.
    pub limit: Option<u32>,
    /// From the last page's metadata.
    pub continue_: Option<String>,
    /// `0` for what the server has at hand, a version for that or (by `version_match`) a newer one;
    /// the most recent when not set.
    pub resource_version: Option<String>,
    /// How `resource_version` is meant.
    pub version_match: Option<VersionMatch>,
}

/// How a list's resource version is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// That very version.
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

    /// The one object of this name.
    pub fn name(name: &str) -> Self {
        Self::fields(format!("metadata.name={name}"))
    }
}

/// Parameters of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteParams {
    /// Whether the write is only tried.
    pub mode: Mode,
    /// Who owns the fields that are written; required for apply.
    pub field_manager: Option<String>,
    /// What becomes of unknown fields: `Ignore`, `Warn` or `Strict`.
    pub field_validation: Option<&'static str>,
    /// What an apply does with fields that others own.
    pub conflicts: Conflicts,
}

/// Whether a write is only tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It takes effect.
    #[default]
    Commit,
    /// Everything but the write itself is done (`dryRun=All`).
    DryRun,
}

/// What an apply does with fields that others own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflicts {
    /// It fails.
    #[default]
    Fail,
    /// It takes them over (`force=true`).
    TakeOver,
}

/// A change of part of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7396.
    Merge(Value),
    /// As the kind's own rules say how lists are merged.
    Strategic(Value),
    /// Server-side apply.
    Apply(Value),
}

impl Patch {
    /// The media type that says which form it is.
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

/// Conditions and manner of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteParams {
    /// Seconds until it is done by force; the kind's default when not set.
    pub grace_secs: Option<i64>,
    /// The object must have this UID.
    pub uid: Option<String>,
    /// The object must have this version.
    pub resource_version: Option<String>,
    /// What becomes of dependents: `Orphan`, `Background` or `Foreground`.
    pub propagation: Option<&'static str>,
    /// Whether the delete is only tried.
    pub mode: Mode,
}

impl DeleteParams {
    /// At once, and only that very object: how an agent says that a pod is gone.
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
