//! Label and field selectors, as text and from the typed [`LabelSelector`](crate::meta::v1::LabelSelector).

mod field;
mod label;

use crate::dns_names::is_subdomain;

pub use field::{FieldRequirement, FieldSelector};
pub use label::{Operator, Requirement, Selector};

/// Why a text or an object is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text is not a selector; the message is Kubernetes'.
    #[error("found '{found}', expected: {expected}")]
    Syntax {
        /// The text found; empty for the end.
        found: String,
        /// What is expected.
        expected: &'static str,
    },
    /// An invalid label key.
    #[error("{field}: invalid label key {key:?}: {why}")]
    Key {
        /// Its field: `selector`, or a path into the object.
        field: String,
        key: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// An invalid label value, or one that the operator does not allow.
    #[error("{field}: invalid label value {value:?}: {why}")]
    Value {
        field: String,
        value: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// An operator that does not exist.
    #[error("{field}: {operator:?} is not a valid label selector operator")]
    Operator { field: String, operator: String },
    /// An operator with too few or too many values.
    #[error("{field}: {why}")]
    Count {
        field: String,
        /// The rule that it breaks.
        why: &'static str,
    },
}

/// The rule that a label's key breaks: an optional DNS subdomain and `/`, then a name.
pub fn label_key_fault(key: &str) -> Option<&'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Some("prefix part must be a lowercase RFC 1123 subdomain of at most 253 bytes");
    }
    if name.is_empty() {
        return Some("name part must be non-empty");
    }
    name_fault(name)
}

/// The rule that a label's value breaks; an empty value is valid.
pub fn label_value_fault(value: &str) -> Option<&'static str> {
    if value.is_empty() { None } else { name_fault(value) }
}

fn name_fault(name: &str) -> Option<&'static str> {
    if name.len() > 63 {
        return Some("must be no more than 63 bytes");
    }
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && name.bytes().next_back().is_some_and(|b| b.is_ascii_alphanumeric());
    if ends && name.bytes().all(inner) {
        None
    } else {
        Some(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
             with an alphanumeric character",
        )
    }
}
