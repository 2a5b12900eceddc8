//! What becomes of dependents: the finalizers `orphan` and `foregroundDeletion`, by which a deletion asks the garbage
//! collector to act before the object goes.

use apiserver_schema::{Kind, Object};

use super::Propagation;

/// Finalizer of an object whose dependents are to be kept.
pub const ORPHAN: &str = "orphan";
/// Finalizer of an object whose dependents are to be deleted first.
pub const FOREGROUND: &str = "foregroundDeletion";

/// What a kind does when a deletion does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefaultPropagation {
    /// Its objects have no dependents, whatever is asked for.
    Unsupported,
    /// Dependents are kept.
    Orphan,
    /// Dependents go.
    Delete,
}

/// The defaults of Kubernetes 1.25: replication controllers and jobs keep their pods, as they did before there was a
/// garbage collector.
fn default_of(kind: &Kind) -> DefaultPropagation {
    match (kind.short_group, kind.kind) {
        ("" | "events", "Event") => DefaultPropagation::Unsupported,
        ("", "ReplicationController") | ("batch", "Job") => DefaultPropagation::Orphan,
        _ => DefaultPropagation::Delete,
    }
}

/// The finalizers that an object has once it is deleted with `policy`: at most one of the two, the others as they were.
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
