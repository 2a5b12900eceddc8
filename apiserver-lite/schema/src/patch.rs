//! The three patch formats, each a function from a document and a patch to the patched document.
//!
//! A document is the JSON tree of an object, with `apiVersion` and `kind`. The result is unchecked; [`crate::Engine::patch`] checks
//! it against the descriptor.

mod difference;
mod json_patch;
mod merge_patch;
mod strategic;
#[cfg(test)]
mod tests;

pub use difference::merge_difference;
pub(crate) use difference::strategic_difference;
pub(crate) use json_patch::apply_json_patch;
pub(crate) use merge_patch::apply_merge_patch;
pub(crate) use strategic::apply_strategic;

use crate::value::TooLarge;

/// Format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902, `application/json-patch+json`.
    Json,
    /// RFC 7396, `application/merge-patch+json`.
    Merge,
    /// Lists merged by key, `application/strategic-merge-patch+json`.
    Strategic,
}

impl PatchType {
    /// The format of a `Content-Type`, whose parameters are ignored.
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        match media_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(PatchType::Json),
            "application/merge-patch+json" => Some(PatchType::Merge),
            "application/strategic-merge-patch+json" => Some(PatchType::Strategic),
            _ => None,
        }
    }
}

/// Most operations of a JSON patch.
pub const JSON_PATCH_OPS_MAX: usize = 10_000;
/// Most bytes of JSON copied by the `copy` operations of one JSON patch.
pub const JSON_PATCH_COPY_MAX: usize = 3 * 1024 * 1024;

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatchError {
    /// The body is not a patch of its type (400).
    #[error("error decoding patch: {0}")]
    Malformed(String),
    /// More than [`JSON_PATCH_OPS_MAX`] operations (413).
    #[error("The allowed maximum operations in a JSON patch is {JSON_PATCH_OPS_MAX}, got {0}")]
    TooManyOperations(usize),
    /// The patch has too many values (413).
    #[error(transparent)]
    TooLarge(TooLarge),
    /// An operation does not apply to the object (422).
    #[error("{0}")]
    Inapplicable(String),
}
