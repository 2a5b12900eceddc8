//! Looking at claims, volumes and what is attached. Before something is called gone that the maps do not show, the
//! server is asked: each map is kept by itself, and one may be behind another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::Quantity;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_client::{ListParams, ObjectKey};

use super::{CATCH_UP, ReconcileError, Reconciler, lock};
use crate::controllers::Plan;
use crate::controllers::addresses::has_ended;
use crate::controllers::volumes::attach::{self, Attachable, Scene};
use crate::controllers::volumes::claim::{self, ClaimContext};
use crate::controllers::volumes::{
    claim_of, claims_of, ephemeral, expand, has, is_own, own_claim, protection, storage, volume,
};
use crate::keys::{ReconcileKey, users};

/// Wishes for more that are remembered as told.
const WISHES_MAX: usize = 10_000;

impl Reconciler {
    /// Does a task about volumes.
    pub(super) async fn work_volumes(
        &self,
        task: &ReconcileKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let plan = match task {
            ReconcileKey::Claim(key) => match self.plan_claim(key).await? {
                Some(plan) => plan,
                None => return Ok(Some(CATCH_UP)),
            },
            ReconcileKey::Volume(name) => self.plan_volume(name).await?,
            ReconcileKey::ClaimProtection(key) => self.plan_claim_protection(key).await?,
            ReconcileKey::VolumeProtection(name) => self.plan_volume_protection(name).await?,
            ReconcileKey::OwnClaims(pod) => self.plan_own_claims(pod),
            ReconcileKey::Attachments(node) => self.plan_attachments(node),
            ReconcileKey::Expand(key) => self.plan_growth(key),
            _ => Plan::default(),
        };
        self.apply(task, plan).await
    }

    /// `None` when the maps have to catch up first.
    async fn plan_claim(&self, key: &ObjectKey) -> Result<Option<Plan>, ReconcileError> {
        let (informers, marks) = (&self.informers, &self.marks);
        let Some(claim) = informers.claims.get(key) else { return Ok(Some(Plan::default())) };
        let named = &claim.spec.volume_name;
        let shown = |name: &str| informers.volumes.get(&ObjectKey::new("", name));
        if has(&claim.metadata, &marks.bind_completed)
            && !named.is_empty()
            && claim.status.phase != "Lost"
            && shown(named).is_none()
            && self.client.all::<PersistentVolume>().find(named).await?.is_some()
        {
            return Ok(None);
        }
        let context = ClaimContext {
            names: informers.names,
            marks,
            volume: &shown,
            volumes: &|| informers.volumes.objects(),
            class: &|name| informers.classes.get(&ObjectKey::new("", name)),
            default_class: &|| {
                let classes = informers.classes.list();
                let classes = classes.iter().map(|(_, class)| class.as_ref());
                marks.default_of(classes).map(str::to_owned)
            },
            pods: &|| users(informers, key),
        };
        Ok(Some(claim::plan(&claim, &context)))
    }

