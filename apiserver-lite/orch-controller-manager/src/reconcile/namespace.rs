//! Namespace deletion: deletes all objects in a terminating namespace, and counts the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_clock::now;
use apiserver_controller_io::execute_write::execute;
use apiserver_controllers::api_writes::ApiWrite;
use apiserver_controllers::custom_resources;
use apiserver_controllers::namespace::{NamespaceStep, RemainingContent, plan};
use proto_api::core::v1::Namespace;
use proto_api::object::to_json_value;
use proto_api::{Resource as _, schema};
use proto_client::dynamic::Dynamic;
use proto_client::request::Collection;
use proto_client::{Client, ClientError, DeleteParams, ListParams, ObjectKey, WriteParams};
use serde_json::Value;

use super::{ReconcileError, Reconciler};

/// Interval of counts; deleted pods queue the key earlier.
const RECOUNT: Duration = Duration::from_secs(1);

impl Reconciler {
    /// One round of deleting a namespace's content.
    pub(super) async fn delete_namespace_content(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Option<Duration>, ReconcileError> {
        let informers = &self.informers;
        let Some(cached) = informers.namespaces.get(&ObjectKey::new("", name)) else {
            return Ok(None);
        };
        let finalizer = informers.names.api_service_name();
        let ours = cached.spec.finalizers.iter().any(|other| other == finalizer);
        if cached.metadata.deletion_timestamp.is_none() || !ours {
            return Ok(None);
        }
        let remains = self.delete_content(client, name).await;
        // The next write is conditional on the version: read the latest.
        let Some(namespace) = client.all::<Namespace>().find(name).await? else {
            return Ok(None);
        };
        match plan(&namespace, finalizer, &remains, now()) {
            NamespaceStep::Finalize(done) => {
                self.finalize(client, &done).await?;
                Ok(None)
            }
            NamespaceStep::Report(next) => {
                execute(&ApiWrite::UpdateStatus((*next).into()), client).await?;
                Ok(Some(RECOUNT))
            }
            NamespaceStep::Wait => Ok(Some(RECOUNT)),
        }
    }

    /// Deletes the objects of the namespace. Returns what is left.
    async fn delete_content(&self, client: &Client, name: &str) -> RemainingContent {
        let mut remains = RemainingContent::default();
        let namespaced = schema::resources().iter().filter(|resource| resource.namespaced);
        let deletable = |r: &&schema::Resource| {
            ["deletecollection", "list"].iter().all(|v| r.verbs.contains(v))
        };
        let built_in = namespaced.filter(deletable).map(|resource| Collection {
            group: self.informers.names.group(resource.group),
            version: resource.version.to_owned(),
            plural: resource.plural.to_owned(),
            namespace: Some(name.to_owned()),
        });
        let mut collections: Vec<Collection> = built_in.collect();
        let definitions = custom_resources::definitions(self.informers.names);
        match Dynamic::new(client.clone(), definitions).list(&ListParams::default()).await {
            Ok(list) => collections.extend(custom_resources::within(&list, name)),
            // A server without definitions has no custom objects.
            Err(error) if error.is_not_found() => {}
            Err(error) => remains.failures.push(format!("customresourcedefinitions: {error}")),
        }
        for collection in collections {
            let plural = collection.plural.clone();
            if let Err(error) = delete_all_of(client, collection, &mut remains).await {
                // A resource that the server does not serve has no objects.
                if !error.is_not_found() {
                    remains.failures.push(format!("{plural}: {error}"));
                }
            }
        }
        remains
    }

    async fn finalize(&self, client: &Client, namespace: &Namespace) -> Result<(), ReconcileError> {
        let names = self.informers.names;
        let name = &namespace.metadata().name;
        let body = to_json_value(namespace, names)
            .map_err(|error| ReconcileError::Encode(format!("namespace {name}"), error))?;
        let objects = Dynamic::new(client.clone(), Collection::of::<Namespace>(names, None));
        match objects.update(name, Some("finalize"), &body, &WriteParams::default()).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

/// Deletes the objects of a collection, and counts what is left.
async fn delete_all_of(
    client: &Client,
    collection: Collection,
    remains: &mut RemainingContent,
) -> Result<(), ClientError> {
    // Resource and group; of the core group, which is empty, the dot remains.
    let full = format!("{}.{}", collection.plural, collection.group);
    let objects = Dynamic::new(client.clone(), collection);
    // Most resources have no objects in a namespace: list before deleting.
    let first = ListParams { limit: Some(1), ..ListParams::default() };
    if items(&objects.list(&first).await?).is_empty() {
        return Ok(());
    }
    // Background also for kinds with another default: dependents are in the namespace too, or are collected later.
    let delete = DeleteParams { propagation: Some("Background"), ..DeleteParams::default() };
    objects.delete_collection(&ListParams::default(), &delete).await?;
    let left = objects.list(&ListParams::default()).await?;
    let left = items(&left);
    if left.is_empty() {
        return Ok(());
    }
    remains.objects.insert(full, left.len());
    count_finalizers(left, &mut remains.finalizers);
    Ok(())
}

fn items(list: &Value) -> &[Value] {
    list.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn count_finalizers(objects: &[Value], counts: &mut BTreeMap<String, usize>) {
    for object in objects {
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        for finalizer in finalizers.into_iter().flatten().filter_map(Value::as_str) {
            let count = counts.entry(finalizer.to_owned()).or_default();
            *count = count.saturating_add(1);
        }
    }
}
