//! PodDisruptionBudgets: finds the scales of the pods' controllers for the plan.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_clock::now;
use apiserver_controller_io::fetch_scale::fetch_scale;
use apiserver_controllers::disruption::{self, OwnerScale};
use apiserver_controllers::owners;
use proto_api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use proto_api::core::v1::ReplicationController;
use proto_api::meta::v1::OwnerReference;
use proto_api::{Kind, ObjectKey};

use super::{ReconcileError, Reconciler};
use crate::keys::ReconcileKey;

/// Interval of reads of a scale that is not cached.
const READ_INTERVAL: Duration = Duration::from_secs(30);

impl Reconciler {
    /// Updates the status of a budget.
    pub(super) async fn update_disruption(
        &self,
        reconcile_key: &ReconcileKey,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let Some(budget) = self.informers.budgets.get(key) else { return Ok(None) };
        let pods = disruption::covered(&budget, &self.informers.pods.within(&key.namespace));
        let mut scales: BTreeMap<String, Option<OwnerScale>> = BTreeMap::new();
        let mut read = false;
        let client = self.accounts.of_controller(reconcile_key.controller());
        if disruption::needs_scale(&budget) {
            for owner in pods.iter().filter_map(|pod| disruption::controller(pod)) {
                if scales.contains_key(&owner.uid) {
                    continue;
                }
                let mut scale = self.cached_scale(owner, &key.namespace);
                if scale.is_none() {
                    read = true;
                    scale = fetch_scale(client, owner, &key.namespace).await?;
                }
                let is_known = scale.is_some();
                scales.insert(owner.uid.clone(), scale);
                // Without it the budget cannot be calculated, and a user may write a controller that does not exist into each pod.
                if !is_known {
                    break;
                }
            }
        }
        let scale_of = |owner: &OwnerReference| scales.get(&owner.uid).cloned().flatten();
        let mut plan = disruption::plan(self.informers.names, &budget, &pods, scale_of, now());
        if read {
            plan.requeue_in(READ_INTERVAL);
        }
        self.apply(reconcile_key, plan).await
    }

    /// The scale of a cached controller. A replica set of a deployment has the deployment's scale, because no set has all pods during a rollout.
    fn cached_scale(&self, owner: &OwnerReference, namespace: &str) -> Option<OwnerScale> {
        let informers = &self.informers;
        let key = ObjectKey::new(namespace, &owner.name);
        let is_it =
            |api_version: String, uid: &str| owner.api_version == api_version && owner.uid == uid;
        let scale = |uid: &str, replicas: Option<i32>| OwnerScale {
            uid: uid.to_owned(),
            replicas: replicas.unwrap_or(1),
        };
        match owner.kind.as_str() {
            ReplicaSet::KIND => {
                let set = informers.replica_sets.get(&key)?;
                let version = informers.names.api_version(ReplicaSet::GROUP, ReplicaSet::VERSION);
                if !is_it(version, &set.metadata.uid) {
                    return None;
                }
                match owners::controller(&set.metadata, Deployment::KIND) {
                    None => Some(scale(&set.metadata.uid, set.spec.replicas)),
                    Some(above) => {
                        let key = ObjectKey::new(namespace, &above.name);
                        let deployment = informers.deployments.get(&key)?;
                        let metadata = &deployment.metadata;
                        (metadata.uid == above.uid)
                            .then(|| scale(&metadata.uid, deployment.spec.replicas))
                    }
                }
            }
            ReplicationController::KIND => {
                let found = informers.replication_controllers.get(&key)?;
                let version = informers
                    .names
                    .api_version(ReplicationController::GROUP, ReplicationController::VERSION);
                is_it(version, &found.metadata.uid)
                    .then(|| scale(&found.metadata.uid, found.spec.replicas))
            }
            StatefulSet::KIND => {
                let found = informers.stateful_sets.get(&key)?;
                let version = informers.names.api_version(StatefulSet::GROUP, StatefulSet::VERSION);
                is_it(version, &found.metadata.uid)
                    .then(|| scale(&found.metadata.uid, found.spec.replicas))
            }
            _ => None,
        }
    }
}
