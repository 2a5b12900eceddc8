//! Claims, volumes and attachments. An object that the caches lack is read from the server before it counts as deleted, because each cache is
//! filled by its own watch.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_controllers::Plan;
use apiserver_controllers::addresses::has_ended;
use apiserver_controllers::volumes::attach::{self, Attachable, NodeAttachments};
use apiserver_controllers::volumes::claim::{self, ClaimContext};
use apiserver_controllers::volumes::{
    claim_of, claims_of, ephemeral, ephemeral_claim_name, expand, has_annotation,
    has_excess_volumes, is_ephemeral_claim_of, protection, storage, volume,
};
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::{ObjectKey, Quantity};
use proto_client::{Client, ListParams};

use super::{REQUEUE, ReconcileError, Reconciler, lock};
use crate::keys::{ReconcileKey, users};

/// Maximum number of announced sizes that are remembered.
const ANNOUNCED_MAX: usize = 10_000;

impl Reconciler {
    /// Reconciles a key of a volume controller.
    pub(super) async fn reconcile_volumes(
        &self,
        reconcile_key: &ReconcileKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let client = self.accounts.of_controller(reconcile_key.controller());
        let plan = match reconcile_key {
            ReconcileKey::Claim(key) => match self.plan_claim(client, key).await? {
                Some(plan) => plan,
                None => return Ok(Some(REQUEUE)),
            },
            ReconcileKey::Volume(name) => self.plan_volume(client, name).await?,
            ReconcileKey::ClaimProtection(key) => self.plan_claim_protection(client, key).await?,
            ReconcileKey::VolumeProtection(name) => {
                self.plan_volume_protection(client, name).await?
            }
            ReconcileKey::EphemeralClaims(pod) => self.plan_ephemeral_claims(pod),
            ReconcileKey::Attachments(node) => self.plan_attachments(node).await,
            ReconcileKey::Expand(key) => self.plan_expand(key),
            _ => Plan::default(),
        };
        self.apply(reconcile_key, plan).await
    }

    /// `None` if the caches are stale.
    async fn plan_claim(
        &self,
        client: &Client,
        key: &ObjectKey,
    ) -> Result<Option<Plan>, ReconcileError> {
        let (informers, annotations) = (&self.informers, &self.annotations);
        let Some(claim) = informers.claims.get(key) else { return Ok(Some(Plan::default())) };
        let named = &claim.spec.volume_name;
        let shown = |name: &str| informers.volumes.get(&ObjectKey::new("", name));
        if has_annotation(&claim.metadata, &annotations.bind_completed)
            && !named.is_empty()
            && claim.status.phase != "Lost"
            && shown(named).is_none()
            && client.all::<PersistentVolume>().find(named).await?.is_some()
        {
            return Ok(None);
        }
        let context = ClaimContext {
            names: informers.names,
            annotations,
            volume: &shown,
            volumes: &|| informers.volumes.objects(),
            class: &|name| informers.classes.get(&ObjectKey::new("", name)),
            default_class: &|| {
                let classes = informers.classes.list();
                let classes = classes.iter().map(|(_, class)| class.as_ref());
                annotations.default_of(classes).map(str::to_owned)
            },
            pods: &|| users(informers, key),
        };
        Ok(Some(claim::plan(&claim, &context)))
    }

