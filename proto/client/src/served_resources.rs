//! Which resources the API server serves, by its discovery documents: an older server, or one with `--runtime-config`, lacks some.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::Collection;
use proto_daemon::backoff::{Backoff, Retries};
use serde_json::Value;

use crate::client::Client;
use crate::dynamic::get_json;
use crate::error::ClientError;
use crate::request;

/// The resources of some versions of groups. A version that was not asked about counts as served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedResources {
    /// By the path of a version of a group, for example `/apis/apps/v1`.
    versions: BTreeMap<String, BTreeSet<String>>,
}

impl ServedResources {
    /// Asks about the versions of `collections`, until the server answers, and logs what is missing. Without the right to ask, all count as served.
    pub async fn read(client: &Client, collections: &[&Collection]) -> Self {
        let mut retries = Retries::new(Backoff::LOOP);
        loop {
            let error = match Self::read_once(client, collections).await {
                Ok(served) => {
                    for missing in collections.iter().filter(|collection| !served.has(collection)) {
                        tracing::warn!(
                            resource = missing.plural,
                            group_version = missing.version_path(),
                            "the API server does not serve this resource: until a restart of this program it counts as without objects"
                        );
                    }
                    return served;
                }
                Err(error) => error,
            };
            if !error.is_retryable() {
                tracing::warn!(%error, "the API server does not say what it serves: all resources are watched");
                return Self::default();
            }
            tokio::time::sleep(retries.next_delay(rand::random())).await;
        }
    }

    /// One request a version. A version that is not found is not served if the list of groups, which something else at this address would not answer, says
    /// so as well.
    async fn read_once(client: &Client, collections: &[&Collection]) -> Result<Self, ClientError> {
        let mut versions = BTreeMap::new();
        for collection in collections {
            let path = collection.version_path();
            if versions.contains_key(&path) {
                continue;
            }
            let resources = match get_json(client, request::get(path.clone())).await {
                Ok(document) => resource_names(&document),
                Err(error) if error.is_not_found() => {
                    let groups = get_json(client, request::get("/apis".to_owned())).await?;
                    if lists_version(&groups, collection) {
                        return Err(error);
                    }
                    BTreeSet::new()
                }
                Err(error) => return Err(error),
            };
            versions.insert(path, resources);
        }
        Ok(Self { versions })
    }

    /// Whether the server has the resource.
    #[must_use]
    pub fn has(&self, collection: &Collection) -> bool {
        let resources = self.versions.get(&collection.version_path());
        resources.is_none_or(|resources| resources.contains(&collection.plural))
    }
}

/// The names in an `APIResourceList`.
fn resource_names(document: &Value) -> BTreeSet<String> {
    let resources = document["resources"].as_array().into_iter().flatten();
    resources.filter_map(|resource| resource["name"].as_str()).map(str::to_owned).collect()
}

/// Whether an `APIGroupList` has the version of the collection.
fn lists_version(groups: &Value, collection: &Collection) -> bool {
    let items = |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
    items(groups, "groups").iter().any(|group| {
        let has_version = |version: &Value| version["version"] == collection.version.as_str();
        group["name"] == collection.group.as_str()
            && items(group, "versions").iter().any(has_version)
    })
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};
    use proto_api::policy::v1::PodDisruptionBudget;
    use proto_daemon::drain::Drain;
    use serde_json::json;

    use super::*;
    use crate::testing::Server;
    use crate::{ListParams, Reflector};

    #[test]
    fn a_resource_is_served_if_its_version_lists_it() {
        let names = Names::new(Profile::Kubernetes);
        let budgets = Collection::for_type::<PodDisruptionBudget>(names, None);
        let with = |document: Value| {
            let versions = [(budgets.version_path(), resource_names(&document))];
            ServedResources { versions: versions.into() }
        };
        assert!(ServedResources::default().has(&budgets), "not asked about");
        assert!(!with(json!({})).has(&budgets));
        assert!(!with(json!({"resources": [{"name": "podsecuritypolicies"}]})).has(&budgets));
        assert!(with(json!({"resources": [{"name": "poddisruptionbudgets"}]})).has(&budgets));
        let groups = |version: &str| json!({"groups": [{"name": "policy", "versions": [{"version": version}]}]});
        assert!(lists_version(&groups("v1"), &budgets));
        assert!(
            !lists_version(&groups("v1beta1"), &budgets) && !lists_version(&json!({}), &budgets)
        );
    }

    #[tokio::test]
    async fn a_resource_that_is_not_served_is_synced_and_empty() {
        let mut server = Server::plain().await;
        let client = server.client();
        let budgets = Reflector::whole(client.all::<PodDisruptionBudget>(), ListParams::default());
        let store = budgets.store();
        let reading = tokio::spawn({
            let (client, collection) = (client.clone(), budgets.collection().clone());
            async move { ServedResources::read(&client, &[&collection]).await }
        });
        // What is not the API server's own answer counts for nothing.
        for (version, groups) in [(404, 503), (503, 0), (404, 200)] {
            let request = server.asked().await;
            assert_eq!(request.line, "GET /apis/policy/v1");
            request.refuse(version, "NotFound");
            if groups == 0 {
                continue;
            }
            let request = server.asked().await;
            assert_eq!(request.line, "GET /apis");
            match groups {
                200 => request.reply(200, &json!({"groups": []})),
                code => request.refuse(code, "ServiceUnavailable"),
            }
        }
        let served = reading.await.expect("no panic");
        assert!(!served.has(budgets.collection()));
        budgets.run_if_served(&served, Drain::default().watch(), |_| ()).await;
        store.synced().await;
        assert!(store.is_empty());
    }
}
