//! The kinds whose objects quotas can count: all with namespaces that come and go, in one version each.

use std::borrow::Cow;

use apiserver_controllers::custom_resources;
use apiserver_quota::CountedResource;
use proto_api::core::v1::ResourceQuotaSpec;
use proto_api::names::Names;
use proto_api::{Collection, schema};
use proto_client::dynamic::Dynamic;
use proto_client::{Client, ClientError, ListParams};

/// A kind with the version in which it is read.
#[derive(Clone, Debug)]
pub struct ReadKind {
    pub kind: CountedResource,
    version: Cow<'static, str>,
}

impl ReadKind {
    /// Its objects in a namespace, or in all.
    pub fn collection(&self, namespace: Option<&str>) -> Collection {
        Collection {
            group: self.kind.group.clone(),
            version: self.version.clone().into_owned(),
            plural: self.kind.plural.clone(),
            namespace: namespace.map(str::to_owned),
        }
    }
}

/// All kinds of a naming profile that are counted.
pub fn counted_kinds(names: &Names) -> Vec<ReadKind> {
    let mut kinds: Vec<ReadKind> = Vec::new();
    for resource in schema::resources().iter().filter(|resource| resource.namespaced) {
        let kind = CountedResource::new(&names.group(resource.group), resource.plural);
        let has = |verb: &&str| resource.verbs.contains(verb);
        let comes_and_goes = ["create", "delete", "list", "watch"].iter().all(has);
        let is_known = kinds.iter().any(|known| known.kind == kind);
        if comes_and_goes && !is_known && kind.is_counted() {
            kinds.push(ReadKind { kind, version: resource.version.into() });
        }
    }
    kinds
}

/// The kinds of definitions that `specs` count and that are none of `known`. Definitions are read only if there may be such kinds.
pub async fn custom_kinds<'a>(
    client: &Client,
    specs: impl IntoIterator<Item = &'a ResourceQuotaSpec>,
    known: &[ReadKind],
) -> Result<Vec<ReadKind>, ClientError> {
    let names = client.names();
    let is_known = |name: &str| known.iter().any(|read| read.kind.is_counted_by(name, names));
    let may_be_custom = |name: &String| name.starts_with("count/") && !is_known(name);
    if !specs.into_iter().flat_map(|spec| spec.hard.keys()).any(may_be_custom) {
        return Ok(Vec::new());
    }
    let definitions = Dynamic::new(client.clone(), custom_resources::definitions(names));
    let list = match definitions.list(&ListParams::default()).await {
        Ok(list) => list,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let served = custom_resources::list_served(&list).into_iter().filter(|found| found.namespaced);
    let kinds = served.map(|found| ReadKind {
        kind: CountedResource::new(&found.group, &found.plural),
        version: found.version.into(),
    });
    Ok(kinds.collect())
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn each_kind_is_counted_in_its_preferred_version() {
        let kinds = counted_kinds(Names::new(Profile::Kubernetes));
        let find = |name: &str| -> Vec<&str> {
            kinds.iter().filter(|k| k.kind.count_name() == name).map(|k| &*k.version).collect()
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
