//! PodDisruptionBudgets: finds the scales of the pods' controllers for the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_clock::now;
use apiserver_controller_io::fetch_scale::{ScaledKinds, fetch_scale};
use apiserver_controllers::disruption::{self, OwnerScale};
use apiserver_controllers::owners;
use proto_api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use proto_api::core::v1::{Pod, ReplicationController};
use proto_api::meta::v1::OwnerReference;
use proto_api::{Kind, ObjectKey};
use proto_client::Client;

use super::{REQUEUE, ReconcileError, Reconciler, lock};
use crate::keys::ReconcileKey;

/// Interval of reads of a scale that is not cached.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// Most scales that one turn of a budget reads.
const READS_MAX: usize = 100;
/// Most budgets whose scales are remembered between turns; others with more than [`READS_MAX`] unread ones wait.
const UNFINISHED_MAX: usize = 16;
/// After which time a budget that waits for others is looked at again.
const WAIT: Duration = Duration::from_secs(1);

/// The scales of controllers.
#[derive(Default)]
struct Scales {
    by_uid: BTreeMap<String, OwnerScale>,
    /// Whether some of them are not cached.
    read: bool,
}

impl Reconciler {
    /// Updates the status of a budget.
    pub(super) async fn update_disruption(
        &self,
        reconcile_key: &ReconcileKey,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let forget = || drop(lock(&self.state.read_scales).remove(key));
        let budget = self.informers.budgets.get(key);
        let Some(budget) = budget else {
            forget();
            return Ok(None);
        };
        let pods = disruption::covered(&budget, &self.informers.pods.within(&key.namespace));
        let mut found = Scales::default();
        if disruption::needs_scale(&budget) {
            let client = self.accounts.of_controller(reconcile_key.controller());
            match self.find_scales(client, key, &pods).await {
                Ok(Ok(scales)) => found = scales,
                Ok(Err(later)) => return Ok(Some(later)),
                Err(error) => {
                    forget();
                    return Err(error);
                }
            }
        }
        forget();
        let scale_of = |owner: &OwnerReference| found.by_uid.get(&owner.uid).cloned();
        let mut plan = disruption::plan(self.informers.names, &budget, &pods, scale_of, now());
        if found.read {
            plan.requeue_in(READ_INTERVAL);
        }
        self.apply(reconcile_key, plan).await
    }

    /// The scales of the pods' controllers up to the first that has none, or when to go on. A turn reads a bounded number, then other budgets have theirs.
    async fn find_scales(
        &self,
        client: &Client,
        key: &ObjectKey,
        pods: &[Arc<Pod>],
    ) -> Result<Result<Scales, Duration>, ReconcileError> {
        let (remembered, is_full) = {
            let all = lock(&self.state.read_scales);
            (all.get(key).cloned(), all.len() >= UNFINISHED_MAX)
        };
        let is_full = is_full && remembered.is_none();
        let (mut read, mut scales) = (remembered.unwrap_or_default(), Scales::default());
        let (mut unread, mut known) = (Vec::new(), BTreeSet::new());
        for owner in pods.iter().filter_map(|pod| disruption::controller(pod)) {
            if !known.insert(&owner.uid) {
                continue;
            }
            let cached = self.cached_scale(owner, &key.namespace);
            scales.read |= cached.is_none();
            match cached.or_else(|| read.get(&owner.uid).cloned()) {
                Some(scale) => drop(scales.by_uid.insert(owner.uid.clone(), scale)),
                None => unread.push(owner),
            }
        }
        let is_unfinished = unread.len() > READS_MAX;
        if is_unfinished && is_full {
            return Ok(Err(WAIT));
        }
        let mut kinds = ScaledKinds::default();
        for owner in unread.into_iter().take(READS_MAX) {
            // Without it the budget cannot be calculated, and a user may write a controller that does not exist into each pod.
            let Some(scale) = fetch_scale(client, owner, &key.namespace, &mut kinds).await? else {
                return Ok(Ok(scales));
            };
            read.insert(owner.uid.clone(), scale.clone());
            scales.by_uid.insert(owner.uid.clone(), scale);
        }
        if is_unfinished {
            lock(&self.state.read_scales).insert(key.clone(), read);
            return Ok(Err(REQUEUE));
        }
        Ok(Ok(scales))
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
