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

#[cfg(test)]
mod tests {
    use apiserver_schema::Engine;
    use apiserver_schema::custom::CustomNames;
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn keys_are_the_same_in_both_profiles_and_keep_custom_groups_whole() {
        for profile in [Profile::Kubernetes, Profile::default()] {
            let names = Names::new(profile);
            let engine = Engine::new(names);
            let served = |group: &str, plural: &str| {
                let group = names.group(group);
                engine.resource(&group, "v1", plural).expect("served").clone()
            };
            let pods = served("", "pods");
            assert_eq!(object(&pods, "team", "a"), "/core/pods/team/a");
            assert_eq!(prefix(&pods, ""), "/core/pods/");
            assert_eq!(object(&served("", "nodes"), "team", "a"), "/core/nodes/a");
            let ingresses = served("networking", "ingresses");
            assert_eq!(object(&ingresses, "team", "a"), "/networking/ingresses/team/a");
            let (group, kind, plural) = ("apps.example.com", "Backup", "backups");
            let names = CustomNames { group, version: "v1", kind, plural, namespaced: true };
            let custom = engine.custom_kind(&names).expect("a kind");
            assert_eq!(object(&custom, "team", "a"), "/custom/apps.example.com/backups/team/a");
        }
    }
}