    /// The claim that a volume refers to, as the map has it or, if it is not there, the server.
    async fn claim_behind(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, ReconcileError> {
        let Some(key) = claim_of(volume) else { return Ok(None) };
        let uid = volume.spec.claim_ref.as_ref().map_or("", |of| of.uid.as_str());
        let shown = self.informers.claims.get(&key);
        let settled = matches!(volume.status.phase.as_str(), "Released" | "Failed");
        if settled || uid.is_empty() || shown.as_ref().is_some_and(|c| c.metadata.uid == uid) {
            return Ok(shown);
        }
        let api = self.client.within::<PersistentVolumeClaim>(&key.namespace);
        Ok(api.find(&key.name).await?.map(Arc::new))
    }

    async fn plan_volume(&self, name: &str) -> Result<Plan, ReconcileError> {
        let Some(found) = self.informers.volumes.get(&ObjectKey::new("", name)) else {
            return Ok(Plan::default());
        };
        let claim = self.claim_behind(&found).await?;
        Ok(volume::plan(self.informers.names, &self.marks, &found, claim.as_deref()))
    }

    async fn plan_volume_protection(&self, name: &str) -> Result<Plan, ReconcileError> {
        let Some(volume) = self.informers.volumes.get(&ObjectKey::new("", name)) else {
            return Ok(Plan::default());
        };
        let claim = if protection::is_held(&volume.metadata, &self.marks.volume_protection) {
            self.claim_behind(&volume).await?
        } else {
            None
        };
        Ok(protection::plan_volume(&self.marks, &volume, claim.as_deref()))
    }

    async fn plan_claim_protection(&self, key: &ObjectKey) -> Result<Plan, ReconcileError> {
        let Some(claim) = self.informers.claims.get(key) else { return Ok(Plan::default()) };
        let used = if protection::is_held(&claim.metadata, &self.marks.claim_protection) {
            self.is_used(&claim).await?
        } else {
            false
        };
        Ok(protection::plan_claim(&self.marks, &claim, used))
    }

    async fn is_used(&self, claim: &PersistentVolumeClaim) -> Result<bool, ReconcileError> {
        let namespace = &claim.metadata.namespace;
        if self.informers.pods.within(namespace).iter().any(|pod| protection::uses(pod, claim)) {
            return Ok(true);
        }
        let pods = self.client.within::<Pod>(namespace).list(&ListParams::default()).await?;
        Ok(pods.items.iter().any(|pod| protection::uses(pod, claim)))
    }

    fn plan_own_claims(&self, key: &ObjectKey) -> Plan {
        let Some(pod) = self.informers.pods.get(key) else { return Plan::default() };
        ephemeral::plan(self.informers.names, &pod, |name| {
            self.informers.claims.get(&ObjectKey::new(&key.namespace, name))
        })
    }

    fn plan_growth(&self, key: &ObjectKey) -> Plan {
        let Some(claim) = self.informers.claims.get(key) else { return Plan::default() };
        let mut told = lock(&self.memory.wishes);
        let uid = &claim.metadata.uid;
        let plan = expand::plan(self.informers.names, &claim, told.get(uid).copied());
        if !plan.said.is_empty() {
            if told.len() >= WISHES_MAX {
                told.clear();
            }
            let wish: Quantity = storage(&claim.spec.resources.requests);
            told.insert(uid.clone(), wish);
        }
        plan
    }

    fn plan_attachments(&self, name: &str) -> Plan {
        let informers = &self.informers;
        let node = informers.nodes.get(&ObjectKey::new("", name));
        let here = informers.pods_on(name).into_iter().filter(|pod| !has_ended(pod));
        let needs = here.map(|pod| (pod.clone(), self.attachables(&pod)));
        let attachments = informers.attachments.objects();
        let volume = |name: &str| informers.volumes.get(&ObjectKey::new("", name));
        let scene = Scene {
            names: informers.names,
            name,
            node: node.as_deref(),
            pods: needs.filter(|(_, volumes)| !volumes.is_empty()).collect(),
            attachments: &attachments,
            volume: &volume,
            unmount: self.settings.unmount,
            elsewhere: &|of| {
                let claim = volume(of).as_deref().and_then(claim_of);
                let mut pods = claim.map(|claim| users(informers, &claim)).unwrap_or_default();
                pods.retain(|pod| {
                    let node = &pod.spec.node_name;
                    node != name && !node.is_empty() && !has_ended(pod)
                });
                pods
            },
        };
        attach::plan(&scene, &mut lock(&self.memory.attaching), Instant::now())
    }

    /// The volumes of a pod that drivers attach.
    fn attachables(&self, pod: &Pod) -> Vec<Attachable> {
        let informers = &self.informers;
        let own: Vec<String> = pod
            .spec
            .volumes
            .iter()
            .filter(|volume| volume.volume_source.ephemeral.is_some())
            .map(|volume| own_claim(pod, &volume.name))
            .collect();
        let bound = |name: String| {
            let claim = informers.claims.get(&ObjectKey::new(&pod.metadata.namespace, &name))?;
            if own.contains(&name) && !is_own(pod, &claim) {
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
        volumes.filter_map(|volume| Attachable::of(&volume)).filter(needs).collect()
    }
}
