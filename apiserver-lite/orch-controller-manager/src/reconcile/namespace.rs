//! Namespace deletion: one round of deleting a terminating namespace's objects, and what its conditions say then.

use std::time::Duration;

use apiserver_clock::now;
use apiserver_controller_io::execute_write::execute;
use apiserver_controller_io::namespace_content::{delete_content, finalize};
use apiserver_controllers::api_writes::ApiWrite;
use apiserver_controllers::namespace::{NamespaceStep, RemainingContent, is_due, next_round, plan};
use proto_api::ObjectKey;
use proto_api::core::v1::Namespace;
use proto_client::Client;

use super::{REQUEUE, ReconcileError, Reconciler};

/// Most rounds at one time: each lists all kinds, and the other controllers need workers too.
pub(super) const ROUNDS_MAX: usize = 4;

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
        let (finalizer, api) = (informers.names.api_service_name(), client.all::<Namespace>());
        if !is_due(&cached, finalizer) {
            return Ok(None);
        }
        let Ok(_round) = self.state.namespace_rounds.try_acquire() else {
            return Ok(Some(REQUEUE));
        };
        // What is deleted cannot be had back: the one that the cache shows may be gone, and another be in its place.
        let due = |found: &Namespace| is_due(found, finalizer);
        let Some(first) = api.find(name).await?.filter(due) else { return Ok(None) };
        let remains = delete_content(client, name).await;
        let is_same = |found: &Namespace| due(found) && found.metadata.uid == first.metadata.uid;
        // After a report of an empty one it is finalized.
        for _ in 0..2 {
            // The next write is conditional on the version: read the latest.
            let Some(namespace) = api.find(name).await?.filter(is_same) else { return Ok(None) };
            match plan(&namespace, finalizer, &remains, now()) {
                NamespaceStep::Finalize(done) => {
                    finalize(client, &done).await?;
                    return Ok(None);
                }
                NamespaceStep::Report(next) => {
                    execute(&ApiWrite::UpdateStatus((*next).into()), client).await?;
                }
                NamespaceStep::Wait => break,
            }
            if remains != RemainingContent::default() {
                break;
            }
        }
        Ok(Some(next_round(&first, now())))
    }
}
