//! Namespace deletion: one round of deleting a terminating namespace's objects, and what its conditions say then.

use std::time::Duration;

use apiserver_clock::now;
use apiserver_controller_io::execute_write::execute;
use apiserver_controller_io::namespace_content::delete_content;
use apiserver_controllers::api_writes::ApiWrite;
use apiserver_controllers::namespace::{NamespaceStep, next_round, plan};
use proto_api::core::v1::Namespace;
use proto_api::object::to_json_value;
use proto_api::{Collection, ObjectKey, Resource as _};
use proto_client::dynamic::Dynamic;
use proto_client::{Client, WriteParams};

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
        let finalizer = informers.names.api_service_name();
        let ours = cached.spec.finalizers.iter().any(|other| other == finalizer);
        if cached.metadata.deletion_timestamp.is_none() || !ours {
            return Ok(None);
        }
        let Ok(_round) = self.state.namespace_rounds.try_acquire() else {
            return Ok(Some(REQUEUE));
        };
        let remains = delete_content(client, name).await;
        // The next write is conditional on the version: read the latest.
        let Some(namespace) = client.all::<Namespace>().find(name).await? else {
            return Ok(None);
        };
        match plan(&namespace, finalizer, &remains, now()) {
            NamespaceStep::Finalize(done) => {
                self.finalize(client, &done).await?;
                return Ok(None);
            }
            NamespaceStep::Report(next) => {
                execute(&ApiWrite::UpdateStatus((*next).into()), client).await?;
            }
            NamespaceStep::Wait => {}
        }
        Ok(Some(next_round(&namespace, now())))
    }

    async fn finalize(&self, client: &Client, namespace: &Namespace) -> Result<(), ReconcileError> {
        let names = self.informers.names;
        let name = &namespace.metadata().name;
        let body = to_json_value(namespace, names)
            .map_err(|error| ReconcileError::Encode(format!("namespace {name}"), error))?;
        let objects = Dynamic::new(client.clone(), Collection::for_type::<Namespace>(names, None));
        match objects.update(name, Some("finalize"), &body, &WriteParams::default()).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}
