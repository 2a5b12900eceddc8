//! The kinds whose objects quotas can count: all with namespaces that come and go, in one version each.

use apiserver_quota::Kind;
use proto_api::names::Names;
use proto_api::schema;
use proto_client::request::Collection;

/// A kind with the version in which it is read.
#[derive(Clone, Debug)]
pub struct ReadKind {
    /// The kind.
    pub kind: Kind,
    version: &'static str,
}

impl ReadKind {
    /// Its objects in a namespace, or in all.
    pub fn collection(&self, namespace: Option<&str>) -> Collection {
        Collection {
            group: self.kind.group.clone(),
            version: self.version.to_owned(),
            plural: self.kind.plural.clone(),
            namespace: namespace.map(str::to_owned),
        }
    }
}

/// All kinds of a naming profile that are counted.
pub fn counted_kinds(names: &Names) -> Vec<ReadKind> {
    let mut kinds: Vec<ReadKind> = Vec::new();
    for resource in schema::resources().iter().filter(|resource| resource.namespaced) {
        let kind = Kind::new(&names.group(resource.group), resource.plural);
        let has = |verb: &&str| resource.verbs.contains(verb);
        let comes_and_goes = ["create", "delete", "list", "watch"].iter().all(has);
        let is_known = kinds.iter().any(|known| known.kind == kind);
        if comes_and_goes && !is_known && kind.is_counted() {
            kinds.push(ReadKind { kind, version: resource.version });
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn each_kind_is_counted_in_its_preferred_version() {
        let kinds = counted_kinds(Names::new(Profile::Kubernetes));
        let find = |name: &str| -> Vec<&'static str> {
            kinds.iter().filter(|k| k.kind.count_name() == name).map(|k| k.version).collect()
        };
        assert_eq!(find("count/pods"), ["v1"]);
        assert_eq!(find("count/deployments.apps"), ["v1"]);
        assert_eq!(find("count/cronjobs.batch"), ["v1"]);
        for none in ["count/events", "count/nodes", "count/bindings", "count/events.events.k8s.io"]
        {
            assert!(find(none).is_empty(), "{none}");
        }
    }
}
