//! Deletion propagation: the finalizers `orphan` and `foregroundDeletion`, which make the garbage collector handle dependents
//! before the object is removed.

use apiserver_schema::{Kind, Object};

use crate::options::Propagation;

/// Finalizer of an object whose dependents are kept.
pub const ORPHAN: &str = "orphan";
/// Finalizer of an object whose dependents are deleted before it.
pub const FOREGROUND: &str = "foregroundDeletion";

/// Propagation of a kind without a policy in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefaultPropagation {
    /// The kind has no dependents; policies are ignored.
    Unsupported,
    /// Dependents are orphaned.
    Orphan,
    /// Dependents are deleted.
    Delete,
}

/// The defaults of Kubernetes 1.25. ReplicationControllers and Jobs orphan their pods for compatibility.
fn default_of(kind: &Kind) -> DefaultPropagation {
    match (kind.short_group, kind.kind()) {
        ("" | "events", "Event") => DefaultPropagation::Unsupported,
        ("", "ReplicationController") | ("batch", "Job") => DefaultPropagation::Orphan,
        _ => DefaultPropagation::Delete,
    }
}

/// The finalizers of `object` once it is deleted with `policy`: at most one propagation finalizer, and all others.
pub fn finalizers(object: &Object, policy: Option<Propagation>) -> Vec<String> {
    let is_propagation = |finalizer: &&str| matches!(*finalizer, ORPHAN | FOREGROUND);
    let mut all: Vec<String> =
        object.finalizers().filter(|f| !is_propagation(f)).map(str::to_owned).collect();
    all.extend(propagation_finalizer(object, policy).map(str::to_owned));
    all
}

fn propagation_finalizer(object: &Object, policy: Option<Propagation>) -> Option<&'static str> {
    let default = default_of(&object.kind);
    if default == DefaultPropagation::Unsupported {
        return None;
    }
    let first = object.finalizers().find_map(|finalizer| match finalizer {
        ORPHAN => Some(Propagation::Orphan),
        FOREGROUND => Some(Propagation::Foreground),
        _ => None,
    });
    let by_default = (default == DefaultPropagation::Orphan).then_some(Propagation::Orphan);
    match policy.or(first).or(by_default)? {
        Propagation::Orphan => Some(ORPHAN),
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Background => None,
    }
}
