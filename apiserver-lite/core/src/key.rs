//! Keys of the store: `/<group>/<resource>/[<namespace>/]<name>`. The group has no domain (`core` for the core group), so that
//! keys are the same in both naming profiles. Those of custom resources are `/custom/<group>/<resource>/…`, with the whole group.

use apiserver_schema::Kind;
use apiserver_schema::custom::CUSTOM;

/// Key prefix of all objects of `kind`, or of those in `namespace` if it is not empty.
#[must_use]
pub fn prefix(kind: &Kind, namespace: &str) -> String {
    let custom;
    let group = match kind.short_group {
        "" => "core",
        CUSTOM => {
            custom = format!("custom/{}", kind.group);
            custom.as_str()
        }
        group => group,
    };
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
