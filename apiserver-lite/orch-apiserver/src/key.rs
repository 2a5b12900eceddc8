//! Keys in the store: `/<group>/<resource>/[<namespace>/]<name>`. The group is written without its domain, `core` for the
//! core group, so that a listing of the store reads the same in both naming profiles.

use apiserver_schema::Kind;

/// Prefix of all objects of a kind, of one namespace when one is given.
#[must_use]
pub fn prefix(kind: &Kind, namespace: &str) -> String {
    let group = if kind.short_group.is_empty() { "core" } else { kind.short_group };
    if namespace.is_empty() || !kind.namespaced() {
        format!("/{group}/{}/", kind.plural())
    } else {
        format!("/{group}/{}/{namespace}/", kind.plural())
    }
}

/// Key of one object. `namespace` is ignored for cluster-scoped kinds.
#[must_use]
pub fn object(kind: &Kind, namespace: &str, name: &str) -> String {
    let mut key = prefix(kind, namespace);
    key.push_str(name);
    key
}