    /// The claim that a volume refers to, from the cache or the server.
    async fn find_claim(
        &self,
        client: &Client,
        volume: &PersistentVolume,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, ReconcileError> {
        let Some(key) = claim_of(volume) else { return Ok(None) };
        let uid = volume.spec.claim_ref.as_ref().map_or("", |of| of.uid.as_str());
        let shown = self.informers.claims.get(&key);
        let settled = matches!(volume.status.phase.as_str(), "Released" | "Failed");
        if settled || uid.is_empty() || shown.as_ref().is_some_and(|c| c.metadata.uid == uid) {
            return Ok(shown);
        }
        let api = client.within::<PersistentVolumeClaim>(&key.namespace);
        Ok(api.find(&key.name).await?.map(Arc::new))
    }

    async fn plan_volume(&self, client: &Client, name: &str) -> Result<Plan, ReconcileError> {
        let Some(found) = self.informers.volumes.get(&ObjectKey::new("", name)) else {
            return Ok(Plan::default());
        };
        let claim = self.find_claim(client, &found).await?;
        Ok(volume::plan(self.informers.names, &self.annotations, &found, claim.as_deref()))
    }

    async fn plan_volume_protection(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Plan, ReconcileError> {
        let Some(volume) = self.informers.volumes.get(&ObjectKey::new("", name)) else {
            return Ok(Plan::default());
        };
        let claim =
            if protection::has_finalizer(&volume.metadata, &self.annotations.volume_protection) {
                self.find_claim(client, &volume).await?
            } else {
                None
            };
        Ok(protection::plan_volume(&self.annotations, &volume, claim.as_deref()))
    }

    async fn plan_claim_protection(
        &self,
        client: &Client,
        key: &ObjectKey,
    ) -> Result<Plan, ReconcileError> {
        let Some(claim) = self.informers.claims.get(key) else { return Ok(Plan::default()) };
        let used = if protection::has_finalizer(&claim.metadata, &self.annotations.claim_protection)
        {
            self.is_used(client, &claim).await?
        } else {
            false
        };
        Ok(protection::plan_claim(&self.annotations, &claim, used))
    }

    async fn is_used(
        &self,
        client: &Client,
        claim: &PersistentVolumeClaim,
    ) -> Result<bool, ReconcileError> {
        let namespace = &claim.metadata.namespace;
        if users(&self.informers, &ObjectKey::from_metadata(&claim.metadata))
            .iter()
            .any(|pod| protection::uses(pod, claim))
        {
            return Ok(true);
        }
        let pods = client.within::<Pod>(namespace).list(&ListParams::default()).await?;
        Ok(pods.items.iter().any(|pod| protection::uses(pod, claim)))
    }

    fn plan_ephemeral_claims(&self, key: &ObjectKey) -> Plan {
        let Some(pod) = self.informers.pods.get(key) else { return Plan::default() };
        ephemeral::plan(self.informers.names, &pod, |name| {
            self.informers.claims.get(&ObjectKey::new(&key.namespace, name))
        })
    }

    fn plan_expand(&self, key: &ObjectKey) -> Plan {
        let Some(claim) = self.informers.claims.get(key) else { return Plan::default() };
        let mut announced = lock(&self.state.announced);
        let uid = &claim.metadata.uid;
        let plan = expand::plan(self.informers.names, &claim, announced.get(uid).copied());
        if !plan.reports.is_empty() {
            if announced.len() >= ANNOUNCED_MAX {
                announced.clear();
            }
            let size: Quantity = storage(&claim.spec.resources.requests);
            announced.insert(uid.clone(), size);
        }
        plan
    }

    async fn plan_attachments(&self, name: &str) -> Plan {
        let informers = &self.informers;
        let mut pods = Vec::new();
        for pod in informers.pods_on(name).into_iter().filter(|pod| !has_ended(pod)) {
            let volumes = self.attachables(&pod);
            if !volumes.is_empty() {
                pods.push((pod, volumes));
            }
            // Other keys have their turn between pods.
            tokio::task::yield_now().await;
        }
        let node = informers.nodes.get(&ObjectKey::new("", name));
        let attachments = informers.attachments.objects();
        let volume = |name: &str| informers.volumes.get(&ObjectKey::new("", name));
        let view = NodeAttachments {
            names: informers.names,
            name,
            node: node.as_deref(),
            pods,
            attachments: &attachments,
            volume: &volume,
            unmount: self.settings.unmount,
            out_of_service: self.settings.out_of_service,
            users_elsewhere: &|of| {
                let claim = volume(of).as_deref().and_then(claim_of);
                let mut pods = claim.map(|claim| users(informers, &claim)).unwrap_or_default();
                pods.retain(|pod| {
                    let node = &pod.spec.node_name;
                    node != name && !node.is_empty() && !has_ended(pod)
                });
                pods
            },
        };
        attach::plan(&view, &mut lock(&self.state.attaching), Instant::now())
    }

    /// The volumes of a pod that CSI drivers attach; none of a pod with too many volumes.
    pub(super) fn attachables(&self, pod: &Pod) -> Vec<Attachable> {
        if has_excess_volumes(pod) {
            return Vec::new();
        }
        let informers = &self.informers;
        let own: HashSet<String> = pod
            .spec
            .volumes
            .iter()
            .filter(|volume| volume.volume_source.ephemeral.is_some())
            .map(|volume| ephemeral_claim_name(pod, &volume.name))
            .collect();
        let bound = |name: String| {
            let claim = informers.claims.get(&ObjectKey::new(&pod.metadata.namespace, &name))?;
            proto_api::count_steps!(1);
            if own.contains(&name) && !is_ephemeral_claim_of(pod, &claim) {
                return None;
            }
            let volume = informers.volumes.get(&ObjectKey::new("", &claim.spec.volume_name))?;
            let of = volume.spec.claim_ref.as_ref()?;
            (of.uid == claim.metadata.uid).then_some(volume)
        };
        let needs = |volume: &Attachable| {
            let driver = informers.drivers.get(&ObjectKey::new("", &volume.driver));
            driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
        };
        let volumes = claims_of(pod).filter_map(bound);
        volumes.filter_map(|volume| Attachable::from_volume(&volume)).filter(needs).collect()
    }
}
